"""Epsilons from public terms, for somebody who does not trust this program's accountants.

What dp_accounting (Google) can express is computed by dp_accounting alone, by other steps than
those of `privacy.accountant`, so that the two agree closely and not to the last digit:

    pld        its loss distributions. Replace: two steps of zero-out, delta(e1) + e^e1 delta(e2)
    rdp        its RDP at orders around the best one. Replace: the weak triangle inequality (Mironov
               2017, Proposition 11). Chosen rounds: the largest of the choices at every order
    gaussian   its exact conversion of mu, the root of the sum of (sensitivity / std)^2

It cannot express two sums of one secret sample (joint-poisson-gaussian below a rate of 1), and its
RDP is too high, or none, at the real orders below 3 on which a large epsilon rests. Then this
program's own accountant recomputes, the result says so, and dp_accounting has bounds beside it:
below by one of the two sums alone (or by its loss distribution), above by a mixture of Gaussians on
a line or one Gaussian, worth more than both (or by its RDP at the orders that converge).

Only Python floats enter, and never dp_accounting's relation REPLACE_ONE, which is off by 2.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from locksfl.privacy.terms import Term

Floats = npt.NDArray[np.float64]
Coins = list[tuple[tuple[Term, ...], int]]  # what a round may be, and how many there are
Frozen = tuple[tuple[tuple[float, ...], int], ...]  # the numbers of a mechanism, and its rounds

# How far a printed epsilon may be below a recomputed one, and how far above: what is printed is the
# best of a few ways to compose, too, and a little more than necessary does no harm. Measured on 240
# random settings, epsilon 0.001 to 2,000 (tests/privacy/test_recompute.py tries some of them).
CLOSE = {"pld": 5e-3, "rdp": 1.5e-2, "roughly": 3e-2, "gaussian": 1e-6, "locks": 1e-3, "none": 0.0}
ABOVE = CLOSE | {"pld": 2e-2, "rdp": 2e-2}
BESIDE = 0.05  # of an upper bound beside: where ours charges a chord for orders out of its reach
WHOLE = (*range(2, 49), 56, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
ORDERS = (*(1 + np.geomspace(0.02, 6, 24)).tolist(), *map(float, WHOLE))
REACH = 200.0  # the largest epsilon for which a loss distribution is in range for certain


@dataclass(frozen=True)
class Recomputed:
    """An epsilon, by what it was found, and what dp_accounting knows of it if that was not it."""

    epsilon: float
    by: str  # pld, rdp, gaussian or none: by dp_accounting; "locks pld", "locks rdp": by our own
    low: float = 0.0
    high: float = math.inf

    def problem(self, printed: float) -> str | None:
        """What is wrong with a printed epsilon, if anything is."""
        if math.isinf(self.epsilon) or math.isinf(printed):
            return None if printed == self.epsilon else f"the terms lead to {self.epsilon:.6g}"
        way = self.by.split()[0]
        if printed < self.epsilon * (1 - CLOSE[way]) - 1e-6:
            return f"too small: the terms lead to {self.epsilon:.6g}"
        if printed > self.epsilon * (1 + ABOVE[way]) + 1e-6:
            return f"the terms lead to {self.epsilon:.6g}"
        if not self.low * (1 - CLOSE["pld"]) <= printed <= self.high * (1 + BESIDE):
            return f"dp_accounting has {self.low:.6g} to {self.high:.6g} for parts of the terms"
        return None


def recomputed(
    terms: Sequence[Term],
    delta: float,
    relation: str,
    accountant: str,
    printed: float,
    rough: bool = False,
) -> Recomputed:
    """Epsilon of all these terms together, against one observer.

    Args:
        terms: of one arm, or of several that are composed; all from one trust.
        delta, relation, accountant: those of the printed epsilon.
        printed: decides only what is looked at if the first result is not near it: this program
            prints the smaller of two bounds.
        rough: fewer orders of RDP, for many epsilons of one arm.

    Returns:
        What was found, and by what.
    """
    kinds = {term["mechanism"] for term in terms}
    if "exact" in kinds:
        return Recomputed(math.inf, "none")
    if kinds <= {"gaussian", "filtered-gaussian", "turns"}:
        mu_squared = math.fsum(_mu_squared(term, relation) for term in terms)
        return Recomputed(_gaussian(math.sqrt(mu_squared), delta), "gaussian")
    coins = _as_coins(terms)
    if accountant == "rdp" or "chosen" in kinds:
        return _by_rdp(coins, delta, relation, rough)
    if any(_is_joint(one) for choices, _ in coins for one in choices):
        return _by_ours(coins, delta, relation, "pld", rough)
    found = Recomputed(_pld_epsilon(_frozen(coins), delta, relation), "pld")
    if found.problem(printed):
        other = _by_rdp(coins, delta, relation, rough)
        return other if other.epsilon < found.epsilon or found.epsilon > REACH else found
    return found


# Gaussian mechanisms: a client's own messages, and turns

SENSITIVITY = {
    "update": {"zero-out": 1.0, "replace": 2.0},
    "norm": {"zero-out": 1.0, "replace": 1.0},
}


def _gaussian(mu: float, delta: float) -> float:
    import dp_accounting

    return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def _mu_squared(term: Term, relation: str) -> float:
    rounds = term["rounds"]
    if term["mechanism"] == "filtered-gaussian":
        return _filtered(term, relation)
    if term["mechanism"] == "turns":
        turns = -(-rounds // term["separation"])
        return turns * float((SENSITIVITY["update"][relation] / term["noise_multiplier"]) ** 2)
    moved = SENSITIVITY[term["release"]][relation] / term["noise_multiplier"]
    return float(rounds * moved**2 / term.get("uploaders", 1))


def _filtered(term: Term, relation: str) -> float:
    """The most that a client can spend before its budget, of another relation perhaps, is spent: a
    search over how many norms and updates it has sent, never more updates than norms."""
    import dp_accounting

    sigma = dp_accounting.get_sigma_gaussian(term["budget_epsilon"], term["budget_delta"])
    budget, rounds = sigma**-2 * (1 + 1e-9), term["rounds"]

    def spent(norms: int, updates: int, by: str) -> float:
        total = updates * (SENSITIVITY["update"][by] / term["update_multiplier"]) ** 2
        if "norm_multiplier" in term:
            total += norms * (SENSITIVITY["norm"][by] / term["norm_multiplier"]) ** 2
        return float(total)

    kept = term["budget_relation"]
    if relation == kept:
        return min(sigma**-2, spent(rounds, rounds, kept))
    worst, one = 0.0, spent(0, 1, kept)
    for norms in range(rounds + 1) if "norm_multiplier" in term else [rounds]:
        if (left := budget - spent(norms, 0, kept)) >= 0:
            worst = max(worst, spent(norms, min(norms, int(left / one)), relation))
    return worst


# Sums over a secret sample


def _as_coins(terms: Sequence[Term]) -> Coins:
    """Rounds by coins; turns beside them are rounds that everybody takes part in."""
    found: Coins = []
    for term in terms:
        rounds = term["rounds"]
        if term["mechanism"] == "turns":
            rounds = -(-rounds // term["separation"])
            term = _poisson(1.0, term["noise_multiplier"])
        choices = term["choices"] if term["mechanism"] == "chosen" else [term]
        found.append((tuple(choices), rounds))
    return found


def _poisson(rate: float, noise: float) -> Term:
    return {"mechanism": "poisson-gaussian", "sampling_rate": rate, "noise_multiplier": noise}


def _is_joint(term: Term) -> bool:
    """Whether it is two sums of one secret sample. Sums of everybody are two mechanisms, and if the
    second coin draws all of a sample the two sums are one Gaussian."""
    joint = term["mechanism"] == "joint-poisson-gaussian"
    return bool(joint and term["sampling_rate"] < 1 and term["second_rate"] < 1)


def _parts(term: Term) -> list[tuple[float, float]]:
    """The Poisson-sampled Gaussians, as (rate, multiplier), that a round is."""
    if term["mechanism"] == "poisson-gaussian":
        return [(float(term["sampling_rate"]), float(term["noise_multiplier"]))]
    rate, second = float(term["sampling_rate"]), float(term["second_rate"])
    first, noise = float(term["first_multiplier"]), float(term["noise_multiplier"])
    if second == 1 and rate < 1:
        return [(rate, _merged(first, noise))]
    return [(rate, first), (rate * second, noise)]


def _frozen(coins: Coins) -> Frozen:
    """All Poisson-sampled Gaussians with their rounds, equal ones merged."""
    counts: dict[tuple[float, ...], int] = {}
    for (term,), rounds in coins:
        for part in _parts(term):
            counts[part] = counts.get(part, 0) + rounds
    return tuple(counts.items())


@lru_cache(maxsize=64)
def _one_round(part: tuple[float, ...], interval: float) -> Any:
    """The loss distribution of a Poisson-sampled Gaussian or, of four numbers, of the mixture of
    Gaussians on a line that is worth more than two sums of one sample: shifts 0, 1 / first and the
    length of both."""
    from dp_accounting.pld import privacy_loss_distribution

    if len(part) == 2:
        rate, noise = part
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=interval
        )
    rate, first, second, noise = part
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0,
        [0.0, 1 / first, math.hypot(1 / first, 1 / noise)],
        [1 - rate, rate * (1 - second), rate * second],
        value_discretization_interval=interval,
    )


def _interval(part: tuple[float, ...], rounds: int) -> float:
    """A step that is fine beside the loss of one round, and that memory has room for."""
    rate, noise = part if len(part) == 2 else (part[0], _merged(part[1], part[3]))
    coarse = 1 if len(part) == 2 else 5  # of a bound beside, which is slow to compute
    spread = math.sqrt(math.log1p(rate**2 * math.expm1(min(noise**-2, 50.0))))
    widest = math.log1p(rate * math.expm1(min((10 + 1 / noise) / noise, 600.0)))
    fine = max(min(1e-3, spread / 40), widest / 40_000, spread * rounds**0.5 / 100_000)
    return coarse * fine


def _merged(*multipliers: float) -> float:
    """The multiplier of one Gaussian that is worth these."""
    return math.fsum(z**-2 for z in multipliers) ** -0.5


@lru_cache(maxsize=1024)
def _pld_epsilon(parts: Frozen, delta: float, relation: str) -> float:
    interval = max(_interval(*each) for each in parts)
    composed: Any = None
    for part, rounds in parts:
        one = _one_round(part, interval).self_compose(rounds)
        composed = one if composed is None else composed.compose(one)
    slack = 1e-12 + 1e-14 * sum(rounds for _, rounds in parts)  # of the FFT, charged
    with np.errstate(over="ignore"):
        first = _at(composed, delta - slack)
        if relation == "zero-out" or not first < REACH:
            return first if relation == "zero-out" else math.inf
        best = math.inf
        for stretch in (1 + np.geomspace(5e-4, 0.5, 14)).tolist():
            e1 = first * stretch + 1e-9
            left = (delta - float(composed.get_delta_for_epsilon(e1)) - slack) * math.exp(-e1)
            best = min(best, e1 + _at(composed, left - slack))
    return best


def _at(composed: Any, delta: float) -> float:
    return float(composed.get_epsilon_for_delta(delta)) if delta > 0 else math.inf


@lru_cache(maxsize=4096)
def _one_rdp(rate: float, noise: float, orders: tuple[float, ...]) -> Floats:
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    accountant = rdp_privacy_accountant.RdpAccountant(
        [int(order) if order == round(order) else order for order in orders]
    )
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    )
    found: Floats = np.asarray(accountant.rdp, np.float64)
    return found


def _rdp(coins: Coins, orders: tuple[float, ...]) -> Floats:
    """The composed RDP of zero-out: costs add, and a chosen round costs at most the largest."""
    total = np.zeros(len(orders))
    for choices, rounds in coins:
        each = [
            np.sum([_one_rdp(*part, orders) for part in _parts(one)], axis=0) for one in choices
        ]
        total = total + rounds * np.max(each, axis=0)
    return total


def _replace_rdp(coins: Coins, orders: tuple[float, ...]) -> Floats:
    alpha = np.asarray(orders)
    both = _rdp(coins, (*(2 * alpha).tolist(), *(2 * alpha - 1).tolist()))
    high, low = both[: len(alpha)], both[len(alpha) :]
    halves = (alpha - 0.5) / (alpha - 1) * high + low
    found: Floats = np.minimum(halves, 2 * alpha / (2 * alpha - 1) * low + high)
    return found


def _rdp_epsilon(
    coins: Coins, delta: float, relation: str, rough: bool = False
) -> tuple[float, bool]:
    """Epsilon, and whether it can be relied upon to be near the least: the orders on both sides of
    the best one converged, and it is not among the real ones below 3, which are up to 3% high."""
    from dp_accounting.rdp import rdp_privacy_accountant

    cost = _rdp if relation == "zero-out" else _replace_rdp
    most = 1024 if relation == "zero-out" else 512
    orders = tuple(sorted({order for order in ORDERS if order <= most}))
    best, converged = math.inf, False
    for _ in range(1 if rough else 4):  # all orders, then closer and closer around the best one
        rdp = cost(coins, orders)
        each = [
            rdp_privacy_accountant.compute_epsilon([order], [value], delta)[0]
            for order, value in zip(orders, rdp.tolist(), strict=True)
        ]
        at = int(np.argmin(each))
        best = min(best, float(each[at]))
        beside = orders[max(0, at - 1)], orders[min(len(orders) - 1, at + 1)]
        exact = orders[at] >= (3 if relation == "zero-out" else 2)
        converged = exact and bool(np.isfinite(rdp[max(0, at - 1) : at + 2]).all())
        closer = np.linspace(*beside, 8)
        halves = np.maximum(np.round(2 * closer), 3) / 2
        orders = tuple(np.union1d(closer[closer < 40], halves).tolist())
    return best, converged


def _by_rdp(coins: Coins, delta: float, relation: str, rough: bool) -> Recomputed:
    if any(_is_joint(one) for choices, _ in coins for one in choices):
        return _by_ours(coins, delta, relation, "rdp", rough)
    with _quiet():
        epsilon, converged = _rdp_epsilon(coins, delta, relation, rough)
    if converged:
        return Recomputed(epsilon, "roughly" if rough else "rdp")
    ours = _by_ours(coins, delta, relation, "rdp", rough)
    return Recomputed(ours.epsilon, ours.by, ours.low, min(ours.high, epsilon))


def _by_ours(coins: Coins, delta: float, relation: str, accountant: Any, rough: bool) -> Recomputed:
    """By this program's accountant, with what dp_accounting knows of its parts."""
    from locksfl.methods.releases import RatedRound, SampledRound
    from locksfl.privacy.accountant import central_epsilon

    def ours(term: Term) -> SampledRound:
        if term["mechanism"] == "poisson-gaussian":
            return SampledRound(term["sampling_rate"], term["noise_multiplier"])
        names = ("sampling_rate", "noise_multiplier", "first_multiplier", "second_rate")
        return SampledRound(*(term[name] for name in names))

    spent = [
        (ours(choices[0]) if len(choices) == 1 else RatedRound(tuple(map(ours, choices))), rounds)
        for choices, rounds in coins
    ]
    epsilon = central_epsilon(spent, delta, relation, accountant)  # type: ignore[arg-type]
    if rough:
        return Recomputed(epsilon, f"locks {accountant}")
    return Recomputed(epsilon, f"locks {accountant}", *_bounds(coins, delta, relation, accountant))


