"""One TOML file is one experiment: what may stand in it, and what is wrong with it.

Every table is a frozen dataclass below, and its fields are the allowed keys. Anything unknown,
of another type or out of range is refused in one line that names the setting, its value and what
is expected.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from locksfl._tables import (
    Count,
    Count32,
    Positive,
    Probability,
    Record,
    Settings,
    Whole,
    build_table,
    toml_table,
)
from locksfl._validate import at_most, one_of, positive, rate
from locksfl.arm import MOST_ROUNDS, Arm, loss_bound_of
from locksfl.data.catalogue import NAMES
from locksfl.data.datasets import classes_of, find_folder, has_users, natural_clients
from locksfl.experiment.arm_config import ArmConfig
from locksfl.methods import TRUSTS
from locksfl.methods.estimators import CONTRIBUTION_LENGTHS
from locksfl.methods.sound import trusts_with
from locksfl.models.build import MODELS
from locksfl.privacy import Accountant, Relation
from locksfl.privacy.forecast import expected_round
from locksfl.privacy.population import identifier
from locksfl.round.client import LocalWork
from locksfl.round.control import check_arm, check_work
from locksfl.round.randomness import arm_number
from locksfl.round.server import OPTIMIZERS, SCHEDULES

DEFAULT_CLIENTS = 100
MOST_REPEATED = 10_000  # samples of a client, who holds them all at once
ENGINES = ("flower", "flower-simulation")
OWN_DATA = "own-data"  # in place of a folder's name, which is a path on the server's disk
AUTO = "auto"  # for train.rounds and an arm's cohort: left to the planner
Accounting = Literal["sound", "as-printed"]  # the second reproduces the paper: no guarantee


def _file_name(**settings: str) -> None:
    """Refuse what cannot be part of a file's name everywhere."""
    for setting, value in settings.items():
        if not 0 < len(value) <= 100 or not all(c.isalnum() or c in "-_." for c in value):
            raise ValueError(
                f"{setting} = {value!r}: expected up to 100 letters, digits, '-', '_' and '.' "
                "(it names files)"
            )


@dataclass(frozen=True)
class SplitConfig(Settings, where="data.split", public=True):
    """How samples are dealt to clients."""

    kind: Literal["iid", "shards", "dirichlet", "natural"] = "iid"
    classes: Count | None = None  # per client, for shards
    alpha: Positive | None = None  # for dirichlet

    def check(self) -> None:
        """Refuse an option of another kind of split, and miss one of this kind."""
        self.only_with("kind", required=True, classes="shards", alpha="dirichlet")

    def options(self) -> Record:
        """The options of this kind of split."""
        return {name: value for name, value in self.given().items() if name != "kind"}


@dataclass(frozen=True)
class DataConfig(Settings, where="data", public=True):
    """Which records, dealt to how many clients. The split has a public seed of its own.

    A natural split brings its own number of clients: `parse_config` fills it in.
    """

    name: str = "mnist-embedded"  # of the catalogue, or an imported folder
    clients: Count | None = None  # 100, or the users of a natural split
    split: SplitConfig = field(default_factory=lambda: SplitConfig("shards", classes=2))
    split_seed: Whole = 0  # public
    unit: Literal["client", "record"] | None = None  # of privacy; "record": people are cut apart
    dir: str | None = None  # where data sets are kept
    min_samples: Count | None = None  # natural: clients with fewer are left out
    max_samples: Count | None = None  # clients with more keep their first ones

    def check(self) -> None:
        """Fill in the number of clients; refuse limits that leave no client."""
        if self.clients is None and self.split.kind != "natural":
            object.__setattr__(self, "clients", DEFAULT_CLIENTS)
        self.in_order("min_samples", "max_samples")
        if self.unit == "record" and self.split.kind == "natural":
            raise ValueError(
                "data.unit = 'record': split 'natural' keeps a person's records together, so the "
                "unit is the client; leave it out"
            )

    @property
    def cuts_people(self) -> bool:
        """Whether the records have owners and are dealt anew, so that no client is a person."""
        return has_users(self.name) and self.split.kind != "natural"

    @property
    def dealt_by_label(self) -> bool:
        """Whether who gets a record depends on the labels of all."""
        return self.split.kind in ("shards", "dirichlet")

    @property
    def leaves_out_people(self) -> bool:
        """Whether the number of clients depends on how many records people have."""
        return self.split.kind == "natural" and (self.min_samples or 1) > 1

    def check_unit(self, simulated: bool) -> None:
        """Refuse to state an epsilon for clients that are not people, unless the user says so."""
        if not self.cuts_people:
            return
        where = f"data.split.kind = {self.split.kind!r}"
        if self.unit != "record":
            raise ValueError(
                f"{where}: {Path(self.name).name} says who owns its records, and this split cuts "
                "people into several clients; expected 'natural', or data.unit = 'record' (then "
                "epsilon is not a person's)"
            )
        if self.dealt_by_label and not simulated:
            raise ValueError(
                f"{where}: it deals people's records by their private labels, which no epsilon "
                "covers; expected 'natural' or 'iid', or a seed (a simulation)"
            )


