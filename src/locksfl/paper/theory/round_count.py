"""How many rounds: the paper's T = d^2 log(T)^2, and what minimises the corrected bound.

The paper makes d log(T) sigma_0^2 / sqrt(T) small with sigma_0 fixed. At a fixed epsilon the noise
on the average has a variance of at least alpha T in all d coordinates together, where alpha is that
of a single round in which everybody takes part. With a constant step the corrected bound is then

    2 Delta F / (eta T) + L (eta T) (alpha + C^2 / (b T)),        c_nu = 0: clipping takes nothing

so the product eta T matters, and more rounds of smaller steps never hurt: as T grows, the bound
falls to 2 sqrt(2 L Delta F alpha), where eta T = sqrt(2 Delta F / (L alpha)). If one release of
sensitivity 1 and std 1/mu costs (epsilon, delta),

    central  alpha = d (C / (n mu))^2  (zero-out)      local  alpha = 4 d C^2 / (n mu^2)  (replace)

so eta T goes as 1/sqrt(d), and the limit as sqrt(d). A bound above 2 L Delta F says nothing:
|grad F(w_0)|^2 is below that already. The proof is at `noised`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

from locksfl import _validate
from locksfl._tables import Count, Positive, Probability, Settings
from locksfl.methods import PRIVATE, TRUSTS
from locksfl.paper.theory.bound import Bound, Constants, attempt, corrected, printed
from locksfl.privacy import calibrate_central, mu_from_epsilon

MOST_ROUNDS = 10**6
SHARE = 0.1  # how far above its limit a bound may be for `best_rounds`


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
    epsilon: Positive  # of all rounds
    delta: Probability  # of all rounds
    clip_norm: Positive  # C
    smoothness: Positive  # L
    gap: Positive  # Delta F

    def check(self) -> None:
        """Refuse more uploads than clients."""
        if self.uploads > self.clients:
            expected = f"expected at most the {self.clients} clients"
            raise ValueError(f"uploads = {self.uploads!r}: {expected}")


def noised(regime: Regime, rounds: int, trust: str) -> Constants:
    """The constants of T rounds of uniform sampling at the step 1/L, noise calibrated to epsilon.

    central: one Gaussian on the sum, zero-out, by RDP: s_c = z C / b. local: each uploader its
    own, replace, exact; a client uploads T b / n times, as it would in turns, at least once.

    That more rounds never hurt: with x = eta T the bound is 2 Delta F/x + L x V(T)/T, x <= T/L. A
    larger T allows more x, so it is enough that V(T)/T never grows and tends to alpha. Local: V/T =
    C^2/(b T) + (4 d C^2/mu^2) max(1/(b T), 1/n). Central: V/T = C^2/(b T) + d z^2 C^2/(b^2 T). At
    an integer order a, a round costs f(1/z^2)/(a - 1), f(y) = log sum_k binom(a, k) (1-q)^(a-k) q^k
    e^(k(k-1)y/2), convex and 0 at 0. So f(y)/y never falls with y: c^2 times the rounds with c
    times the noise cost no more, and z^2/T never grows. And f(y)/y >= f'(0) = q^2 a(a-1)/2, the
    cost of a Gaussian of multiplier z/q on everybody. (Orders between integers: by numbers only.)
    """
    s = regime
    if TRUSTS[trust].clients_add_noise:
        releases = max(1.0, rounds * s.uploads / s.clients)
        std = 2 * s.clip_norm * math.sqrt(releases) / mu_from_epsilon(s.epsilon, s.delta)
        noise = {"client_noise": std}
    else:
        rate = min(1.0, s.uploads / s.clients)
        calibrated = calibrate_central(s.epsilon, s.delta, rounds, rate, accountant="rdp")
        noise = {"server_noise": calibrated.known() * s.clip_norm / s.uploads}
    return _with_largest_step(s, rounds, noise)


def noise_of_everyone(regime: Regime, trust: str) -> float:
    """alpha: the variance of the noise, over all coordinates, of one round with all n clients."""
    c = noised(replace(regime, uploads=float(regime.clients)), 1, trust)
    return c.parameters * (c.sampling * c.client_noise**2 + c.server_noise**2)


def limit(regime: Regime, trust: str) -> tuple[float, float]:
    """What the bound at its best step falls to as T grows, and eta T there."""
    alpha = noise_of_everyone(regime, trust)
    product = math.sqrt(2 * regime.gap / (regime.smoothness * alpha))
    return 4 * regime.gap / product, product


def with_best_step(c: Constants) -> Constants:
    """The same at the step, up to the one given, that minimises the bound: sqrt(2 Delta F/(T L V)),
    V as in bound.py. The start goes as 1/eta, noise and sampling as eta, clipping stays."""
    terms = corrected(c, "constant").terms
    start, _ = terms.pop("start"), terms.pop("clipping")
    best = c.step * math.sqrt(start / math.fsum(terms.values()))
    return replace(c, step=min(c.step, best))


def best_rounds(regime: Regime, trust: str) -> Constants:
    """The fewest rounds whose bound, at their best step, is at most 1 + SHARE times its limit; or
    MOST_ROUNDS, if it takes more."""
    _validate.one_of(PRIVATE, trust=trust)
    enough = (1 + SHARE) * limit(regime, trust)[0]

    def best(rounds: int) -> Constants:
        return with_best_step(noised(regime, rounds, trust))

    def near(rounds: int) -> bool:
        return rounds >= MOST_ROUNDS or corrected(best(rounds), "constant").total <= enough

    most = 1
    while not near(most):
        most *= 2
    # the bound never grows with T (see `noised`): the first T that is near can be bisected
    return best(bisect_left(range(most), True, lo=max(1, most // 2), key=near))


def at_printed_rounds(regime: Regime, trust: str, rounds: float) -> dict[str, float]:
    """Both bounds at the paper's T, at the noise alpha T of a fixed epsilon, each at its best step:
    the printed one with its own schedule, without any spread or clipping, the corrected one with a
    constant step."""
    std = math.sqrt(noise_of_everyone(regime, trust) * rounds / regime.parameters)
    c = _with_largest_step(regime, math.ceil(rounds), {"server_noise": std})

    def as_printed(log_step: float) -> float:
        at = replace(c, step=math.exp(log_step), client_spread=0.0)
        return attempt(lambda: printed(at).total)[0] or math.inf

    # start and noise fall and rise with the step: one minimum, far below 1/L where noise is large
    steps = math.log(c.step) - np.arange(0.0, 40.0, 0.5)
    near = min(steps, key=as_printed)
    best = optimize.minimize_scalar(
        lambda step: min(as_printed(step), 1e300),  # infinity would be subtracted from itself
        bounds=(near - 0.5, near + 0.5),
        method="bounded",
    ).fun
    least = min(float(best), as_printed(near))
    return {"printed": least, "corrected": corrected(with_best_step(c), "constant").total}


def _with_largest_step(regime: Regime, rounds: int, noise: dict[str, float]) -> Constants:
    step = (1 - 1e-12) / regime.smoothness  # L times 1/L may be 1 + 1e-16
    return Constants.of(regime, rounds=rounds, step=step, **noise)


@dataclass(frozen=True)
class Advice:
    """How many rounds of which step, under one kind of trust, and the bound then."""

    relation: str  # of the epsilon
    rounds: int
    step: float
    bound: Bound
    limit: float  # of the bound, as the rounds grow
    step_times_rounds_at_the_limit: float  # eta T
    at_printed_rounds: dict[str, float] | None  # both bounds at the paper's T, if there is one


def advice(regime: Regime, trust: str, rounds: int | None = None) -> Advice:
    """The bound after the given rounds, or after the fewest that nearly suffice."""
    if rounds is None:
        c = best_rounds(regime, trust)
    else:
        c = with_best_step(noised(regime, rounds, trust))
    roots = printed_rounds(regime.parameters)
    return Advice(
        "replace" if TRUSTS[trust].clients_add_noise else "zero-out",
        c.rounds,
        c.step,
        corrected(c, "constant"),
        *limit(regime, trust),
        roots and at_printed_rounds(regime, trust, roots[1]),
    )