def _bounds(coins: Coins, delta: float, relation: str, accountant: str) -> tuple[float, float]:
    """What dp_accounting says of less and of more than these rounds; of replace it has only upper
    bounds, and of chosen rounds nothing."""
    if any(len(choices) > 1 for choices, _ in coins):
        return 0.0, math.inf
    parts = [(_parts(term), rounds) for (term,), rounds in coins]
    first = tuple((each[0], rounds) for each, rounds in parts)
    second = tuple((each[-1], rounds) for each, rounds in parts)
    low = max(_pld_epsilon(one, delta, "zero-out") for one in (first, second))
    if accountant == "pld":
        names = ("sampling_rate", "first_multiplier", "second_rate", "noise_multiplier")
        above = tuple(
            (tuple(float(term[n]) for n in names) if _is_joint(term) else each[0], rounds)
            for ((term,), rounds), (each, _) in zip(coins, parts, strict=True)
        )
        return low, _pld_epsilon(above, delta, relation)
    one = [_poisson(each[0][0], _merged(*(z for _, z in each))) for each, _ in parts]
    merged: Coins = [((term,), rounds) for term, (_, rounds) in zip(one, parts, strict=True)]
    with _quiet():
        return low, _rdp_epsilon(merged, delta, relation)[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """dp_accounting warns of every order that does not converge, which is expected here."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
