"""What may leave the server, field by field: the lists that a bundle is made from.

Nothing is copied whole. A field that is on no list stays behind, so that a new setting, a new line
of a log or a new array is private until somebody puts it here. A listed value is a number, a truth
value or a word of the program's own; the words of a user that leave are these and no others:

    the experiment's name and its arms' names     they name the files of the bundle
    "package.module:name" of own code             a model, a rule, an estimator, an encoder
    the names of an own model's options           their values leave if they are numbers
    the names of an own model's parameters        with their shapes
    the population's id, and the names of runs    in its journal, if there is one
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES
from locksfl.data.task import Task
from locksfl.experiment.arm_config import SETTINGS
from locksfl.experiment.config import OWN_DATA, Config, to_table
from locksfl.experiment.records import COUNTED, expected_cohort, upload_estimate
from locksfl.methods.events import terms_to_json
from locksfl.methods.releases import ACCOUNTANTS, OBSERVERS, RELATIONS
from locksfl.privacy.terms import terms_of, with_strategy

EVALUATED = ("accuracy", "r2", "loss")  # on held-out records: only if these are public
METRICS = (  # the same; no table of them, and nothing of a client
    "accuracy", "r2", "baseline", "gain", "gain_low", "gain_high", "loss", "balanced_accuracy",
    "auc", "f1", "f1_micro", "f1_macro", "exact_match", "baseline_exact_match",
    "calibration_error", "mae", "rmse", "baseline_mae", "baseline_rmse",
)  # fmt: skip
COST = ("observer", "relation", "epsilon", "delta", "accountant")
ROUND = ("arm", "round", "epsilon")
MODEL = ("format", "classes", "scale")  # of a model's file, with the sizes of its parameters
ARM = (
    "name", "rule", "estimator", "trust", "rounds", "clip_norm", "step", "asked_rounds",
    "noise_multiplier", "norm_multiplier", "claimed_epsilon",
)  # fmt: skip
COVERS = ("run", "population", "spent_so_far", "share")  # of a population's journal
TOTAL = ("epsilon", "delta", "relation", "order", "observer", "filter")
OTHER_RUN = ("run", "epsilon", "share")  # not when it was, nor who took part
STATISTIC = re.compile(  # as `data.recipe` words a release
    r"released with epsilon [0-9.e+-]+, charged to '[\w.-]{1,100}'"
    r"(; its noise hides a smaller std)?"
)
SUMMARY = ("name", "simulated", "tuned_without_privacy", "accounting", "no_guarantee", "filter")
CONFIG: Record = {  # data.name, features.file and model.options: see `public_table`
    "name": None,
    "engine": None,
    "data": {
        **dict.fromkeys(("clients", "split_seed", "unit", "min_samples", "max_samples")),
        "split": dict.fromkeys(("kind", "classes", "alpha")),
    },
    "model": dict.fromkeys(("name", "hidden")),
    "features": dict.fromkeys(("name",)),
    "local": dict.fromkeys(
        (
            "update", "epochs", "batch", "step", "min_samples", "max_samples", "precision",
            "weight", "reference_samples", "proximal", "control", "anchor_every", "anchor_ratio",
        )
    ),
    "train": {
        **dict.fromkeys(
            (
                "rounds", "clip_norm", "lengths", "clip_quantile", "clip_rate", "average_last",
                "evaluate_every", "stop_after",
            )
        ),
        "optimizer": dict.fromkeys(("name", "step", "schedule", "momentum")),
    },
    "privacy": dict.fromkeys(
        (
            "trust", "epsilon", "delta", "accountant", "relation", "tuned_without_privacy",
            "filter", "releases", "max_epsilon", "accounting", "population", "total",
        )
    ),
    "diagnostics": dict.fromkeys(("every", "clients")),
}  # fmt: skip


def public_table(config: Config) -> Record:
    """The experiment without seed, paths and texts of own options. Its values were checked when the
    configuration was read: a listed text is one of the program's, or code of the user's own."""
    table = to_table(config)
    told = _listed(table, CONFIG)
    told["data"]["name"] = public_name(config)
    told["model"]["options"] = _numbers(config.model.options)
    if (
        told["privacy"].get("epsilon") == math.inf
    ):  # JSON has none, and without noise it is the same
        del told["privacy"]["epsilon"]
    if file := _public_encoder(config):
        told["features"]["file"] = file
    told["arm"] = [_listed(arm, dict.fromkeys(SETTINGS)) for arm in table["arm"]]
    return told


def _public_encoder(config: Config) -> str | None:
    """Own code by its name, a file by none."""
    suffix = Path(config.features.file or "").suffix
    return f"encoder{suffix}" if suffix in (".npy", ".npz") else config.features.file


def public_name(config: Config) -> str:
    """The data's name, if it is one of the program's sets."""
    return config.data.name if config.data.name in NAMES else OWN_DATA


def public_model(path: Path, config: Config) -> bytes:
    """The model of a run's file, written anew: its weights, and what it takes to build it. An
    encoder's weights stay behind."""
    meta, arrays = unpack_arrays(path)
    told: Record = {"model": config.model.name, "data": public_name(config)}
    told["options"] = _numbers(config.model.arguments())
    told |= _plain(meta, MODEL, ())
    told |= {name: meta[name] for name in ("shape", "parameters")}
    told["task"] = Task.from_dict(meta["task"]).as_dict()  # its range is public, and checked
    features = meta["features"] or {}
    records = {name: features[name] for name in ("shape", "scale") if features}
    sizes = {"shape": meta["shape"], **meta["parameters"], **records}
    if _numbers(sizes) != sizes:
        raise ValueError(f"{path}: damaged or not written by this program (shapes)")
    code = {"name": config.features.name, "file": _public_encoder(config)}
    told["features"] = {**code, **records} if features else None
    weights = {name: arrays.get(name, np.zeros(0)) for name in meta["parameters"]}
    if not all(each.size and each.dtype.kind == "f" for each in weights.values()):
        raise ValueError(f"{path}: damaged or not written by this program (weights)")
    return pack_arrays(told, {n: np.asarray(each, np.float32) for n, each in weights.items()})


