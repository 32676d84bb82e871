"""Estimators: what the server's average estimates.

| name             | an upload is                  | noise     | divided by | expectation          |
|------------------|-------------------------------|-----------|------------|----------------------|
| capped           | clip(g_i / p_i, S), S = C/p_C | z S       | n q        | mean of g_i (1)      |
| horvitz-thompson | (g_i + noise of std z C)/p_i  | z C / p_i | n q        | mean of g_i          |
| weighted         | g_i                           | z C       | b          | sum of w_i g_i       |
| literal          | g_i                           | z C       | b          | biased (large norms) |

(1) exact with true norms; with noisy norms the clip can bind and the mean shrinks.

The divisors are public constants, never the realised sample size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Estimator:
    """The weight of a clipped update g_i, and the norm bound of weight * g_i.

    weight(norm, p, bound, xp): what multiplies g_i, for a client with |g_i| = norm, probability p
        and this bound.
    bound(p, at_clip, clip_norm, xp): the most that |weight * g_i| can be; the noise multiplier is
        given in its units, and the round clips every contribution to it. `at_clip` is the
        probability of a client with norm C. None states nothing: then the estimator cannot be
        accounted and is refused under every trust that adds noise.
    divisor(dials): the public constant that turns the sum into an average.
    own_bound: the bound depends on the client's own probability, so that noise cannot be added to
        the sum, where one bound must hold for all.
    weighted: it averages by public weights, so it works only with rules that take them.
    needs_floor: it divides by p, which must not be 0 if the rule has a floor.
    credited: all uploaders of a round add noise of the same std, so that PUBLIC, who sees their
        sum, is charged less (the aggregation credit).
    unbiased: with true norms its expectation is the mean of the clipped updates; with noisy norms
        it still is if its bound never binds (`own_bound`).
    """

    name: str
    about: str
    weight: Callable[[Any, Any, Any, Any], Any]
    bound: Callable[[Any, Any, Any, Any], Any] | None
    divisor: Callable[[Any], Any]
    own_bound: bool = False
    weighted: bool = False
    needs_floor: bool = False
    credited: bool = False
    unbiased: bool = True


# Squares of numbers below 1e-19 are 0 in float32, so that a measured norm can be too small by
# 1e-19 sqrt(d): shorter updates than this count as if they were as long.
SMALLEST_NORM = 1e-12
# of contributions: as long as C at most, or all of them as long as C
CONTRIBUTION_LENGTHS = ("clipped", "equal")


def inverse(p: Any, xp: Any) -> Any:
    """1/p, or 0 if p = 0: a client that cannot upload contributes nothing, never 0/0."""
    return xp.where(p > 0, 1.0 / xp.where(p > 0, p, 1.0), 0.0)


def one(norm: Any, p: Any, bound: Any, xp: Any) -> Any:
    """The clipped update itself."""
    del norm, bound
    return xp.ones_like(p)


def within(bound: Any, norm: Any, xp: Any) -> Any:
    """The largest weight that keeps |weight g_i| within a bound."""
    return bound / xp.maximum(norm, SMALLEST_NORM)


def clip_bound(p: Any, at_clip: Any, clip_norm: Any, xp: Any) -> Any:
    """C, for estimators that do not divide by p."""
    del at_clip
    return xp.broadcast_to(clip_norm, xp.shape(p))
