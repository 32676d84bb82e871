"""One TOML file is one experiment: what may stand in it, and what is wrong with it.

Every table is a frozen dataclass below, and its fields are the allowed keys. Anything unknown,
of another type or out of range is refused in one line that names the setting, its value and what
is expected.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from locksfl._tables import build_table
from locksfl._validate import count, non_negative, one_of, positive, probability
from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES
from locksfl.data.datasets import find_folder, has_users, natural_clients
from locksfl.methods import TRUSTS
from locksfl.models.build import MODELS
from locksfl.privacy import Accountant, Relation
from locksfl.round.randomness import arm_number
from locksfl.round.server import OPTIMIZERS, SCHEDULES

DEFAULT_CLIENTS = 100


@dataclass(frozen=True)
class SplitConfig:
    """How samples are dealt to clients."""

    kind: str = "iid"
    classes: int | None = None  # of a client, for shards
    alpha: float | None = None  # for dirichlet

    def __post_init__(self) -> None:
        takes = {"iid": None, "shards": "classes", "dirichlet": "alpha", "natural": None}
        one_of(takes, **{"data.split.kind": self.kind})
        for option in ("classes", "alpha"):
            value = getattr(self, option)
            if value is None and takes[self.kind] == option:
                raise ValueError(f"data.split.{option} is missing: split {self.kind!r} needs it")
            if value is not None and takes[self.kind] != option:
                raise ValueError(
                    f"data.split.{option} = {value!r}: split {self.kind!r} takes no {option}; "
                    f"expected all of it: --set 'data.split={{kind=\"{self.kind}\"}}'"
                )
            if value is not None:
                (count if option == "classes" else positive)(**{f"data.split.{option}": value})

    def options(self) -> dict[str, Any]:
        """The options of this kind of split."""
        given = {"classes": self.classes, "alpha": self.alpha}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class DataConfig:
    """Which records, dealt to how many clients. The split's seed is public and apart.

    A natural split brings its own number of clients: `parse_config` fills it in.
    """

    name: str = "mnist-embedded"
    clients: int | None = None  # 100, or the users of a natural split
    split: SplitConfig = field(default_factory=lambda: SplitConfig("shards", classes=2))
    split_seed: int = 0
    dir: str | None = None
    min_samples: int | None = None  # natural: clients with fewer are left out
    max_samples: int | None = None  # clients with more keep their first ones

    def __post_init__(self) -> None:
        if self.clients is None and self.split.kind != "natural":
            object.__setattr__(self, "clients", DEFAULT_CLIENTS)
        if self.clients is not None:
            count(**{"data.clients": self.clients})
        non_negative(**{"data.split_seed": self.split_seed})
        for name in ("min_samples", "max_samples"):
            if (value := getattr(self, name)) is not None:
                count(**{f"data.{name}": value})
        if self.max_samples is not None and self.max_samples < (self.min_samples or 1):
            raise ValueError(
                f"data.max_samples = {self.max_samples}: "
                f"expected at least data.min_samples = {self.min_samples}"
            )


@dataclass(frozen=True)
class ModelConfig:
    """Which model: one of MODELS, or "package.module:function"; [model.options] is what it takes.

    `hidden` are the widths of an mlp's hidden layers.
    """

    name: str = "softmax"
    hidden: list[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if ":" not in self.name:
            one_of(MODELS, **{"model.name": self.name})
        if self.hidden is not None and self.name != "mlp":
            raise ValueError(f"model.hidden = {self.hidden!r}: model {self.name!r} takes no hidden")
        for width in self.hidden or []:
            count(**{"model.hidden": width})

    def arguments(self) -> dict[str, Any]:
        """What the model's function takes."""
        hidden = {"hidden": tuple(self.hidden)} if self.hidden is not None else {}
        return {**self.options, **hidden}


