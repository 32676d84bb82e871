"""Epsilons from public terms, for somebody who does not trust this program's accountants.

What dp_accounting (Google) can express is computed by dp_accounting alone, by other steps than
those of `privacy.accountant`, so that the two agree closely and not to the last digit:

    pld        its loss distributions. Replace: two steps of zero-out, delta(e1) + e^e1 delta(e2)
    rdp        its RDP at orders around the best one. Replace: the weak triangle inequality (Mironov
               2017, Proposition 11). Chosen rounds: the largest of the choices at every order
    gaussian   its exact conversion of mu, the root of the sum of (sensitivity / std)^2

dp_accounting cannot express two sums of one secret sample (joint-poisson-gaussian below a rate of
1), and at the real orders below 3, on which a large epsilon rests, its RDP is too high or missing.
In these cases this program's own accountant computes the epsilon, and the result says so.
dp_accounting then gives bounds: a lower one by one of the two sums alone (or by its loss
distribution), and an upper one by a mixture of Gaussians on a line or one Gaussian that costs more
than both sums (or by its RDP at the orders that converge).

Only Python floats enter, and never dp_accounting's relation REPLACE_ONE, which is off by 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from locksfl.methods.events import Chosen, Exact, Filtered, Message, Rounds, Sampled, Seen, Turns
from locksfl.privacy.dp_sums import (
    REACH,
    Coins,
    as_coins,
    frozen,
    is_joint,
    merged,
    parts_of,
    pld_epsilon,
    rdp_epsilon,
)

# How far a printed epsilon may be below a recomputed one, and how far above: what is printed is the
# best of a few ways to compose, too, and a little more than necessary does no harm. Measured on 478
# epsilons of random settings: docs/verify.md.
CLOSE = {"pld": 5e-3, "rdp": 1.5e-2, "roughly": 3e-2, "gaussian": 1e-6, "locks": 1e-3, "none": 0.0}
ABOVE = CLOSE | {"pld": 3e-2, "rdp": 6e-2, "roughly": 6e-2}
ABOVE_NOTHING = 0.02  # in epsilon: our list of orders is short where it is tiny
BESIDE = 0.05  # of an upper bound beside: where ours charges a chord for orders out of its reach


@dataclass(frozen=True)
class Recomputed:
    """An epsilon, the accountant that it is by and, if that is ours, what dp_accounting says."""

    epsilon: float
    by: str  # pld, rdp, gaussian or none: by dp_accounting; "locks pld", "locks rdp": by our own
    low: float = 0.0  # what dp_accounting has for a part of the terms
    high: float = math.inf  # what it has for more than the terms

    def problem(self, printed: float) -> str | None:
        """What is wrong with a printed epsilon, if anything is."""
        if math.isinf(self.epsilon) or math.isinf(printed):
            return None if printed == self.epsilon else f"the terms lead to {self.epsilon:.6g}"
        way = self.by.split()[0]
        if printed < self.epsilon * (1 - CLOSE[way]) - 1e-6:
            return f"too small: the terms lead to {self.epsilon:.6g}"
        if printed > self.epsilon * (1 + ABOVE[way]) + 1e-6:
            return f"the terms lead to {self.epsilon:.6g}"
        if not self.low * (1 - CLOSE["pld"]) <= printed <= self.high * (1 + BESIDE) + ABOVE_NOTHING:
            return f"dp_accounting has {self.low:.6g} to {self.high:.6g} for parts of the terms"
        return None


def recomputed(
    seen: Seen,
    delta: float,
    relation: str,
    accountant: str,
    printed: float,
    rough: bool = False,
) -> Recomputed:
    """Epsilon of all these rounds together, against one observer.

    Args:
        seen: all that one observer sees, of one arm or of several that are composed.
        delta, relation, accountant: those of the printed epsilon.
        printed: decides only what is looked at if the first result is not near it: this program
            prints the smaller of two bounds.
        rough: fewer orders of RDP, for many epsilons of one arm.

    Returns:
        The epsilon, and the accountant that it is by.
    """
    if any(isinstance(event, Exact) for event, _ in seen):
        return Recomputed(math.inf, "none")
    if all(isinstance(event, Message | Filtered | Turns) for event, _ in seen):
        mu_squared = math.fsum(_mu_squared(one, relation) for one in seen)
        return Recomputed(_gaussian(math.sqrt(mu_squared), delta), "gaussian")
    coins = as_coins(seen)
    if accountant == "rdp" or any(isinstance(event, Chosen) for event, _ in seen):
        return _by_rdp(coins, delta, relation, printed, rough)
    if any(is_joint(one) for choices, _ in coins for one in choices):
        return _by_ours(coins, delta, relation, "pld", rough)
    theirs = Recomputed(pld_epsilon(frozen(coins), delta, relation), "pld")
    if theirs.problem(printed):
        other = _by_rdp(coins, delta, relation, printed, rough)
        return other if other.epsilon < theirs.epsilon or theirs.epsilon > REACH else theirs
    return theirs


# Gaussian mechanisms: a client's own messages, and turns

SENSITIVITY = {
    "update": {"zero-out": 1.0, "replace": 2.0},
    "norm": {"zero-out": 1.0, "replace": 1.0},
}


def _gaussian(mu: float, delta: float) -> float:
    import dp_accounting

    return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def _mu_squared(seen: Rounds, relation: str) -> float:
    match seen.event:
        case Filtered() as event:
            return _filtered(event, seen.rounds, relation)
        case Turns(separation=separation, noise_multiplier=noise):
            return float(
                -(-seen.rounds // separation) * (SENSITIVITY["update"][relation] / noise) ** 2
            )
        case Message(release=release, noise_multiplier=noise, uploaders=uploaders):
            moved = SENSITIVITY[release][relation] / noise
            return float(seen.rounds * moved**2 / (uploaders or 1))
    raise TypeError(f"{type(seen.event).__name__}: not a Gaussian")


def _filtered(event: Filtered, rounds: int, relation: str) -> float:
    """The most that a client can spend before its budget, of another relation perhaps, is spent: a
    search over how many norms and updates it has sent, never more updates than norms."""
    import dp_accounting

    sigma = dp_accounting.get_sigma_gaussian(event.budget_epsilon, event.budget_delta)
    budget, norm = sigma**-2 * (1 + 1e-9), event.norm_multiplier

    def spent(norms: int, updates: int, by: str) -> float:
        total = updates * (SENSITIVITY["update"][by] / event.update_multiplier) ** 2
        if norm is not None:
            total += norms * (SENSITIVITY["norm"][by] / norm) ** 2
        return float(total)

    kept = event.budget_relation
    if relation == kept:
        return float(min(sigma**-2, spent(rounds, rounds, kept)))
    worst, one = 0.0, spent(0, 1, kept)
    for norms in range(rounds + 1) if norm is not None else [rounds]:
        if (left := budget - spent(norms, 0, kept)) >= 0:
            worst = max(worst, spent(norms, min(norms, int(left / one)), relation))
    return worst


# Sums over a secret sample: by dp_accounting in `dp_sums`, or by ours


def _by_rdp(coins: Coins, delta: float, relation: str, printed: float, rough: bool) -> Recomputed:
    if any(is_joint(one) for choices, _ in coins for one in choices):
        return _by_ours(coins, delta, relation, "rdp", rough)
    epsilon, converged = rdp_epsilon(coins, delta, relation, rough)
    theirs = Recomputed(epsilon, "roughly" if rough else "rdp")
    if converged and not theirs.problem(printed):
        return theirs
    ours = _by_ours(coins, delta, relation, "rdp", rough)
    return Recomputed(ours.epsilon, ours.by, ours.low, min(ours.high, epsilon))


def _by_ours(coins: Coins, delta: float, relation: str, accountant: Any, rough: bool) -> Recomputed:
    """By this program's accountant, with what dp_accounting knows of its parts."""
    from locksfl.privacy.accountant import epsilon_of

    seen = [
        Rounds(choices[0] if len(choices) == 1 else Chosen(choices), rounds)
        for choices, rounds in coins
    ]
    epsilon = epsilon_of(seen, delta, relation, accountant).epsilon  # type: ignore[arg-type]
    if rough:
        return Recomputed(epsilon, f"locks {accountant}")
    return Recomputed(epsilon, f"locks {accountant}", *_bounds(coins, delta, relation, accountant))


def _bounds(coins: Coins, delta: float, relation: str, accountant: str) -> tuple[float, float]:
    """What dp_accounting says of less and of more than these rounds; of replace it has only upper
    bounds, and of chosen rounds nothing."""
    if any(len(choices) > 1 for choices, _ in coins):
        return 0.0, math.inf
    parts = [(parts_of(one), rounds) for (one,), rounds in coins]
    first = tuple((each[0], rounds) for each, rounds in parts)
    second = tuple((each[-1], rounds) for each, rounds in parts)
    below = [pld_epsilon(one, delta, "zero-out") for one in (first, second)]
    low = max((one for one in below if math.isfinite(one)), default=0.0)  # infinite: out of range
    if accountant == "pld":
        above = tuple(
            (msgspec.structs.astuple(one) if is_joint(one) else each[0], rounds)
            for ((one,), rounds), (each, _) in zip(coins, parts, strict=True)
        )
        return low, pld_epsilon(above, delta, relation)
    together: Coins = [
        ((Sampled(each[0][0], merged(*(z for _, z in each))),), rounds) for each, rounds in parts
    ]
    return low, rdp_epsilon(together, delta, relation)[0]
