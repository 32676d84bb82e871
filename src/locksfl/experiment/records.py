"""Lines of a run: what the server may log of a round, and what only a simulation can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from locksfl.arm import Arm
from locksfl.models.build import Model
from locksfl.simulate.simulator import RoundLog

BYTES = 4  # a float32
COUNTED = ("cohort", "uploads", "bytes_up", "bytes_down")

DIAGNOSTICS_NOTE = {
    "note": "Seen by this simulation and released to nobody: true norms and the like. "
    "They carry no privacy guarantee; a federation has no such file. Do not publish."
}


def round_record(arm: Arm, log: RoundLog, model: Model, epsilon: float | None) -> dict[str, Any]:
    """A line of rounds.jsonl. It belongs to the server: where the cohort is secret, so are its size
    and the uploads, and `public` has what may be shown in their place. A secret run does not tell
    them to its own log either, which then has nothing else."""
    record: dict[str, Any] = {
        "arm": arm.name,
        "round": log.round + 1,
        "accuracy": None,  # another task has another score
        model.task.score: _number(log.accuracy),
        "loss": _number(log.loss),
        "epsilon": epsilon,
        "exhausted": log.exhausted,
        "released_norm_sum": _number(log.released_norm_sum) if arm.releases_norms else None,
        "used_norm_sum": _number(log.used_norm_sum) if arm.releases_norms else None,
    }
    size = model.size
    if arm.counts:
        record["released_count"] = _number(log.released_count)
    if arm.controlled:
        record["expected_cohort"] = log.expected_cohort
    if arm.clip_quantile is not None:
        record["clip_norm"] = log.clip_norm
    estimated = _traffic(arm, expected_cohort(arm, record), upload_estimate(arm, record), size)
    if log.counts is not None:
        record |= _traffic(arm, *log.counts, size)
    elif log.cohort is None or log.uploaded is None:
        record |= estimated
    else:
        uploads = int((log.uploaded if log.received is None else log.received).sum())
        record |= _traffic(arm, len(log.cohort), uploads, size)
    if arm.parts[2].amplified:
        record["public"] = estimated
    return record if log.stages is None else {**record, "stages": log.stages}


def _traffic(arm: Arm, members: float, uploads: float, size: int) -> dict[str, float]:
    """Bytes are float32: the model to each member, a norm from each, an update from each
    uploader."""
    norms = members if arm.releases_norms else 0
    up, down = norms + uploads * size, members * size
    return {
        "cohort": members,
        "uploads": uploads,
        "bytes_up": round(BYTES * up),
        "bytes_down": round(BYTES * down),
    }


def totals(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What rounds took together: a secret of the server, as the lines are. The noise of a released
    count averages out over rounds, so that only the sum is kept from falling below 0."""
    return {name: max(0, sum(line[name] for line in lines)) for name in COUNTED}


def stalled(lines: Sequence[dict[str, Any]], patience: int | None) -> bool:
    """Whether the last so many evaluations were all no better than the best before them. It
    follows from the lines of an arm alone: a run that is resumed stops where it would have."""
    found = [score for line in lines if (score := score_of(line)) is not None]
    if patience is None or len(found) <= patience:
        return False
    return bool(max(found[-patience:]) <= max(found[:-patience]))


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """The counts of a round, or of an arm's summary, that may be shown to anybody: estimated from
    releases where the true ones are secret. Tables and figures take them from here."""
    counts: dict[str, Any] = record.get("public") or record
    return counts


def score_of(record: dict[str, Any]) -> float | None:
    """How good the model of a round, or of an arm, is on held-out records: its accuracy or, for
    numbers, R^2. None: not evaluated."""
    found: float | None = record.get("accuracy")
    return record.get("r2") if found is None else found


FEW = 0.5  # of the uploads that were asked for


def few_uploads(arm: Arm, summary: dict[str, Any]) -> str | None:
    """Why far fewer clients uploaded than an arm asked for, if so: from what may be shown."""
    rule = arm.parts[0]
    asked = arm.uploads * summary.get("played_rounds", arm.rounds)
    share = shown(summary)["uploads"] / asked
    if share >= FEW or (rule.asks is not None and not rule.released):
        return None  # where nothing holds them, nobody asked for so many
    told = f"about {share:.0%} of the {asked:,.0f} uploads asked for came"
    if summary["exhausted"]:
        return f"{told}: {summary['exhausted']} clients have spent their budget."
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


def diagnostics_record(arm: Arm, log: RoundLog) -> dict[str, Any]:
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
        "signal": _number(log.signal),
        "noise": _number(log.noise),
        "signal_to_noise": _number(log.signal / log.noise) if log.noise else None,
        "expected_weight": _number(log.expected_weight),
        "nan_clients": int(np.sum(~np.isfinite(log.norms))),
    }


def expected_cohort(arm: Arm, record: dict[str, Any]) -> float:
    """The members that a round asks for on average: a public number."""
    return float(record.get("expected_cohort") or arm.cohort)


def upload_estimate(arm: Arm, record: dict[str, Any]) -> float:
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


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if value is not None and np.isfinite(value) else None
