"""The entry point: what has been spent, as one epsilon for a given observer.

* Central trust, PUBLIC observer: `central_epsilon` over sampled rounds. Every client is charged for
  every round, sampled or not.
* Central trust with turns in place of a secret cohort (methods/cyclic.py): the same function. If no
  other rounds are composed with them it is exact, by mu, whatever the accountant.
* Local trust, SERVER: `local_epsilon` over one client's releases; exact.

The result is an upper bound: the mechanism is (epsilon, delta)-DP under the relation, provided that
the cohort and the noise are secret and drawn as the records say. The accountant "pld" returns the
smaller of its own bound and that of RDP, because both hold; if the loss distribution is out of
numerical range (epsilon in the hundreds under replace, delta below 1e-11), that is RDP's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from locksfl import _validate
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    ClientReleases,
    CyclicRound,
    Relation,
    Round,
    SampledRound,
    as_coins,
    as_count,
    as_float,
)
from locksfl.privacy import gdp
from locksfl.privacy.pld import merged, pld_epsilon, pld_epsilons
from locksfl.privacy.rdp import Spent, rdp_epsilon


def central_epsilon(
    spent: Spent,
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> float:
    """Epsilon against PUBLIC of all these rounds together.

    Args:
        spent: rounds, each with the number of times it was played. Rounds of different kinds may
            be mixed, but their configurations must be fixed beforehand: a round must not depend on
            the outcome of an earlier one, unless it is a `RatedRound`, which RDP alone charges.
            The rounds of one run of turns are one entry: another entry begins a cycle anew.
        delta: the delta of the guarantee.
        relation: the relation between neighbours.
        accountant: "pld" is tighter, "rdp" faster.

    Returns:
        An upper bound on epsilon.
    """
    delta = _checked(delta, relation, accountant)
    counted = [(event, as_count("rounds", count)) for event, count in spent]
    turns = [(event, count) for event, count in counted if isinstance(event, CyclicRound)]
    if turns and len(turns) == len(counted):
        mu_squared = math.fsum(event.mu_squared(count, relation) for event, count in turns)
        return gdp.epsilon_from_mu(math.sqrt(mu_squared), delta)
    rounds = merged(list(itertools.starmap(as_coins, counted)))
    bound = rdp_epsilon(rounds, delta, relation)
    fixed = [(event, count) for event, count in rounds if isinstance(event, SampledRound)]
    if accountant == "pld" and len(fixed) == len(rounds):
        bound = min(bound, pld_epsilon(fixed, delta, relation))
    return bound


def central_epsilons(
    event: Round,
    rounds: Sequence[int],
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> list[float]:
    """Epsilon against PUBLIC as equal rounds accumulate, for progress lines.

    Args:
        event: one round.
        rounds: numbers of rounds.
        delta, relation, accountant: as for `central_epsilon`.

    Returns:
        An upper bound on epsilon for each number of rounds.
    """
    delta = _checked(delta, relation, accountant)
    counts = [as_count("rounds", count) for count in rounds]
    if isinstance(event, CyclicRound):
        return [central_epsilon([(event, count)], delta, relation) for count in counts]
    bounds = [rdp_epsilon([(event, count)], delta, relation) for count in counts]
    if accountant == "pld" and isinstance(event, SampledRound):
        tighter = pld_epsilons(event, counts, delta, relation)
        bounds = [min(pair) for pair in zip(bounds, tighter, strict=True)]
    return bounds


def local_epsilon(
    releases: Sequence[ClientReleases], delta: float, relation: Relation = "zero-out"
) -> float:
    """Epsilon against SERVER of one client's releases: mu^2 adds up and is converted exactly.

    Sound under full adaptivity if the number of releases is fixed beforehand or limited by a filter
    on mu^2; a count that depended on the client's data is what was spent, not a guarantee.

    Args:
        releases: the client's releases.
        delta: the delta of the guarantee.
        relation: the relation between neighbours.
    """
    delta = _checked(delta, relation, "rdp")
    mu_squared = sum(release.mu_squared(relation) for release in releases)
    return gdp.epsilon_from_mu(math.sqrt(mu_squared), delta)


def _checked(delta: float, relation: str, accountant: str) -> float:
    delta = as_float("delta", delta)
    _validate.probability(delta=delta)
    _validate.one_of(RELATIONS, relation=relation)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    return delta
