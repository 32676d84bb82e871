"""A search that tries to break what a method states of itself: the second net.

The round clamps every probability and every contribution, so that a false statement costs accuracy
and never epsilon. Its author should know all the same: here the rule and the estimator are called
without the clamps, on random and extreme inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from locksfl.arm import Arm

TRIALS = 2000
SLACK = 1e-6  # relative; numbers are float64 here, so that rounding is far below it


def broken_statements(arm: Arm, seed: int = 0) -> list[str]:
    """What the rule and the estimator of an arm state and do not keep.

    Args:
        arm: its numbers are used as they are; its clients' values are searched.
        seed: of the search, which draws no noise and looks at no data.

    Returns:
        One sentence for each false statement, with the input that shows it.
    """
    rule, estimator, trust = arm.parts
    rng, dials, clip = np.random.default_rng(seed), arm.dials(float), arm.clip_norm
    norms = clip * np.concatenate(
        [[0.0, 1.0, 1.0], rng.random(TRIALS) ** rng.choice([1, 8], TRIALS)]
    )
    own = np.zeros_like(norms)
    if rule.asks is not None:  # released with a client's own noise, it is anything in the interval
        free = trust.clients_add_noise or rule.score is not None
        own = clip * rng.permutation(norms / clip) if free else norms
    sums = arm.cohort * clip * rng.normal(0.5, 1.0, norms.size)
    public = rule.settle(sums, dials, np) if rule.released else np.zeros_like(norms)
    weights = rng.choice(np.broadcast_to(arm.scaled_weights(), arm.clients), norms.size)

    def probabilities(own: Any) -> Any:
        if rule.jointly:
            return rule.probability(own, public[0], weights, dials, np)
        return _each(lambda o, k, w: rule.probability(o, k, w, dials, np), own, public, weights)

    broken, most = [], arm.largest_probability
    p = probabilities(own)
    if not np.isfinite(p).all() or p.min() < 0:
        broken.append(f"rule {arm.rule!r} gives {p[np.argmin(p)]:.6g} as a probability")
        p = np.nan_to_num(np.maximum(p, 0.0), posinf=1.0)
    p = np.minimum(p, 1.0)
    worst = int(np.argmax(p))
    if p[worst] > most * (1 + SLACK):
        broken.append(
            f"rule {arm.rule!r} states a probability of at most {most:.6g} and gives "
            f"{p[worst]:.6g} to a client whose value is {own[worst]:.4g}"
        )
    if (bound := estimator.bound) is not None:
        p = np.minimum(p, most)
        least = np.min(p[p > 0], initial=1.0)  # of a rule that looks at all: its public number
        own = np.full_like(norms, clip)
        at_clip = np.full_like(p, least) if rule.jointly else np.clip(probabilities(own), 0.0, most)
        own_p = p if estimator.own_bound else at_clip
        bounds = _each(lambda one, at: bound(one, at, clip, np), own_p, at_clip)
        weights = _each(lambda g, one, s: estimator.weight(g, one, s, np), norms, p, bounds)
        lengths = np.where(p > 0, norms * np.abs(weights), 0.0)
        worst = int(np.argmax(lengths - bounds))
        if not lengths[worst] <= bounds[worst] * (1 + SLACK):
            broken.append(
                f"estimator {arm.estimator!r} states a bound of {bounds[worst]:.6g} and gives "
                f"{lengths[worst]:.6g} to a client with norm {norms[worst]:.4g}"
            )
    return broken


def _each(function: Callable[..., Any], *entries: Any) -> Any:
    """A function of one client's numbers, for each client."""
    return np.array([float(function(*one)) for one in zip(*entries, strict=True)])
