"""Privacy loss distributions of sampled rounds: tighter than RDP, and still an upper bound.

Every step rounds towards more loss, and anything outside the numerical range costs infinity:

* One round becomes a discrete pair that dominates it, by dp_accounting's pessimistic
  connect-the-dots (Doroshenko et al. 2022): its delta(epsilon) is exact on a grid, and between the
  grid points the chord of a convex function lies above it.
* Without a norm release that is dp_accounting's Poisson-sampled Gaussian. With one it is the pair
  on the plane of `locksfl.privacy.rdp`. For a fixed x the ratio L is A + B e^(cy - c^2/2), and
  the integral over y is exact (Black and Scholes' formula). The integral over x is a sum over
  cells: E (L-k)_+ and E (k-L)_+ are convex in r = e^(ax - a^2/2), so on every cell the chord in r
  lies above, and the two end points get the weights that keep the exact masses of N(0,1) and
  N(a,1) of the cell. This is again a pair that dominates, with an error of second order.
* Both directions (client in over client out, and the reverse) are composed; the larger counts.
* The FFT's rounding error is charged as delta: `_slack`.
* Replace is two steps of zero-out: delta_rep(e1 + e2) <= delta(e1) + e^e1 delta(e2), any e1, e2
  (e1 = e2 is the familiar (1 + e^eps) delta(eps) at 2 eps).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from scipy import special

from locksfl._arrays import Floats
from locksfl.methods.events import Coins, Sampled, SampledTwice
from locksfl.methods.releases import Relation
from locksfl.privacy.rdp import PlanePair, round_rdp

Event = TypeVar("Event", bound=Hashable)

_REACH = 11.0  # standard deviations; beyond them lies a mass of 2e-28
_CELL = 0.06  # width of a cell of x; adds less than _CELL^2/6 of x's share of the variance
_LARGEST_LOSS = 500.0  # of one round; beyond it e^loss approaches the largest float
_MOST_POINTS = {False: 60_000, True: 16_000}  # of one round's grid; True: with a norm release
_MOST_COMPOSED = 4_000_000


def pld_epsilon(
    spent: Sequence[tuple[Coins, int]], delta: float, relation: Relation = "zero-out"
) -> float:
    """An upper bound on epsilon of these rounds together; infinite when out of numerical range."""
    spent = merged(spent)
    if not spent:
        return 0.0
    return _pld_epsilon(spent, choose_interval(spent), delta, relation)


def pld_epsilons(
    event: Coins, rounds: Sequence[int], delta: float, relation: Relation = "zero-out"
) -> list[float]:
    """`pld_epsilon` for each of these numbers of rounds; the grid of one round is built once."""
    interval = choose_interval([(event, max(rounds, default=0))])
    return [
        _pld_epsilon(((event, count),), interval, delta, relation) if count else 0.0
        for count in rounds
    ]


@lru_cache(maxsize=4096)  # a sweep asks for the same rounds once for every seed
def _pld_epsilon(
    spent: tuple[tuple[Coins, int], ...], interval: float, delta: float, relation: Relation
) -> float:
    if not math.isfinite(interval):
        return math.inf
    composed: Any = None
    for event, count in spent:
        part = one_round(event, interval).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    return _epsilon(composed, delta, _slack(sum(count for _, count in spent)), relation)


def merged(spent: Sequence[tuple[Event, int]]) -> tuple[tuple[Event, int], ...]:
    """Merge equal rounds and drop those with count zero."""
    counts: dict[Event, int] = {}
    for event, count in spent:
        counts[event] = counts.get(event, 0) + count
    return tuple((event, count) for event, count in counts.items() if count)


def choose_interval(spent: Sequence[tuple[Coins, int]]) -> float:
    """The step of a grid that is fine relative to one round's loss but not too large; or infinity.

    Rounding a loss of standard deviation s to a grid of step h adds about h^2/6 to its variance,
    and s^2 is about twice the RDP near order 1. A grid coarser than desired costs epsilon, never
    soundness.
    """
    wished, bearable, span = 5e-3, 0.0, 0.0
    for event, count in spent:
        low, high = _loss_range(event)
        if max(-low, high) > _LARGEST_LOSS:
            return math.inf
        deviation = math.sqrt(2 * round_rdp(event, (1.05,))[0])
        wished = min(wished, deviation / 30)
        bearable = max(bearable, (high - low) / _MOST_POINTS[isinstance(event, SampledTwice)])
        span += count * deviation**2 / 2 + 8 * math.sqrt(count) * deviation + (high - low)
    return max(wished, bearable, span / _MOST_COMPOSED)


@lru_cache(maxsize=32)
def one_round(event: Coins, interval: float) -> Any:
    """One round as a dp_accounting PrivacyLossDistribution, both directions, pessimistic."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    if isinstance(event, Sampled):
        return privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=interval,
        )
    low, high = _loss_range(event)
    pmfs = []
    for reverse in (False, True):
        first = math.floor((-high if reverse else low) / interval)
        last = math.ceil((-low if reverse else high) / interval)
        epsilons = np.arange(first, last + 1, dtype=np.float64) * interval
        deltas = hockey_stick(event, epsilons, reverse=reverse)
        pmfs.append(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
        )
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def hockey_stick(event: SampledTwice, epsilons: Floats, *, reverse: bool = False) -> Floats:
    """An upper bound on delta(epsilon) of one round with both releases, at each epsilon.

    Forward: E_Q (L - e^eps)_+. Reverse (Q over P): E_Q (1 - e^eps L)_+ = e^eps E_Q (e^-eps - L)_+.
    """
    q, a, p, c = PlanePair.of(event)
    ratios, weights, rest = _cells(a, q, reverse=reverse)
    base = ((1 - q) + q * (1 - p) * ratios)[:, None]
    slope = (q * p * ratios)[:, None]
    deltas = np.empty(len(epsilons))
    for start in range(0, len(epsilons), 512):
        part = slice(start, start + 512)
        strike = np.exp(-epsilons[part] if reverse else epsilons[part])[None, :]
        gap = strike - base
        with np.errstate(divide="ignore"):
            edge = (np.log(np.maximum(gap, 0.0)) - np.log(slope)) / c + c / 2
        # `edge` is the y at which L = strike; it is -infinity if L > strike for every y.
        if reverse:
            value = gap * special.ndtr(edge) - slope * special.ndtr(edge - c)
            value = np.maximum(np.where(gap > 0, value, 0.0), 0.0) / strike
        else:
            value = slope * special.ndtr(c - edge) - gap * special.ndtr(-edge)
        deltas[part] = weights @ np.maximum(value, 0.0)
    bounded = np.clip(deltas + rest, 0.0, 1.0)
    return np.minimum.accumulate(bounded)


