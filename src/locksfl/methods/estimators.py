"""What the server's average estimates: a weight for each upload and the bound that it keeps.

| name             | an upload is                  | noise     | divided by | expectation          |
|------------------|-------------------------------|-----------|------------|----------------------|
| capped           | clip(g_i / p_i, S), S = C/p_C | z S       | n q        | mean of g_i (1)      |
| horvitz-thompson | (g_i + noise of std z C)/p_i  | z C / p_i | n q        | mean of g_i          |
| weighted         | g_i                           | z C       | b          | sum of w_i g_i       |
| literal          | g_i                           | z C       | b          | biased (large norms) |

(1) exact with true norms; with noised norms the clip can bind and the mean shrinks.

The divisors are public constants, never the size that came out. To add an estimator, add an
`Estimator` to `ESTIMATORS` and a test of its expectation and of its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from locksfl.round.sampling import Dials


@dataclass(frozen=True)
class Estimator:
    """The weight of a clipped update g_i, and the norm bound of weight * g_i.

    weight(norms, p, bound): what multiplies g_i; |weight * g_i| <= scale(p, bound, C) always.
    scale(p, bound, C): the bound in whose units the noise multiplier is given.
    divisor(dials): the public constant that turns the sum into an average.
    """

    weight: Callable[[Array, Array, Array], Array]
    scale: Callable[[Array, Array, Array], Array]
    divisor: Callable[[Dials], Array]
    trusts: tuple[str, ...]
    rules: tuple[str, ...]
    needs_floor: bool
    about: str


def _inverse(p: Array) -> Array:
    """1/p, and 0 where p = 0: who cannot upload contributes nothing, never 0/0."""
    return jnp.where(p > 0, 1.0 / jnp.where(p > 0, p, 1.0), 0.0)


def _capped_weight(norms: Array, p: Array, bound: Array) -> Array:
    """1/p_i, cut so that |g_i| / p_i <= S. With true norms r/p(r) grows with r: it never binds."""
    return jnp.minimum(_inverse(p), bound / jnp.maximum(norms, 1e-30))


def _ones(norms: Array, p: Array, bound: Array) -> Array:
    del norms, bound
    return jnp.ones_like(p)


ANY_RULE = ("uniform", "norm", "full")

ESTIMATORS: dict[str, Estimator] = {
    "capped": Estimator(
        weight=_capped_weight,
        scale=lambda p, bound, clip: jnp.broadcast_to(bound, p.shape),
        divisor=lambda dials: dials.cohort,
        trusts=("none", "central", "local"),
        rules=ANY_RULE,
        needs_floor=False,
        about="the mean of the clipped updates",
    ),
    "horvitz-thompson": Estimator(
        weight=lambda norms, p, bound: _inverse(p),
        scale=lambda p, bound, clip: clip * _inverse(p),
        divisor=lambda dials: dials.cohort,
        trusts=("none", "local"),
        rules=ANY_RULE,
        needs_floor=True,
        about="the mean of the clipped updates; noise grows with 1/p",
    ),
    "weighted": Estimator(
        weight=_ones,
        scale=lambda p, bound, clip: jnp.broadcast_to(clip, p.shape),
        divisor=lambda dials: dials.uploads,
        trusts=("none", "central", "local"),
        rules=("weights",),
        needs_floor=False,
        about="the sum of w_i times the clipped updates: another objective",
    ),
    "literal": Estimator(
        weight=_ones,
        scale=lambda p, bound, clip: jnp.broadcast_to(clip, p.shape),
        divisor=lambda dials: dials.uploads,
        trusts=("none", "central", "local"),
        rules=ANY_RULE,
        needs_floor=False,
        about="Algorithm 1 as printed: biased towards large norms",
    ),
}
