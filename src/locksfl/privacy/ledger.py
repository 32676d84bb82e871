"""What a run has spent, computed from its ledger alone, wherever the ledger is stored.

A run folder has a ledger in its checkpoint. A federation's run folder also has the ledger that its
server wrote before any client was asked (`LEDGER`). That one is authoritative, because a server may
die between asking and its next checkpoint: `read_run` reads it if it exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from locksfl._arrays import unpack_arrays
from locksfl._tables import or_null
from locksfl.privacy.budget import Budget, filtered
from locksfl.privacy.guarantees import Cost, Counts, promised, spent
from locksfl.privacy.journal import Books, same_experiment
from locksfl.privacy.journal_file import Journal

CHECKPOINT = "checkpoint.npz"
LEDGER = "ledger.sqlite"


def read_run(folder: Path) -> Books:
    """The ledger of a run folder, whether the run has finished or was killed in the middle of a
    round."""
    path, durable = folder / CHECKPOINT, folder / LEDGER
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a run folder, or the first round has not been played ({CHECKPOINT})"
        )
    meta, arrays = unpack_arrays(path)
    books = Books.unpack(meta.get("ledger") if isinstance(meta, dict) else None, arrays, path)
    if durable.is_file():
        kept, books = books, Journal.read(durable, books.head if books.number else None)
        same_experiment(books.header.experiment, kept.header.experiment or "", durable)
        if not books.covers(kept):
            raise ValueError(f"{durable}: not the ledger of this checkpoint, or an old copy")
    elif _engine(folder) is not None:
        raise ValueError(f"{durable}: missing; what a federation has spent is recorded there")
    return books


def _engine(folder: Path) -> str | None:
    """The engine of a federation's run; None for a simulation."""
    try:
        engine = tomllib.loads((folder / "config.toml").read_text("utf-8")).get("engine")
    except (OSError, ValueError):
        return None
    return str(engine) if engine is not None else None


@dataclass(frozen=True)
class ObserverCost:
    """What something costs against one observer."""

    epsilon: float | None  # under the experiment's relation; None: infinite
    delta: float  # of the guarantee
    relation: str  # that of the experiment
    accountant: str  # whose bound it is
    relations: dict[str, float | None]  # epsilon under each relation


ByObserver = dict[str, ObserverCost]  # server, public


@dataclass(frozen=True)
class Composed:
    """What arms cost together."""

    guarantee: ByObserver  # as planned
    spent_so_far: ByObserver  # by the client that released most


@dataclass(frozen=True)
class ArmAccount(Composed):
    """What one arm costs."""

    name: str
    rounds: int  # planned
    rounds_played: int
    claimed_epsilon: float | None  # as printed in the paper, no guarantee
    budget: Budget | None  # that each client keeps


@dataclass(frozen=True)
class RunAccount:
    """Every epsilon of an experiment, from its ledger alone."""

    experiment: str | None  # its identity
    trust: str | None
    accounting: str  # sound, or as-printed
    arms: list[ArmAccount]
    all_arms_composed: Composed


def account_ledger(ledger: Books) -> RunAccount:
    """Every epsilon from the ledger alone: the guarantee and, separately, what was spent."""
    about = ledger.header
    delta, relation, accountant = about.delta, about.relation, about.accountant
    if delta is None or relation is None or accountant is None:
        raise ValueError("the ledger of a device or a population; expected that of an experiment")

    def both(arms: Sequence[Counts]) -> tuple[ByObserver, ByObserver]:
        promise = promised([counts.arm.terms for counts in arms], delta, accountant)
        so_far = spent(arms, delta, accountant)
        return by_observer(promise, relation), by_observer(so_far, relation)

    arms = [
        ArmAccount(
            *both([counts]),
            name=arm.name,
            rounds=arm.rounds,
            rounds_played=counts.rounds,
            claimed_epsilon=arm.claimed_epsilon,
            budget=None if (kept := arm.filtered) is None else filtered(kept)[0],
        )
        for counts in ledger.arms
        for arm in [counts.arm]
    ]
    together = Composed(*both(ledger.arms))
    return RunAccount(about.experiment, about.trust, about.accounting, arms, together)


def by_observer(costs: Sequence[Cost], relation: str) -> ByObserver:
    """Costs by observer, with the epsilon under `relation` apart."""
    answer = {}
    for observer in dict.fromkeys(cost.observer for cost in costs):
        mine = [cost for cost in costs if cost.observer == observer]
        relations = {cost.relation: or_null(cost.epsilon) for cost in mine}
        first = mine[0]
        answer[observer.lower()] = ObserverCost(
            relations.get(relation), first.delta, relation, first.accountant, relations
        )
    return answer