def public_round(line: Record, arm: Arm, evaluated: bool) -> Record:
    """A round of rounds.jsonl. Counts are exact where they are functions of what every client
    released; else the cohort is the expected one, and the uploads are estimated from releases."""
    told = _plain(line, (*ROUND, *(_present(line, EVALUATED) if evaluated else ())), {arm.name})
    told["expected_cohort"] = expected_cohort(arm, line)
    told["upload_estimate"] = upload_estimate(arm, line)
    if arm.clip_quantile is not None:  # a function of releases
        told |= _plain(line, ("clip_norm",), ())
    if arm.parts[2].guards_server:
        told |= _plain(line, (*COUNTED, "exhausted"), ())
    elif "public" in line:  # not where nobody adds noise
        told["bytes_up_estimate"] = _plain(line["public"], ("bytes_up",), ())["bytes_up"]
    return told


def public_arm(summary: Record, arm: Arm, rounds: Iterable[Record], evaluated: bool) -> Record:
    """An arm of summary.json; `rounds` are its public ones."""
    words = {arm.name, arm.rule, arm.estimator, arm.trust}
    told = _plain(summary, (*ARM, *(_present(summary, EVALUATED) if evaluated else ())), words)
    if evaluated:
        found = summary["metrics"]
        told["metrics"] = _plain(found, _present(found, METRICS), ())
    if arm.clip_quantile is not None:  # with what was adapted from releases
        told |= _plain(summary, ("clip_multiplier", "last_clip_norm"), ())
    if "played_rounds" in summary:  # decided by releases and public records
        told |= _plain(summary, ("played_rounds",), ())
        told["spent_so_far"] = public_costs(summary["spent_so_far"])
    if arm.ladder:  # the noise of every rung: read from the summary, and checked to be numbers
        told["ladder"] = list(arm.ladder)
    told |= arm.scheme.facts(arm)
    told["privacy"] = public_costs(summary["privacy"])
    told["terms"] = public_terms(arm)
    rounds = list(rounds)
    told["expected_cohort"] = sum(line["expected_cohort"] for line in rounds) / len(rounds)
    told["upload_estimate"] = max(0, sum(line["upload_estimate"] for line in rounds))
    return told


def public_costs(costs: Iterable[Record]) -> list[Record]:
    """Epsilons, by observer and relation."""
    words = {*OBSERVERS, *RELATIONS, *ACCOUNTANTS, "gdp", "none"}  # who charged it, or nobody
    return [_plain(cost, COST, words) for cost in costs]


def public_terms(arm: Arm) -> Record:
    """What an arm releases to each observer, from which its epsilons follow."""
    return terms_to_json(with_strategy(terms_of(arm), arm))


def public_summary(summary: Record, config: Config) -> Record:
    """summary.json without its arms."""
    told = _plain(summary, SUMMARY, {config.name, config.privacy.accounting})
    told["all_arms_composed"] = public_costs(summary["all_arms_composed"])
    return told


def public_statistics(summary: Record) -> list[str]:
    """How statistics of the data were released."""
    told: list[str] = summary["released_statistics"]
    for one in told:
        if not STATISTIC.fullmatch(one):
            raise ValueError(f"released_statistics = {one!r}: not written by this program")
    return told


def public_covers(covers: Record | None) -> Record | None:
    """What `coverage.covered` tells of other runs over the same people."""
    if covers is None:
        return None
    total, runs = covers["total"], covers["runs"]
    names = {covers["run"], covers["population"], *(run["run"] for run in runs)}
    return {
        **_plain(covers, COVERS, names),
        "total": _plain(total, TOTAL, {*OBSERVERS, *RELATIONS, total["filter"]}),
        "runs": [_plain(run, OTHER_RUN, names) for run in runs],
        "composed": public_costs(covers["composed"]),
    }


def held_out(summary: Record) -> Record:
    """Whose the held-out records of a run are."""
    return _plain(summary["held_out"], ("public", "clients"), ())


def _listed(table: Mapping[str, Any], fields: Mapping[str, Any]) -> Record:
    """The listed fields of a table, and of the tables in it."""
    return {
        name: table[name] if inner is None else _listed(table[name], inner)
        for name, inner in fields.items()
        if name in table
    }


def _numbers(options: Mapping[str, Any]) -> Record:
    """The options that are numbers, truth values, or lists of such: a text could be a path."""
    return {
        name: value
        for name, value in options.items()
        if all(
            isinstance(one, bool | int | float)
            for one in (value if isinstance(value, list | tuple) else [value])
        )
    }


def _present(table: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    return [name for name in fields if name in table]


def _plain(table: Mapping[str, Any], fields: Iterable[str], words: Iterable[str]) -> Record:
    """The listed fields of a JSON table: numbers, truth values, nothing, and these words."""
    told = {name: table[name] for name in fields}
    for name, value in told.items():
        known = value in words if isinstance(value, str) else value is None
        if not known and not isinstance(value, bool | int | float):
            raise ValueError(f"{name} = {value!r}: not written by this program; nothing published")
    return told
