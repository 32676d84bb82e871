"""By diversity: the angle between a client's update and the last released one, v.

The angle is the similarity by which Fraboni et al. (ICML 2021) cluster clients; here each compares
its own update with v, which everybody has:

    s_i = C arccos(cos(u_i, v)) / pi               0 along v, C/2 across, C against it
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. Unlike the cosine it tells small
angles apart. In the first round v = 0: then, and for an update of zero, the angle counts as a right
one, and all members are alike.

A direction is not a norm, so that the capped estimator is biased; horvitz-thompson is not.
"""

from __future__ import annotations

from dataclasses import replace
from math import pi
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """C arccos(cos(u_i, v)) / pi."""
    cosine = shared.cosine_between(facts["along"], facts["norm"], facts["last_norm"], xp)
    return dials.clip_norm * xp.arccos(cosine) / pi


rule = shared.by_sum(
    name="angle",
    about="by the angle to the last update",
    asks=replace(NORM, name="diversity"),
    score=score,
    facts=("norm", "along", "last_norm"),
    cap_can_bind=True,
    paper="after Fraboni et al. 2021 (clustered sampling)",
)
