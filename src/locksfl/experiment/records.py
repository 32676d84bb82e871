"""Lines of a run: what the server may log of a round, and what only a simulation can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from locksfl._tables import Record, or_null
from locksfl.arm import Arm
from locksfl.experiment.record import (
    Counts,
    Line,
    PublicRound,
    Releases,
    Run,
    Scores,
    SecretRound,
    Tally,
    plain,
)
from locksfl.methods import TRUSTS
from locksfl.models.build import Model
from locksfl.simulate.simulator import RoundLog

BYTES = 4  # a float32
COUNTED = ("cohort", "uploads", "bytes_up", "bytes_down")  # of a table

DIAGNOSTICS_NOTE = {
    "note": "Seen by this simulation and released to nobody: true norms and the like. "
    "They carry no privacy guarantee; a federation has no such file. Do not publish."
}


def round_line(arm: Arm, log: RoundLog, epsilon: float | None, scores_public: bool) -> Line:
    """A round as the server logs it. Where the cohort is secret, so are its size and the uploads; a
    secret run does not give them to its own log either. `epsilon`: of the rounds so far."""
    counts, scores = _counts(log), None
    if (log.accuracy, log.loss) != (None, None):
        scores = Scores(score=or_null(log.accuracy), loss=or_null(log.loss))
    if scores is not None and scores.score is scores.loss is None:
        scores = None
    exact = arm.parts.trust.guards_server  # counts are functions of what every client released
    released = Releases(
        norm_sum=or_null(log.released_norm_sum) if arm.releases_norms else None,
        used_norm_sum=or_null(log.used_norm_sum) if arm.releases_norms else None,
        uploads=or_null(log.released_count) if arm.counts else None,
        clip_norm=log.clip_norm if arm.clip_quantile is not None else None,
        expected_cohort=log.expected_cohort if arm.controlled else None,
        counts=counts if exact else None,
    )
    return Line(
        arm=arm.name,
        round=log.round + 1,
        public=public_round(arm, released, epsilon, scores if scores_public else None),
        secret=SecretRound(
            released=released,
            counts=None if exact else counts,
            scores=None if scores_public else scores,
            stages={name: Tally(**tally) for name, tally in (log.stages or {}).items()},
        ),
    )


def _counts(log: RoundLog) -> Counts | None:
    """True ones, if the log has them."""
    if log.counts is not None:
        members, uploads = log.counts
    elif log.cohort is None or log.uploaded is None:
        return None
    else:
        members = len(log.cohort)
        uploads = int((log.uploaded if log.received is None else log.received).sum())
    return Counts(cohort=int(members), uploads=int(uploads), exhausted=log.exhausted)


def public_round(
    arm: Arm, released: Releases, epsilon: float | None, scores: Scores | None
) -> PublicRound:
    """What anybody may know of a round: a function of what it released, of settings, and of scores
    on public records. Made once, when the round is logged."""
    return PublicRound(
        epsilon=epsilon,
        expected_cohort=released.expected_cohort or arm.cohort,
        upload_estimate=_uploads(arm, released),
        clip_norm=released.clip_norm,
        scores=scores,
        counts=released.counts,
    )


def _uploads(arm: Arm, released: Releases) -> float:
    """The uploads of a round from released values only. A released count is given with its noise,
    even below 0: sums over rounds are right then."""
    if released.uploads is not None:
        return released.uploads
    estimate = arm.parts.rule.estimated_uploads
    if estimate is None or released.norm_sum is None or released.used_norm_sum is None:
        return arm.uploads
    if released.clip_norm is not None:
        arm = replace(arm, clip_norm=released.clip_norm)
    return estimate(released.norm_sum, released.used_norm_sum, arm)


def round_record(arm: Arm, log: RoundLog, model: Model, epsilon: float | None) -> Record:
    """A round as one table, for `on_round` of the library and for grids. It belongs to the server:
    where the cohort is secret, `public` has what may be shown in place of its counts."""
    return flat(round_line(arm, log, epsilon, False), arm, model.task.score, model.size)


def flat(line: Line, arm: Arm, score: str, size: int) -> Record:
    """A line as one table; `score`: the name of the task's, `size`: of the model."""
    released, norms = line.secret.released, arm.releases_norms
    counts = line.public.counts or line.secret.counts
    record: Record = {
        "arm": line.arm,
        "round": line.round,
        "accuracy": None,  # another task has another score
        score: line.score,
        "loss": line.scores and line.scores.loss,
        "epsilon": line.public.epsilon,
        "exhausted": counts and counts.exhausted,
        "released_norm_sum": released.norm_sum,
        "used_norm_sum": released.used_norm_sum,
    }
    if arm.counts:
        record["released_count"] = released.uploads
    for name in ("expected_cohort", "clip_norm"):
        if (value := getattr(released, name)) is not None:
            record[name] = value
    public = traffic(line.public.expected_cohort, line.public.upload_estimate, norms, size)
    true = traffic(counts.cohort, counts.uploads, norms, size) if counts else public
    record |= true._asdict()
    if arm.parts.trust.amplified:
        record["public"] = public._asdict()
    if line.secret.stages:
        record["stages"] = {name: plain(tally) for name, tally in line.secret.stages.items()}
    return record


