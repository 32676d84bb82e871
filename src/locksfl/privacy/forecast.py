"""What to expect of a run, before any budget is spent. Uses no data, and no JAX.

All lengths are in clip norms. A round's averaged update is its signal, at most 1 long, plus

    noise     std * sqrt(d),  std = z S / m (central), z S sqrt(uploads) / m (local), S = 1 / p_C
    sampling  (1/n) (E[p w^2 r^2] / q - E[(p w r)^2])     of clients with norms r and weight w = 1/p

(the variance of two-phase sampling; with the capped estimator under noised norms p w < 1 and the
mean shrinks). The norms r are stated: log-normal with log-std `SPREAD`, cut at the clip norm, with
the mean that is asked for.

Over T rounds the signal adds up to T at most and the noise, a random walk, to noise sqrt(T):

    reach = sqrt(T) / noise.

At equal epsilon noise grows like sqrt(T), so that reach hardly depends on T: it is about
n epsilon / sqrt(2 d ln(1/delta)) in central trust, sqrt(n) times less in local trust. Measured on
the embedded digits (softmax, two classes per client, central uniform, 20 of 100 clients, 100
rounds, one seed, the best held-out accuracy of 8 pairs of clip and step, so a little too high):

    reach     3.5   1.7   .87   .56   .38   .23
    accuracy  .82   .72   .52   .40   .30   .2

HOPELESS = 0.5 was chosen after seeing this table: below it, accuracy is .4 or less there. It is a
rule of thumb from one task. Correlated noise (methods/cyclic.py) adds up to less than sqrt(T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize, special

from locksfl import _validate
from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.methods.cyclic import prefix_stds
from locksfl.methods.dials import Dials

HOPELESS, HARD = 0.5, 1.5  # reach
SPREAD = 1.0


@dataclass(frozen=True)
class Expected:
    """A round on average, in clip norms."""

    noise: float  # expected norm of the noise on the averaged update
    sampling: float  # root mean square of what the two samples alone add
    kept: float  # the share of the mean that arrives: 1 where the estimator is unbiased
    uploads: float  # expected

    @property
    def error(self) -> float:
        """Noise and sampling together, over what is kept of the signal."""
        return math.hypot(self.noise, self.sampling) / self.kept


@lru_cache(maxsize=64)
def norm_points(mean: float) -> tuple[float, ...]:
    """Equally likely norms min(1, log-normal) with this mean, 200 of them."""
    _validate.rate(norm_share=mean)
    if mean > 0.999:
        return (1.0,)

    def norms(location: float) -> Floats:
        return np.minimum(1.0, np.exp(location + SPREAD * _normal(200)))

    location = optimize.brentq(lambda location: norms(location).mean() - mean, -30.0, 30.0)
    return tuple(norms(location).tolist())


def expected_round(arm: Arm, parameters: int, norm_share: float = 1.0) -> Expected:
    """One round of an arm whose clients have norms of this mean.

    Args:
        arm: with its multipliers; lengths are in its clip norms.
        parameters: of the model.
        norm_share: the mean clipped norm over the clip norm; 1 if all contributions are as long.

    Returns:
        What to expect of a round, averaged over the released norm sum.
    """
    share = norm_share if arm.lengths == "clipped" else 1.0
    arm = _usual(arm, share)
    r = np.asarray(norm_points(share))[:, None]
    own = r
    if arm.releases_norms and arm.parts.trust.clients_add_noise:
        own = np.clip(r + arm.norm_multiplier * _normal(15)[None, :], 0.0, 1.0)
    rounds = np.array(
        [
            _given_sum(arm.at_public(arm.clip_norm * k), parameters, r, own, k)
            for k in _norm_sums(arm, own)
        ]
    )
    noise, sampling, kept, uploads = rounds.mean(axis=0).tolist()
    return Expected(noise, math.sqrt(max(0.0, sampling)), kept, uploads)


def _usual(arm: Arm, norm_share: float) -> Arm:
    """The arm of a round; under rate control that of the rung which suits such norms."""
    if not arm.controlled:
        return arm
    off = np.abs(np.log(arm.rungs) - math.log(min(arm.cohort, arm.uploads / norm_share)))
    return arm.at_rung(int(np.argmin(off)))


def _dials(arm: Arm) -> Dials:
    """Its numbers with lengths in clip norms."""
    return arm.dials(float).at_clip(1.0, np)


def _norm_sums(arm: Arm, own: Floats) -> Floats:
    """Equally likely values of what the rule makes of the released sum."""
    rule, _, trust = arm.parts
    if not rule.released:
        return np.array([arm.cohort])
    m, q = arm.cohort, arm.sampling_rate
    variance = m * (float(np.mean(own**2)) - q * float(np.mean(own.mean(axis=1) ** 2)))
    if trust.server_adds_noise:
        variance += arm.sum_multiplier**2
    sums = m * float(own.mean()) + math.sqrt(max(0.0, variance)) * _normal(15)
    dials = _dials(arm)
    if (
        rule.settle_from_all is not None
    ):  # each of the equally likely values stands for as many members
        share = own.size / m
        scaled = dials._replace(uploads=share * dials.uploads)
        return np.array([rule.settle_from_all(own.ravel(), scaled, np) / share])
    result: Floats = rule.settle(sums, dials, np)
    for _ in range(rule.refined(trust.server_adds_noise)):
        p = rule.probability(own[None], result[:, None, None], 1.0, dials, np)
        below, certain = (np.mean(each, axis=(1, 2)) for each in (np.where(p < 1, p, 0.0), p >= 1))
        assert rule.refine is not None
        result = rule.refine(result, m * below, m * certain, dials, np)
    return result


def _given_sum(
    arm: Arm, parameters: int, r: Floats, own: Floats, k: float
) -> tuple[float, float, float, float]:
    """(noise, sampling variance, kept, uploads) given the public number k."""
    rule, estimator, trust = arm.parts
    m, dials = arm.cohort, _dials(arm)

    def probability(value: Any) -> Any:
        if rule.jointly:  # each value stands for as many members
            scaled, each = dials._replace(uploads=dials.uploads * value.size / m), value.ravel()
            return rule.probability(each, k, np.ones(each.size), scaled, np).reshape(value.shape)
        p = rule.probability(value, k, 1.0, dials, np)
        return np.broadcast_to(np.clip(p, 0, arm.largest_probability), np.shape(value))

    p = probability(own)
    at_clip = np.min(p[p > 0], initial=1.0) if rule.jointly else probability(np.float64(1.0))
    bounds = np.full_like(p, np.inf)
    if estimator.bound is not None:
        bounds = np.asarray(estimator.bound(p, at_clip, 1.0, np))
    weight = estimator.weight(r, p, bounds, np)
    divisor = float(estimator.divisor(dials))
    uploads = m * float(p.mean())
    std = 0.0
    if trust.clients_add_noise:
        std = arm.update_multiplier * math.sqrt(float(np.mean(p * bounds**2)) / float(p.mean()))
        std *= _mean_root(uploads, arm.clients)
    elif trust.server_adds_noise:
        std = arm.update_multiplier * float(bounds.flat[0])
    arrives = (p * weight).mean(axis=1, keepdims=True)
    second = float(np.mean(p * weight**2 * r**2)) / arm.sampling_rate
    sampling = (m / divisor) ** 2 * (second - float(np.mean((arrives * r) ** 2))) / arm.clients
    kept = m / divisor * float(np.mean(arrives * r)) / float(np.mean(r))
    return std * math.sqrt(parameters) / divisor, sampling, kept, uploads


def _mean_root(mean: float, most: int) -> float:
    """E sqrt(X) of a binomial count X: by its law where that is short, else to second order."""
    if mean > 50 or most > 10_000:
        return math.sqrt(mean) * (1 - (1 - mean / most) / (8 * mean))
    counts = np.arange(most + 1)
    rate = min(mean / most, 1.0)
    log_mass = special.xlogy(counts, rate) + special.xlog1py(most - counts, -rate)
    log_mass -= special.betaln(counts + 1, most - counts + 1) + math.log(most + 1)
    return float(np.sum(np.sqrt(counts) * np.exp(log_mass)))


def _normal(points: int) -> Floats:
    result: Floats = special.ndtri((np.arange(points) + 0.5) / points)
    return result


def reach(arm: Arm, noise: float) -> float:
    """The largest signal of all rounds over their noise."""
    if noise <= 0:
        return math.inf
    if arm.bands > 1:
        return arm.rounds / float(prefix_stds(arm.rounds, arm.strategy)[-1]) / noise
    return math.sqrt(arm.rounds) / noise


def smallest_population(arm: Arm, signal: float) -> int:
    """The clients at which the same shares of them reach HOPELESS: noise falls like 1/n (central:
    the multiplier depends on the rates alone) or like 1/sqrt(n) (clients add the noise)."""
    ratio = HOPELESS / signal
    return math.ceil(arm.clients * (ratio**2 if arm.parts.trust.clients_add_noise else ratio))


def verdict(signal: float) -> str:
    """One word for a reach."""
    return "hopeless" if signal < HOPELESS else "hard" if signal < HARD else "fine"


def forecast_line(arm: Arm, parameters: int) -> str | None:
    """What to say before a run that cannot succeed; None where it may."""
    if not arm.noise_multiplier:
        return None
    noise = expected_round(arm, parameters).noise
    if (signal := reach(arm, noise)) >= HOPELESS:
        return None
    return (
        f"{arm.name}: training will fail: the noise of a round is {noise:.3g} times the largest "
        f"possible update, and {arm.rounds} rounds do not make up for it (reach {signal:.2g}, "
        f"{HOPELESS:g} needed). About {smallest_population(arm, signal):,} clients would be "
        f"needed; {arm.clients:,} are there."
    )
