"""The cases of a comparison: an experiment without arms under every method, epsilon and upload.

Every method gets the same epsilons, uploads and number of tuned settings, or the file is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from locksfl._tables import build_table, or_null, toml_table
from locksfl._validate import one_of
from locksfl.experiment.config import Config, PrivacyConfig, config_of, read_text
from locksfl.grids.comparison.settings import (
    CompareConfig,
    DataEntry,
    DifferenceConfig,
    MethodEntry,
    TuningConfig,
    method_entry,
)
from locksfl.methods import RULES, TRUSTS
from locksfl.round.randomness import arm_number

OF_THE_FILE = {  # what a comparison decides for itself
    "arm": "methods are [[compare.method]] tables",
    "seed": "compare.seeds counts the seeds",
    "engine": "a comparison is simulated",
    "diagnostics": "a comparison keeps no diagnostics",
}
CHOOSES_NOISE = {"epsilon": None, "filter": False, "max_epsilon": None, "accounting": "sound"}
QUICK = (
    "the data of [compare.quick], else the first data set, the largest finite epsilon, the first "
    "two uploads, the fewest rounds, two seeds, one tuning seed, the two middle values of each "
    "tuned axis, nothing widened"
)

Where = dict[str, str | float | None]  # values of a case, by field; None: any


class Case(NamedTuple):
    """One method at one point of the grid: what is tuned, reported, and given to a part."""

    data: str
    epsilon: float
    rounds: int
    uploads: float  # wanted a round; all clients if the rule asks everyone
    method: str
    wanted: float  # the uploads as the file has them: a round, or in all

    @property
    def place(self) -> tuple[str, float | None, int, float, str]:
        """What names it in files; JSON has no infinity."""
        return self.data, or_null(self.epsilon), self.rounds, self.uploads, self.method

    @property
    def label(self) -> str:
        """For people."""
        epsilon = "inf" if math.isinf(self.epsilon) else f"{self.epsilon:g}"
        data = f"{self.data}, " if self.data else ""
        return f"{data}ε {epsilon}, {self.rounds} rounds, {self.uploads:g} uploads, {self.method}"


class Chosen(NamedTuple):
    """What is chosen for a case."""

    clip_norm: float
    step: float
    cohort: float


@dataclass(frozen=True)
class Comparison:
    """A file, checked: nothing in it can be refused any more except by its data."""

    text: str
    axes: CompareConfig
    methods: dict[str, MethodEntry]
    configs: dict[str, Config]  # the experiment of each label, with a placeholder for its arms
    small: Config | None = None  # that of [compare.quick]
    quick: bool = False

    @property
    def name(self) -> str:
        """The experiment's name."""
        return next(iter(self.configs.values())).name

    @cached_property
    def cases(self) -> list[Case]:
        """Every case, in a stable order. A rule that asks everyone has one whatever the uploads."""
        return list(dict.fromkeys(self._cases()))

    def _cases(self) -> Iterator[Case]:
        for label, config in self.configs.items():
            entry = self._entry(label)
            clients = config.clients
            in_all = entry.uploads is None and entry.uploads_in_all is not None
            wanted = entry.uploads or entry.uploads_in_all or [float(clients)]
            for epsilon in entry.epsilons or self.axes.epsilons:
                for rounds in entry.rounds or [config.train.rounds]:
                    for uploads in wanted:
                        a_round = uploads / rounds if in_all else uploads
                        for name, method in self.methods.items():
                            if method.rule.everyone:
                                yield Case(label, epsilon, rounds, clients, name, clients)
                            else:
                                yield Case(label, epsilon, rounds, a_round, name, uploads)

    def _entry(self, label: str) -> DataEntry:
        """The axes of a label: its own, or those of [compare]."""
        entries = {entry.label: entry for entry in self.axes.data}
        return self._with_axes(entries.get(label, DataEntry(label)))

    def _with_axes(self, mine: DataEntry) -> DataEntry:
        missing = [name for name in ("epsilons", "rounds") if getattr(mine, name) is None]
        if mine.uploads is None and mine.uploads_in_all is None:
            missing += ["uploads", "uploads_in_all"]
        return dataclasses.replace(mine, **{name: getattr(self.axes, name) for name in missing})

    def config(self, case: Case, chosen: Chosen) -> Config:
        """The experiment of a case with one arm, not yet calibrated."""
        base, method = self.configs[case.data], self.methods[case.method]
        # draws are keyed by the name: simulations may share them, so that differences vary less
        arm = method.arm
        if self.axes.common_draws:
            arm = dataclasses.replace(arm, name="all")
        if method.tuning is not None:
            arm = dataclasses.replace(arm, clip_norm=chosen.clip_norm, step=chosen.step)
        if not method.rule.everyone:
            cohort = None if method.rule.all_clients else chosen.cohort
            uploads = None if method.uploads_follow_data else case.uploads
            arm = dataclasses.replace(arm, cohort=cohort, uploads=uploads)
        share = base.train.average_last / base.train.rounds
        train = dataclasses.replace(
            base.train,
            rounds=case.rounds,
            average_last=round(share * case.rounds),
            evaluate_every=case.rounds,
        )
        try:
            privacy = self.privacy(case)
            return dataclasses.replace(base, train=train, privacy=privacy, arm=[arm])
        except ValueError as error:
            raise ValueError(f"compare, {case.label}: {error}") from None

    def privacy(self, case: Case) -> PrivacyConfig:
        """The total epsilon of a case; an infinite one is a trust of its own."""
        privacy = self.configs[case.data].privacy
        if self.axes.tuning is not None:
            privacy = dataclasses.replace(privacy, tuned_without_privacy=True)
        if math.isinf(case.epsilon):
            silent = next(name for name, trust in TRUSTS.items() if not trust.private)
            return dataclasses.replace(privacy, trust=silent)
        return dataclasses.replace(privacy, epsilon=case.epsilon)

    def quickened(self) -> Comparison:
        """The same comparison, smaller by a stated rule (`QUICK`)."""
        axes = self.axes
        entry = self._entry(next(iter(self.configs)))
        config = self.configs[entry.label]
        if axes.quick is not None and self.small is not None:
            entry, config = self._with_axes(axes.quick), self.small
        finite = [e for e in entry.epsilons or axes.epsilons if math.isfinite(e)]
        small = dataclasses.replace(
            entry,
            epsilons=[max(finite, default=math.inf)],
            rounds=entry.rounds and [min(entry.rounds)],
            uploads=entry.uploads and entry.uploads[:2],
            uploads_in_all=entry.uploads_in_all and entry.uploads_in_all[:2],
        )

        def thinned(grid: TuningConfig | None) -> TuningConfig | None:
            if grid is None:
                return None
            clips, reaches = (_middle(values) for values in (grid.clip_norm, grid.reach))
            return dataclasses.replace(grid, clip_norm=clips, reach=reaches, seeds=1, widen=0)

        axes = dataclasses.replace(
            axes,
            seeds=min(2, axes.seeds),
            data=[small],
            tuning=thinned(axes.tuning),
            difference=[],
        )
        methods = {
            name: dataclasses.replace(method, tuning=thinned(method.tuning))
            for name, method in self.methods.items()
        }
        smaller = dataclasses.replace(
            self, axes=axes, methods=methods, configs={entry.label: config}, quick=True
        )
        for named in self.axes.difference:
            with suppress(ValueError):
                smaller.find(named)
                axes.difference.append(named)
        return smaller

    def untuned(self, case: Case) -> Chosen:
        """The file's own clip norm and step."""
        train = self.configs[case.data].train
        return Chosen(train.clip_norm, train.optimizer.step, self.first_cohort(case))

    def first_cohort(self, case: Case) -> float:
        """The cohort of a case; for uploads that follow the data, a first guess."""
        method, here = self.methods[case.method], self._entry(case.data).cohort_per_upload
        times = method.cohort_per_upload
        if here is not None and times > 1 and not method.uploads_follow_data:
            times = here
        return min(float(self.configs[case.data].clients), times * case.uploads)

    def find(self, named: DifferenceConfig) -> tuple[Case, Case]:
        """The two cases of a named difference."""
        where: Where = {name: getattr(named, name) for name in ("data", "epsilon", "rounds")}
        where["wanted"] = named.uploads
        other: Where = {"rounds": named.than_rounds, "wanted": named.than_uploads}
        than = where | {name: value for name, value in other.items() if value is not None}
        return self._one(named.better, where), self._one(named.than, than)

    def _one(self, method: str, where: Where) -> Case:
        one_of(self.methods, **{"compare.difference": method})
        given = {name: value for name, value in where.items() if value is not None}
        if self.methods[method].rule.everyone:
            given.pop("wanted", None)
        mine = [case for case in self.cases if case.method == method]
        matches = [case for case in mine if given.items() <= case._asdict().items()]
        if len(matches) != 1:
            raise ValueError(
                f"compare.difference of {method!r} at {given}: {len(matches)} cells are that; "
                "expected to name exactly one, by data, epsilon, uploads and rounds"
            )
        return matches[0]


