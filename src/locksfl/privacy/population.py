"""Many runs, one population: a journal that every run with secret randomness debits before its
first draw, and a total that refuses whatever would exceed it.

A population has an id that the owner of the data gives (a checksum would not do: one changed record
would open a new account). Its journal is made once, by hand, because a journal that a run could
make would be a new budget whenever one is lost.

The total is kept by a filter that is fixed when the journal is made:

* one Renyi order alpha, for runs of any trust: a run is charged its RDP at alpha, and refused if
  the sum would exceed the RDP at which alpha gives (total, delta). Sound however later runs are
  chosen in view of earlier ones (Renyi filters: Feldman and Zrnic 2021; Lecuyer 2021). The total is
  against PUBLIC; a trusted server sees raw updates, so that SERVER's epsilon is infinite.
* one mu, for runs in which clients add their own noise: a run is charged mu^2 against SERVER
  (`privacy.budget` has the theorem), which PUBLIC cannot exceed.

Only the total is a guarantee over runs that were chosen in view of one another. "Spent so far" is
what the filter has been charged, which never falls below the conversion of its one order; the
composed epsilon holds if all runs were fixed beforehand.

An entry states all that a run plans to release to each observer, so that it can be charged from the
entry alone. A run that ended early has a second entry, which lowers its charge to that of the
rounds that it played. That is sound even if the run ended because of what it had released: the
filter sums what was released, for whatever reason. The composed epsilon still counts the run as
planned. If a copy of such a run was still playing, it has released more, and its charge is raised
when it ends, even above the total if other runs have used the room. Whoever asks what the journal
guarantees is warned of this (`promise`).
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.methods.events import Exact
from locksfl.methods.releases import PUBLIC, RELATIONS, SERVER, Observer, Relation
from locksfl.methods.sound import trusts_with
from locksfl.privacy import gdp, old
from locksfl.privacy.accountant import epsilon_of, mu_squared, rdp_of
from locksfl.privacy.guarantees import Cost, promised
from locksfl.privacy.journal import EVERYBODY, Entry, Header
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.rdp import ORDERS, REPLACE_ORDERS
from locksfl.privacy.terms import PlannedArm

VARIABLE = "LOCKS_POPULATIONS"


def identifier(**settings: str) -> None:
    """Refuse what is not the id of a population."""
    for setting, value in settings.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", value):
            raise ValueError(
                f"{setting} = {value!r}: expected up to 100 letters, digits, '-' and '_'"
            )


def folder() -> Path:
    """Where the journals are: $LOCKS_POPULATIONS, or a folder of the user's own data. Not in a
    cache, which may be emptied."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "locks-fl" / "populations"


def planned_arm(arm: Arm) -> PlannedArm:
    """What an arm will release whose noise is known. One without noise is refused."""
    if not arm.private:
        raise ValueError(
            f"privacy.trust = {arm.trust!r}: nobody adds noise, so this costs more than any "
            "total; expected another trust, or no privacy.population"
        )
    return PlannedArm.of(arm)


