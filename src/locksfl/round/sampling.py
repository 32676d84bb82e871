"""Who is asked: the coins of the first sample and the probability rules of the second.

Sampling is Poisson, independent coins, everywhere: that is what the accountants assume. To add a
rule, add a `Rule` to `RULES` below and a test of its probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array


class Dials(NamedTuple):
    """The numbers of an arm that a compiled round takes as arguments (so it compiles once)."""

    cohort: Array  # m, the expected first sample: n times the sampling rate
    uploads: Array  # b, the uploads wanted in a round
    clip_norm: Array  # C
    floor: Array  # lambda, the share of the probability that every member has
    norm_low: Array  # K_low, the least value of the norm sum, fixed beforehand
    noise_multiplier: Array  # z, update noise over its zero-out sensitivity
    norm_multiplier: Array  # z_K or z_s, norm noise over its sensitivity
    step: Array  # the server's base step


def draw_cohort(rng: np.random.Generator, clients: int, sampling_rate: float) -> np.ndarray:
    """The first sample: one coin of `sampling_rate` for each client; sorted client numbers.

    The number of heads is binomial and, given it, every subset of that size is equally likely:
    that is n independent coins, drawn with work for the cohort only.
    """
    size = rng.binomial(clients, sampling_rate)
    return np.sort(rng.choice(clients, size, replace=False, shuffle=False)).astype(np.int32)


# A rule gives p_i, the probability that a cohort member uploads, from what is known of it: its
# score (released or true norm), the clamped norm sum K', and its public weight.
Probability = Callable[[Array, Array, Array, Dials], Array]


@dataclass(frozen=True)
class Rule:
    """A way to choose the uploaders of a cohort."""

    probability: Probability
    uses_norms: bool  # asks the cohort for norms first (a release, and charged)
    about: str


def _uniform(scores: Array, norm_sum: Array, weights: Array, dials: Dials) -> Array:
    del norm_sum, weights
    return jnp.broadcast_to(dials.uploads / dials.cohort, jnp.shape(scores))


def _norm(scores: Array, norm_sum: Array, weights: Array, dials: Dials) -> Array:
    """p_i = (1 - lambda) b z_i / K' + lambda b / m, at most 1 because K' >= K_low >= b C."""
    del weights
    by_norm = dials.uploads * scores / norm_sum
    return (1 - dials.floor) * by_norm + dials.floor * dials.uploads / dials.cohort


def _full(scores: Array, norm_sum: Array, weights: Array, dials: Dials) -> Array:
    del norm_sum, weights, dials
    return jnp.ones_like(scores)


def _weights(scores: Array, norm_sum: Array, weights: Array, dials: Dials) -> Array:
    """p_i = min(1, b w_i / q); `weights` holds n w_i, and b w_i / q = b n w_i / m."""
    del scores, norm_sum
    return dials.uploads * weights / dials.cohort


RULES: dict[str, Rule] = {
    "uniform": Rule(_uniform, uses_norms=False, about="every member alike"),
    "norm": Rule(_norm, uses_norms=True, about="in proportion to the norm (LOCKS)"),
    "full": Rule(_full, uses_norms=False, about="every client, every round"),
    "weights": Rule(_weights, uses_norms=False, about="by public weights"),
}


def upload_probability(
    rule: Rule, scores: Array, norm_sum: Array, weights: Array, dials: Dials
) -> Array:
    """p_i for each member, in [0, 1]; the clip only removes float rounding."""
    return jnp.clip(rule.probability(scores, norm_sum, weights, dials), 0.0, 1.0)


def second_sample(coins: Array, probability: Array, present: Array) -> Array:
    """Who uploads: each present member by a coin of its own, uniform in [0, 1)."""
    return present & (coins < probability)
