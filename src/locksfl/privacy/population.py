"""Many runs, one population: a journal that every run with secret randomness debits before its
first draw, and a total that all of them together never exceed.

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

An entry holds all that a run plans to release, complete enough to be charged without anything else:
for an arm with sums over a secret cohort a round and their number, for an arm whose clients add the
noise mu^2 for each observer and relation. A run that ended early, in view of what it released, has
a second entry, and from then on the charge of the rounds that it played. That is sound for a
filter, which sums what was released, whatever made it end; "fixed beforehand" it counts as planned.
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

import numpy as np

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.methods import TRUSTS
from locksfl.methods.releases import (
    OBSERVERS,
    RELATIONS,
    CyclicRound,
    Observer,
    RatedRound,
    Relation,
    Round,
    SampledRound,
)
from locksfl.privacy import gdp
from locksfl.privacy.accountant import central_epsilon
from locksfl.privacy.journal import EVERYBODY, Entry, header
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.rdp import ORDERS, REPLACE_ORDERS, Floats, composed_rdp, replace_rdp
from locksfl.privacy.statement import Cost, planned_mu_squared

VARIABLE = "LOCKS_POPULATIONS"
SERVER, PUBLIC = OBSERVERS


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


@dataclass(frozen=True)
class PlannedArm:
    """What one arm will release: a round over a secret cohort, or mu^2 by observer and relation."""

    name: str
    clients: int
    rounds: int
    round: Round | None = None
    mu_squared: dict[Observer, dict[Relation, float]] | None = None

    @classmethod
    def of(cls, arm: Arm) -> PlannedArm:
        """The releases of an arm whose noise is known. One without noise is refused."""
        _, _, trust = arm.parts
        if not trust.private:
            raise ValueError(
                f"privacy.trust = {arm.trust!r}: nobody adds noise, so this costs more than any "
                "total; expected another trust, or no privacy.population"
            )
        if trust.amplified:
            return cls(arm.name, arm.clients, arm.rounds, round=arm.sampled_round())
        mu_squared: dict[Observer, dict[Relation, float]] = {
            observer: {r: planned_mu_squared(arm, observer, r) for r in RELATIONS}
            for observer in OBSERVERS
        }
        return cls(arm.name, arm.clients, arm.rounds, mu_squared=mu_squared)

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> PlannedArm:
        """The inverse of `asdict`."""
        event = table["round"]
        if event is not None and "rungs" in event:
            event = RatedRound(tuple(SampledRound(**rung) for rung in event["rungs"]))
        elif event is not None:
            event = (CyclicRound if "separation" in event else SampledRound)(**event)
        return cls(**{**table, "round": event})

    def rdp(self, orders: tuple[float, ...], relation: Relation) -> Floats:
        """RDP against PUBLIC at these orders, all rounds together."""
        if self.round is None:
            return np.asarray(orders) / 2 * self.mu2(PUBLIC, relation)
        by_relation = replace_rdp if relation == "replace" else composed_rdp
        return by_relation([(self.round, self.rounds)], orders)

    def mu2(self, observer: Observer, relation: Relation) -> float:
        """mu^2 against an observer; infinite for sums over a secret cohort, which have none."""
        return math.inf if self.mu_squared is None else self.mu_squared[observer][relation]

    def sampled(self, relation: Relation) -> tuple[Round, int]:
        """The rounds against PUBLIC. A client's own Gaussians are one round of everybody, with the
        multiplier of which an accountant makes the same mu under this relation."""
        if self.round is not None:
            return self.round, self.rounds
        distance = 2.0 if relation == "replace" else 1.0
        return SampledRound(1.0, distance / math.sqrt(self.mu2(PUBLIC, relation))), 1


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
            return math.fsum(arm.mu2(SERVER, self.relation) for arm in arms)
        return math.fsum(arm.rdp((self.order,), self.relation)[0] for arm in arms)

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
    cost = np.asarray(orders) if arms is None else sum(arm.rdp(orders, relation) for arm in arms)
    return orders[int(np.argmax(room / cost))]


@dataclass(frozen=True)
class Run:
    """One run in the journal: its id is random, so that a run that goes on is not charged twice."""

    id: str
    name: str
    arms: tuple[PlannedArm, ...]
    charge: float = 0.0  # in the unit of the filter
    epsilon: float | None = None  # of this run alone, by the best accountant
    time: int = 0  # seconds since 1970
    played: tuple[int, ...] | None = None  # rounds of each arm, if it ended before those planned

    @property
    def label(self) -> str:
        """How statements name it."""
        return f"{self.name} {self.id[:8]}"


class PopulationJournal(Journal):
    """The journal of one population: a `Journal` whose accounts are runs, each with one entry."""

    @classmethod
    def make(cls, population: str, total: Total) -> Self:
        """Create a new journal; an existing one is never overwritten."""
        identifier(population=population)
        path = journal_path(population)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = header(delta=total.delta, relation=total.relation)
        return cls.create(path, {**first, "population": population, "total": asdict(total)})

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
        if journal.books.header.get("population") != population:
            journal.close()
            raise ValueError(f"{path}: not the journal of the population {population!r}")
        return journal

    @property
    def population(self) -> str:
        """The id."""
        return str(self.books.header["population"])

    @property
    def total(self) -> Total:
        """What was fixed when the journal was made."""
        return Total(**self.books.header["total"])

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
                f"which clients add the noise; expected trust {_guarding()}"
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
        refused. On disk when this returns.

        Returns:
            A head of the journal that holds the run, to be noted in its folder.
        """
        if any(one.played for one in self.runs if one.id == run.id):
            raise ValueError(
                f"population {self.population!r}: the run {run.label} has ended early and is "
                "charged for the rounds that it played; a copy of its folder cannot go on"
            )
        if not self._has(run):
            total = self.total  # its accountant takes seconds: not while others wait
            alone, *_ = _composed(run.arms, total.observer, total.relation, total.delta)
            with self.transaction():
                if not self._has(run):  # a copy of its folder was not faster
                    self._enter(replace(run, charge=self.check(run), epsilon=alone))
        return self.books.head

    def settle(self, ended: Run) -> str:
        """Charge a run that was debited, and has ended before its last planned round, for what it
        has released: the arms of `ended`. It counts once and never raises a charge, unless a copy
        of the run played on for longer: then what that released is charged.

        Returns:
            A head of the journal that holds it, to be noted in the run's folder.
        """
        with self.transaction():
            run = next(run for run in self.runs if run.id == ended.id)
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

    def _has(self, run: Run) -> bool:
        return bool(self.entries(run.id, 1))

    def _enter(self, run: Run, number: int = 1) -> None:
        told = {k: v for k, v in asdict(run).items() if k not in ("id", "time")}
        text = json.dumps({"run": run.id, **told, "asks_norms": False})
        self.append(Entry(run.id, number, "reserve", EVERYBODY, 1, text, int(time.time())))

    def check_noted(self, head: str) -> None:
        """Refuse a journal that does not hold a head that was noted in a run's folder."""
        self._check_head(head, "noted")


