"""The guarantee of a plan and, separately, what has been spent, for both observers and relations.

SERVER sees every message; PUBLIC sees only the models. The unit is one client with all its data.

* trust central: PUBLIC is protected by the noise on the sums and by the secret cohort; the server
  sees raw updates, so its epsilon is infinite. Every client is charged for every round, drawn or
  not, so what was spent is the guarantee of the rounds that were played. If clients take turns
  (methods/cyclic.py) nothing is secret but the noise, and the busiest client is charged.
* trust local: noise is added to every message before it leaves the client. Sampling gains nothing,
  because the server knows which clients it asked. The guarantee is the filter's budget or, without
  a filter, the cost of a client asked in all T rounds. The ledger's sum is "spent so far" (by the
  client that released most); with rule "norm" it is never a guarantee, because the number of
  uploads depends on the data.
* trust none: infinite for both.

The aggregation credit for PUBLIC in local trust (estimator "capped", honest clients): PUBLIC sees
only the sum over the |Z| uploaders of a round. Their noise, of one std, adds up, so that one upload
counts (sensitivity/std)^2 / |Z|. Norm releases count in full: K' and every p_i are functions of
them. Before a run |Z| is not known, and the worst case is 1. So the credit is applied

* to the guarantee only if all n clients upload in all T rounds by rule, whatever the data: a coin,
  a cap on a client's uploads, a budget or a dropout can each leave a client alone in its rounds;
* to what was spent always: the ledger keeps each client's sum of 1/|Z|. With rule "uniform" or
  "full" the draws do not depend on the data, so that this value is also valid, given the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from locksfl._tables import Json, or_infinite, or_null
from locksfl.arm import Arm
from locksfl.methods.events import Rounds, Sent, Terms
from locksfl.methods.releases import OBSERVERS, RELATIONS, Accountant, Observer, Relation
from locksfl.privacy import gdp
from locksfl.privacy.accountant import Charged, epsilon_of
from locksfl.privacy.budget import message_mu_squared, messages
from locksfl.privacy.terms import LedgerArm, terms_of


@dataclass(frozen=True)
class Cost:
    """An (epsilon, delta) guarantee against one observer under one relation."""

    observer: str  # whom it is against: one of releases.OBSERVERS
    relation: str  # between neighbours: one of releases.RELATIONS
    epsilon: float  # math.inf: none
    delta: float
    accountant: str  # whose bound it is: pld, rdp, gdp, or none for what has no bound

    def as_dict(self) -> Json:
        """For JSON, which has no infinity: null."""
        return asdict(self) | {"epsilon": or_null(self.epsilon)}

    @classmethod
    def from_dict(cls, table: Json) -> Cost:
        """The inverse."""
        fields: Any = {**table}
        return cls(**fields | {"epsilon": or_infinite(fields["epsilon"])})


@dataclass(frozen=True)
class Counts:
    """What the clients of an arm have released so far, one entry per client."""

    arm: LedgerArm
    rounds: int  # played
    norms: npt.NDArray[np.integer[Any]]  # released by each client
    uploads: npt.NDArray[np.integer[Any]]  # released by each client
    shares: npt.NDArray[np.floating[Any]]  # the sum over its uploads of 1/|Z|

    def mu_squared(self, observer: Observer, relation: Relation) -> npt.NDArray[np.float64]:
        """Each client's sum of (sensitivity/std)^2 in local trust."""
        credited = observer == "PUBLIC" and self.arm.credited
        sent = {"update": self.shares if credited else self.uploads, "norm": self.norms}
        each = [
            np.asarray(sent[one.release], np.float64) * message_mu_squared(one, relation)
            for one in messages(self.arm.terms[observer])
        ]
        return np.sum(each, axis=0)


def guarantee(
    arms: Sequence[Arm],
    delta: float,
    accountant: Accountant,
    most: tuple[int, int] | None = None,
) -> list[Cost]:
    """The cost of these arms together, as planned: the guarantee.

    Args:
        arms: the arms, all with the same trust.
        delta: the delta of the guarantee.
        accountant: how rounds over a secret cohort are composed.
        most: the most (norms, uploads) of one client in local trust; valid only if a cap on how
            often one client is asked enforces it. Without it: one of each per round.

    Returns:
        One cost for each observer and relation.
    """
    return promised([terms_of(arm, most) for arm in arms], delta, accountant)


