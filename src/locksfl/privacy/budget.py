"""What one client may spend in local trust, and the one rule that decides whether charges fit.

Each Gaussian release, which may be chosen in view of all earlier ones, is charged
mu^2 = (sensitivity/std)^2, and the client stops before the sum would exceed the budget. Then all of
it together is (epsilon, delta)-DP (a filter for GDP under full adaptivity: Smith and Thakurta 2022;
Koskela, Tobaben and Honkela 2022). A whole round, norm and upload, is reserved before the client is
asked; an upload that is not drawn is refunded, which is sound because nothing was released.

The rule is `Budget.pays`. A device's guard applies it to what the device was charged; the simulator
and a federation's server apply it to whole numbers of rounds (`most_uploads`), from which `Filter`
builds a table, so that many clients are decided at once, and identically on any device.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from locksfl import _validate
from locksfl.methods.events import Event, Exact, Filtered, Message, Seen, mechanism
from locksfl.methods.releases import NORM, RELATIONS, UPDATE, Relation
from locksfl.privacy import gdp
from locksfl.privacy.terms import PlannedArm


def charges(releases: Iterable[Event], norms: int, uploads: int) -> Counter[Event]:
    """How often each release to the server is charged to a client.

    Args:
        releases: those of one round.
        norms: how many norms the client has released.
        uploads: how many updates it has released.

    Returns:
        A count for each kind of release.
    """
    counted: Counter[Event] = Counter()
    for one in releases:
        is_norm = isinstance(one, Message) and one.release == "norm"
        counted[one] += norms if is_norm else uploads
    return counted


def message_mu_squared(release: Event, relation: Relation) -> float:
    """(sensitivity / std)^2 of what one client releases; infinite of something exact."""
    if isinstance(release, Exact):
        return math.inf
    if not isinstance(release, Message):
        raise TypeError(f"{mechanism(type(release))}: expected a client's own message")
    domain = NORM if release.release == "norm" else UPDATE
    return (domain.sensitivity(relation) / release.noise_multiplier) ** 2


def mu_squared(charged: Mapping[Event, int], relation: Relation) -> float:
    """Sum of (sensitivity/std)^2 over everything charged; infinite after a raw release.

    Equal releases are counted first and multiplied once, so that device and server arrive at the
    same float and stop at the same round.
    """
    return math.fsum(n * message_mu_squared(one, relation) for one, n in charged.items() if n)


@dataclass(frozen=True)
class Budget:
    """What one client may spend in total: epsilon at delta, under a relation between neighbours."""

    epsilon: float
    delta: float
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.one_of(RELATIONS, relation=self.relation)

    @functools.cached_property
    def mu_squared(self) -> float:
        """The budget as a sum of (sensitivity/std)^2."""
        return gdp.mu_from_epsilon(self.epsilon, self.delta) ** 2

    def pays(self, charged: Mapping[Event, int]) -> bool:
        """The one rule: whether these charges, all those of one client, fit this budget."""
        return mu_squared(charged, self.relation) <= self.mu_squared

    def most_uploads(self, update: Message, norm: Message | None, rounds: int) -> list[int]:
        """The most uploads that can be paid for in addition to k = 0 ... `rounds` norms.

        Returns:
            One number for each k; -1 if the norms alone exceed the budget. They are integers, so
            that host and device agree exactly.
        """
        releases = [update] if norm is None else [norm, update]
        uploads, table = rounds, []
        for norms in range(rounds + 1 if norm else 1):
            while uploads >= 0 and not self.pays(charges(releases, norms, uploads)):
                uploads -= 1  # one more norm never leaves room for one more upload
            table.append(uploads)
        return table

    def check(self, update: Message, norm: Message | None) -> None:
        """Refuse a budget that does not pay for one round."""
        one = _cost(update, norm, 1, 1, self.relation)
        if one > self.mu_squared:
            cost = gdp.epsilon_from_mu(math.sqrt(one), self.delta)
            raise ValueError(
                f"epsilon = {self.epsilon!r}: less than the cost of one round, {cost:.4g}; "
                "expected more, or larger multipliers (nothing was spent)"
            )

    def worst_mu_squared(
        self, update: Message, norm: Message | None, rounds: int, relation: Relation
    ) -> float:
        """The most mu^2 that any client can spend in so many rounds, under a relation, while it
        keeps this budget."""
        if relation == self.relation:
            return min(self.mu_squared, _cost(update, norm, rounds, rounds, relation))
        pairs = [(k, u) for k, u in enumerate(self.most_uploads(update, norm, rounds)) if u >= 0]
        if norm is None:
            return max(_cost(update, None, u, 0, relation) for _, u in pairs)
        # no client uploads without having released a norm
        return max(_cost(update, norm, min(k, u), k, relation) for k, u in pairs)


def _cost(
    update: Message, norm: Message | None, uploads: int, norms: int, relation: Relation
) -> float:
    total = uploads * message_mu_squared(update, relation)
    return total if norm is None else total + norms * message_mu_squared(norm, relation)


def filtered(event: Filtered) -> tuple[Budget, Message, Message | None]:
    """The budget that a client keeps, and the update and the norm that it is charged for."""
    norm = event.norm_multiplier
    return (
        Budget(event.budget_epsilon, event.budget_delta, event.budget_relation),
        Message("update", event.update_multiplier),
        None if norm is None else Message("norm", norm),
    )


def messages(seen: Seen) -> list[Message]:
    """One round of a client's own messages, the update first."""
    each = (filtered(e)[1:] if isinstance(e, Filtered) else (e,) for e, _ in seen)
    return [one for some in each for one in some if isinstance(one, Message)]


