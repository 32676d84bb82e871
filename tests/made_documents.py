"""Run folders of experiments that nobody has trained: their arms are planned and charged as a run's
are, and their rounds and models are made up. For what reads published documents."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from locksfl._arrays import pack_arrays
from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES
from locksfl.data.task import Task
from locksfl.experiment import coverage
from locksfl.experiment.config import Config, config_of
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import ClassMetrics, Metrics
from locksfl.experiment.run import _adapted
from locksfl.experiment.statement import unit_text
from locksfl.methods import TRUSTS
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total, best_order
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


def debited(config: Config, arms: list[Arm], before: int) -> dict[str, Any]:
    """A new journal with so many runs and then this one, and what a run notes of it."""
    privacy, order = config.privacy, None
    if TRUSTS[privacy.trust].amplified:
        order = best_order(100.0, privacy.delta, privacy.relation)
    PopulationJournal.make("patients", Total(100.0, privacy.delta, privacy.relation, order)).close()
    for number in range(before):
        coverage.debit(replace(config, name="earlier"), arms[:1], f"{number:02x}" * 16)
    head = coverage.debit(config, arms, "ff" * 16)
    return {"id": "patients", "run": "ff" * 16, "head": head}


MODEL = {"format": 1, "classes": 10, "scale": 1.0, "shape": [4], "features": None}
MODEL |= {"parameters": {"weights": [4]}, "task": Task().as_dict()}
METRICS = dict.fromkeys((*Metrics.__struct_fields__, *ClassMetrics.__struct_fields__), 0.5)


@functools.cache
def made_run(kind: str, before: int | None = None) -> Path:
    """The folder of a finished run of a kind. Do not write to it. With `before` it had no seed, and
    so many runs over its population came before it."""
    config = made_config(kind, before)
    folder = RunFolder.create(new_path(), config)
    arms = plan_arms(config)
    played = {arm.name: arm.rounds - (2 if config.train.stop_after else 0) for arm in arms}
    told = []
    for arm in arms:
        lines = made_lines(arm, config, played[arm.name])
        folder.append("rounds.jsonl", lines)
        told.append(made_summary(arm, config, lines))
        path = folder.path / f"model-{arm.name}.npz"
        path.write_bytes(pack_arrays(MODEL, {"weights": np.arange(1.0, 5.0)}))
    public = config.data.name in NAMES
    summary = {
        "name": config.name,
        "simulated": before is None,
        "tuned_without_privacy": config.privacy.tuned_without_privacy,
        "accounting": config.privacy.accounting,
        "no_guarantee": config.privacy.accounting == "as-printed",
        "filter": config.privacy.filter,
        "task": "classes",
        "unit": unit_text(config),
        "held_out": {"public": public, "clients": None},
        "classes_public": public,
        "released_statistics": [],
        "arms": told,
        "all_arms_composed": costs(arms, config),
        "population": None if before is None else debited(config, arms, before),
    }
    coverage.settle(config, arms, summary)
    folder.write_json("summary.json", summary)
    return folder.path


def costs(arms: list[Arm], config: Config, rounds: int | None = None) -> list[dict[str, Any]]:
    played = [replace(arm, rounds=rounds or arm.rounds) for arm in arms]
    return [cost.as_dict() for cost in statement(played, config.privacy)]


def made_lines(arm: Arm, config: Config, played: int) -> list[dict[str, Any]]:
    epsilons = epsilon_so_far(arm, config.privacy)
    rungs = arm.rungs if arm.controlled else (arm.cohort,)
    norms, members = arm.releases_norms, int(arm.cohort)
    found = []
    for number, epsilon in enumerate(epsilons[:played], 1):
        line = {"arm": arm.name, "round": number, "epsilon": epsilon, "exhausted": None}
        line |= {"accuracy": 0.1 * number, "loss": 2.0 / number}
        line |= {"released_norm_sum": 4.0 + number if norms else None, "used_norm_sum": 8.0}
        line |= {"cohort": members, "uploads": members - 1, "bytes_down": 16 * members}
        line["bytes_up"] = 16 * (members - 1) + (4 * members if norms else 0)
        line |= {"released_count": 7.5 + number} if arm.counts else {}
        line |= {"expected_cohort": rungs[number % len(rungs)]} if arm.controlled else {}
        line |= {"clip_norm": 1.0 + number} if arm.clip_quantile is not None else {}
        found.append(line)
    return found


def made_summary(arm: Arm, config: Config, lines: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("name", "rule", "estimator", "trust", "rounds", "clip_norm", "step")
    told = {name: getattr(arm, name) for name in names}
    told |= {name: lines[-1][name] for name in ("accuracy", "loss")}
    told |= {"asked_rounds": config.train.rounds, "metrics": METRICS}
    told |= {"noise_multiplier": arm.noise_multiplier or None}
    told |= {"norm_multiplier": arm.norm_multiplier or None}
    told |= {"ladder": list(arm.ladder)} if arm.ladder else {}
    told |= arm.scheme.facts(arm)
    told |= _adapted(arm, lines[-1]) if arm.clip_quantile is not None else {}
    told["claimed_epsilon"] = claimed_epsilon(arm, config.privacy)
    told["privacy"] = costs([arm], config)
    if config.train.stop_after:
        told["played_rounds"] = lines[-1]["round"]
        told["spent_so_far"] = costs([arm], config, lines[-1]["round"])
        if arm.budget is not None:  # as a ledger has it: no client was asked in every round
            for cost in told["spent_so_far"]:
                cost["epsilon"] *= 0.7
    return told


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