@dataclass(frozen=True)
class ModelConfig(Settings, where="model", public=True):
    """Which model: one of MODELS, or "package.module:function"; [model.options] is what it takes.

    `hidden` are the widths of an mlp's hidden layers.
    """

    name: str = "softmax"
    hidden: list[Count] | None = None
    options: Record = field(default_factory=dict)

    def check(self) -> None:
        """Refuse an unknown model, and hidden layers for one that has none."""
        if ":" not in self.name:
            one_of(MODELS, **{"model.name": self.name})
        self.only_with("name", hidden="mlp")

    def arguments(self) -> Record:
        """What the model's function takes."""
        hidden = {} if self.hidden is None else {"hidden": tuple(self.hidden)}
        return {**self.options, **hidden}


@dataclass(frozen=True)
class FeaturesConfig(Settings, where="features", public=True):
    """Fixed features to train on in place of the records: functions of one record each.

    `file`: the encoder, a .npy or .npz file of weights or "package.module:function".
    """

    name: Literal["none", "scattering", "encoder"] = "none"
    file: str | None = None

    def check(self) -> None:
        """Refuse a file without an encoder, and an encoder without a file."""
        self.only_with("name", required=True, file="encoder")


@dataclass(frozen=True)
class LocalConfig(Settings, where="local", public=True):
    """A client's own work in a round.

    Attributes:
        update: what a client sends: its mean "gradient", or what "epochs" of local SGD change.
        epochs, batch, step: of the local SGD.
        min_samples, max_samples: a client's number of samples is limited to these.
        weight: "size": its update counts in proportion to that number, before it is clipped.
        reference_samples: the number that counts once; `max_samples` if not given.
        precision: "full" float32, or "reduced" matrix products where the hardware is faster.
        proximal: mu of FedProx, which holds local SGD near the model (`round.client`).
        control: "anchor": gradients as differences from an anchor (`round.anchor`); "scaffold":
            local SGD without drift (`round.scaffold`).
        anchor_every: rounds from one anchor to the next.
        anchor_ratio: the clip norm of a difference over that of a gradient.
    """

    update: Literal["gradient", "epochs"] = "gradient"
    epochs: Annotated[Count, partial(at_most, 10_000)] | None = None
    batch: Count32 | None = None
    step: Positive | None = None
    min_samples: Annotated[Count, partial(at_most, MOST_REPEATED)] = 1
    max_samples: Count32 | None = None
    precision: Literal["full", "reduced"] = "full"
    weight: Literal["equal", "size"] | None = None  # equal
    reference_samples: Count32 | None = None
    proximal: Positive | None = None
    control: Literal["anchor", "scaffold"] | None = None
    anchor_every: Count32 | None = None
    anchor_ratio: Annotated[float, rate] | None = None

    def check(self) -> None:
        """Refuse settings of local SGD without it, limits that leave no client, a control variate
        of other work, and weights by size without a public unit: one found in the clients' sizes
        would tell about them."""
        self.only_with("update", epochs="epochs", batch="epochs", step="epochs", proximal="epochs")
        self.only_with("control", anchor_every="anchor", anchor_ratio="anchor")
        self.in_order("min_samples", "max_samples")
        if self.weight != "size" and self.reference_samples is not None:
            raise ValueError(
                f"local.reference_samples = {self.reference_samples}: only with local.weight = "
                "'size'"
            )
        if self.weight == "size" and not (self.reference_samples or self.max_samples):
            raise ValueError(
                "local.weight = 'size': expected local.max_samples, or local.reference_samples, "
                "the number of samples that counts once"
            )
        check_work(self.work())

    def work(self) -> LocalWork:
        """The local work, defaults filled in."""
        return LocalWork(**self.given())


