"""What events cost: one place that chooses who charges them, names it, and refuses.

* `gdp`, exact: Gaussians of which only the mean depends on the data are together mu-GDP, mu^2 the
  sum of (sensitivity / std)^2 (Dong, Roth and Su 2022, Corollary 3.3), even if each is chosen in
  view of the ones before it. A client's own messages, and turns, of which the busiest client takes
  part in one of every `separation` rounds. Sampling gains nothing.
* `rdp` and `pld`: sums over a secret cohort. Every client is charged for every round, sampled or
  not. Gaussians beside them are one round that asks everybody.

Each accountant names the kinds of events that it charges; an event that nobody charges is an error,
and one that is released without noise costs infinity. To add an accountant, give it a name in
`releases.Accountant` and a line in `ASKED`. The result is an upper bound: the mechanism is
(epsilon, delta)-DP under the relation, provided that cohort and noise are secret and drawn as the
events say. Accountant "pld" gives the smaller of its own bound and that of RDP, because both hold;
out of numerical range (epsilon in the hundreds under replace, delta below 1e-11) it is RDP's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, NamedTuple

import numpy as np

from locksfl import _validate
from locksfl._arrays import Floats
from locksfl.methods.cyclic import turns
from locksfl.methods.events import (
    Chosen,
    Coins,
    Correlated,
    Event,
    Exact,
    Filtered,
    Message,
    Rounds,
    Sampled,
    SampledTwice,
    Seen,
    Sent,
    Sum,
    Turns,
    mechanism,
)
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    UPDATE,
    Accountant,
    ChargedBy,
    Relation,
    as_count,
    as_float,
)
from locksfl.privacy import gdp
from locksfl.privacy.budget import filtered, message_mu_squared
from locksfl.privacy.old import Priced
from locksfl.privacy.pld import merged, pld_epsilon, pld_epsilons
from locksfl.privacy.rdp import composed_rdp, rdp_epsilon, replace_rdp


class Charged(NamedTuple):
    """An epsilon, and the accountant that it is by."""

    epsilon: float
    by: str


class EventAccountant(NamedTuple):
    """The kinds of events that one accountant charges, and how it does."""

    name: ChargedBy
    kinds: UnionType
    epsilon: Callable[[Seen, float, Relation], float]

    def supports(self, seen: Seen) -> bool:
        """Whether it charges all of these."""
        return all(isinstance(event, self.kinds) for event, _ in seen)


def epsilon_of(
    seen: Seen,
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> Charged:
    """An upper bound on the epsilon of all these rounds together, against who sees them.

    Args:
        seen: events with their numbers of rounds. They must be fixed beforehand: none may depend on
            the outcome of an earlier one, but for `Chosen`, and for messages of a fixed number. The
            rounds of one run of turns are one entry: another entry begins a cycle anew.
        delta: the delta of the guarantee.
        relation: the relation between neighbours.
        accountant: who charges sums over a secret cohort; "pld" is tighter, "rdp" faster.

    Returns:
        The epsilon, and by whom. A TypeError if no accountant charges all these kinds together.
    """
    delta = _checked(delta, relation, accountant)
    seen = [Rounds(event, as_count("rounds", rounds)) for event, rounds in seen]
    if any(isinstance(event, Exact) for event, _ in seen):
        return Charged(math.inf, "none")
    able = able_to_charge(seen, accountant)
    return Charged(min(one.epsilon(seen, delta, relation) for one in able), able[-1].name)


def able_to_charge(seen: Seen, accountant: Accountant) -> list[EventAccountant]:
    """Who charges these events together, the one that is named last; a TypeError if nobody does."""
    if seen and GDP.supports(seen):
        return [GDP]
    able = [one for one in ASKED[accountant] if one.supports(seen)]
    if not able:
        kinds = sorted({mechanism(type(event)) for event, _ in seen})
        raise TypeError(f"no accountant charges {', '.join(kinds)} together")
    return able


def epsilons_after(
    event: Sum,
    rounds: Sequence[int],
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> list[float]:
    """Epsilon as equal rounds accumulate, for progress lines.

    Args:
        event: one round.
        rounds: numbers of rounds.
        delta, relation, accountant: as for `epsilon_of`.

    Returns:
        An upper bound on epsilon for each number of rounds.
    """
    delta = _checked(delta, relation, accountant)
    counts = [as_count("rounds", count) for count in rounds]
    if accountant == "pld" and isinstance(event, Coins):  # the grid is built once
        tighter = pld_epsilons(event, counts, delta, relation)
        bounds = [rdp_epsilon([(event, count)], delta, relation) for count in counts]
        return [min(pair) for pair in zip(bounds, tighter, strict=True)]
    return [
        epsilon_of([Rounds(event, count)], delta, relation, accountant).epsilon for count in counts
    ]


def mu_squared(seen: Rounds, relation: Relation) -> float:
    """(sensitivity / std)^2 of all these rounds together."""
    match seen.event:
        case Message():
            sums = seen.event.uploaders or 1
            return seen.rounds * message_mu_squared(seen.event, relation) / sums
        case Turns(separation=separation, noise_multiplier=noise):
            return turns(seen.rounds, separation) * (UPDATE.sensitivity(relation) / noise) ** 2
        case Filtered() as event:
            kept, update, norm = filtered(event)
            return kept.worst_mu_squared(update, norm, seen.rounds, relation)
        case Priced(mu_squared=prices):
            return dict(prices)[relation]
    raise TypeError(f"{type(seen.event).__name__} has no mu")


def rdp_of(seen: Seen, orders: tuple[float, ...], relation: Relation) -> Floats:
    """RDP of all these rounds together, at these orders; of Gaussians it is exact."""
    gaussians = [one for one in seen if isinstance(one.event, Sent | Priced)]
    sums = as_coins([one for one in seen if one not in gaussians], relation)
    by_relation = replace_rdp if relation == "replace" else composed_rdp
    alone = math.fsum(mu_squared(one, relation) for one in gaussians)
    return by_relation(sums, orders) + np.asarray(orders) / 2 * alone


def as_coins(seen: Seen, relation: Relation) -> tuple[tuple[Coins | Chosen, int], ...]:
    """The same for accountants that compose coins, equal rounds added up. Turns are rounds that ask
    everybody, and a client's own messages are one such round, of the same mu."""

    def coins(event: Event, rounds: int) -> tuple[Coins | Chosen, int]:
        match event:
            case Sampled() | SampledTwice() | Chosen():
                return event, rounds
            case Turns():
                return Sampled(1.0, event.noise_multiplier), turns(rounds, event.separation)
        mu = math.sqrt(mu_squared(Rounds(event, rounds), relation))
        return Sampled(1.0, UPDATE.sensitivity(relation) / mu), 1

    return merged(list(itertools.starmap(coins, seen)))


def _by_mu(seen: Seen, delta: float, relation: Relation) -> float:
    total = math.fsum(mu_squared(one, relation) for one in seen)
    return gdp.epsilon_from_mu(math.sqrt(total), delta)


def by_coins(charge: Callable[[Any, float, Relation], float]) -> Callable[..., float]:
    """An accountant of coins, for all events that are as good as some."""
    return lambda seen, delta, relation: charge(as_coins(seen, relation), delta, relation)


GDP = EventAccountant("gdp", Sent | Priced | Turns, _by_mu)
PLD = EventAccountant("pld", Sent | Priced | Correlated | Coins, by_coins(pld_epsilon))
RDP = EventAccountant("rdp", Sent | Priced | Sum, by_coins(rdp_epsilon))
ASKED: dict[Accountant, tuple[EventAccountant, ...]] = {"rdp": (RDP,), "pld": (RDP, PLD)}


def _checked(delta: float, relation: str, accountant: str) -> float:
    delta = as_float("delta", delta)
    _validate.probability(delta=delta)
    _validate.one_of(RELATIONS, relation=relation)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    return delta
