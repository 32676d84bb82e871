"""The tables of a comparison's file: [compare], its axes, tuning, data, methods, differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Annotated, Any

from locksfl._tables import (
    Count,
    Positive,
    Settings,
    Whole,
    build_table,
)
from locksfl._validate import refuse_unless
from locksfl.experiment.arm_config import ArmConfig
from locksfl.methods import find_rule
from locksfl.methods.rules import Rule

FIRST_TUNING_SEED = 1000  # those of a report are below
OF_A_CASE = {  # settings of an arm that follow from the comparison
    "cohort": "it follows from the uploads; expected cohort_per_upload",
    "uploads": "expected it in [compare], the same for all methods",
    "noise_multiplier": "it would fix the noise, so that methods cannot be at equal epsilon; "
    "leave it out",
}


def figure_file(label: str) -> str:
    """The name of a label's figure, where there are several."""
    return "figure-" + "".join(c if c.isalnum() else "-" for c in label.lower()).strip("-")


def _expects(allowed: Callable[[Any], bool], expected: str) -> Callable[..., None]:
    """A check of a field's value."""
    return lambda **settings: refuse_unless(settings, allowed, expected)


_not_empty = _expects(bool, "at least one number")  # an empty axis would pass for one not given
Epsilon = Annotated[float, _expects(lambda value: value > 0, "a number > 0, or inf")]
PerUpload = Annotated[float, _expects(lambda value: 1 <= value < math.inf, "a number >= 1")]
Epsilons = Annotated[list[Epsilon], _not_empty]
Uploads = Annotated[list[Positive], _not_empty]
Rounds = Annotated[list[Count], _not_empty]


@dataclass(frozen=True)
class GridConfig(Settings, where="compare.tuning"):
    """The pairs that are tried: clip norm x reach, the clip norm times the step."""

    clip_norm: list[Positive]
    reach: list[Positive]

    def check(self) -> None:
        """Refuse axes that have no order, and so no edge."""
        axes = {f"{self.where}.{name}": getattr(self, name) for name in ("clip_norm", "reach")}
        refuse_unless(axes, _rises, "numbers that rise")

    @property
    def pairs(self) -> int:
        """Every clip norm with every reach."""
        return len(self.clip_norm) * len(self.reach)


@dataclass(frozen=True)
class TuningConfig(GridConfig, where="compare.tuning"):
    """The grid that every method is tuned on."""

    seeds: Count = 2
    widen: Whole = 2  # how often a grid whose edge is best is widened


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
    margin: Annotated[float, _expects(math.isfinite, "a finite number")] = 0.0


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
class MethodConfig(Settings, where="compare.method"):
    """What a [[compare.method]] table has besides the settings of an arm."""

    cohort_per_upload: PerUpload = 1.0
    tuning: GridConfig | None = None  # as many values as all have, but others


@dataclass(frozen=True)
class MethodEntry:
    """A method: an arm, apart from what the comparison fixes."""

    arm: ArmConfig
    cohort_per_upload: float
    tuning: TuningConfig | None

    @property
    def rule(self) -> Rule:
        """The rule behind the name."""
        return find_rule(self.arm.rule or "uniform", f"compare.method.{self.arm.name}.rule")

    @property
    def uploads_follow_data(self) -> bool:
        """Whether who uploads depends on values that are not released: then nothing holds the
        uploads, and the cohort is chosen so that the wanted number comes out."""
        return self.rule.asks is not None and not self.rule.released


def method_entry(table: Mapping[str, Any], shared: TuningConfig | None) -> MethodEntry:
    """A [[compare.method]] table."""
    where = f"compare.method.{table['name']}" if "name" in table else "compare.method"
    tuned = dict.fromkeys(("clip_norm", "step"), "compare.tuning chooses it") if shared else {}
    for key, why in {**OF_A_CASE, **tuned}.items():
        if key in table:
            raise ValueError(f"{where}.{key} = {table[key]!r}: {why}")
    names = [field.name for field in fields(MethodConfig)]
    own = build_table(MethodConfig, {k: table[k] for k in names if k in table}, where)
    arm = build_table(ArmConfig, {k: v for k, v in table.items() if k not in names}, where)
    if own.tuning is None:
        return MethodEntry(arm, own.cohort_per_upload, shared)
    if shared is None:
        raise ValueError(f"{where}.tuning: only with compare.tuning, for all methods")
    if own.tuning.pairs != shared.pairs:
        raise ValueError(
            f"{where}.tuning: {own.tuning.pairs} pairs, where other methods have {shared.pairs}; "
            "expected as much tuning for every method"
        )
    return MethodEntry(arm, own.cohort_per_upload, replace(shared, **vars(own.tuning)))


def _rises(values: Sequence[float]) -> bool:
    return bool(values) and all(a < b for a, b in pairwise(values))
