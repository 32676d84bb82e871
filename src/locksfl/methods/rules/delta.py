"""DELTA: clients that differ from the others, or whose own records do (Wang et al., NeurIPS 2023).

    p_i* ~ sqrt(a_1 zeta_i^2 + a_2 sigma_i^2)     zeta_i = |grad F_i - grad F|, sigma_i the standard
                                                  deviation of the gradients of its records

Nobody knows grad F, the mean of all raw gradients, before the round. The last released update v is
known, and is a good guess while the model moves slowly (zero in the first round: then by norm and
spread). v is an average of clipped updates, so that a client compares its clipped update g_i with
it. With a_1 = a_2 = 1, which is ours (the paper's follow from its constants),

    s_i = min(C, sqrt(|g_i - v|^2 + sigma_i^2))
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. With local epochs g_i is a sum of steps, and sigma_i
still that of gradients at the current model. v carries the noise of its round; where that
dominates, or where most scores exceed C, all scores are alike.

The paper's own zeta_i, a distance from the mean of all members' raw gradients, is left out even
without privacy: it needs every member's vector before anybody uploads, and a rule is given one
number of each.

A diversity is not a norm, so that the capped estimator is biased; horvitz-thompson is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """sqrt(|g_i - v|^2 + sigma_i^2); the round limits it to C."""
    factor = shared.clip_factor(facts["norm"], dials, xp)
    length, along = factor * facts["norm"], factor * facts["along"]
    apart = length**2 - 2 * along + facts["last_norm"] ** 2
    return xp.sqrt(xp.maximum(apart, 0.0) + facts["spread"] ** 2)


rule = shared.by_sum(
    name="delta",
    about="by diversity and local variance (DELTA)",
    asks=replace(NORM, name="diversity"),
    score=score,
    facts=("norm", "along", "last_norm", "spread"),
    cap_can_bind=True,
    paper="Wang et al. 2023 (DELTA)",
)