def read_comparison(path: Path) -> Comparison:
    """The comparison in a TOML file."""
    return parse_comparison(read_text(path), str(path))


def parse_comparison(text: str, source: str = "comparison") -> Comparison:
    """The comparison in a TOML text."""
    table = toml_table(text, source)
    for name, why in OF_THE_FILE.items():
        if name in table:
            raise ValueError(f"{name}: not in the file of a comparison; {why}")
    if "compare" not in table:
        raise ValueError(f"{source}: compare is missing: expected a [compare] table")
    axes: CompareConfig = build_table(CompareConfig, table.pop("compare"), "compare")
    everyone = next(name for name, rule in RULES.items() if rule.everyone)
    placeholder = {**table, "arm": [{"name": "all", "rule": everyone}]}
    for entry, change in ((e, change) for e in axes.entries_and_quick for change in e.set):
        table_name = re.split(r"[.=]", change)[0].strip()
        if reason := OF_THE_FILE.get(table_name):
            raise ValueError(f"compare.data.set = {change!r} of {entry.label!r}: {reason}")
    experiments = [config_of(placeholder, e.set) for e in axes.entries_and_quick]
    configs = {e.label: config for e, config in zip(axes.entries, experiments, strict=False)}
    small = experiments[-1] if axes.quick else None
    for config in experiments:
        config.data.check_unit(simulated=True)
    for config, (name, usual) in itertools.product(experiments, CHOOSES_NOISE.items()):
        if (value := getattr(config.privacy, name)) != usual:
            raise ValueError(
                f"privacy.{name} = {value!r}: not in the file of a comparison; every method is "
                "played at each of compare.epsilons"
            )
        if config.train.stop_after is not None:
            raise ValueError(
                f"train.stop_after = {config.train.stop_after}: not in the file of a comparison; "
                "every case plays all its rounds"
            )
    methods = [method_entry(entry, axes.tuning) for entry in axes.method]
    names = [method.arm.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"compare.method.name = {name!r}: expected a name of its own")
    if len({arm_number(name) for name in names}) < len(names):
        raise ValueError(f"method names {names}: two would share their noise; rename one")
    comparison = Comparison(text, axes, dict(zip(names, methods, strict=True)), configs, small)
    _check_uploads(comparison)
    for one in (comparison, comparison.quickened()):
        for case in one.cases:
            _check_case(one, case)
    for named in axes.difference:
        comparison.find(named)
    return comparison


