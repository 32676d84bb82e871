"""The coin, LOCKS in one message: each member uploads with the probability r_i = |g_i| / C.

No norm is released. With the capped estimator an upload is C u_i / |u_i|, always of length C, and
the mean of the clipped updates stays exact. To the accountant a client with r_i < 1 is one that
takes part less often, so that a round is a Poisson-sampled Gaussian of the cohort's rate.

Who uploads depends on the data, so the rule is for trusts under which the server may see that, and
their number is released with noise (count_share: half a percent more noise on the update).
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.estimators import SMALLEST_NORM
from locksfl.methods.rules import NORM, Rule


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """|g_i| / C; 0 for an update so short that floats cannot stretch it to C."""
    del public, weight
    return xp.where(own >= SMALLEST_NORM, own / dials.clip_norm, 0.0)


rule = Rule(
    name="coin",
    about="by a coin of the norm, in one message",
    probability=probability,
    largest_probability=lambda arm: 1.0,
    asks=NORM,
    count_share=0.1,
    planned=True,
    paper="this program's own, after Wei et al. 2022 (DPIS)",
)
