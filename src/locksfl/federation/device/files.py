"""The files of a device: its data, its owner's policy, its ledger, its key, and what it trains.

There are two ways to train: this package's models on a data file, as the experiment file says; or
any function of the owner, in any framework (`locksfl.federation.device.update`). No Flower here.
"""

from __future__ import annotations

import functools
import json
import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from locksfl.federation.device import Policy, Witness, consent
from locksfl.federation.device.answering import Device
from locksfl.federation.device.policy import read_toml
from locksfl.federation.device.update import Declared, LocalUpdate
from locksfl.federation.device.view import view_of

log = logging.getLogger(__name__)


class Spent(ValueError):
    """The device has done all that its policy allows: there is nothing to correct."""


@dataclass(frozen=True)
class DeviceFiles:
    """The files of one device. Either `update` or both `data` and `experiment`."""

    policy: Path
    ledger: Path
    key: Path  # beside it, the ledger's head is noted
    data: Path | None = None
    experiment: Path | None = None
    update: str | None = None  # "package.module:function"

    def __post_init__(self) -> None:
        if self.update is None and (self.data is None or self.experiment is None):
            raise ValueError(
                "--data is missing: expected --data FILE_OR_FOLDER and --experiment FILE, or "
                "--update package.module:function"
            )
        if self.update is not None and (self.data is not None or self.experiment is not None):
            raise ValueError(
                f"--update {self.update}: a training function brings its own data; expected no "
                "--data and no --experiment"
            )

    @functools.cached_property
    def witness(self) -> Witness:
        """The ledger, with what is known of it elsewhere; one object for the whole process."""
        return Witness(self.ledger, self.key)

    def begin(self, new_ledger: bool) -> tuple[Device, str]:
        """The device and one line about its ledger; `Spent` if there is nothing left to do, another
        ValueError if it has left.

        Args:
            new_ledger: create the ledger: only a person's command does this, never a message, and
                only when everything else is in order.
        """
        consent.check(self.key)
        policy = Policy.read(self.policy)
        if not new_ledger:
            told = self._told(policy)
            return self.open(), told
        self.witness.check_new()
        device = self.open()
        self.witness.create()
        return device, self._told(policy)

    def _told(self, policy: Policy) -> str:
        with self.witness.open(whole=True) as ledger:
            view = view_of(ledger, policy)
        if view["exhausted"]:
            raise Spent(view["message"])
        return str(view["message"])

    def open(self) -> Device:
        """The device, ready to answer."""
        policy = Policy.read(self.policy)
        return Device(self._update(), policy, self.witness)

    def _update(self) -> LocalUpdate:
        if self.data is not None and self.experiment is not None:
            return built_in_update(self.data, self.experiment)
        from locksfl._loading import load

        update: LocalUpdate = load("--update", str(self.update))
        parameters = getattr(update, "parameters", None)
        if type(parameters) is not int or parameters < 1:
            told = "" if parameters is None else f" ({parameters!r})"
            raise ValueError(
                f"--update {self.update}: does not say the size of its model{told}; expected "
                "update.parameters = N below the function, so that another model is refused "
                "before anything is paid"
            )
        return update


def built_in_update(data: Path, experiment: Path) -> LocalUpdate:
    """This package's training on the records of a file or of an imported folder. Only [model],
    [local] and [features] of the experiment file are read: the data that it names belong to the
    server."""
    import dataclasses

    from locksfl._tables import build_table
    from locksfl.data.npy_folder import open_part
    from locksfl.data.population import Population
    from locksfl.data.task import Task
    from locksfl.experiment.arm_config import ArmConfig
    from locksfl.experiment.config import Config, FeaturesConfig, LocalConfig, ModelConfig
    from locksfl.experiment.run import model_for
    from locksfl.federation.device.local_update import local_update
    from locksfl.models.public_features import with_features

    table = read_toml(experiment, "experiment")
    parts = {"model": ModelConfig, "local": LocalConfig, "features": FeaturesConfig}
    read: dict[str, Any] = {
        name: build_table(kind, table.get(name, {}), name) for name, kind in parts.items()
    }
    config = dataclasses.replace(Config(arm=[ArmConfig("device", cohort=1)]), **read)
    if data.is_dir():
        mine = open_part(data, held_out=False)
    else:
        arrays = read_data(data)
        features, labels = arrays["features"], arrays["labels"]
        mine = Population.from_split(
            features,
            labels,
            np.zeros(len(labels), np.int64),
            features[:1],
            labels[:1],
            classes=int(arrays["classes"]),
            task=Task.from_dict(json.loads(str(arrays["task"])) if "task" in arrays else None),
            name=data.name,
        )
    mine = with_features(mine, config.features.name, config.features.file)
    model, work = model_for(config, mine), config.local.work()
    update = local_update(model, work, mine.features, mine.labels, mine.scale)
    # compile now rather than during the first question
    if not np.isfinite(update(np.zeros(model.size, np.float32), 0)).all():
        log.warning("%s: the update is not finite, and would count as zero; look at the data", data)
    return Declared(update, model.size, model.name)


def read_data(path: Path) -> dict[str, np.ndarray]:
    """The records of a device: an .npz with `features`, `labels` and `classes`; labels that are no
    classes have a `task` too, that of a folder's header as JSON."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ValueError(f"{path}: no such data file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an .npz file of arrays ({error})") from None
    for name in ("features", "labels", "classes"):
        if name not in arrays:
            raise ValueError(
                f"{path}: has no {name!r}; expected np.savez(path, features=..., labels=..., "
                "classes=10)"
            )
    if len(arrays["features"]) != len(arrays["labels"]) or not len(arrays["labels"]):
        raise ValueError(f"{path}: expected as many features as labels, and at least one")
    return arrays