def _cells(a: float, q: float, *, reverse: bool) -> tuple[Floats, Floats, float]:
    """(r at the end points of the cells of x, their weights under Q, and the delta charged for the
    mass outside).

    Forward, the integrand increases with x: the left tail is moved to the first point, and the
    right tail is charged with its whole mass under P. In reverse it decreases with x, and the tails
    swap roles.
    """
    count = math.ceil((2 * _REACH + a) / _CELL)
    x = np.linspace(-_REACH, _REACH + a, count + 1)
    ratio = np.exp(a * x - a * a / 2)
    mass = _normal_mass(x)
    right = np.clip((_normal_mass(x - a) - mass * ratio[:-1]) / np.diff(ratio), 0.0, mass)
    weights = np.zeros(count + 1)
    weights[1:] += right
    weights[:-1] += mass - right
    below, above = float(special.ndtr(x[0])), float(special.ndtr(-x[-1]))
    if reverse:
        weights[-1] += above
        return ratio, weights, below
    weights[0] += below
    return ratio, weights, (1 - q) * above + q * float(special.ndtr(a - x[-1]))


def _normal_mass(x: Floats) -> Floats:
    """Mass of N(0,1) between neighbouring points, without cancellation in the right tail."""
    left, right = special.ndtr(x), special.ndtr(-x)
    result: Floats = np.where(x[1:] > 0, right[:-1] - right[1:], left[1:] - left[:-1])
    return result


def _loss_range(event: Coins) -> tuple[float, float]:
    """ln L at the two corners beyond which neither P nor Q has noticeable mass."""
    q, a, p, c = PlanePair.of(event)

    def loss(x: float, y: float) -> float:
        inner = np.logaddexp(_log(1 - p), math.log(p) + c * y - c * c / 2)
        outer = np.logaddexp(_log(1 - q), math.log(q) + a * x - a * a / 2 + inner)
        return float(outer)

    return loss(-_REACH, -_REACH), loss(_REACH + a, _REACH + c)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _slack(rounds: int) -> float:
    """Delta reserved for the FFT: rounding of 1e-16 in each coefficient, raised to the power T."""
    return 1e-12 + 1e-14 * rounds


def _epsilon(composed: Any, delta: float, slack: float, relation: Relation) -> float:
    first = _zero_out(composed, delta - slack)
    if relation == "zero-out" or not math.isfinite(first):
        return first
    best = math.inf
    for stretch in (1.001, 1.003, 1.01, 1.03, 1.06, 1.1, 1.2, 1.5):
        e1 = first * stretch + 1e-9
        left = delta - float(composed.get_delta_for_epsilon(e1)) - slack
        if left > 0 and e1 < _LARGEST_LOSS:
            best = min(best, e1 + _zero_out(composed, left * math.exp(-e1) - slack))
    return best


def _zero_out(composed: Any, delta: float) -> float:
    if delta <= 0:
        return math.inf
    try:
        return float(composed.get_epsilon_for_delta(delta))
    except OverflowError:
        return math.inf
