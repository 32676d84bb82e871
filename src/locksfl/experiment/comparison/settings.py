"""The tables of a comparison's file: [compare], its axes, tuning, data, methods, differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from locksfl._tables import (
    Count,
    Positive,
    Settings,
    Whole,
    build_table,
    refuse_unknown,
    typed_value,
)
from locksfl._validate import refuse_unless
from locksfl.experiment.arm_config import SETTINGS as ARM_SETTINGS
from locksfl.methods import find_rule
from locksfl.methods.rules import Rule

FIRST_TUNING_SEED = 1000  # those of a report are below
OF_A_CASE = {  # settings of an arm that follow from the comparison
    "cohort": "it follows from the uploads; expected cohort_per_upload",
    "uploads": "expected it in [compare], the same for all methods",
    "noise_multiplier": "it would fix the noise, so that methods cannot be at equal epsilon; "
    "leave it out",
}


def epsilon_above_zero(**settings: float) -> None:
    """Refuse what is no epsilon; inf is one."""
    refuse_unless(settings, lambda value: value > 0, "a number > 0, or inf")


def not_empty(**settings: Sequence[float]) -> None:
    """Refuse an axis without a value: it would be taken for one that is not given."""
    refuse_unless(settings, bool, "at least one number")


def finite(**settings: float) -> None:
    """Refuse what nothing can be compared with."""
    refuse_unless(settings, math.isfinite, "a finite number")


def figure_file(label: str) -> str:
    """The name of a label's figure, where there are several."""
    return "figure-" + "".join(c if c.isalnum() else "-" for c in label.lower()).strip("-")


def at_least_one(**settings: float) -> None:
    """Refuse a cohort in which not all uploaders have room."""
    refuse_unless(
        settings,
        lambda value: type(value) in (int, float) and 1 <= value < math.inf,
        "a number >= 1",
    )


Epsilon = Annotated[float, epsilon_above_zero]
PerUpload = Annotated[float, at_least_one]
Epsilons = Annotated[list[Epsilon], not_empty]
Uploads = Annotated[list[Positive], not_empty]
Rounds = Annotated[list[Count], not_empty]


@dataclass(frozen=True)
class TuningConfig(Settings, where="compare.tuning"):
    """The grid that every method is tuned on: clip norm x reach, the clip norm times the step."""

    clip_norm: list[Positive]
    reach: list[Positive]
    seeds: Count = 2
    widen: Whole = 2  # how often a grid whose edge is best is widened

    def check(self) -> None:
        """Refuse axes that have no order, and so no edge."""
        axes = {f"{self.where}.{name}": getattr(self, name) for name in ("clip_norm", "reach")}
        refuse_unless(axes, _rises, "numbers that rise")

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Every clip norm with every reach."""
        return [(clip, reach) for clip in self.clip_norm for reach in self.reach]


@dataclass(frozen=True)
class DataEntry(Settings, where="compare.data"):
    """A change to the experiment, and the axes that are its own."""

    label: str
    set: list[str] = field(default_factory=list)
    epsilons: Epsilons | None = None
    uploads: Uploads | None = None
    uploads_in_all: Uploads | None = None
    rounds: Rounds | None = None
    cohort_per_upload: PerUpload | None = None  # here, of all methods that ask more than upload


@dataclass(frozen=True)
class DifferenceConfig(Settings, where="compare.difference"):
    """A difference that is named before anything is played: better minus than, above the margin."""

    better: str
    than: str
    data: str | None = None
    epsilon: Epsilon | None = None
    uploads: Positive | None = None
    rounds: Count | None = None
    than_uploads: Positive | None = None
    than_rounds: Count | None = None
    margin: Annotated[float, finite] = 0.0


@dataclass(frozen=True)
class CompareConfig(Settings, where="compare"):
    """The axes of a comparison."""

    epsilons: Epsilons
    uploads: Uploads | None = None  # expected, a round
    uploads_in_all: Uploads | None = None
    rounds: Rounds | None = None
    seeds: Count = 5
    common_draws: bool = False  # all methods have the cohorts and noise of a seed in common
    tuning: TuningConfig | None = None  # None: the file's own clip norm and step for all
    data: list[DataEntry] = field(default_factory=list)
    quick: DataEntry | None = None  # in place of the first data under --quick
    method: list[dict[str, Any]] = field(default_factory=list)
    difference: list[DifferenceConfig] = field(default_factory=list)

    @property
    def entries(self) -> list[DataEntry]:
        """The data to compare on; the file's own if it names none."""
        return self.data or [DataEntry("")]

    @property
    def entries_and_quick(self) -> list[DataEntry]:
        """The same, and those of --quick last, if there are any."""
        return [*self.entries, *([self.quick] if self.quick else [])]

    def check(self) -> None:
        """Refuse a comparison of nothing, and seeds that tuning uses."""
        if not self.method:
            raise ValueError("compare.method is missing: expected [[compare.method]] tables")
        if self.seeds > FIRST_TUNING_SEED:
            raise ValueError(
                f"compare.seeds = {self.seeds}: expected at most {FIRST_TUNING_SEED}; the seeds "
                "from there on are for tuning"
            )
        files = [figure_file(entry.label) for entry in self.data]
        for entry, file in zip(self.data, files, strict=True):
            if files.count(file) > 1:
                raise ValueError(
                    f"compare.data.label = {entry.label!r}: expected a label of its own; two would "
                    f"have the figure {file}.svg"
                )


