"""What may leave the server of a model: its weights, and what it takes to build it.

Nothing is copied whole. The words of a user that leave, here and in the settings
(`Config.public`), are these and no others:

    the experiment's name and its arms' names     they name the files of the bundle
    "package.module:name" of own code             a model, a rule, an estimator, an encoder
    the names of an own model's options           their values leave if they are numbers
    the names of an own model's parameters        with their shapes
    the population's id, and the names of runs    in its journal, if there is one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._tables import Record
from locksfl.data.task import Task
from locksfl.experiment.config import Config

MODEL = ("format", "classes", "scale")  # of a model's file, with the sizes of its parameters


def public_model(path: Path, config: Config) -> bytes:
    """The model of a run's file, written anew. `config`: the public settings."""
    try:
        return packed_model(*unpack_arrays(path), config)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def packed_model(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], config: Config
) -> bytes:
    """The public file of a model with this header. An encoder's weights stay behind."""
    header: Record = {"model": config.model.name, "data": config.data.name}
    header["options"] = _numbers(config.model.arguments())
    header |= _plain(meta, MODEL, ())
    header |= {name: meta[name] for name in ("shape", "parameters")}
    header["task"] = Task.from_dict(meta["task"]).as_dict()  # its range is public, and checked
    features = meta["features"] or {}
    records = {name: features[name] for name in ("shape", "scale") if features}
    sizes = {"shape": meta["shape"], **meta["parameters"], **records}
    if _numbers(sizes) != sizes:
        raise ValueError("damaged or not written by this program (shapes)")
    code = {"name": config.features.name, "file": config.features.file}
    header["features"] = {**code, **records} if features else None
    weights = {name: arrays.get(name, np.zeros(0)) for name in meta["parameters"]}
    if not all(each.size and each.dtype.kind == "f" for each in weights.values()):
        raise ValueError("damaged or not written by this program (weights)")
    return pack_arrays(header, {n: np.asarray(each, np.float32) for n, each in weights.items()})


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
    header = {name: table[name] for name in fields}
    for name, value in header.items():
        known = value in words if isinstance(value, str) else value is None
        if not known and not isinstance(value, bool | int | float):
            raise ValueError(f"{name} = {value!r}: not written by this program; nothing published")
    return header
