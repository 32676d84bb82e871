"""Optimal client sampling (OCS; Chen, Horvath and Richtarik, TMLR 2022): the least variance.

Uploads of weight 1/p_i have the variance sum of (1/p_i - 1) a_i^2, with a_i = |g_i|. Of all p_i
that sum to b it is least for

    p_i = min(1, a_i / t)                    the water level t such that the sum is b
    t   = min over k < b of (sum of all but the k largest a_i) / (b - k)

(`water_level` says why.) If no more than b of the a_i are positive, all of those upload. The public
number is K' = b t, so that p_i = min(1, b a_i / K').

t depends on everybody's own a_i. So the rule is sound where every client releases its noisy norm
(t is then a function of released values), and refused where the server adds noise to sums.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import NORM, Rule, shared


def settle_from_all(values: Any, dials: Any, xp: Any) -> Any:
    """K' = b t."""
    return dials.uploads * shared.water_level(values, dials.uploads, xp)


rule = Rule(
    name="ocs",
    about="by norm with the least variance, exactly",
    asks=NORM,
    released=True,
    settle_from_all=settle_from_all,
    probability=shared.share_up_to_one,
    largest_probability=lambda arm: 1.0,
    paper="Chen, Horvath and Richtarik 2022 (OCS)",
)