def journal_path(population: str) -> Path:
    """The file of a population's journal."""
    return folder() / f"{population}.sqlite"


def _run(entry: Entry) -> Run:
    table = json.loads(entry.terms)
    arms = tuple(PlannedArm.from_dict(arm) for arm in table["arms"])
    played = table.get("played") and tuple(table["played"])
    charge, epsilon = table["charge"], table["epsilon"]
    return Run(entry.account, table["name"], arms, charge, epsilon, entry.time, played)


def _guarding() -> str:
    return " or ".join(repr(name) for name, trust in TRUSTS.items() if trust.guards_server)


def composed(runs: Sequence[Run], delta: float) -> list[Cost]:
    """What these runs cost together, for each observer and relation, if all of them were fixed
    beforehand: the smallest epsilon that the accountants find."""
    arms = [arm for run in runs for arm in run.arms]
    return [
        Cost(observer, relation, *_composed(arms, observer, relation, delta))
        for observer in OBSERVERS
        for relation in RELATIONS
    ]


def _composed(
    arms: Sequence[PlannedArm], observer: Observer, relation: Relation, delta: float
) -> tuple[float, float, str]:
    if all(arm.round is None for arm in arms):
        mu_squared = math.fsum(arm.mu2(observer, relation) for arm in arms)
        return gdp.epsilon_from_mu(math.sqrt(mu_squared), delta), delta, "gdp"
    if observer == SERVER:
        return math.inf, delta, "none"
    epsilon = central_epsilon([arm.sampled(relation) for arm in arms], delta, relation, "pld")
    by = "rdp" if any(isinstance(arm.round, RatedRound) for arm in arms) else "pld"
    if all(isinstance(arm.round, CyclicRound) for arm in arms):
        by = "gdp"
    return epsilon, delta, by