class Traffic(NamedTuple):
    """What a round took: clients and bytes."""

    cohort: float
    uploads: float
    bytes_up: float
    bytes_down: float


def traffic(members: float, uploads: float, norms: bool, size: int) -> Traffic:
    """Bytes are float32: the model of so many parameters to each member, a norm from each if norms
    are released, an update from each uploader."""
    up, down = members * norms + uploads * size, members * size
    return Traffic(members, uploads, round(BYTES * up), round(BYTES * down))


def totals(lines: Sequence[Record]) -> dict[str, float]:
    """What rounds took together: a secret of the server, as the lines are. The noise of a released
    count averages out over rounds, so that only the sum is kept from falling below 0."""
    return {name: max(0, sum(line[name] for line in lines)) for name in COUNTED}


def stalled(lines: Sequence[Line], patience: int | None) -> bool:
    """Whether the last so many evaluations were all no better than the best before them. It
    follows from the lines of an arm alone: a run that is resumed stops where it would have."""
    scores = [line.score for line in lines if line.score is not None]
    if patience is None or len(scores) <= patience:
        return False
    return max(scores[-patience:]) <= max(scores[:-patience])


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


def _tallies(rounds: Sequence[SecretRound]) -> list[Tally]:
    """What became of a federation's questions."""
    return [tally for one in rounds for tally in one.stages.values()]


def _unanswered(tallies: Sequence[Tally]) -> str:
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts.update(tally.refused)
        counts.update({"rejected": tally.rejected, "missing": tally.missing})
    return counted(counts)


def untrained(run: Run) -> str | None:
    """Why an arm of a federation was not trained, if so: no update ever came. Under a trust where
    updates are drawn by secrets: nobody answered anything, because this decides whether a run is
    published, and no data may decide that."""
    guarded = TRUSTS[run.public.settings.privacy.trust].guards_server
    for arm in run.secret.arms:
        asked = [one.stages for one in arm.rounds if one.stages]
        stages = ("update",) if guarded else ("norm", "update")
        if asked and not any(t.answered for one in asked for k, t in one.items() if k in stages):
            why = _unanswered(_tallies(arm.rounds))
            return f"arm {arm.name}: no device sent an update in {len(arm.rounds)} rounds" + (
                f" ({why})" if why else ""
            )
    return None


def few_uploads(
    arm: Arm, uploads: float, exhausted: int | None, rounds: Sequence[SecretRound]
) -> str | None:
    """Why far fewer clients uploaded than an arm asked for, if so: from what may be shown.

    Args:
        arm: its settings.
        uploads: in all rounds, as they may be shown.
        exhausted: clients that could not pay in the last round.
        rounds: those played, where devices may not have answered.
    """
    rule = arm.parts.rule
    asked = arm.uploads * len(rounds)
    share = uploads / asked
    if share >= FEW or (rule.asks is not None and not rule.released):
        return None  # where nothing holds them, nobody asked for so many
    fact = f"about {share:.0%} of the {asked:,.0f} uploads asked for came"
    if exhausted:
        return f"{fact}: {exhausted} clients have spent their budget."
    tallies = _tallies(rounds)
    questions = sum(tally.asked for tally in tallies)
    if sum(tally.answered for tally in tallies) < FEW * questions:
        return f"{fact}: most of the {questions:,} questions failed ({_unanswered(tallies)})."
    if rule.asks is None:
        return None
    limit = "loss_bound" if "loss_bound" in rule.takes else "clip_norm"
    at = f"{limit} = {getattr(arm, limit):g}"
    lower = "norm_low" in rule.takes and arm.norm_low > arm.uploads / arm.cohort
    advice = f", or norm_low below {arm.norm_low:g}," if lower else ""
    return (
        f"{fact}: a client uploads in proportion to its {rule.asks.name}, and most are small "
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