def promised(terms: Sequence[Terms], delta: float, accountant: Accountant = "pld") -> list[Cost]:
    """The cost of these terms together; arguments and result as for `guarantee`."""

    def one(observer: Observer, relation: Relation) -> Charged:
        seen = [each for of_arm in terms for each in of_arm[observer]]
        return epsilon_of(seen, delta, relation, accountant)

    return _costs(one, terms, delta)


def spent(arms: Sequence[Counts], delta: float, accountant: Accountant) -> list[Cost]:
    """What these arms together have cost the client that released most.

    Args:
        arms: what the clients of each arm have released.
        delta, accountant: as for `guarantee`.

    Returns:
        One cost for each observer and relation.
    """
    terms = [counts.arm.terms for counts in arms]

    def one(observer: Observer, relation: Relation) -> Charged:
        seen = [(counts, each) for counts in arms for each in counts.arm.terms[observer]]
        if any(isinstance(each.event, Sent) for _, each in seen):
            total = sum(counts.mu_squared(observer, relation) for counts in arms)
            return Charged(gdp.epsilon_from_mu(math.sqrt(float(np.max(total))), delta), "gdp")
        played = [Rounds(each.event, counts.rounds) for counts, each in seen]
        return epsilon_of(played, delta, relation, accountant)

    return _costs(one, terms, delta)


def _costs(
    one: Callable[[Observer, Relation], Charged], terms: Sequence[Terms], delta: float
) -> list[Cost]:
    """For every observer of these arms, which have one trust, and every relation."""
    costs = []
    for observer in [who for who in OBSERVERS if not terms or who in terms[0]]:
        for relation in RELATIONS:
            epsilon, by = one(observer, relation)
            costs.append(Cost(observer, relation, epsilon, delta, by))
    return costs


def most_rounds(arm: Arm, epsilon: float, delta: float, relation: Relation, by: Any) -> int:
    """The most rounds in central trust, up to T, whose cost does not exceed epsilon.

    The number depends only on the accountant and not on any data, so a run that stops there may be
    reported at the cost of the rounds that it played.

    Args:
        arm: the arm.
        epsilon: the limit.
        delta: the delta of the guarantee.
        relation: the relation between neighbours.
        by: the accountant.
    """

    def cost(rounds: int) -> float:
        return epsilon_of([Rounds(event, rounds)], delta, relation, by).epsilon

    def fits(rounds: int) -> bool:
        return cost(rounds) <= epsilon

    event, low, high = arm.event(), 0, arm.rounds
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        raise ValueError(
            f"max_epsilon = {epsilon!r}: less than the cost of one round, {cost(1):.4g}; expected "
            "more, or larger multipliers (nothing was spent)"
        )
    return low


def delta_warning(delta: float, clients: int) -> str | None:
    """A warning if this delta is too large to protect an individual client, else None."""
    if delta < 1 / clients:
        return None
    return (
        f"warning: delta = {delta:g} is not below 1 / clients = {1 / clients:g}: publishing one "
        "client in full, drawn at random, would satisfy it; expected much less"
    )


def account(arm: Arm, delta: float, accountant: Accountant = "pld") -> list[Cost]:
    """What an arm costs, as planned, for each observer and relation.

    Args:
        arm: with its multipliers (`calibrate` finds them).
        delta: well below 1 / clients.
        accountant: how rounds over a secret cohort are composed.

    Returns:
        One cost for each of SERVER and PUBLIC under each of zero-out and replace.

    >>> from locksfl.privacy import calibrate
    >>> arm = calibrate(Arm("a", 1000, 100, cohort=200), epsilon=8.0, delta=1e-5)
    >>> round(arm.noise_multiplier, 2)
    1.44
    >>> [(c.observer, c.relation) for c in account(arm, 1e-5) if math.isinf(c.epsilon)]
    [('SERVER', 'zero-out'), ('SERVER', 'replace')]
    """
    return guarantee([arm], delta, accountant)
