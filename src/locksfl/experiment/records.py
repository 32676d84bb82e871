"""Lines of a run: what the server may log of a round, and what only a simulation can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from locksfl._tables import Record, or_null
from locksfl.arm import Arm
from locksfl.methods.trusts import Trust
from locksfl.models.build import Model
from locksfl.simulate.simulator import RoundLog

BYTES = 4  # a float32
COUNTED = ("cohort", "uploads", "bytes_up", "bytes_down")

DIAGNOSTICS_NOTE = {
    "note": "Seen by this simulation and released to nobody: true norms and the like. "
    "They carry no privacy guarantee; a federation has no such file. Do not publish."
}


def round_record(arm: Arm, log: RoundLog, model: Model, epsilon: float | None) -> Record:
    """A line of rounds.jsonl. It belongs to the server: where the cohort is secret, so are its size
    and the uploads, and `public` has what may be shown in their place. A secret run does not tell
    them to its own log either, which then has nothing else."""
    record: Record = {
        "arm": arm.name,
        "round": log.round + 1,
        "accuracy": None,  # another task has another score
        model.task.score: or_null(log.accuracy),
        "loss": or_null(log.loss),
        "epsilon": epsilon,
        "exhausted": log.exhausted,
        "released_norm_sum": or_null(log.released_norm_sum) if arm.releases_norms else None,
        "used_norm_sum": or_null(log.used_norm_sum) if arm.releases_norms else None,
    }
    size, norms = model.size, arm.releases_norms
    if arm.counts:
        record["released_count"] = or_null(log.released_count)
    if arm.controlled:
        record["expected_cohort"] = log.expected_cohort
    if arm.clip_quantile is not None:
        record["clip_norm"] = log.clip_norm
    estimated = traffic(expected_cohort(arm, record), upload_estimate(arm, record), norms, size)
    if log.counts is not None:
        record |= traffic(*log.counts, norms, size)
    elif log.cohort is None or log.uploaded is None:
        record |= estimated
    else:
        uploads = int((log.uploaded if log.received is None else log.received).sum())
        record |= traffic(len(log.cohort), uploads, norms, size)
    if arm.parts[2].amplified:
        record["public"] = estimated
    return record if log.stages is None else {**record, "stages": log.stages}


def traffic(members: float, uploads: float, norms: bool, size: int) -> dict[str, float]:
    """Bytes are float32: the model of so many parameters to each member, a norm from each if norms
    are released, an update from each uploader."""
    up, down = members * norms + uploads * size, members * size
    return {
        "cohort": members,
        "uploads": uploads,
        "bytes_up": round(BYTES * up),
        "bytes_down": round(BYTES * down),
    }


def totals(lines: Sequence[Record]) -> dict[str, float]:
    """What rounds took together: a secret of the server, as the lines are. The noise of a released
    count averages out over rounds, so that only the sum is kept from falling below 0."""
    return {name: max(0, sum(line[name] for line in lines)) for name in COUNTED}


def stalled(lines: Sequence[Record], patience: int | None) -> bool:
    """Whether the last so many evaluations were all no better than the best before them. It
    follows from the lines of an arm alone: a run that is resumed stops where it would have."""
    found = [score for line in lines if (score := score_of(line)) is not None]
    if patience is None or len(found) <= patience:
        return False
    return bool(max(found[-patience:]) <= max(found[:-patience]))


def shown(record: Record) -> Record:
    """The counts of a round, or of an arm's summary, that may be shown to anybody: estimated from
    releases where the true ones are secret. Tables and figures take them from here."""
    return record.get("public") or record


def score_of(record: Record) -> float | None:
    """How good the model of a round, or of an arm, is on held-out records: its accuracy or, for
    numbers, R^2. None: not evaluated."""
    found: float | None = record.get("accuracy")
    return record.get("r2") if found is None else found


FEW = 0.5  # of the uploads that were asked for


def counted(counts: Mapping[str, int]) -> str:
    """Counts in words: BUDGET 3, missing 1."""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _tallies(lines: Sequence[Record], stages: Sequence[str]) -> list[Record]:
    """What became of a federation's questions in these stages."""
    return [t for line in lines for stage, t in line.get("stages", {}).items() if stage in stages]