@dataclass(frozen=True)
class Total:
    """The most that all runs together may cost, and the filter that keeps it: at one Renyi order
    against PUBLIC or, without an order, with one mu against SERVER."""

    epsilon: float
    delta: float
    relation: Relation = "zero-out"
    order: float | None = None

    def __post_init__(self) -> None:
        _validate.positive(total=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.one_of(RELATIONS, relation=self.relation)
        largest = _orders(self.relation)[-1]
        if self.order is not None and not (1 < self.order <= largest and self.limit > 0):
            raise ValueError(
                f"order = {self.order!r}: nothing is left of the total {self.epsilon:g} at delta "
                f"{self.delta:g} there; expected an order up to {largest:g}, such as "
                f"{best_order(self.epsilon, self.delta, self.relation):.3g}"
            )

    @property
    def observer(self) -> Observer:
        """Whom the total is against."""
        return SERVER if self.order is None else PUBLIC

    @property
    def limit(self) -> float:
        """The total in the unit that is charged: RDP at the order, or mu^2."""
        if self.order is None:
            return gdp.mu_from_epsilon(self.epsilon, self.delta) ** 2
        return self.epsilon - _conversion(self.order, self.delta)

    def charge(self, arms: Sequence[PlannedArm]) -> float:
        """What a run costs, in the same unit."""
        if self.order is None:
            seen = [one for arm in arms for one in arm.terms[SERVER]]
            if any(isinstance(event, Exact) for event, _ in seen):
                return math.inf
            return math.fsum(mu_squared(one, self.relation) for one in seen)
        orders = (self.order,)
        return math.fsum(rdp_of(arm.terms[PUBLIC], orders, self.relation)[0] for arm in arms)

    def epsilon_of(self, charged: float) -> float:
        """A charge as an epsilon at the total's delta."""
        if charged == 0:
            return 0.0
        if self.order is None:
            return gdp.epsilon_from_mu(math.sqrt(charged), self.delta)
        return max(0.0, charged + _conversion(self.order, self.delta))

    @property
    def filter(self) -> str:
        """The name of the filter."""
        return "filter of one mu" if self.order is None else f"filter at order {self.order:.4g}"


def _orders(relation: Relation) -> tuple[float, ...]:
    return REPLACE_ORDERS if relation == "replace" else ORDERS


def _conversion(order: float, delta: float) -> float:
    """What (epsilon, delta) adds to the RDP of one order (`rdp.epsilon_from_rdp`)."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def best_order(
    epsilon: float,
    delta: float,
    relation: Relation = "zero-out",
    arms: Sequence[PlannedArm] | None = None,
) -> float:
    """The order at which the total pays for most runs like this one or, if none is given, for the
    most Gaussian noise. It depends on settings alone, and is chosen before any run."""
    orders = _orders(relation)
    room = epsilon - np.array([_conversion(order, delta) for order in orders])
    if not (room > 0).any():
        raise ValueError(
            f"total = {epsilon:g}: no order has anything left of it at delta {delta:g}; expected "
            "a larger total or delta"
        )
    cost = np.asarray(orders)
    if arms is not None:
        cost = sum((rdp_of(arm.terms[PUBLIC], orders, relation) for arm in arms), np.zeros(()))
    return orders[int(np.argmax(room / cost))]


@dataclass(frozen=True)
class Run:
    """One run in the journal: its id is random, so that a run that goes on is not charged twice."""

    id: str
    name: str  # of the experiment, as its user wrote it
    arms: tuple[PlannedArm, ...]  # all that it plans to release
    charge: float = 0.0  # in the unit of the filter
    epsilon: float | None = None  # of this run alone, by the best accountant
    time: int = 0  # seconds since 1970
    played: tuple[int, ...] | None = None  # rounds of each arm, if it ended before those planned

    @property
    def label(self) -> str:
        """How statements name it. A library's user may have given it any name: what Markdown, HTML
        or a terminal could take for more than a name becomes a dash."""
        name = re.sub(r"[^\w.-]", "-", self.name)[:100] or "-"
        return f"{name} {self.id[:8]}"


class PopulationJournal(Journal):
    """The journal of one population: a `Journal` whose accounts are runs, each with one entry."""

    @classmethod
    def make(cls, population: str, total: Total) -> Self:
        """Create a new journal; an existing one is never overwritten."""
        identifier(population=population)
        path = journal_path(population)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls.create(path, Header(population=population, total=asdict(total)))

    @classmethod
    def find(cls, population: str) -> Self:
        """Open the journal of a population and verify all of it."""
        identifier(population=population)
        path = journal_path(population)
        if not path.is_file():
            raise ValueError(
                f"population {population!r}: no journal {path}; expected {VARIABLE} to name its "
                "folder, or a new journal, made once with: locks privacy population"
            )
        journal = cls.open(path, whole=True)
        if journal.books.header.population != population:
            journal.close()
            raise ValueError(f"{path}: not the journal of the population {population!r}")
        return journal

    @property
    def population(self) -> str:
        """The id."""
        return str(self.books.header.population)

    @property
    def total(self) -> Total:
        """What was fixed when the journal was made."""
        return msgspec.convert(self.books.header.total, Total)

    @property
    def runs(self) -> list[Run]:
        """Every run that was debited, in order; of one that ended early, its last entry."""
        return list({entry.account: _run(entry) for entry in self.entries()}.values())

    @property
    def charged(self) -> float:
        """The sum over all runs, in the unit of the filter."""
        return math.fsum(run.charge for run in self.runs)

    def check(self, run: Run) -> float:
        """Refuse a run that would exceed the total; otherwise, what it is charged."""
        total, spent = self.total, self.charged
        charge = total.charge(run.arms)
        if math.isinf(charge):
            raise ValueError(
                f"privacy.population = {self.population!r}: its journal has one mu, for runs in "
                f"which clients add the noise; expected trust {trusts_with('guards_server')}"
            )
        if math.fsum([spent, charge]) > total.limit:
            raise ValueError(
                f"privacy.population = {self.population!r}: the run {run.name!r} would use "
                f"{100 * charge / total.limit:.4g}% of the total (epsilon {total.epsilon:g}, "
                f"{total.filter}), and {100 * spent / total.limit:.4g}% of it is spent; expected "
                "more noise or fewer rounds (nothing was debited)"
            )
        return charge

    def debit(self, run: Run) -> str:
        """Charge a run once, with all that it plans to release; one that would exceed the total is
        refused, and so is one whose id was debited for other arms. On disk when this returns.

        Returns:
            A head of the journal that holds the run, to be noted in its folder.
        """
        if not self._debited(run):
            total = self.total  # its accountant takes seconds: not while others wait
            seen = [one for arm in run.arms for one in arm.terms[total.observer]]
            alone = epsilon_of(seen, total.delta, total.relation).epsilon
            with self.transaction():
                if not self._debited(run):  # a copy of its folder was not faster
                    self._enter(replace(run, charge=self.check(run), epsilon=alone))
        return self.books.head

    def settle(self, ended: Run) -> str:
        """Charge a run that was debited, and has ended before its last planned round, for what it
        has released: the arms of `ended`, which are those that were debited, with other rounds. It
        counts once and never raises a charge, unless a copy of the run played on for longer: then
        what that released is charged, even above the total.

        Returns:
            A head of the journal that holds it, to be noted in the run's folder.
        """
        with self.transaction():
            run = next(run for run in self.runs if run.id == ended.id)
            pairs = zip(ended.arms, run.arms, strict=True)
            whole = tuple(arm.for_rounds(planned.rounds) for arm, planned in pairs)
            self._check_arms(replace(ended, arms=whole), run)
            charge = self.total.charge(ended.arms)
            lower, higher = charge < run.charge, charge > run.charge
            if lower if run.played is None else higher:
                played = tuple(arm.rounds for arm in ended.arms)
                number = 1 + sum(entry.account == run.id for entry in self.entries())
                self._enter(replace(run, charge=charge, played=played), number=number)
        return self.books.head

    def account(self) -> dict[str, Any]:
        """For JSON: every run, what the filter has been charged, and what all runs cost together
        for each observer and relation if they were fixed beforehand."""
        total, runs = self.total, self.runs
        return {
            "population": self.population,
            "total": {**asdict(total), "observer": total.observer, "filter": total.filter},
            "spent_so_far": total.epsilon_of(self.charged),
            "share": self.charged / total.limit,
            "runs": [
                {
                    "run": run.label,
                    "time": run.time,
                    "clients": max(arm.clients for arm in run.arms),
                    "arms": [arm.name for arm in run.arms],
                    "played": run.played,
                    "epsilon": run.epsilon,
                    "share": run.charge / total.limit,
                }
                for run in runs
            ],
            "composed": [cost.as_dict() for cost in composed(runs, total.delta)],
        }

    def _debited(self, run: Run) -> bool:
        """Whether a run was debited before. Its entry holds the arms whole, and the chain of hashes
        binds it to them: under the same id nothing else can be released."""
        before = next((one for one in self.runs if one.id == run.id), None)
        if before is None:
            return False
        if before.played:
            raise ValueError(
                f"population {self.population!r}: the run {run.label} has ended early and is "
                "charged for the rounds that it played; a copy of its folder cannot go on"
            )
        self._check_arms(run, before)
        return True

    def _check_arms(self, run: Run, debited: Run) -> None:
        """Refuse what would be released under the id, and for the charge, of other arms."""
        if run.arms != debited.arms:
            raise ValueError(
                f"population {self.population!r}: the run {run.label} was debited for other "
                "rounds, cohorts or noise; expected those, or a new run (nothing was debited)"
            )

    def _enter(self, run: Run, number: int = 1) -> None:
        fields = {k: v for k, v in vars(run).items() if k not in ("id", "time")}
        fields["arms"] = [arm.as_dict() for arm in run.arms]
        text = json.dumps({"run": run.id, **fields, "asks_norms": False})
        self.append(Entry(run.id, number, "reserve", EVERYBODY, 1, text, int(time.time())))

    def check_noted(self, head: str) -> None:
        """Refuse a journal that does not hold a head that was noted in a run's folder."""
        self._check_head(head, "noted")


def promise(share: float) -> str:
    """What a journal guarantees for all its runs, in words, by the share of its total that they
    were charged."""
    if share > 1:
        return (
            "none any more, because the runs have cost more than the total: a copy of a run that "
            "had ended early was still playing, and what it released was charged when it ended"
        )
    return (
        "all runs together, each chosen in view of what earlier ones released, never cost more "
        "than the total, with one exception: if a copy of a run that ended early is still playing, "
        "what it releases is charged when it ends, even above the total"
    )


def journal_path(population: str) -> Path:
    """The file of a population's journal."""
    return folder() / f"{population}.sqlite"


def _run(entry: Entry) -> Run:
    table = json.loads(entry.terms)
    arms = tuple(old.planned(a) or PlannedArm.from_dict(a) for a in table["arms"])
    played = table.get("played") and tuple(table["played"])
    charge, epsilon = table["charge"], table["epsilon"]
    return Run(entry.account, table["name"], arms, charge, epsilon, entry.time, played)


def composed(runs: Sequence[Run], delta: float) -> list[Cost]:
    """What these runs cost together, for each observer and relation, if all of them were fixed
    beforehand: the smallest epsilon that the accountants find."""
    return promised([arm.terms for run in runs for arm in run.arms], delta)
