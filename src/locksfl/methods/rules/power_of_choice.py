"""Power-of-choice (Cho, Wang and Joshi 2020): of the candidates, those with the largest losses.

    candidates: the cohort, of m clients                 uploaders: the b with the largest F_i(w)
    s_i = C min(1, F_i(w) / B)                           B = loss_bound
    p_i = 1 for the b largest s_i, 0 for the others; equal ones share what is left

F_i is the mean loss of the client's records at the current model. The paper draws its candidates in
proportion to their data and averages the b uploads with equal weights: it is biased towards clients
that the model serves badly, which speeds up the beginning and moves the end. No weight can undo it,
so that its estimator divides by b.

Who is among the b depends on everybody's own loss: sound where every client releases its noisy
score, refused where the server adds noise to sums.
"""

from __future__ import annotations

from dataclasses import replace

from locksfl.methods.rules import NORM, Rule, shared

rule = Rule(
    name="power-of-choice",
    about="the largest losses, always (Power-of-Choice)",
    asks=replace(NORM, name="loss"),
    score=shared.loss_over_bound,
    facts=("loss",),
    released=True,
    jointly=True,
    probability=shared.largest_first,
    largest_probability=lambda arm: 1.0,
    takes=("loss_bound",),
    biased=True,
    paper="Cho et al. 2020 (Power-of-Choice)",
)
