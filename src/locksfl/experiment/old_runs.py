"""Run folders whose lines and summary were written before format 3, as one table each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from locksfl._arrays import unpack_arrays
from locksfl._tables import Record
from locksfl.arm import Arm, Noise
from locksfl.experiment.config import Config
from locksfl.experiment.outcome import Facts, run_of
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.public import public_model
from locksfl.experiment.record import (
    Counts,
    Debit,
    Finished,
    HeldOut,
    Line,
    Releases,
    Run,
    Scores,
    SecretRound,
    Tally,
    metrics_of,
    read,
)
from locksfl.experiment.records import public_round
from locksfl.privacy.ledger import read_run

SINCE_0_1 = ("held_out", "classes_public", "released_statistics", "population", "task", "unit")


def old_run(path: Path, config: Config, summary: Record, tables: Sequence[Record]) -> Run:
    """The run of a folder's summary and lines; of version 0.1, it is refused by what it lacks."""
    if lacking := [name for name in SINCE_0_1 if name not in summary]:
        raise ValueError(
            f"{path / 'summary.json'}: of version 0.1, for it has no {lacking[0]}; expected a run "
            "of a later version (of this one there is its ledger: locks privacy account)"
        )
    names = [item.name for item in fields(Noise)]
    noises = [Noise(**{n: one[n] for n in names if n in one}) for one in summary["arms"]]
    arms, owned, public = plan_arms(config, noises), summary["held_out"], summary["population"]
    meta, _ = unpack_arrays(path / f"model-{arms[0].name}.npz")
    facts = Facts(
        HeldOut(public=owned["public"], clients=owned["clients"]),
        summary["classes_public"],
        tuple(summary["released_statistics"]),
        sum(int(np.prod(shape)) for shape in meta["parameters"].values()),
    )
    lines = lines_of(tables, arms, facts.held_out.public)
    done = done_of(summary["arms"], path, config, summary["task"])
    debit = None if public is None else Debit(**public)
    return run_of(config, arms, read_run(path), lines, done, facts, debit)


def lines_of(tables: Sequence[Record], arms: Sequence[Arm], scores_public: bool) -> list[Line]:
    """The lines of rounds.jsonl, some of which may be old ones."""
    by_name = {arm.name: arm for arm in arms}
    return [
        read(Line, one) if "secret" in one else old_line(one, by_name[one["arm"]], scores_public)
        for one in tables
    ]


def done_of(tables: Sequence[Record], path: Path, config: Config, task: str) -> list[Finished]:
    """What a checkpoint or a summary has of finished arms."""
    return [
        read(Finished, one) if "model" in one else old_arm(one, path, config, task)
        for one in tables
    ]


def old_arm(summary: Record, path: Path, config: Config, task: str) -> Finished:
    """What was kept of a finished arm, in a summary or in a checkpoint."""
    file = path / f"model-{summary['name']}.npz"
    return Finished(
        name=summary["name"],
        model=hashlib.sha256(public_model(file, config.public())).hexdigest(),
        seconds=summary["seconds"],
        compile_seconds=summary["compile_seconds"],
        metrics=metrics_of(task, summary["metrics"]),
    )


def old_line(table: Record, arm: Arm, scores_public: bool) -> Line:
    """A line of rounds.jsonl."""
    scores, exact = _scores(table), arm.parts.trust.guards_server
    counts = None
    if isinstance(table["cohort"], int) and isinstance(table["uploads"], int):  # no estimates
        names = ("cohort", "uploads", "exhausted")
        counts = Counts(**{name: table[name] for name in names})
    released = Releases(
        norm_sum=table["released_norm_sum"],
        used_norm_sum=table["used_norm_sum"],
        uploads=table.get("released_count"),
        clip_norm=table.get("clip_norm"),
        expected_cohort=table.get("expected_cohort"),
        counts=counts if exact else None,
    )
    return Line(
        arm=arm.name,
        round=table["round"],
        public=public_round(arm, released, table["epsilon"], scores if scores_public else None),
        secret=SecretRound(
            released=released,
            counts=None if exact else counts,
            scores=None if scores_public else scores,
            stages={name: Tally(**one) for name, one in table.get("stages", {}).items()},
        ),
    )


def _scores(table: Mapping[str, float | None]) -> Scores | None:
    score = table.get("accuracy")
    score = table.get("r2") if score is None else score
    if score is None and table["loss"] is None:
        return None
    return Scores(score=score, loss=table["loss"])