@dataclass(frozen=True)
class OptimizerConfig(Settings, where="train.optimizer", public=True):
    """The server's step.

    Attributes:
        name: one of round.server.OPTIMIZERS.
        step: the learning rate at the start.
        schedule: one of round.server.SCHEDULES, how the step falls from round to round.
        momentum: in (0, 1), for the optimizer "momentum".
    """

    name: Annotated[str, partial(one_of, OPTIMIZERS)] = "sgd"
    step: Positive = 1.0
    schedule: Annotated[str, partial(one_of, SCHEDULES)] = "inverse-sqrt"
    momentum: Probability | None = None

    def check(self) -> None:
        """Refuse a momentum for an optimizer without one."""
        self.only_with("name", momentum="momentum")


@dataclass(frozen=True)
class TrainConfig(Settings, where="train", public=True):
    """Rounds, the clip norm, the lengths of contributions (`round.algorithm.clip_factor`) and the
    server's step; an arm may have its own clip, lengths and step."""

    rounds: Annotated[Count, partial(at_most, MOST_ROUNDS)] = 100  # T
    clip_norm: Positive = 1.0  # C
    lengths: Annotated[str, partial(one_of, CONTRIBUTION_LENGTHS)] | None = None  # clipped
    clip_quantile: Probability | None = None  # the clip norm adapts to it
    clip_rate: Positive | None = None  # how fast it adapts
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    average_last: Whole = 0  # the model is the mean of so many last iterates; 0: the last one
    evaluate_every: Count32 = 1  # rounds
    stop_after: Count | None = None  # evaluations in a row without a better accuracy

    def check(self) -> None:
        """Refuse an average over more rounds than there are, or over rounds that may not come."""
        if self.clip_rate is not None and self.clip_quantile is None:
            raise ValueError(f"train.clip_rate = {self.clip_rate!r}: only with train.clip_quantile")
        if self.average_last > self.rounds:
            raise ValueError(
                f"train.average_last = {self.average_last}: "
                f"expected at most train.rounds = {self.rounds}"
            )
        if self.stop_after is not None and self.average_last:
            raise ValueError(
                f"train.average_last = {self.average_last}: an average over the last planned "
                "rounds, which train.stop_after may leave out; expected one of the two"
            )


