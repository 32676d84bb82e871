"""The optimum where an upload's noise is divided by its probability too.

Made for the estimator horvitz-thompson under local trust (its default there), where an upload is
(g_i + N(0, (z C)^2 I)) / p_i. The variance of their sum is the sum of (|g_i|^2 + d (z C)^2) / p_i
less a constant, so that among probabilities with a given sum the best are

    p_i ~ a_i = sqrt(|g_i|^2 + d (z C)^2)         (Cauchy-Schwarz; d parameters)

Scaled so that the largest possible score, at |g_i| = C, is C:

    s_i = C a_i / sqrt(C^2 + d (z C)^2)
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. The more noise, the nearer to
uniform: at d z^2 = 100 no score is below .995 C. Without noise it is the rule norm.

s_i >= |g_i|, so that with true values the capped estimator's clip never binds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Facts, shared


def score(facts: Facts, dials: Any, xp: Any) -> Any:
    """C sqrt((r_i^2 + d z^2) / (1 + d z^2)), r_i = |g_i| / C."""
    share = facts["norm"] * shared.clip_factor(facts["norm"], dials, xp) / dials.clip_norm
    noise = facts["parameters"] * dials.noise_multiplier**2
    return dials.clip_norm * xp.sqrt((share**2 + noise) / (1 + noise))


rule = shared.by_sum(
    name="noise-aware",
    about="optimal if the noise is divided by p too",
    asks=replace(NORM, name="length with noise"),
    score=score,
    facts=("norm", "parameters"),
    for_divided_noise=True,
    paper="by Cauchy-Schwarz, as Chen et al. 2022 (OCS) without noise",
)
