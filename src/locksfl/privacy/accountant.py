"""The front door: what has been spent, as one epsilon for the observer who is named.

* Central trust, PUBLIC observer: `central_epsilon` over sampled rounds. Every client is charged
  every round, sampled or not.
* Local trust, SERVER: `local_epsilon` over one client's releases; exact.

The result is an upper bound: the mechanism is (epsilon, delta)-DP under the relation, given that
the coins and the noise are secret and drawn as the records say. The accountant "pld" returns the
smaller of its own bound and of RDP's, because both hold; where the loss distribution is out of
numerical range (epsilon in the hundreds under replace, delta below 1e-11) that is RDP's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from locksfl import _validate
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    ClientReleases,
    Relation,
    SampledRound,
    as_count,
    as_float,
)
from locksfl.privacy import gdp
from locksfl.privacy.pld import merged, pld_epsilon, pld_epsilons
from locksfl.privacy.rdp import rdp_epsilon


def central_epsilon(
    spent: Sequence[tuple[SampledRound, int]],
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> float:
    """Epsilon against PUBLIC of all these rounds together, each given with how often it ran.

    The list may mix rounds of different kinds; what one round is may not depend on the outcome of
    an earlier one (the configurations are fixed beforehand).
    """
    delta = _checked(delta, relation, accountant)
    rounds = merged([(event, as_count("rounds", count)) for event, count in spent])
    bound = rdp_epsilon(rounds, delta, relation)
    if accountant == "pld":
        bound = min(bound, pld_epsilon(rounds, delta, relation))
    return bound


def central_epsilons(
    event: SampledRound,
    rounds: Sequence[int],
    delta: float,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
) -> list[float]:
    """Epsilon against PUBLIC after each of these numbers of equal rounds, for progress lines."""
    delta = _checked(delta, relation, accountant)
    counts = [as_count("rounds", count) for count in rounds]
    bounds = [rdp_epsilon([(event, count)], delta, relation) for count in counts]
    if accountant == "pld":
        tighter = pld_epsilons(event, counts, delta, relation)
        bounds = [min(pair) for pair in zip(bounds, tighter, strict=True)]
    return bounds


def local_epsilon(
    releases: Sequence[ClientReleases], delta: float, relation: Relation = "zero-out"
) -> float:
    """Epsilon against SERVER of one client's releases together: mu^2 adds, then exact conversion.

    Sound under full adaptivity when the number of releases is fixed beforehand or kept by a filter
    on mu^2; a count that depended on the client's data is what was spent, not a guarantee.
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
