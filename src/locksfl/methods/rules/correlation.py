"""By diversity: the correlation of a client's update with the last released one, v.

The cosine of the two after subtracting from each the mean of its coordinates (a shift of all
coordinates by one number then counts as no difference):

    cor_i = (<u_i, v> - d mean(u_i) mean(v)) / sqrt((|u_i|^2 - d mean(u_i)^2) (|v|^2 - d mean(v)^2))
    s_i = C (1 - cor_i) / 2
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it; d is the number of parameters. Our
score, inspired by gradient diversity (Yin et al., AISTATS 2018). In the first round v = 0: then,
and for an update without any variation, the correlation counts as 0, and all members are alike.

A direction is not a norm, so that the capped estimator is biased; horvitz-thompson is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """C (1 - cor_i) / 2."""
    own, last, d = facts["sum"], facts["last_sum"], facts["parameters"]
    one, other = (
        xp.sqrt(xp.maximum(norm**2 - total**2 / d, 0.0))
        for norm, total in ((facts["norm"], own), (facts["last_norm"], last))
    )
    correlation = shared.cosine_between(facts["along"] - own * last / d, one, other, xp)
    return dials.clip_norm * (1 - correlation) / 2


rule = shared.by_sum(
    name="correlation",
    about="by the correlation with the last update",
    asks=replace(NORM, name="diversity"),
    score=score,
    facts=("norm", "along", "last_norm", "sum", "last_sum", "parameters"),
    cap_can_bind=True,
    paper="ours, inspired by Yin et al. 2018 (gradient diversity)",
)
