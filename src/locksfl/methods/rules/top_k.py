"""Top-k, a biased ablation: the b members with the largest norms upload, the others never do.

    p_i = 1 for the b largest |g_i|, 0 for the others; equal ones share what is left

It shows what importance sampling would be without its coins: no variance, and an average of the
largest updates alone, which no weight can make the mean of all (Stich, Cordonnier and Jaggi 2018
select coordinates like that). So its estimator divides by b and corrects nothing.

Who is among the b depends on everybody's own norm: sound where every client releases its noisy
norm, refused where the server adds noise to sums.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import NORM, Rule


def order(own: Any, weight: Any, xp: Any) -> tuple[Any, Any]:
    """(the number of larger values, the number of equal ones) of each member, itself included;
    those of weight 0 are absent and do not count."""
    ranked = xp.sort(xp.where(weight > 0, own, -1.0))
    up_to, below = (xp.searchsorted(ranked, own, side=side) for side in ("right", "left"))
    return ranked.shape[0] - up_to, xp.maximum(up_to - below, 1)


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """1 for the b largest; of those that are equal at the limit, each has its share."""
    del public
    larger, equal = order(own, weight, xp)
    return xp.where(weight > 0, xp.clip((dials.uploads - larger) / equal, 0.0, 1.0), 0.0)


rule = Rule(
    name="top-k",
    about="the largest norms, always",
    probability=probability,
    largest_probability=lambda arm: 1.0,
    asks=NORM,
    released=True,
    jointly=True,
    biased=True,
    paper="an ablation",
    sends="its norm, then its update if it uploads",
)
