"""Renyi accounting of sampled rounds, at real orders from just above 1 to 1024.

One round is dominated by the pair Q = N(0, I) on the plane and P with

    L(x, y) = P/Q = (1-q) + q e^(ax - a^2/2) ((1-p) + p e^(cy - c^2/2)),  a = 1/z_K, c = 1/z_G

(x: the sum of norms; y: the sum of contributions, along the client's own). A round without a norm
release has a = 0 and one draw. The cost of a round at order alpha is ln E_Q[L^alpha] / (alpha-1),
and costs add over rounds.

* Only P over Q is computed, because it is the larger one for every alpha > 1: one round has
  delta_{P,Q}(eps) >= delta_{Q,P}(eps) for all eps >= 0, and E_Q[L^alpha] - E_Q[L^(1-alpha)] is
  alpha (alpha-1) times the integral over u > 1 of (u^(alpha-2) - u^(-alpha-1)) times their gap.
  The order of the deltas holds for a Gaussian shift (equality), is preserved by mixing P with Q
  (write t = (k-1)/q; on L > k/(k-t) one has (k-t)L - k <= L - 1 - t), and is preserved by a further
  independent Gaussian shift (its loss density is e^(l/2) times an even function that decreases with
  |l|). The round is built from these three steps: shift y, mix with p, shift x, mix with q.
* Integer orders: the binomial sum (Mironov, Talwar and Zhang 2019, section 3.3, with a second sum
  inside). Real orders: the trapezoid rule, computed in logarithms. Its error decreases like
  e^(-2 pi H / step), where H is the distance from the real line to the nearest zero of L, pi/a or
  pi/c: the step is a fraction of that distance. The remaining rounding error (14 digits are
  correct) is charged.
* Between two orders alpha -> (alpha-1) RDP(alpha) is convex, so its chord is an upper bound: it is
  charged for real orders beyond the reach of the quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from locksfl._arrays import Floats
from locksfl.methods.events import Chosen, Coins, Sampled, SampledTwice
from locksfl.methods.releases import Relation

Spent = Sequence[tuple[Coins | Chosen, int]]  # each with its number of rounds

_MAX_ORDER = 1024
# Replace needs the orders 2 alpha - 1 and 2 alpha of every alpha.
ORDERS: tuple[float, ...] = (
    *(float(order) for order in 1 + np.geomspace(0.002, 46, 700)),
    *(float(order) for order in range(2, 129)),
    *(float(round(order)) for order in np.geomspace(130, _MAX_ORDER, 70)),
)
COARSE_ORDERS: tuple[float, ...] = (*ORDERS[0:700:12], *ORDERS[700::6])
REPLACE_ORDERS: tuple[float, ...] = (
    *(float(order) for order in 1 + np.geomspace(0.002, 23, 300)),
    *(order / 2 for order in range(4, 257)),
    *(float(round(order)) for order in np.geomspace(130, _MAX_ORDER / 2, 50)),
)


class PlanePair(NamedTuple):
    """The numbers of the pair (Q, P) above: a = 0 and p = 1 if only one sum is released."""

    q: float
    a: float
    p: float
    c: float

    @classmethod
    def of(cls, event: Coins) -> PlanePair:
        """The pair of one round."""
        if isinstance(event, SampledTwice):
            first, second = 1 / event.first_multiplier, 1 / event.noise_multiplier
            return cls(event.sampling_rate, first, event.second_rate, second)
        return cls(event.sampling_rate, 0.0, 1.0, 1 / event.noise_multiplier)


@lru_cache(maxsize=512)
def round_rdp(event: Coins, orders: tuple[float, ...] = ORDERS) -> tuple[float, ...]:
    """The zero-out RDP of one round at each of these orders (all above 1, at most 1024)."""
    wanted = np.asarray(orders, dtype=np.float64)
    if wanted.size == 0 or wanted.min() <= 1 or wanted.max() > _MAX_ORDER:
        raise ValueError(f"orders = {orders!r}: expected numbers in (1, {_MAX_ORDER}]")
    if isinstance(event, SampledTwice) and event.sampling_rate == 1:
        # without a first draw L is a product of independent factors, so that their costs add
        update = Sampled(event.second_rate, event.noise_multiplier)
        norms = wanted / (2 * event.first_multiplier**2) * (1 + 1e-13)
        return tuple((norms + round_rdp(update, orders)).tolist())
    pair = PlanePair.of(event)
    limit = _quadrature_limit(pair)
    whole = wanted == np.round(wanted)
    near = ~whole & (wanted <= limit)
    far = ~whole & ~near
    moments = np.empty_like(wanted)
    if near.any():
        moments[near] = _log_moments_by_quadrature(pair, wanted[near])
    if whole.any():
        moments[whole] = _log_moments_at_integers(pair, _as_integers(wanted[whole]))
    if far.any():
        below = np.floor(wanted[far])
        ends = _log_moments_at_integers(pair, _as_integers(np.concatenate([below, below + 1])))
        low, high = ends[: len(below)], ends[len(below) :]
        moments[far] = low + (wanted[far] - below) * (high - low)
    # Rounding errors of the sums, charged: about 1e-16 for each unit in the exponents.
    moments = np.maximum(moments, 0.0) * (1 + 1e-13) + 2e-14 + 2e-15 * wanted
    return tuple(float(value) for value in moments / (wanted - 1))


def composed_rdp(spent: Spent, orders: tuple[float, ...] = ORDERS) -> Floats:
    """The zero-out RDP of these rounds together: costs add (Mironov 2017, Proposition 1). A round
    that was chosen among several costs at most the largest of them at each order."""
    total = np.zeros(len(orders))
    for event, count in spent:
        if count:
            choices = event.choices if isinstance(event, Chosen) else (event,)
            each = [round_rdp(one, orders) for one in choices]
            total += count * np.max(each, axis=0)
    return total


def replace_rdp(spent: Spent, orders: tuple[float, ...] = REPLACE_ORDERS) -> Floats:
    """RDP under replace at orders of at most 512, by two steps of zero-out.

    With R the composed zero-out RDP, the weak triangle inequality (Mironov 2017, Proposition 11)
    gives, for p = q = 2 and for p = (2 alpha - 1)/alpha,

        RDP_rep(alpha) <= (alpha - 1/2)/(alpha - 1) R(2 alpha) + R(2 alpha - 1),
        RDP_rep(alpha) <= 2 alpha/(2 alpha - 1) R(2 alpha - 1) + R(2 alpha).

    The smaller one is taken. The second is exact for a Gaussian (R = alpha rho gives 4 alpha rho);
    the first is far off at orders near 1, which are decisive when epsilon is large.
    """
    alpha = np.asarray(orders)
    high = composed_rdp(spent, tuple(float(order) for order in 2 * alpha))
    low = composed_rdp(spent, tuple(float(order) for order in 2 * alpha - 1))
    halves = (alpha - 0.5) / (alpha - 1) * high + low
    result: Floats = np.minimum(halves, 2 * alpha / (2 * alpha - 1) * low + high)
    return result


def epsilon_from_rdp(orders: Sequence[float], rdp: Floats, delta: float) -> float:
    """The smallest epsilon over the orders (Canonne, Kamath and Steinke 2020, Proposition 12).

    epsilon = min over alpha of RDP(alpha) + ln(1 - 1/alpha) - ln(delta alpha) / (alpha - 1).
    """
    alpha = np.asarray(orders, dtype=np.float64)
    bound = rdp + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    return max(0.0, float(np.min(bound)))


def rdp_epsilon(
    spent: Spent,
    delta: float,
    relation: Relation = "zero-out",
    *,
    coarse: bool = False,
) -> float:
    """Epsilon of these rounds together; `coarse` uses fewer orders, for searches."""
    if not any(count for _, count in spent):
        return 0.0
    if relation == "replace":
        orders = REPLACE_ORDERS[::10] if coarse else REPLACE_ORDERS
        return epsilon_from_rdp(orders, replace_rdp(spent, orders), delta)
    orders = COARSE_ORDERS if coarse else ORDERS
    return epsilon_from_rdp(orders, composed_rdp(spent, orders), delta)


def _as_integers(orders: Floats) -> tuple[int, ...]:
    return tuple(int(order) for order in orders)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _log_power(base: float, exponents: Floats) -> Floats:
    """exponents * ln(base), with 0^0 = 1."""
    if base > 0:
        return exponents * math.log(base)
    return np.where(exponents == 0, 0.0, -np.inf)


def _log_binomial_moments(rate: float, log_moments: Floats, orders: Sequence[int]) -> Floats:
    """ln sum_j binom(n, j) (1-rate)^(n-j) rate^j e^(log_moments[j]) at every n in orders."""
    j = np.arange(len(log_moments), dtype=np.float64)
    log_factorial: Floats = special.gammaln(j + 1)
    taken = _log_power(rate, j) + log_moments - log_factorial
    left_out = _log_power(1 - rate, j) - log_factorial
    result = np.empty(len(orders))
    for position, n in enumerate(orders):
        terms = taken[: n + 1] + left_out[n::-1]
        top = terms.max()
        result[position] = log_factorial[n] + top + math.log(float(np.exp(terms - top).sum()))
    return result


@lru_cache(maxsize=64)
def _log_moments_at_integers(pair: PlanePair, orders: tuple[int, ...]) -> Floats:
    """ln E_Q[L^alpha] at integers.

    sum_j binom(alpha, j) (1-q)^(alpha-j) q^j e^(j(j-1) a^2/2) A_j, with
    A_j = sum_l binom(j, l) (1-p)^(j-l) p^l e^(l(l-1) c^2/2).
    """
    j = np.arange(max(orders) + 1, dtype=np.float64)
    inner = j * (j - 1) / 2 * pair.c**2
    if pair.p < 1:
        inner = _log_binomial_moments(pair.p, inner, range(len(j)))
    return _log_binomial_moments(pair.q, inner + j * (j - 1) / 2 * pair.a**2, orders)


def _quadrature_limit(pair: PlanePair) -> float:
    """The largest order whose grid is small enough; 1 when none is (a multiplier far below 0.1)."""
    for limit, most in ((48, 3e4), (24, 3e4), (13, 3e4), (6, 3e4), (3, 3e4), (2, 2e5)):
        points = math.prod(
            (limit * shift + 20) / _step(shift) for shift in (pair.a, pair.c) if shift > 0
        )
        if points <= most:
            return float(limit)
    return 1.0


def _step(shift: float) -> float:
    return min(0.35, 0.55 / shift)


def _grid(shift: float, largest: float) -> tuple[Floats, float]:
    """Trapezoid points reaching 10 standard deviations beyond both ends, and their spacing."""
    step = _step(shift)
    high = largest * shift + 10.0
    return np.arange(-10.0, high + step, step), step


def _log_moments_by_quadrature(pair: PlanePair, orders: Floats) -> Floats:
    """ln E_Q[L^alpha] at real orders by the trapezoid rule, in logarithms."""
    q, norm, p, vector = pair
    largest = float(orders.max())
    y, step = _grid(vector, largest)
    weight = (-(y**2) / 2 + math.log(step / math.sqrt(2 * math.pi)))[None, :]
    inner = (vector * y - vector**2 / 2)[None, :]
    x = np.zeros(1)
    if norm > 0:
        x, step = _grid(norm, largest)
        inner = np.logaddexp(_log(1 - p), math.log(p) + inner)
        inner = (norm * x - norm**2 / 2)[:, None] + inner
        weight = (-(x**2) / 2 + math.log(step / math.sqrt(2 * math.pi)))[:, None] + weight
    log_ratio = np.logaddexp(_log(1 - q), math.log(q) + inner)
    result = np.empty(len(orders))
    for position, order in enumerate(orders):
        # 10 standard deviations beyond its own end, which is that of the largest order at most
        ends = (
            np.searchsorted(z, order * shift + 10.0) + 1 for z, shift in ((x, norm), (y, vector))
        )
        here = tuple(slice(end) for end in ends)
        terms = weight[here] + order * log_ratio[here]
        top = terms.max()
        result[position] = top + math.log(float(np.exp(terms - top).sum()))
    return result