def _unanswered(tallies: Sequence[Record]) -> str:
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts.update(tally["refused"])
        counts.update({name: tally[name] for name in ("rejected", "missing")})
    return counted(counts)


def untrained(lines: Sequence[Record], trust: Trust) -> str | None:
    """Why an arm of a federation was not trained, if so: no update ever came. Under a trust where
    updates are drawn by secrets: nobody answered anything, because this decides whether a run is
    published, and no data may decide that."""
    stages = ("update",) if trust.guards_server else ("norm", "update")
    for arm in dict.fromkeys(line["arm"] for line in lines if "stages" in line):
        mine = [line for line in lines if line["arm"] == arm]
        if not any(tally["answered"] for tally in _tallies(mine, stages)):
            why = _unanswered(_tallies(mine, ("norm", "update")))
            return f"arm {arm}: no device sent an update in {len(mine)} rounds" + (
                f" ({why})" if why else ""
            )
    return None


def few_uploads(arm: Arm, summary: Record, lines: Sequence[Record] = ()) -> str | None:
    """Why far fewer clients uploaded than an arm asked for, if so: from what may be shown. `lines`:
    its rounds, where devices may not have answered."""
    rule = arm.parts[0]
    asked = arm.uploads * summary.get("played_rounds", arm.rounds)
    share = shown(summary)["uploads"] / asked
    if share >= FEW or (rule.asks is not None and not rule.released):
        return None  # where nothing holds them, nobody asked for so many
    told = f"about {share:.0%} of the {asked:,.0f} uploads asked for came"
    if summary["exhausted"]:
        return f"{told}: {summary['exhausted']} clients have spent their budget."
    tallies = _tallies(lines, ("norm", "update"))
    questions = sum(tally["asked"] for tally in tallies)
    if sum(tally["answered"] for tally in tallies) < FEW * questions:
        return f"{told}: most of the {questions:,} questions failed ({_unanswered(tallies)})."
    if rule.asks is None:
        return None
    limit = "loss_bound" if "loss_bound" in rule.takes else "clip_norm"
    at = f"{limit} = {getattr(arm, limit):g}"
    lower = "norm_low" in rule.takes and arm.norm_low > arm.uploads / arm.cohort
    advice = f", or norm_low below {arm.norm_low:g}," if lower else ""
    return (
        f"{told}: a client uploads in proportion to its {rule.asks.name}, and most are small "
        f"beside {at}; a smaller {limit}{advice} brings more."
    )


def diagnostics_record(arm: Arm, log: RoundLog) -> Record:
    """A line of diagnostics.jsonl, of a round whose norms are known."""
    if log.norms is None:
        raise AssertionError("a secret run has no diagnostics")
    norms = log.norms[np.isfinite(log.norms)]
    shares = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    clip_norm = arm.clip_norm if log.clip_norm is None else log.clip_norm
    quantiles = {str(s): float(np.quantile(norms, s)) for s in shares} if norms.size else None
    return {
        "arm": arm.name,
        "round": log.round + 1,
        "norm_quantiles": quantiles,
        "clipped_fraction": float(np.mean(norms > clip_norm)) if norms.size else None,
        "signal": or_null(log.signal),
        "noise": or_null(log.noise),
        "signal_to_noise": or_null(log.signal / log.noise) if log.noise else None,
        "expected_weight": or_null(log.expected_weight),
        "nan_clients": int(np.sum(~np.isfinite(log.norms))),
    }


def expected_cohort(arm: Arm, record: Record) -> float:
    """The members that a round asks for on average: a public number."""
    return float(record.get("expected_cohort") or arm.cohort)


def upload_estimate(arm: Arm, record: Record) -> float:
    """The uploads of a round from released values only, so that it may be published. A released
    count is given with its noise, even below 0: sums over rounds are right then."""
    if (count := record.get("released_count")) is not None:
        return float(count)
    estimate = arm.parts[0].estimated_uploads
    if estimate is None or record["released_norm_sum"] is None:
        return arm.uploads
    if "clip_norm" in record:  # that of the round, if it adapts
        arm = replace(arm, clip_norm=record["clip_norm"])
    return estimate(record["released_norm_sum"], record["used_norm_sum"], arm)