def _check_uploads(comparison: Comparison) -> None:
    axes = comparison.axes
    tables: list[CompareConfig | DataEntry] = [axes, *axes.entries_and_quick]
    for table in tables:
        if table.uploads is not None and table.uploads_in_all is not None:
            raise ValueError(
                f"{table.where}.uploads_in_all = {table.uploads_in_all}: not with uploads, which "
                "are a round's"
            )
    needed = any(not method.rule.everyone for method in comparison.methods.values())
    for entry in axes.entries_and_quick:
        given = (axes.uploads, axes.uploads_in_all, entry.uploads, entry.uploads_in_all)
        if needed and not any(given):
            raise ValueError("compare.uploads is missing: expected the uploads wanted a round")


def _check_case(comparison: Comparison, case: Case) -> None:
    """Refuse what can never be played."""
    clients = comparison.configs[case.data].clients
    if case.uploads > clients:
        raise ValueError(
            f"compare.uploads = {case.uploads:g}: expected at most the {clients} clients"
            + (f" of {case.data!r}" if case.data else "")
        )
    (arm,) = comparison.config(case, comparison.untuned(case)).arms
    if not arm.private and not math.isinf(case.epsilon):
        raise ValueError(
            f"compare.epsilons = {case.epsilon:g}: trust {arm.trust!r} adds no noise; expected "
            "inf, or a trust that does"
        )


def _middle(values: list[float]) -> list[float]:
    first = max(0, (len(values) - 2) // 2)
    return values[first : first + 2]
