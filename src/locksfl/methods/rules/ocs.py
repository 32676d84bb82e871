"""Optimal client sampling (OCS; Chen, Horvath and Richtarik, TMLR 2022): the least variance.

Uploads of weight 1/p_i have the variance sum of (1/p_i - 1) a_i^2, with a_i = |g_i|. Of all p_i
that sum to b it is least for

    p_i = min(1, a_i / t)                    the water level t such that the sum is b
    t   = min over k < b of (sum of all but the k largest a_i) / (b - k)

(For any k, the sum of min(1, a_i / t) is at most k + rest_k / t, with equality if exactly the k
largest are at 1. So b <= k + rest_k / t for all k, with equality for one.) If no more than b of
the a_i are positive, all of those upload. The public number is K' = b t, as for the rule norm.

t depends on everybody's own a_i. So the rule is sound where every client releases its noisy norm
(t is then a function of released values), and refused where the server adds noise to sums.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import NORM, Rule


def water_level(values: Any, uploads: Any, xp: Any) -> Any:
    """t: the sum of min(1, a_i / t) is b; 0 if fewer than b values are positive."""
    rest = xp.concatenate([xp.cumsum(xp.sort(values))[::-1], xp.zeros(1)])
    left = uploads - xp.arange(rest.shape[0])
    return xp.min(xp.where(left > 0, rest / xp.where(left > 0, left, 1.0), xp.inf))


def level(values: Any, dials: Any, xp: Any) -> Any:
    """K' = b t."""
    return dials.uploads * water_level(values, dials.uploads, xp)


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """min(1, b a_i / K'); 0 for a_i = 0, and 1 for the others if K' = 0."""
    del weight
    there = public > 0
    p = xp.where(there, dials.uploads * own / xp.where(there, public, 1.0), 1.0)
    return xp.where(own > 0, xp.minimum(1.0, p), 0.0)


rule = Rule(
    name="ocs",
    about="by norm with the least variance, exactly",
    probability=probability,
    largest_probability=lambda arm: 1.0,
    asks=NORM,
    released=True,
    level=level,
    paper="Chen, Horvath and Richtarik 2022 (OCS)",
    sends="its norm, then its update if it uploads",
)
