"""Approximate optimal client sampling (AOCS; Chen, Horvath and Richtarik, TMLR 2022): sums only.

The optimum is p_i = min(1, b |g_i| / K') for the K' at which the p_i sum to b (the rule ocs). Here
it is approached by sums over the cohort, so that no member's own value leaves it (who uploads still
shows):

    K' = sum of |g_i|, then again and again
    P  = sum of the p_i < 1,  J = the number of the p_i = 1,  K' <- K' P / (b - J)

(The paper's c = (b - m + I) / P with I the number of the p_i < 1; m - I is J.) That is Newton's
method for a concave function, so K' falls to the optimum and never passes it.

Where sums cost nothing (without noise, or if every client has released its noised norm) there are
twelve steps: the optimum itself, for b up to .95 m and log-normal norms of log-std up to 2, which
eight steps reach to the last digit. Where a server adds noise there are four, as in the paper,
because every sum is charged. Four steps without noise would be within 1% of the optimum's variance
for b up to m / 2 and a log-std up to 2; beyond that they are too few.

The server may add noise to the sums: p_i then depends on client i's own norm and on released
numbers. |g_i| / C moves the first sum by 1 at most. A member is in P or in J, so that its presence
moves the pair by 1 at most. With noise of std sqrt(5) z_K on each of the nine numbers, the five
releases cost together 5 / (sqrt(5) z_K)^2 = 1/z_K^2, what one norm sum with z_K costs: given
what was released before, each is a Gaussian of sensitivity 1, and along their joint shift so are
all of them. (Replaced by another, a member may move a pair by sqrt(2), from (p, 0) to (0, 1): the
accountants charge replace as two steps, one client absent and another present.)
Noise of std s could make the factor arbitrary, so it is kept within public limits: at least
1 / (1 + b/s) (no limit without noise, no change where noise hides the sums) and at most
1 + min(s/b, b/s), so that K' can only regain what noise may have taken. Where noise hides the sums,
more than b upload.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import NORM, Rule, shared

LEAST = 1e-30


def settle(released: Any, dials: Any, xp: Any) -> Any:
    """K' before it is refined: the released sum, at least its own noise."""
    return xp.maximum(released, xp.maximum(dials.sum_noise * dials.clip_norm, LEAST))


def refine(public: Any, below: Any, certain: Any, dials: Any, xp: Any) -> Any:
    """K' P / (b - J), the factor within its limits."""
    noise, signal = xp.maximum(dials.sum_noise, LEAST), dials.uploads
    least = 1.0 / (1.0 + signal / noise)
    most = 1.0 + xp.minimum(noise / signal, signal / noise)
    factor = xp.maximum(below, 0.0) / xp.maximum(signal - certain, LEAST)
    return xp.maximum(public * xp.clip(factor, least, most), LEAST)


rule = Rule(
    name="aocs",
    about="by norm with nearly the least variance, from sums",
    asks=NORM,
    released=True,
    settle=settle,
    refinements=4,  # j_max of the paper
    free_refinements=12,
    refine=refine,
    probability=shared.share_up_to_one,
    largest_probability=lambda arm: 1.0,
    paper="Chen, Horvath and Richtarik 2022 (AOCS)",
)