class Filter:
    """Which of an arm's clients can still pay for a whole round, norm and upload.

    Guarantee: after any sequence of `ask` and `enter`, however the cohorts were chosen, `norms[i]`
    norms and `uploads[i]` updates cost no client i more than the budget.
    """

    def __init__(
        self,
        arm: PlannedArm,
        norms: np.ndarray | None = None,
        uploads: np.ndarray | None = None,
    ) -> None:
        """Start from what was released before.

        Args:
            arm: the arm, whose clients keep a budget.
            norms, uploads: how many each client has released; none, if not given. The arrays are
                not copied: `enter` updates them, and so may a ledger that owns them.
        """
        if arm.filtered is None:
            raise ValueError(f"arm = {arm.name!r}: expected one with a budget")
        budget, update, norm = filtered(arm.filtered)
        budget.check(update, norm)
        self.asks_norms = norm is not None
        self.table = np.asarray(budget.most_uploads(update, norm, arm.rounds), np.int32)
        self.norms = np.zeros(arm.clients, np.int32) if norms is None else norms
        self.uploads = np.zeros(arm.clients, np.int32) if uploads is None else uploads
        self.exhausted = self.unable()  # clients that cannot pay for another round

    def can_pay(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
        """For each of these clients, whether its budget pays for one more whole round."""
        norms = self.norms[clients] + self.asks_norms
        paid = self.table[np.minimum(norms, len(self.table) - 1)]
        return (norms < len(self.table)) & (self.uploads[clients] + 1 <= paid)

    def unable(self) -> int:
        """The number of clients that cannot pay, counted again."""
        return int(np.sum(~self.can_pay()))

    def ask(self, cohort: np.ndarray) -> np.ndarray:
        """The members of a drawn cohort that may be asked."""
        return cohort[self.can_pay(cohort)]

    def enter(self, asked: np.ndarray, uploaded: np.ndarray) -> None:
        """Record a round: a norm of each client asked, and an upload of each client drawn.

        Args:
            asked: client numbers.
            uploaded: a mask over `asked`.
        """
        if not self.can_pay(asked).all() or len(np.unique(asked)) < len(asked):
            raise ValueError(
                "a client that cannot pay was asked, or one client was asked twice in a round"
            )
        if self.asks_norms:
            self.norms[asked] += 1
        self.uploads[asked[uploaded]] += 1
        self.exhausted += int(np.sum(~self.can_pay(asked)))  # no other counts have changed