@dataclass(frozen=True)
class FeaturesConfig:
    """Fixed features to train on in place of the records: functions of one record each.

    `file`: the encoder, a .npy or .npz file of weights or "package.module:function".
    """

    name: str = "none"
    file: str | None = None

    def __post_init__(self) -> None:
        one_of(("none", "scattering", "encoder"), **{"features.name": self.name})
        if self.name == "encoder" and self.file is None:
            raise ValueError("features.file is missing: features 'encoder' need it")
        if self.name != "encoder" and self.file is not None:
            raise ValueError(f"features.file = {self.file!r}: features {self.name!r} take no file")


@dataclass(frozen=True)
class LocalConfig:
    """A client's own work in a round."""

    update: str = "gradient"
    epochs: int | None = None
    batch: int | None = None
    step: float | None = None
    min_samples: int = 1
    max_samples: int | None = None
    precision: str = "full"

    def __post_init__(self) -> None:
        one_of(("gradient", "epochs"), **{"local.update": self.update})
        one_of(("full", "reduced"), **{"local.precision": self.precision})
        for name in ("epochs", "batch", "step"):
            value = getattr(self, name)
            if value is None:
                continue
            if self.update == "gradient":
                raise ValueError(
                    f"local.{name} = {value!r}: local.update 'gradient' takes no {name}"
                )
            (positive if name == "step" else count)(**{f"local.{name}": value})
        count(**{"local.min_samples": self.min_samples})
        if self.max_samples is not None:
            count(**{"local.max_samples": self.max_samples})
            if self.max_samples < self.min_samples:
                raise ValueError(
                    f"local.max_samples = {self.max_samples}: "
                    f"expected at least local.min_samples = {self.min_samples}"
                )


@dataclass(frozen=True)
class OptimizerConfig:
    """The server's step."""

    name: str = "sgd"
    step: float = 1.0
    schedule: str = "inverse-sqrt"
    momentum: float | None = None

    def __post_init__(self) -> None:
        one_of(OPTIMIZERS, **{"train.optimizer.name": self.name})
        one_of(SCHEDULES, **{"train.optimizer.schedule": self.schedule})
        positive(**{"train.optimizer.step": self.step})
        if self.momentum is not None:
            if self.name != "momentum":
                raise ValueError(
                    f"train.optimizer.momentum = {self.momentum!r}: "
                    f"optimizer {self.name!r} takes no momentum"
                )
            probability(**{"train.optimizer.momentum": self.momentum})


@dataclass(frozen=True)
class TrainConfig:
    """Rounds, the clip norm and the server's step; an arm may have its own clip and step."""

    rounds: int = 100
    clip_norm: float = 1.0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    average_last: int = 0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        count(**{"train.rounds": self.rounds, "train.evaluate_every": self.evaluate_every})
        positive(**{"train.clip_norm": self.clip_norm})
        non_negative(**{"train.average_last": self.average_last})
        if self.average_last > self.rounds:
            raise ValueError(
                f"train.average_last = {self.average_last}: "
                f"expected at most train.rounds = {self.rounds}"
            )


ENGINES = ("flower", "flower-simulation")
Accounting = Literal["sound", "as-printed"]  # the second reproduces the paper: no guarantee