@dataclass(frozen=True)
class PrivacyConfig(Settings, where="privacy", public=True):
    """Who adds noise, and the total epsilon that every arm is given."""

    trust: Annotated[str, partial(one_of, TRUSTS)] = "central"
    epsilon: float | None = None
    delta: Probability = 1e-5
    accountant: Accountant = "pld"
    relation: Relation = "zero-out"
    tuned_without_privacy: bool = False  # settings were chosen by runs that no epsilon covers
    filter: bool = False  # epsilon is a budget that every client keeps for itself
    releases: Count | None = None  # rounds that a client's budget should last, with filter
    max_epsilon: Positive | None = None  # stop before the round that would pass it
    accounting: Accounting = "sound"
    population: Annotated[str, identifier] | None = None  # whose journal a run without seed debits
    total: Positive | None = None  # the most that all runs on the population may cost

    def check(self) -> None:
        """Refuse an epsilon, a filter or a limit that the trust cannot have."""
        self._check_limits()
        if not TRUSTS[self.trust].private:
            if self.epsilon is not None and not math.isinf(self.epsilon):
                raise ValueError(
                    f"privacy.epsilon = {self.epsilon!r}: trust {self.trust!r} adds no noise, so "
                    "it is infinite; leave it out, write inf, or choose trust "
                    f"{trusts_with('private')}"
                )
        elif self.epsilon is not None:
            positive(**{"privacy.epsilon": self.epsilon})

    def _check_limits(self) -> None:
        trust = TRUSTS[self.trust]
        if self.filter and not trust.guards_server:
            raise ValueError(
                f"privacy.filter = true: only with trust {trusts_with('guards_server')}, not "
                f"{self.trust!r}; where the server adds the noise every client is charged every "
                "round: expected privacy.max_epsilon to stop such a run"
            )
        if self.filter and self.epsilon is None:
            raise ValueError("privacy.epsilon is missing: privacy.filter needs a client's budget")
        if self.releases is not None and not self.filter:
            raise ValueError(f"privacy.releases = {self.releases}: only with privacy.filter = true")
        if self.max_epsilon is not None and (not trust.amplified or self.epsilon is not None):
            raise ValueError(
                f"privacy.max_epsilon = {self.max_epsilon!r}: only with trust "
                f"{trusts_with('amplified')} and multipliers in the arms, without privacy.epsilon "
                f"(trust {trusts_with('guards_server')}: privacy.filter)"
            )
        if self.total is not None and self.population is None:
            raise ValueError(
                f"privacy.total = {self.total!r}: only with privacy.population, all runs on which "
                "it limits"
            )
        if self.accounting == "as-printed" and (not trust.clients_add_noise or self.filter):
            raise ValueError(
                "privacy.accounting = 'as-printed': the paper adds the noise at each client, "
                f"without a filter; expected trust {trusts_with('clients_add_noise')} and no "
                "privacy.filter"
            )

    @property
    def accounted(self) -> tuple[float, Relation, Accountant]:
        """What an epsilon is stated with: delta, relation, accountant."""
        return self.delta, self.relation, self.accountant

    def check_noise(self, arm: Arm) -> None:
        """Either a total epsilon or multipliers, never both, never neither."""
        where = f"arm.{arm.name}"
        if not arm.private:
            for name, value in vars(arm.noise).items():
                if value:
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
        if arm.controlled and self.epsilon is None:
            raise ValueError(
                f"{where}.uploads = {arm.uploads:g}: every rate has its own noise; expected "
                "privacy.epsilon, from which it is found, or no uploads (a cohort of one rate)"
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
        if arm.noise_multiplier and arm.clip_quantile is not None and not arm.clip_multiplier:
            raise ValueError(
                f"{where}.clip_multiplier is missing: the clip norm adapts to a released count"
            )


@dataclass(frozen=True)
class DiagnosticsConfig(Settings, where="diagnostics", public=True):
    """How often the clients' updates are compared, which only a simulation can do."""

    every: Whole = 0  # rounds; 0 is never
    clients: Count = 100  # compared, the same ones each time

    def check(self) -> None:
        """Refuse a comparison of one client."""
        if self.clients < 2:
            raise ValueError(
                f"diagnostics.clients = {self.clients}: expected at least 2 to compare"
            )


@dataclass(frozen=True)
class PlanConfig(Settings, where="plan"):
    """What the planner knows where train.rounds or an arm's cohort is "auto" (`experiment.auto`).

    Attributes:
        uploads_in_all: the most uploads that an arm may be expected to have in all its rounds.
        norm_share: the mean clipped norm over the clip norm, a guess from elsewhere.
        progress: the constant of the planner's criterion.
    """

    uploads_in_all: Positive | None = None
    norm_share: Annotated[float, rate] | None = None
    progress: Positive | None = None

    def check_uploads(self, arms: Sequence[Arm]) -> None:
        """Refuse arms that are expected to upload more often than the plan allows."""
        for arm in arms if self.uploads_in_all is not None else ():
            uploads = arm.rounds * expected_round(arm, 1, self.norm_share or 1.0).uploads
            if uploads > (self.uploads_in_all or 0.0) * (1 + 1e-6):
                raise ValueError(
                    f"plan.uploads_in_all = {self.uploads_in_all:g}: expected at least what arm "
                    f"{arm.name!r} is expected to upload in {arm.rounds} rounds, {uploads:.6g}"
                )


@dataclass(frozen=True)
class Config(Settings):
    """A whole experiment."""

    name: Annotated[str, _file_name] = "digits"  # of run folders and pages
    seed: Whole | None = None  # makes it a simulation; None: secret randomness
    engine: Annotated[str, partial(one_of, ENGINES)] | None = None  # by `locks federation`
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    plan: PlanConfig | None = None  # what was "auto" is a number by now
    arm: list[ArmConfig] = field(default_factory=list)

    def check(self) -> None:
        """Refuse an experiment without arms, and arms that would share files or noise."""
        if not self.arm:
            raise ValueError("arm is missing: expected at least one [[arm]] table")
        names = [arm.name for arm in self.arm]
        for name in names:
            _file_name(**{"arm.name": name})
            if [n.casefold() for n in names].count(name.casefold()) > 1:  # they name files
                raise ValueError(f"arm.name = {name!r}: expected a name that no other arm has")
        if len({arm_number(name) for name in names}) < len(names):
            raise ValueError(f"arm names {names}: two would share their noise; rename one")
        if self.engine is not None and self.train.stop_after is not None:
            raise ValueError(
                f"train.stop_after = {self.train.stop_after}: not in a federation, whose devices "
                "keep uploads reserved until the last planned round; leave it out"
            )

    def check_arms(self) -> None:
        """Refuse what is not sound. It loads code of the user's own, so that settings which are
        only read, as a bundle's are, do without it."""
        equal = [arm.name for arm in self.arms if arm.lengths == "equal"]
        if self.local.weight == "size" and equal:
            raise ValueError(
                f"local.weight = 'size': no effect with lengths = 'equal' (arm {equal[0]!r}), "
                "which scales every contribution to the clip norm; expected lengths = 'clipped', "
                "or local.weight = 'equal'"
            )
        for arm in self.arms:
            check_arm(self.local.work(), arm)
        if self.plan is not None:
            self.plan.check_uploads(self.arms)

    def public(self) -> Config:
        """What may be known of the settings: whole tables that say so, without seed and paths. A
        text is a word of the program's, a name, or "package.module:name" of own code; options of
        own code leave if they are numbers. Its own public form is the same."""
        tables = {name: value for name, value in vars(self).items() if isinstance(value, Settings)}
        hidden: dict[str, Any] = {k: None for k, value in tables.items() if not value.public_table}
        data = replace(self.data, dir=None)
        if data.name not in NAMES:
            data = replace(data, name=OWN_DATA)
        features, suffix = self.features, Path(self.features.file or "").suffix
        if suffix in (".npy", ".npz"):
            features = replace(features, file=f"encoder{suffix}")
        privacy = self.privacy
        if privacy.epsilon == math.inf:  # JSON has none, and without noise it is the same
            privacy = replace(privacy, epsilon=None)
        options = {name: v for name, v in self.model.options.items() if _is_number(v)}
        return replace(
            self,
            seed=None,
            data=data,
            features=features,
            privacy=privacy,
            model=replace(self.model, options=options),
            arm=[replace(arm, denominator=None) for arm in self.arm],
            **hidden,
        )

    @property
    def clients(self) -> int:
        """n, which `config_of` has filled in."""
        if self.data.clients is None:
            raise ValueError("data.clients is missing: expected the number of users of the data")
        return self.data.clients

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms, each table filled in with what the experiment says; not yet calibrated. They
        are made once: nobody but this reads the tables to play, state or publish an arm."""
        train, loss_bound = self.train, None
        # of arrays of a library's user the classes are not known; no such folder is refused later
        with suppress(ValueError):
            loss_bound = loss_bound_of(classes_of(self.data.name, self.data.dir))
        return tuple(
            table.arm(
                self.clients,
                rounds=train.rounds,
                trust=self.privacy.trust,
                dropouts=self.engine is not None,
                step=train.optimizer.step,
                clip_norm=train.clip_norm,
                lengths=train.lengths,
                clip_quantile=train.clip_quantile,
                clip_rate=train.clip_rate,
                loss_bound=loss_bound,
            )
            for table in self.arm
        )


def read_config(path: Path, changes: Sequence[str] = (), seed: int | None = None) -> Config:
    """The experiment in a TOML file, with `key=value` changes and a seed applied."""
    return parse_config(read_text(path), changes, seed, str(path))


def read_text(path: Path) -> str:
    """The text of a TOML file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None


def parse_config(
    text: str, changes: Sequence[str] = (), seed: int | None = None, source: str = "configuration"
) -> Config:
    """The experiment in a TOML text."""
    return config_of(toml_table(text, source), changes, seed)


def config_of(table: Record, changes: Sequence[str] = (), seed: int | None = None) -> Config:
    """The experiment in the tables of a TOML file, which stay as they are."""
    table = changed(table, changes)
    if seed is not None:
        table["seed"] = seed
    data = table.get("data")
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        if has_users(data["name"]):
            data.setdefault("split", {"kind": "natural"})  # unless the file says otherwise
        if data["name"] != DataConfig.name:
            table.setdefault("name", data["name"] if data["name"] in NAMES else OWN_DATA)
    if is_open(table):
        from locksfl.experiment.auto import settled  # it reads configurations too

        table = settled(table)
    try:
        return numbered(table)
    except ValueError as error:
        if any(change.partition("=")[0].strip().endswith(".rule") for change in changes):
            raise ValueError(f"{error} (--set KEY= leaves a setting out)") from None
        raise


def changed(table: Record, changes: Sequence[str]) -> Record:
    """A copy of the tables, with `key=value` changes applied."""
    table = copy.deepcopy(table)
    for change in changes:
        _apply(table, change)
    return table


def is_open(table: Record) -> bool:
    """Whether an experiment leaves something to the planner."""
    train, arms = table.get("train", {}), table.get("arm", [])
    if not isinstance(train, dict) or not isinstance(arms, list):
        return False  # and will be refused
    tables = [train, *(arm for arm in arms if isinstance(arm, dict))]
    return any(AUTO in (one.get("rounds"), one.get("cohort")) for one in tables)


def numbered(table: Record) -> Config:
    """The experiment in a table of numbers, with the number of its clients."""
    config: Config = build_table(Config, table, "")
    data = config.data
    if data.name not in NAMES:
        find_folder(data.name, data.dir)  # refuses what is no folder either
    if data.clients is None:
        users = natural_clients(data.name, data.dir, data.min_samples)
        config = replace(config, data=replace(data, clients=users))
    config.check_arms()
    return config


def _is_number(value: Any) -> bool:
    """Whether it is a number, a truth value, or a list of such: a text could be a path."""
    each = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, bool | int | float) for one in each)


