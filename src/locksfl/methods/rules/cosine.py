"""By diversity: clients whose update points elsewhere than the last released one.

Inspired by gradient diversity (Yin et al., AISTATS 2018), one number of a batch, which is worth
more the less its gradients agree; the score of one client is ours. Comparing clients with one
another needs their vectors; here each compares its own with v, the last released update, which
everybody has:

    s_i = C (1 - cos(u_i, v)) / 2                  0 along v, C against it
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. In the first round v = 0: then, and
for an update of zero, the cosine counts as 0, and all members are alike.

A direction is not a norm, so that the capped estimator is biased; horvitz-thompson is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """C (1 - cos(u_i, v)) / 2."""
    cosine = shared.cosine_between(facts["along"], facts["norm"], facts["last_norm"], xp)
    return dials.clip_norm * (1 - cosine) / 2


rule = shared.by_sum(
    name="cosine",
    about="by the cosine to the last update",
    asks=replace(NORM, name="diversity"),
    score=score,
    facts=("norm", "along", "last_norm"),
    cap_can_bind=True,
    paper="ours, inspired by Yin et al. 2018 (gradient diversity)",
)
