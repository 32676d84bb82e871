"""Oort's statistical utility (Lai, Zhu, Madhyastha and Chowdhury, OSDI 2021), without its ranks.

    U_i = |B_i| sqrt(mean of loss^2)                        over the records B_i that it uses
    s_i = C min(1, U_i / B)                                 B = loss_bound
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. |B_i| is K_i / K_ref with
local.weight = "size", and else 1, a public constant.

The rest of Oort is left out: it needs other clients' raw values, or is not statistical:
* its cut at the 95th percentile of all utilities: the public bound B takes its place (its default
  is a little above what a model that knows nothing loses: 1.1 ln(classes), or 2.5 where the number
  of classes is not known);
* the largest scores first, without replacement: here coins, as the accountants assume;
* a bonus for clients not seen lately, and exploration: the floor lambda gives everybody a chance;
* the penalty for slow clients: a simulation has none.

A utility is not a norm, so that the capped estimator is biased (see the rule loss).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """C U_i / B; the round limits it to C."""
    del xp
    return dials.clip_norm * facts["size"] * facts["rms_loss"] / dials.loss_bound


rule = shared.by_sum(
    name="oort",
    about="in proportion to Oort's statistical utility",
    asks=replace(NORM, name="utility"),
    score=score,
    facts=("rms_loss", "size"),
    takes=("floor", "norm_low", "loss_bound"),
    cap_can_bind=True,
    paper="Lai et al. 2021 (Oort)",
)
