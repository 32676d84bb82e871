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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl.data.task import Task
from locksfl.experiment.config import Config

SIZES = ("format", "classes", "scale", "shape", "parameters")  # of a model's file


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
    features = meta["features"] or {}
    encoded = {name: features[name] for name in ("shape", "scale") if features}
    sizes = {name: meta[name] for name in SIZES}
    weights = {name: arrays.get(name, np.zeros(0)) for name in meta["parameters"]}
    if not _are_numbers([sizes, encoded]):
        raise ValueError("damaged or not written by this program (shapes)")
    if not all(each.size and each.dtype.kind == "f" for each in weights.values()):
        raise ValueError("damaged or not written by this program (weights)")
    code = {"name": config.features.name, "file": config.features.file}
    header = {
        "model": config.model.name,
        "data": config.data.name,
        "options": config.model.arguments(),
        **sizes,
        "task": Task.from_dict(meta["task"]).as_dict(),  # its range is public, and checked
        "features": {**code, **encoded} if features else None,
    }
    return pack_arrays(header, {n: np.asarray(each, np.float32) for n, each in weights.items()})


def _are_numbers(value: Any) -> bool:
    """Whether there is nothing else in it: a text could be a path. Names of parameters may be
    there."""
    if isinstance(value, Mapping):
        return _are_numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return all(map(_are_numbers, value))
    return value is None or isinstance(value, bool | int | float)
