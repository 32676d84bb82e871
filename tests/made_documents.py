"""Run folders of experiments that nobody has trained: their arms are planned and charged as a run's
are, and their rounds and models are made up. For what reads published documents."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from msgspec import structs

from locksfl._arrays import pack_arrays
from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES
from locksfl.data.task import Task
from locksfl.experiment import coverage
from locksfl.experiment.config import Config, config_of
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.outcome import Facts, run_of
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.public import public_model
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import (
    ClassMetrics,
    Cost,
    Debit,
    Finished,
    HeldOut,
    Line,
    Run,
    plain,
)
from locksfl.experiment.records import round_line
from locksfl.experiment.run import ledger_header
from locksfl.methods import TRUSTS
from locksfl.privacy.journal import Books
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total, best_order
from locksfl.simulate.simulator import RoundLog
from small_runs import new_path

SETTINGS: dict[str, Any] = {
    "name": "made",
    "seed": 1,
    "data": {"clients": 60, "split": {"kind": "iid"}},
    "train": {"rounds": 6},
    "privacy": {"trust": "central"},
}
NOISE = {"noise_multiplier": 1.3}
NORMS = {"rule": "norm", "cohort": 12, "uploads": 6, **NOISE, "norm_multiplier": 4.0}
LOCAL = {"trust": "local"}
UNIFORM, COIN = {"cohort": 12, **NOISE}, {"rule": "coin", "cohort": 20, **NOISE}
TURNS = {"sampling": "cyclic", "separation": 3, **NOISE}
CALIBRATED = {"epsilon": 6.0}
BITS = {"clip_quantile": 0.5, "clip_multiplier": 3.0}

# by name: the arms, and settings of [privacy] and [train]
KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "uniform": ([UNIFORM], {}, {}),
    "uniform by rdp, replace": ([UNIFORM], {"accountant": "rdp", "relation": "replace"}, {}),
    "full": ([{"rule": "full", **NOISE}], {}, {}),
    "norm": ([NORMS], {}, {}),
    "norm by rdp": ([NORMS], {"accountant": "rdp"}, {}),
    "coin": ([COIN], {}, {}),
    "coin, rate control": ([{"rule": "coin", "cohort": 20, "uploads": 14}], CALIBRATED, {}),
    "adaptive clipping": ([{**UNIFORM, **BITS}], {}, {}),
    "adaptive clipping, coin": ([{**COIN, **BITS}], {}, {}),
    "adaptive clipping, norm": ([{**NORMS, **BITS}], {}, {}),
    "dpis": ([{"rule": "dpis", "uploads": 45}], CALIBRATED, {}),
    "aocs": ([{**NORMS, "rule": "aocs"}], {}, {}),
    "local": ([{**UNIFORM, "noise_multiplier": 9.0}], LOCAL, {}),
    "local, norms": ([NORMS | {"noise_multiplier": 9.0}], LOCAL, {}),
    "local, everybody": ([{"rule": "full", "noise_multiplier": 9.0}], LOCAL, {}),
    "local, two arms": ([{**UNIFORM, "name": "a"}, {**NORMS, "name": "b"}], LOCAL, {}),
    "local, filter": ([NORMS | NOISE], {**LOCAL, "filter": True, "epsilon": 30.0}, {}),
    "local, filter, stopped early": (
        [NORMS | NOISE],
        {**LOCAL, "filter": True, "epsilon": 30.0},
        {"stop_after": 2},
    ),
    "as printed": (
        [{"rule": "norm", "cohort": 12, "uploads": 6}],
        {**LOCAL, "epsilon": 8.0, "accounting": "as-printed"},
        {},
    ),
    "turns": ([TURNS], {}, {}),
    "none": ([{"cohort": 12}], {"trust": "none"}, {}),
    "limited": ([UNIFORM], {"max_epsilon": 2.0}, {"rounds": 30}),
    "stopped early": ([UNIFORM], {}, {"stop_after": 2}),
    "two arms": ([{**UNIFORM, "name": "a"}, {**NORMS, "name": "b"}], {}, {}),
    "turns beside coins": (
        [{"name": "a", **TURNS, "bands": 1}, {**UNIFORM, "name": "b"}],
        {},
        {},
    ),
    "rate control beside coins": (
        [{"name": "a", "rule": "coin", "cohort": 20, "uploads": 14}, {"name": "b", "cohort": 12}],
        CALIBRATED,
        {},
    ),
}


def made_config(kind: str, before: int | None = None) -> Config:
    arms, privacy, train = KINDS[kind]
    table = {**SETTINGS, "arm": [{"name": "arm", **arm} for arm in arms]}
    table["privacy"] = {**SETTINGS["privacy"], **privacy}
    table["train"] = {**SETTINGS["train"], **train}
    if before is not None:
        del table["seed"]
        table["privacy"]["population"] = "patients"
    return config_of(table)


def debited(config: Config, arms: list[Arm], before: int) -> Debit:
    """A new journal with so many runs and then this one, and what a run notes of it."""
    privacy, order = config.privacy, None
    if TRUSTS[privacy.trust].amplified:
        order = best_order(100.0, privacy.delta, privacy.relation)
    PopulationJournal.make("patients", Total(100.0, privacy.delta, privacy.relation, order)).close()
    for number in range(before):
        coverage.debit(replace(config, name="earlier"), arms[:1], f"{number:02x}" * 16)
    head = coverage.debit(config, arms, "ff" * 16)
    assert head is not None
    return Debit(id="patients", run="ff" * 16, head=head)


MODEL = {"format": 1, "classes": 10, "scale": 1.0, "shape": [4], "features": None}
MODEL |= {"parameters": {"weights": [4]}, "task": Task().as_dict()}
METRICS = dict.fromkeys(ClassMetrics.__struct_fields__, 0.5)


@functools.cache
def made_run(kind: str, before: int | None = None) -> Path:
    """The folder of a finished run of a kind. Do not write to it. With `before` it had no seed, and
    so many runs over its population came before it."""
    config = made_config(kind, before)
    folder = RunFolder.create(new_path(), config)
    arms, public = plan_arms(config), config.data.name in NAMES
    lines, done, books = [], [], Books(ledger_header("made", arms, config.privacy))
    for arm in arms:
        path = folder.path / f"model-{arm.name}.npz"
        path.write_bytes(pack_arrays(MODEL, {"weights": np.arange(1.0, 5.0)}))
        digest = hashlib.sha256(public_model(path, config.public())).hexdigest()
        times = {"seconds": 1.0, "compile_seconds": 1.0}
        metrics = ClassMetrics(**METRICS)
        done.append(Finished(name=arm.name, model=digest, metrics=metrics, **times))
        lines += made_lines(arm, config, arm.rounds - (2 if config.train.stop_after else 0))
    folder.append("rounds.jsonl", map(plain, lines))
    facts = Facts(HeldOut(public=public), public, (), 4)
    debit = None if before is None else debited(config, arms, before)
    run = run_of(config, arms, books, lines, done, facts, debit)
    if config.train.stop_after:
        run = spent_early(run, arms, config)
    if debit is not None:
        played = [arm.played for arm in run.public.arms]
        debit = coverage.settle(config, arms, played, debit)
        run = structs.replace(run, secret=structs.replace(run.secret, population=debit))
    folder.write_json("summary.json", plain(run))
    return folder.path


def spent_early(run: Run, arms: list[Arm], config: Config) -> Run:
    """With what the arms had spent when they ended, as a ledger has it: where clients send messages
    of their own, none was asked in every round."""
    told = []
    for arm, one in zip(arms, run.public.arms, strict=True):
        spent = Cost.of(statement([replace(arm, rounds=one.played)], config.privacy))
        if arm.budget is not None:
            spent = tuple(structs.replace(cost, epsilon=cost.epsilon * 0.7) for cost in spent)
        told.append(structs.replace(one, spent_so_far=spent))
    return structs.replace(run, public=structs.replace(run.public, arms=tuple(told)))


def made_lines(arm: Arm, config: Config, played: int) -> list[Line]:
    rungs = arm.rungs if arm.controlled else (arm.cohort,)
    norms, members, lines = arm.releases_norms, int(arm.cohort), []
    for number, epsilon in enumerate(epsilon_so_far(arm, config.privacy)[:played], 1):
        log = RoundLog(
            round=number - 1,
            released_norm_sum=4.0 + number if norms else math.nan,
            used_norm_sum=8.0,
            noise=0.0,
            accuracy=0.1 * number,
            loss=2.0 / number,
            counts=(members, members - 1),
            released_count=7.5 + number,
            expected_cohort=rungs[number % len(rungs)],
            clip_norm=1.0 + number,
        )
        lines.append(round_line(arm, log, epsilon, config.data.name in NAMES))
    return lines


@functools.cache
def made_bundle(kind: str, before: int | None = None) -> Path:
    """The bundle of it. Do not write to it."""
    target = new_path()
    with mock.patch.dict(os.environ, {VARIABLE: str(new_path())}):
        publish_folder(made_run(kind, before), target)
    return target


def page(document: dict[str, Any]) -> str:
    """The least page that has a document."""
    told = json.dumps(document).replace("</", "<\\/")
    script = f'<script type="application/json" id="locks-public">{told}</script>'
    return f"<!doctype html><title>a page</title>{script}"
