"""What is to be tuned, and how: everything that can be refused without the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from locksfl._tables import Record
from locksfl._validate import naming
from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES, same_records
from locksfl.data.datasets import find_folder, has_users
from locksfl.data.npy_folder import read_header
from locksfl.experiment.config import Config, DataConfig, changed, config_of, to_table
from locksfl.grids.comparison.cases import CHOOSES_NOISE

AROUND = (1 / 3, 1.0, 3.0)  # of an arm's own clip norm and reach, where no values are given


def short(value: float) -> float:
    """A number that can be read in a file, and is used as it is written."""
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Axes:
    """The values to try; where none are given, those around an arm's own."""

    clip_norm: tuple[float, ...] = ()
    reach: tuple[float, ...] = ()  # clip norm times step
    rounds: tuple[int, ...] = ()
    seeds: int = 2  # of each public trial

    def of(self, arm: Arm, *, private: bool) -> list[list[float]]:
        """Clip norms and reaches for an arm. Every private trial costs: its own clip norm only."""
        clips = self.clip_norm or [x * arm.clip_norm for x in ((1.0,) if private else AROUND)]
        reaches = self.reach or [x * arm.clip_norm * arm.step for x in AROUND]
        return [sorted(map(short, axis)) for axis in (clips, reaches)]


@dataclass(frozen=True)
class Task:
    """An experiment that can be tuned."""

    table: Record  # as its file and --set have it
    config: Config
    axes: Axes
    public: Config | None = None  # the experiment on public data; None: private
    epsilon: float = 0.0  # of the private trials of each arm together

    @property
    def identity(self) -> str:
        """What the same command has in common."""
        other = self.public and to_table(self.public)
        identity = (to_table(self.config), other, self.epsilon, asdict(self.axes))
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def public_task(
    table: Record, changes: Sequence[str], axes: Axes, name: str, public_changes: Sequence[str]
) -> Task:
    """The experiment, and the same on public data. Those that name no users are dealt to as many
    clients, by the experiment's own split if it has one."""
    table, config = _experiment(table, changes)
    if name not in NAMES:
        with naming(**{"data.name": "--public"}):
            find_folder(name, config.data.dir)  # refuses what is no data set
    kept = {key: getattr(config.data, key) for key in ("dir", "max_samples")}
    data: Record = {"name": name, **{key: value for key, value in kept.items() if value}}
    if not has_users(name):
        split = config.data.split
        dealt = {"kind": split.kind, **split.options()}
        data |= {"clients": config.data.clients}
        data |= {"split": {"kind": "iid"} if split.kind == "natural" else dealt}
    public = config_of({**table, "data": data}, public_changes)
    if _same(config.data, public.data):
        raise ValueError(
            f"--public {public.data.name}: these are the experiment's own records; expected other "
            "ones, or --private, which charges every trial"
        )
    mine, theirs = config.clients, public.clients
    if mine != theirs and any(arm.cohort >= mine for arm in config.arms):
        raise ValueError(
            f"--public {name}: it has {theirs} clients, and an arm that asks everyone would have "
            f"other noise than with {mine}; expected as many (--public-set data.clients={mine})"
        )
    return Task(table, config, axes, public)


def private_task(
    table: Record, changes: Sequence[str], axes: Axes, epsilon: float | None = None
) -> Task:
    """The experiment, if its trials can be charged."""
    table, config = _experiment(table, changes)
    privacy, epsilon = config.privacy, epsilon or config.privacy.epsilon
    if config.seed is not None:
        raise ValueError(
            f"seed = {config.seed}: a simulation is charged to nobody; --private expects no seed"
        )
    if privacy.population is None:
        raise ValueError(
            "privacy.population is missing: --private debits every trial to its journal (locks "
            "privacy population makes one)"
        )
    if axes.rounds:
        raise ValueError(
            f"--rounds {','.join(map(str, axes.rounds))}: private trials are arms of one run and "
            "share its rounds; expected --set train.rounds=N, or --public"
        )
    for name, usual in CHOOSES_NOISE.items():
        if name != "epsilon" and (value := getattr(privacy, name)) != usual:
            raise ValueError(
                f"privacy.{name} = {value!r}: --private finds the noise of its trials from an "
                "epsilon alone; leave it out"
            )
    if epsilon is None:
        raise ValueError("--epsilon is missing: what the trials of each arm may cost together")
    for arm in config.arms:
        if not arm.private or arm.rungs or not arm.scheme.planned or arm.noise_multiplier:
            raise ValueError(
                f"arm.{arm.name}: --private expects a trust that adds noise, a cohort of coins at "
                "one rate with one noise, and no noise_multiplier"
            )
    return Task(table, config, axes, epsilon=epsilon)


def _experiment(table: Record, changes: Sequence[str]) -> tuple[Record, Config]:
    table = changed(table, changes)
    config = config_of(table)
    if config.engine is not None:
        raise ValueError(f"engine = {config.engine!r}: expected none; trials are played here")
    return table, config


def _same(data: DataConfig, other: DataConfig) -> bool:
    """Whether both have the same records, or a copy of them: the same features, or as many records
    with the same labels of as many clients."""
    if data.name in NAMES or other.name in NAMES:
        return same_records(data.name, other.name)
    mine, theirs = (
        {name: file.sha256 for name, file in read_header(find_folder(d.name, d.dir)).files.items()}
        for d in (data, other)
    )
    dealt = ("labels.npy", "offsets.npy")
    return mine["features.npy"] == theirs["features.npy"] or all(
        mine.get(file) is not None and mine.get(file) == theirs.get(file) for file in dealt
    )
