"""Gaussian differential privacy: the exact conversion between mu and (epsilon, delta).

A client whose releases are Gaussians with sum of (sensitivity / std)^2 = mu^2 has

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

(Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13), with equality: nothing is
lost in the conversion. Everything is computed in logarithms, so even epsilon = 1000 causes no
overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize, special

from locksfl import _validate


def log_delta(epsilon: float, mu: float) -> float:
    """ln delta(epsilon) of the Gaussian mechanism with parameter mu."""
    upper = float(special.log_ndtr(-epsilon / mu + mu / 2))
    lower = epsilon + float(special.log_ndtr(-epsilon / mu - mu / 2))
    if lower >= upper:  # equal to the last digit: delta is zero as far as a float can tell
        return -math.inf
    return upper + math.log(-math.expm1(lower - upper))


def delta_from_mu(epsilon: float, mu: float) -> float:
    """The delta of a mu-GDP release at this epsilon."""
    _validate.non_negative(epsilon=epsilon, mu=mu)
    return math.exp(log_delta(epsilon, mu)) if mu > 0 else 0.0


def epsilon_from_mu(mu: float, delta: float) -> float:
    """The smallest epsilon at which mu-GDP gives (epsilon, delta)-DP."""
    _validate.non_negative(mu=mu)
    _validate.probability(delta=delta)
    if mu == 0 or log_delta(0.0, mu) <= math.log(delta):
        return 0.0

    def excess(epsilon: float) -> float:
        return max(log_delta(epsilon, mu), -1e6) - math.log(delta)

    # delta(epsilon) <= Phi(-epsilon/mu + mu/2) <= exp(-t^2/2) with t = epsilon/mu - mu/2.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-9
    return _root(excess, 0.0, high, away=1.0)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu for which mu-GDP is (epsilon, delta)-DP."""
    _validate.non_negative(epsilon=epsilon)
    _validate.probability(delta=delta)

    def excess(mu: float) -> float:
        return math.log(delta) - max(log_delta(epsilon, mu), -1e6)

    low = math.sqrt(2 * epsilon) + 1.0
    high = 2 * low
    while excess(low) < 0:
        low /= 2
    while excess(high) > 0:
        high *= 2
    return _root(excess, low, high, away=-1.0)


def _root(excess: Callable[[float], float], low: float, high: float, away: float) -> float:
    """The root of a decreasing function, moved by rounding errors to the side that is safe: up
    (`away` = 1), where the function is not positive, or down (-1), where it is not negative."""
    root = float(optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13))
    while away * excess(root) > 0:
        root += away * 1e-12 * max(1.0, root)
    return root
