"""Epsilons of sums over a secret sample by dp_accounting alone: its loss distributions and its RDP.

`privacy.recompute` says what is composed here, and when this is not enough. No accountant of this
program is used.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from locksfl.methods.events import Chosen, Rounds, Sampled, SampledTwice, Turns

Floats = npt.NDArray[np.float64]
Round = Sampled | SampledTwice
Coins = list[tuple[tuple[Round, ...], int]]  # what a round may be, and how many there are
Frozen = tuple[tuple[tuple[float, ...], int], ...]  # the numbers of a mechanism, and its rounds

WHOLE = (*range(2, 49), 56, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
ORDERS = (*(1 + np.geomspace(0.02, 6, 24)).tolist(), *map(float, WHOLE))
REACH = 200.0  # the largest epsilon for which a loss distribution is in range for certain


def as_coins(seen: Sequence[Rounds]) -> Coins:
    """Rounds by coins; turns beside them are rounds that everybody takes part in."""
    coins: Coins = []
    for event, rounds in seen:
        match event:
            case Turns():
                turns = -(-rounds // event.separation)
                coins.append(((Sampled(1.0, event.noise_multiplier),), turns))
            case Chosen():
                coins.append((event.choices, rounds))
            case Sampled() | SampledTwice():
                coins.append(((event,), rounds))
            case _:
                raise TypeError(f"{type(event).__name__}: not a sum over a secret sample")
    return coins


def is_joint(one: Round) -> bool:
    """Whether it is two sums of one secret sample. Sums of everybody are two mechanisms, and if the
    second coin draws all of a sample the two sums are one Gaussian."""
    return isinstance(one, SampledTwice) and one.sampling_rate < 1 and one.second_rate < 1


def parts_of(one: Round) -> list[tuple[float, float]]:
    """The Poisson-sampled Gaussians, as (rate, multiplier), that a round is."""
    if isinstance(one, Sampled):
        return [(one.sampling_rate, one.noise_multiplier)]
    if one.second_rate == 1 and one.sampling_rate < 1:
        return [(one.sampling_rate, merged(one.first_multiplier, one.noise_multiplier))]
    second = one.sampling_rate * one.second_rate
    return [(one.sampling_rate, one.first_multiplier), (second, one.noise_multiplier)]


def frozen(coins: Coins) -> Frozen:
    """All Poisson-sampled Gaussians with their rounds, equal ones merged."""
    counts: dict[tuple[float, ...], int] = {}
    for (one,), rounds in coins:
        for part in parts_of(one):
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
    rate, noise = part if len(part) == 2 else (part[0], merged(part[1], part[3]))
    coarse = 1 if len(part) == 2 else 5  # of a bound beside, which is slow to compute
    spread = math.sqrt(math.log1p(rate**2 * math.expm1(min(noise**-2, 50.0))))
    widest = math.log1p(rate * math.expm1(min((10 + 1 / noise) / noise, 600.0)))
    fine = max(min(1e-3, spread / 40), widest / 40_000, spread * rounds**0.5 / 100_000)
    return coarse * fine


def merged(*multipliers: float) -> float:
    """The multiplier of one Gaussian that is worth these."""
    return math.fsum(z**-2 for z in multipliers) ** -0.5


@lru_cache(maxsize=1024)
def pld_epsilon(parts: Frozen, delta: float, relation: str) -> float:
    """Epsilon by loss distributions, pessimistic; infinite under replace if it is out of range."""
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
    rdp: Floats = np.asarray(accountant.rdp, np.float64)
    return rdp


def _rdp(coins: Coins, orders: tuple[float, ...]) -> Floats:
    """The composed RDP of zero-out: costs add, and a chosen round costs at most the largest."""
    total = np.zeros(len(orders))
    for choices, rounds in coins:
        each = [
            np.sum([_one_rdp(*part, orders) for part in parts_of(one)], axis=0) for one in choices
        ]
        total = total + rounds * np.max(each, axis=0)
    return total


def _replace_rdp(coins: Coins, orders: tuple[float, ...]) -> Floats:
    alpha = np.asarray(orders)
    both = _rdp(coins, (*(2 * alpha).tolist(), *(2 * alpha - 1).tolist()))
    high, low = both[: len(alpha)], both[len(alpha) :]
    halves = (alpha - 0.5) / (alpha - 1) * high + low
    bound: Floats = np.minimum(halves, 2 * alpha / (2 * alpha - 1) * low + high)
    return bound


def rdp_epsilon(
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
        with quiet():
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


@contextmanager
def quiet() -> Iterator[None]:
    """dp_accounting warns of every order that does not converge, which is expected here."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
