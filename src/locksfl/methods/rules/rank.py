"""By the rank of the loss (Loshchilov and Hutter 2015, for the records of a batch).

    s_i = C min(1, F_i(w) / B)                           F_i the mean loss, B = loss_bound
    e_i = exp(-ln(s_e) rank_i / N)                       rank 0 for the largest of the N members
    p_i = min(1, c e_i)                                  c such that the p_i sum to b

The last member is about s_e times less likely to upload than the first, however their
losses differ. s_e = 100 is ours; the paper tries many, up to 10^8, ranks the latest losses that it
knows and does not weight by 1/p. Equal scores have the mean of their ranks. Everybody has a chance,
so that uploads weighted by 1/p_i average to the mean of the clipped updates.

A rank depends on everybody's own loss: sound where every client releases its noisy score, refused
where the server adds noise to sums.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from locksfl.methods.rules import NORM, Rule, shared

PRESSURE = 100.0  # s_e


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """min(1, c e_i), 0 for the absent."""
    del public
    larger, equal = shared.larger_and_equal(own, weight, xp)
    rank, members = larger + (equal - 1) / 2, xp.maximum(xp.sum(weight > 0), 1)
    e = xp.where(weight > 0, xp.exp(-math.log(PRESSURE) * rank / members), 0.0)
    level = shared.water_level(e, dials.uploads, xp)  # 1 / c
    return xp.where(e > level, 1.0, e / xp.where(level > 0, level, 1.0))


rule = Rule(
    name="rank",
    about="by the rank of the loss",
    asks=replace(NORM, name="loss"),
    score=shared.loss_over_bound,
    facts=("loss",),
    released=True,
    jointly=True,
    probability=probability,
    largest_probability=lambda arm: 1.0,
    takes=("loss_bound",),
    paper="Loshchilov and Hutter 2015",
)
