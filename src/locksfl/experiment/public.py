"""What may leave the server of a finished run: a `PublicRun`, and the models.

Nothing is copied whole. The words of a user that leave are these and no others:

    the experiment's name and its arms' names     they name the files of the bundle
    "package.module:name" of own code             a model, a rule, an estimator, an encoder
    the names of an own model's options           their values leave if they are numbers
    the names of an own model's parameters        with their shapes
    the population's id, and the names of runs    in its journal, if there is one
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._tables import Record
from locksfl.arm import Arm, Noise
from locksfl.data.task import Task
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import covered
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.record import (
    FORMAT,
    AnyMetrics,
    ClassMetrics,
    Cost,
    Counts,
    Covers,
    HeldOut,
    JournalRun,
    NumberMetrics,
    PublicArm,
    PublicRound,
    PublicRun,
    Scores,
    TagMetrics,
)
from locksfl.experiment.records import expected_cohort, score_of, upload_estimate
from locksfl.privacy.population import Total
from locksfl.privacy.terms import terms_of, with_strategy

MODEL = ("format", "classes", "scale")  # of a model's file, with the sizes of its parameters
METRICS: dict[str, type[AnyMetrics]] = {
    "classes": ClassMetrics,
    "numbers": NumberMetrics,
    "tags": TagMetrics,
}


def public_model(path: Path, config: Config) -> bytes:
    """The model of a run's file, written anew: its weights, and what it takes to build it. An
    encoder's weights stay behind. `config`: in its public form."""
    meta, arrays = unpack_arrays(path)
    told: Record = {"model": config.model.name, "data": config.data.name}
    told["options"] = _numbers(config.model.arguments())
    told |= _plain(meta, MODEL, ())
    told |= {name: meta[name] for name in ("shape", "parameters")}
    told["task"] = Task.from_dict(meta["task"]).as_dict()  # its range is public, and checked
    features = meta["features"] or {}
    records = {name: features[name] for name in ("shape", "scale") if features}
    sizes = {"shape": meta["shape"], **meta["parameters"], **records}
    if _numbers(sizes) != sizes:
        raise ValueError(f"{path}: damaged or not written by this program (shapes)")
    code = {"name": config.features.name, "file": config.features.file}
    told["features"] = {**code, **records} if features else None
    weights = {name: arrays.get(name, np.zeros(0)) for name in meta["parameters"]}
    if not all(each.size and each.dtype.kind == "f" for each in weights.values()):
        raise ValueError(f"{path}: damaged or not written by this program (weights)")
    return pack_arrays(told, {n: np.asarray(each, np.float32) for n, each in weights.items()})


def played_arms(config: Config, summary: Record) -> dict[str, Arm]:
    """The arms of a finished run by name, with the noise that they had."""
    names = [item.name for item in fields(Noise)]
    noises = [
        Noise(**{name: arm[name] for name in names if name in arm}) for arm in summary["arms"]
    ]
    return {arm.name: arm for arm in plan_arms(config, noises)}


def public_models(folder: RunFolder) -> dict[str, bytes]:
    """The files of the models, by the names of the arms."""
    config = folder.config.public()
    return {
        arm.name: public_model(folder.path / f"model-{arm.name}.npz", config) for arm in config.arm
    }


def public_run(folder: RunFolder, models: Mapping[str, bytes]) -> PublicRun:
    """All that may be known of a finished run. `models`: those of `public_models`."""
    config, summary, lines = folder.config, folder.summary(), folder.lines("rounds.jsonl")
    arms, held_out = played_arms(config, summary), summary["held_out"]
    sizes = {_parameters(folder.path / f"model-{name}.npz") for name in models}
    return PublicRun(
        format=FORMAT,
        version=metadata.version("locks-fl"),
        simulated=summary["simulated"],
        settings=config.public(),
        parameters=max(sizes),
        held_out=HeldOut(public=held_out["public"], clients=held_out["clients"]),
        classes_public=summary["classes_public"],
        released_statistics=tuple(summary["released_statistics"]),
        covers=_covers(covered(summary)),
        all_arms=_costs(summary["all_arms_composed"]),
        arms=tuple(
            _arm(
                one,
                arms[one["name"]],
                [line for line in lines if line["arm"] == one["name"]],
                METRICS[summary["task"]] if held_out["public"] else None,
                hashlib.sha256(models[one["name"]]).hexdigest(),
            )
            for one in summary["arms"]
        ),
    )


def _arm(
    summary: Record, arm: Arm, lines: list[Record], metrics: type[AnyMetrics] | None, model: str
) -> PublicArm:
    found, early = None, None
    if metrics is not None:
        measured = summary["metrics"]
        found = metrics(**{item.name: measured.get(item.name) for item in structs.fields(metrics)})
    if "played_rounds" in summary:  # decided by releases and public records
        early = _costs(summary["spent_so_far"])
    return PublicArm(
        name=arm.name,
        planned=arm.rounds,
        noise=arm.noise,
        terms=dict(with_strategy(terms_of(arm), arm)),
        privacy=_costs(summary["privacy"]),
        model=model,
        rounds=tuple(_round(line, arm, metrics is not None) for line in lines),
        metrics=found,
        claimed_epsilon=summary["claimed_epsilon"],
        spent_so_far=early,
    )


def _round(line: Record, arm: Arm, evaluated: bool) -> PublicRound:
    """A round of rounds.jsonl. Counts are exact where they are functions of what every client
    released; else the cohort is the expected one, and the uploads are estimated from releases."""
    counts = scores = None
    if arm.parts[2].guards_server:
        counts = Counts(**{name: line[name] for name in ("cohort", "uploads", "exhausted")})
    if evaluated and (score_of(line), line["loss"]) != (None, None):
        scores = Scores(score=score_of(line), loss=line["loss"])
    return PublicRound(
        epsilon=line["epsilon"],
        expected_cohort=expected_cohort(arm, line),
        upload_estimate=upload_estimate(arm, line),
        clip_norm=None if arm.clip_quantile is None else line["clip_norm"],
        scores=scores,
        counts=counts,
    )


def _costs(costs: Iterable[Record]) -> tuple[Cost, ...]:
    return tuple(Cost(**{name: one[name] for name in Cost.__struct_fields__}) for one in costs)


def _covers(told: Record | None) -> Covers | None:
    """What `coverage.covered` says of other runs over the same people."""
    if told is None:
        return None
    total = {item.name: told["total"][item.name] for item in fields(Total)}
    runs = [{name: one[name] for name in JournalRun.__struct_fields__} for one in told["runs"]]
    return Covers(
        run=told["run"],
        population=told["population"],
        total=Total(**total),
        spent_so_far=told["spent_so_far"],
        share=told["share"],
        runs=tuple(JournalRun(**one) for one in runs),
        composed=_costs(told["composed"]),
    )


def _parameters(model: Path) -> int:
    """How many numbers a model has."""
    sizes = unpack_arrays(model)[0]["parameters"].values()
    return sum(int(np.prod(shape)) for shape in sizes)


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


def _plain(table: Mapping[str, Any], fields: Iterable[str], words: Iterable[str]) -> Record:
    """The listed fields of a JSON table: numbers, truth values, nothing, and these words."""
    told = {name: table[name] for name in fields}
    for name, value in told.items():
        known = value in words if isinstance(value, str) else value is None
        if not known and not isinstance(value, bool | int | float):
            raise ValueError(f"{name} = {value!r}: not written by this program; nothing published")
    return told