def to_table(config: Config) -> Record:
    """The experiment as plain tables for a TOML file, settings that are not set left out."""

    def set_ones(pairs: list[tuple[str, Any]]) -> Record:
        return {name: value for name, value in pairs if value is not None}

    return dataclasses.asdict(config, dict_factory=set_ones)


def located(config: Config) -> Config:
    """The experiment with absolute paths, to be read from any folder."""
    data, features = config.data, config.features
    if data.name not in NAMES:
        data = replace(data, name=str(find_folder(data.name, data.dir).absolute()))
    if data.dir is not None:
        data = replace(data, dir=str(Path(data.dir).expanduser().absolute()))
    if features.file is not None and features.file.endswith((".npy", ".npz")):
        file = str(Path(features.file).expanduser().absolute())
        features = replace(features, file=file)
    if (data, features) == (config.data, config.features):
        return config
    return replace(config, data=data, features=features)


def _apply(table: Record, change: str) -> None:
    """Set one dotted key, an arm's by its name: arm.locks.floor=0.2; no value leaves it out."""
    key, equals, value = change.partition("=")
    *parents, last = parts = key.strip().split(".")
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
    for i, part in enumerate(parents):
        if isinstance(here, list):  # arms hold no tables: all that is left is the name, dots too
            name = ".".join(parents[i:])
            arms = {str(arm.get("name")): arm for arm in here if isinstance(arm, dict)}
            if name not in arms:
                raise ValueError(f"--set {change!r}: no arm {name!r}; there are {', '.join(arms)}")
            here = arms[name]
            break
        if not isinstance(here, dict):
            raise ValueError(f"--set {change!r}: {'.'.join(parts[:i])} is not a table")
        here = here.setdefault(part, {})
    if not isinstance(here, dict):
        raise ValueError(f"--set {change!r}: expected a setting of a table or of a named arm")
    if value.strip():
        here[last] = parsed
    elif here.pop(last, None) is None:
        raise ValueError(f"--set {change!r}: expected a value; {key.strip()} is not set")
