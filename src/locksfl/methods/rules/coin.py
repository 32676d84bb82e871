"""The coin, LOCKS in one message: each member uploads with the probability r_i = |g_i| / C.

No norm is released. With the capped estimator an upload is C u_i / |u_i|, always of length C, and
the mean of the clipped updates stays exact. To the accountant a client with r_i < 1 is one that
takes part less often, so that a round is a Poisson-sampled Gaussian of the cohort's rate q.

At equal uploads and equal cost a round's noise z(q)/q is at most that of uniform sampling: z(q)/q
does not grow with q, for RDP of an integer order a. A round costs E_Q[(1 + q (e^X - 1))^a] =
sum_k binom(a, k) q^k E_Q[(e^X - 1)^k], X the privacy loss of the Gaussian. In powers of 1/z^2,
E_Q[(e^X - 1)^k] = sum_j N(k, j) z^(-2j)/j!, where N(k, j) counts the sequences of j pairs of k
things that leave none out: never negative, and 0 if 2j < k. If q and z grow together by a factor
c > 1, a term changes by c^(k - 2j) <= 1. So the cost falls, and at equal cost z grows less than q.

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