@dataclass(frozen=True)
class MethodEntry:
    """A method: the settings of an arm, apart from those that the comparison fixes."""

    name: str
    settings: Mapping[str, Any]
    cohort_per_upload: float
    tuning: TuningConfig | None

    @property
    def rule(self) -> Rule:
        """The rule behind the name."""
        return find_rule(self.settings.get("rule", "uniform"), f"compare.method.{self.name}.rule")

    @property
    def uploads_follow_data(self) -> bool:
        """Whether who uploads depends on values that are not released: then nothing holds the
        uploads, and the cohort is chosen so that the wanted number comes out."""
        return self.rule.asks is not None and not self.rule.released


def method_entry(table: Mapping[str, Any], shared: TuningConfig | None) -> MethodEntry:
    """A [[compare.method]] table."""
    settings = dict(table)
    if "name" not in settings:
        raise ValueError("compare.method.name is missing")
    name = settings.pop("name")
    where = f"compare.method.{name}"
    times = settings.pop("cohort_per_upload", 1.0)
    at_least_one(**{f"{where}.cohort_per_upload": times})
    own = settings.pop("tuning", None)
    for key, why in OF_A_CASE.items():
        if key in settings:
            raise ValueError(f"{where}.{key} = {settings[key]!r}: {why}")
    for key in ("clip_norm", "step"):
        if key in settings and shared is not None:
            raise ValueError(f"{where}.{key} = {settings[key]!r}: compare.tuning chooses it")
    refuse_unknown(settings, ARM_SETTINGS, where)
    for key, value in settings.items():
        typed_value(ARM_SETTINGS[key], value, f"{where}.{key}")
    tuning = None
    if own is not None:
        if shared is None:
            raise ValueError(f"{where}.tuning: only with compare.tuning, for all methods")
        if not isinstance(own, dict):
            raise ValueError(f"{where}.tuning = {own!r}: expected a table")
        given = {"seeds": shared.seeds, "widen": shared.widen, **own}
        tuning = build_table(TuningConfig, given, f"{where}.tuning")
        mine, theirs = (len(grid.pairs) for grid in (tuning, shared))
        if (mine, tuning.seeds, tuning.widen) != (theirs, shared.seeds, shared.widen):
            raise ValueError(
                f"{where}.tuning: {mine} settings, {tuning.seeds} seeds, widened {tuning.widen} "
                f"times, where other methods have {theirs}, {shared.seeds} and {shared.widen}; "
                "expected as much tuning for every method"
            )
    return MethodEntry(str(name), settings, float(times), tuning)


def _rises(values: Sequence[float]) -> bool:
    return bool(values) and all(a < b for a, b in pairwise(values))