@dataclass(frozen=True)
class PrivacyConfig:
    """Who adds noise, and the total epsilon that every arm is given."""

    trust: str = "central"
    epsilon: float | None = None
    delta: float = 1e-5
    accountant: Accountant = "pld"
    relation: Relation = "zero-out"
    tuned_without_privacy: bool = False
    filter: bool = False  # epsilon is a budget that every client keeps for itself
    releases: int | None = None  # rounds that a client's budget should last, with filter
    max_epsilon: float | None = None  # stop before the round that would pass it
    accounting: Accounting = "sound"

    def __post_init__(self) -> None:
        one_of(TRUSTS, **{"privacy.trust": self.trust})
        probability(**{"privacy.delta": self.delta})
        self._check_limits()
        if not TRUSTS[self.trust].private:
            if self.epsilon is not None and not math.isinf(self.epsilon):
                raise ValueError(
                    f"privacy.epsilon = {self.epsilon!r}: trust {self.trust!r} adds no noise, so "
                    f"it is infinite; leave it out, write inf, or choose trust {_trusts('private')}"
                )
        elif self.epsilon is not None:
            positive(**{"privacy.epsilon": self.epsilon})

    def _check_limits(self) -> None:
        trust = TRUSTS[self.trust]
        if self.filter and not trust.guards_server:
            raise ValueError(
                f"privacy.filter = true: only with trust {_trusts('guards_server')}, not "
                f"{self.trust!r}; where the server adds the noise every client is charged every "
                "round: expected privacy.max_epsilon to stop such a run"
            )
        if self.filter and self.epsilon is None:
            raise ValueError("privacy.epsilon is missing: privacy.filter needs a client's budget")
        if self.releases is not None:
            count(**{"privacy.releases": self.releases})
            if not self.filter:
                raise ValueError(
                    f"privacy.releases = {self.releases}: only with privacy.filter = true"
                )
        if self.max_epsilon is not None:
            positive(**{"privacy.max_epsilon": self.max_epsilon})
            if not trust.amplified or self.epsilon is not None:
                raise ValueError(
                    f"privacy.max_epsilon = {self.max_epsilon!r}: only with trust "
                    f"{_trusts('amplified')} and multipliers in the arms, without privacy.epsilon "
                    f"(trust {_trusts('guards_server')}: privacy.filter)"
                )
        if self.accounting == "as-printed" and (not trust.clients_add_noise or self.filter):
            raise ValueError(
                "privacy.accounting = 'as-printed': the paper adds the noise at each client, "
                f"without a filter; expected trust {_trusts('clients_add_noise')} and no "
                "privacy.filter"
            )

    def check_noise(self, arm: Arm) -> None:
        """Either a total epsilon or multipliers, never both, never neither."""
        where = f"arm.{arm.name}"
        if not arm.private:
            for name in ("noise_multiplier", "norm_multiplier"):
                if value := getattr(arm, name):
                    raise ValueError(
                        f"{where}.{name} = {value!r}: trust {self.trust!r} adds no noise; leave it "
                        "out"
                    )
            return
        if self.epsilon is None and not arm.noise_multiplier:
            raise ValueError(
                f"{where}.noise_multiplier is missing: expected it, or privacy.epsilon, "
                f"with trust {self.trust!r} (no noise at all is a trust of its own)"
            )
        if self.epsilon is not None and arm.noise_multiplier and not self.filter:
            raise ValueError(  # with a filter the epsilon is a budget: multipliers may go with it
                f"{where}.noise_multiplier = {arm.noise_multiplier!r}: privacy.epsilon = "
                f"{self.epsilon!r} already fixes it; leave one of them out"
            )
        if arm.noise_multiplier and arm.releases_norms and not arm.norm_multiplier:
            raise ValueError(
                f"{where}.norm_multiplier is missing: rule {arm.rule!r} releases norms"
            )


def _trusts(kind: str) -> str:
    """The trusts with a property, to be named in a refusal."""
    return " or ".join(repr(name) for name, trust in TRUSTS.items() if getattr(trust, kind))


@dataclass(frozen=True)
class DiagnosticsConfig:
    """How often the updates of clients are laid side by side; only a simulation can."""

    every: int = 0  # rounds; 0 is never
    clients: int = 100  # compared, the same ones each time

    def __post_init__(self) -> None:
        non_negative(**{"diagnostics.every": self.every})
        count(**{"diagnostics.clients": self.clients})
        if self.clients < 2:
            raise ValueError(
                f"diagnostics.clients = {self.clients}: expected at least 2 to compare"
            )


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    name: str = "digits"
    seed: int | None = None
    engine: str | None = None  # a federation's, written by `locks federation`
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    arm: list[dict[str, Any]] = field(default_factory=list)  # tables of `arm.Arm`, as typed

    def __post_init__(self) -> None:
        _file_name(name=self.name)
        if self.engine is not None:
            one_of(ENGINES, engine=self.engine)
        if not self.arm:
            raise ValueError("arm is missing: expected at least one [[arm]] table")
        if not all("name" in arm for arm in self.arm):
            raise ValueError("arm.name is missing")
        names = [str(arm["name"]) for arm in self.arm]
        for name in names:
            _file_name(**{"arm.name": name})
            if [n.casefold() for n in names].count(name.casefold()) > 1:  # they name files
                raise ValueError(f"arm.name = {name!r}: expected a name that no other arm has")
        if len({arm_number(name) for name in names}) < len(names):
            raise ValueError(f"arm names {names}: two would share their noise; rename one")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed = {self.seed}: expected a whole number >= 0")
        if self.data.clients is not None:
            self.arms()  # refuses what is not sound

    def arms(self) -> list[Arm]:
        """The arms, each table filled in with what the experiment says; not yet calibrated."""
        if self.data.clients is None:
            raise ValueError("data.clients is missing: expected the number of users of the data")
        arms = [
            Arm.from_table(
                table,
                trust=self.privacy.trust,
                clients=self.data.clients,
                rounds=self.train.rounds,
                clip_norm=self.train.clip_norm,
                step=self.train.optimizer.step,
                dropouts=self.engine is not None,
            )
            for table in self.arm
        ]
        for arm in arms:
            self.privacy.check_noise(arm)
        return arms


