"""In proportion to the mean loss of a client's records.

After loss-based sampling of records (Loshchilov and Hutter 2015) and of clients (Cho, Wang and
Joshi 2020). They rank losses or take the largest, which needs all losses at once; a share of the
sum needs the client's own loss and one released number:

    s_i = C min(1, F_i(w) / B)               F_i the mean loss of its records, B = loss_bound
    p_i = (1 - lambda) b z_i / K' + lambda b / m,   K' = clip(released sum of s_i, K_low, m C)

with z_i the score as the server knows it. B is public and fixed beforehand, so that a score lies in
[0, C] and is released like a norm. Its default is a little above what a model that knows nothing
loses: 1.1 ln(classes), or 2.5 where the number of classes is not known (an `Arm` without data).

A loss is not a norm: a client with a long update and a small loss has |g_i| / p_i > C / p_C, which
the capped estimator shortens. It is biased then; horvitz-thompson is not.
"""

from __future__ import annotations

from dataclasses import replace

from locksfl.methods.rules import NORM, shared

rule = shared.by_sum(
    name="loss",
    about="in proportion to the loss",
    asks=replace(NORM, name="loss"),
    score=shared.loss_over_bound,
    facts=("loss",),
    takes=("floor", "norm_low", "loss_bound"),
    cap_can_bind=True,
    paper="after Loshchilov and Hutter 2015, Cho et al. 2020",
)
