"""How many rounds: the paper's T = d^2 log(T)^2, and what minimises the corrected bound.

The paper makes d log(T) sigma_0^2 / sqrt(T) small with sigma_0 fixed. At a fixed epsilon sigma_0^2
grows like T, so more rounds mean more noise, and the best T falls with d. With the constant step
1/L and the approximation sigma = q sqrt(2 T ln(1/delta)) / epsilon (epsilon of about 1 or less):

    central  T* = (n epsilon / C) sqrt(L Delta F / (d ln(1/delta)))             (zero-out)
    local    T* = (epsilon / 2 C) sqrt(n L Delta F / (d ln(1/delta)))           (replace)

with errors 4 C sqrt(L Delta F d ln(1/delta)) / (n epsilon), and 2 sqrt(n) times that. `best_rounds`
takes no approximation: it calibrates the noise of every T with the accountants that account a run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from scipy import special

from locksfl import _validate, methods
from locksfl._tables import Count, Positive, Probability, Settings
from locksfl.paper.theory.bound import Bound, Constants, corrected
from locksfl.privacy import calibrate_central, mu_from_epsilon

TRUSTS = tuple(name for name, trust in methods.TRUSTS.items() if trust.private)
MOST_ROUNDS = 10**6


def printed_rounds(parameters: int) -> tuple[float, float] | None:
    """Both roots above 1 of T = d^2 log(T)^2; the paper means the second. None for d = 1.

    With T = e^(2u): e^u = 2 d u, u = -W(-1/(2d)) on the branches 0 and -1 of Lambert's W; real
    for 2 d >= e. The first root is about 1 + 1/d: no number of rounds.
    """
    _validate.count(parameters=parameters)
    if 2 * parameters < math.e:
        return None
    small, large = (-special.lambertw(-1 / (2 * parameters), k).real for k in (0, -1))
    return math.exp(2 * small), math.exp(2 * large)


@dataclass(frozen=True)
class Regime(Settings):
    """What is fixed while T varies."""

    clients: Count  # n
    uploads: Positive  # b
    parameters: Count  # d
    epsilon: Positive
    delta: Probability
    clip_norm: Positive  # C
    smoothness: Positive  # L
    gap: Positive  # Delta F

    def check(self) -> None:
        """Refuse more uploads than clients."""
        if self.uploads > self.clients:
            expected = f"expected at most the {self.clients} clients"
            raise ValueError(f"uploads = {self.uploads!r}: {expected}")


def approximate_best(regime: Regime, trust: str) -> tuple[float, float]:
    """(T*, its error) by the formulas above; the noise alone, without the sampling term."""
    _validate.one_of(TRUSTS, trust=trust)
    s = regime
    weight = s.smoothness * s.gap
    cost = s.parameters * math.log(1 / s.delta)
    reach = s.clients * s.epsilon / s.clip_norm
    if methods.TRUSTS[trust].clients_add_noise:
        reach /= 2 * math.sqrt(s.clients)
    return reach * math.sqrt(weight / cost), 4 * math.sqrt(weight * cost) / reach


def noised(regime: Regime, rounds: int, trust: str) -> Constants:
    """The constants of T rounds of uniform sampling at the step 1/L, noise calibrated to epsilon.

    central: one Gaussian on the sum, zero-out, by RDP: s_c = z C / b. local: each uploader its
    own, replace, exact; a client uploads T b / n times (a filter keeps it to that), at least once.
    """
    s = regime
    if methods.TRUSTS[trust].clients_add_noise:
        releases = max(1.0, rounds * s.uploads / s.clients)
        std = 2 * s.clip_norm * math.sqrt(releases) / mu_from_epsilon(s.epsilon, s.delta)
        noise = {"client_noise": std}
    else:
        rate = min(1.0, s.uploads / s.clients)
        event = calibrate_central(s.epsilon, s.delta, rounds, rate, accountant="rdp")
        noise = {"server_noise": event.noise_multiplier * s.clip_norm / s.uploads}
    return Constants.of(s, rounds=rounds, step=1 / s.smoothness, **noise)


def best_rounds(regime: Regime, trust: str) -> tuple[int, Bound]:
    """The T that minimises the corrected bound at a constant step of 1/L, and the bound there."""
    _validate.one_of(TRUSTS, trust=trust)

    def bound(rounds: int) -> Bound:
        c = noised(regime, rounds, trust)
        below = c.step * (1 - 1e-12)  # L times 1/L may be 1 + 1e-16
        return corrected(replace(c, step=below), "constant")

    best = _smallest(lambda rounds: bound(rounds).total, MOST_ROUNDS)
    return best, bound(best)


def _smallest(value: Callable[[int], float], most: int) -> int:
    """The whole number with the smallest value of a function that falls and then grows: a grid of
    powers of two, then thirds of what is left."""
    at = functools.cache(value)
    n = 1
    while n < most and at(min(2 * n, most)) < at(n):
        n = min(2 * n, most)
    low, high = max(1, n // 2), min(2 * n, most)
    while high - low > 3:
        third = (high - low) // 3
        left, right = low + third, high - third
        if at(left) <= at(right):
            high = right
        else:
            low = left
    return min(range(low, high + 1), key=at)


def answer(regime: Regime) -> dict[str, Any]:
    """Everything that `locks theory rounds` says."""
    roots = printed_rounds(regime.parameters)
    told: dict[str, Any] = {
        "printed": None if roots is None else {"small_root": roots[0], "rounds": roots[1]}
    }
    for trust in TRUSTS:
        about, error = approximate_best(regime, trust)
        best, bound = best_rounds(regime, trust)
        told[trust] = {
            "relation": "replace" if methods.TRUSTS[trust].clients_add_noise else "zero-out",
            "rounds": best,
            "bound": bound.as_dict(),
            "approximate_rounds": about,
            "approximate_error": error,
        }
    return told