def read_config(path: Path, changes: Sequence[str] = (), seed: int | None = None) -> Config:
    """The experiment in a TOML file, with `key=value` changes and a seed applied."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    return parse_config(text, changes, seed, str(path))


def parse_config(
    text: str, changes: Sequence[str] = (), seed: int | None = None, source: str = "configuration"
) -> Config:
    """The experiment in a TOML text."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: not valid TOML: {error}") from None
    for change in changes:
        _apply(table, change)
    if seed is not None:
        table["seed"] = seed
    _default_split(table)
    config: Config = build_table(Config, table, "")
    data = config.data
    if data.name not in NAMES:
        find_folder(data.name, data.dir)  # refuses what is no folder either
    if data.clients is None:
        users = natural_clients(data.name, data.dir, data.min_samples)
        return dataclasses.replace(config, data=dataclasses.replace(data, clients=users))
    return config


def _default_split(table: dict[str, Any]) -> None:
    """Data that come with users are split by them unless the file says otherwise."""
    data = table.get("data")
    if isinstance(data, dict) and "split" not in data:
        name = data.get("name")
        if isinstance(name, str) and has_users(name):
            data["split"] = {"kind": "natural"}


def to_table(config: Config) -> dict[str, Any]:
    """The experiment as plain tables for a TOML file, settings that are not set left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None}
        return [plain(v) for v in value] if isinstance(value, list) else value

    table: dict[str, Any] = plain(dataclasses.asdict(config))
    return table


def _apply(table: dict[str, Any], change: str) -> None:
    """Set one dotted key; an arm is named: arm.locks.floor=0.2."""
    key, equals, value = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ValueError(f"--set {change!r}: expected key=value, such as train.rounds=50")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        try:
            parsed = float(value)  # .2 is a number to a person
        except ValueError:
            parsed = value.strip()
    here: Any = table
    for i, part in enumerate(parts[:-1]):
        if isinstance(here, list):  # arms hold no tables: all that is left is the name, dots too
            here = _named_arm(here, ".".join(parts[i:-1]), change)
            break
        if isinstance(here, dict):
            here = here.setdefault(part, {})
        else:
            raise ValueError(f"--set {change!r}: {'.'.join(parts[:i])} is not a table")
    if not isinstance(here, dict):
        raise ValueError(f"--set {change!r}: expected a setting of a table or of a named arm")
    here[parts[-1]] = parsed


def _file_name(**settings: str) -> None:
    """Refuse what cannot be part of a file's name everywhere."""
    for setting, value in settings.items():
        if not 0 < len(value) <= 100 or not all(c.isalnum() or c in "-_." for c in value):
            raise ValueError(
                f"{setting} = {value!r}: expected up to 100 letters, digits, '-', '_' and '.' "
                "(it names files)"
            )


def _named_arm(arms: list[Any], name: str, change: str) -> Any:
    for arm in arms:
        if isinstance(arm, dict) and arm.get("name") == name:
            return arm
    names = [str(arm.get("name")) for arm in arms if isinstance(arm, dict)]
    raise ValueError(f"--set {change!r}: no arm {name!r}; there are {', '.join(names)}")
