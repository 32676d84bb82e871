"""What the rounds of an arm release to each observer: its terms, made of public settings alone.

Whoever charges an arm reads these: the guarantee, calibration, the statement, ledgers, the journal
of a population. `verify` recomputes the printed epsilons from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from locksfl._tables import Json
from locksfl._validate import count
from locksfl.arm import Arm
from locksfl.methods.events import (
    Event,
    Filtered,
    Message,
    Sent,
    Terms,
    for_rounds,
    terms_from_json,
    terms_to_json,
    whole,
    with_matrix,
)
from locksfl.methods.releases import OBSERVERS, SERVER
from locksfl.methods.trusts import Most


@dataclass(frozen=True)
class PlannedArm:
    """What one arm will release, by observer."""

    name: str
    clients: int  # n
    rounds: int  # planned, or those that were played
    terms: Terms  # what each observer sees, with the number of rounds of each event

    @classmethod
    def of(cls, arm: Arm) -> Self:
        """That of an arm whose noise is known."""
        return cls(arm.name, arm.clients, arm.rounds, terms_of(arm))

    def for_rounds(self, rounds: int) -> Self:
        """The same with so many rounds."""
        return replace(self, rounds=rounds, terms=for_rounds(self.terms, rounds))

    @property
    def filtered(self) -> Filtered | None:
        """What the server sees of a client that keeps a budget; None if it keeps none."""
        event = self.terms[SERVER][0].event
        return event if isinstance(event, Filtered) else None

    @classmethod
    def from_dict(cls, table: Json) -> Self:
        """The inverse of `as_dict`."""
        fields: Any = {**table}
        return cls(**fields | {"terms": terms_from_json(fields["terms"])})

    def as_dict(self) -> Json:
        """For JSON."""
        return {**vars(self), "terms": terms_to_json(self.terms)}


@dataclass(frozen=True)
class LedgerArm(PlannedArm):
    """An arm in a ledger's header: with these, counts become epsilons, and no method is needed."""

    asks_norms: bool  # of every client that a round is reserved for
    credited: bool  # PUBLIC sees sums: an upload among |Z| counts 1/|Z|
    claimed_epsilon: float | None = None  # as printed in the paper, no guarantee

    def __post_init__(self) -> None:
        """Refuse what would be charged for less than it releases."""
        count(clients=self.clients, rounds=self.rounds)
        if not whole(self.terms):
            raise ValueError(f"terms: expected what each of {', '.join(OBSERVERS)} sees")
        if not (type(self.asks_norms) is type(self.credited) is bool):
            raise ValueError("asks_norms, credited: expected true or false")
        norms = any(_asks_norm(event) for event, _ in self.terms[SERVER])
        if self.charges_each and self.asks_norms != norms:
            raise ValueError(f"asks_norms = {self.asks_norms}: the terms say otherwise")

    @classmethod
    def of(cls, arm: Arm, claimed: float | None = None) -> Self:
        """That of an arm, which claims this epsilon without a guarantee, or none."""
        counted = (arm.releases_norms, arm.credited, claimed)
        return cls(arm.name, arm.clients, arm.rounds, terms_of(arm), *counted)

    @property
    def charges_each(self) -> bool:
        """Whether clients are charged one by one, for messages that carry their own noise;
        otherwise all of them are charged for every round."""
        return isinstance(self.terms[SERVER][0].event, Sent)


def _asks_norm(event: Event) -> bool:
    if isinstance(event, Filtered):
        return event.norm_multiplier is not None
    return isinstance(event, Message) and event.release == "norm"


def terms_of(arm: Arm, most: Most = None) -> Terms:
    """What all rounds of an arm release, by observer: its trust says so (`Trust.terms`)."""
    return arm.parts.trust.terms(arm, most)


def with_strategy(terms: Terms, arm: Arm) -> Terms:
    """The same with the matrix that correlates the noise of rounds, for a statement: it takes
    seconds to find, and costs nothing."""
    return {
        who: tuple(with_matrix(one, arm.strategy) for one in seen) for who, seen in terms.items()
    }
