"""Top-k, a biased ablation: the b members with the largest norms upload, the others never do.

    p_i = 1 for the b largest |g_i|, 0 for the others; equal ones share what is left

It shows what importance sampling would be without its coins: no variance, and an average of the
largest updates alone, which no weight can make the mean of all (Stich, Cordonnier and Jaggi 2018
select coordinates like that). So its estimator divides by b and corrects nothing.

Who is among the b depends on everybody's own norm: sound where every client releases its noisy
norm, refused where the server adds noise to sums.
"""

from __future__ import annotations

from locksfl.methods.rules import NORM, Rule, shared

rule = Rule(
    name="top-k",
    about="the largest norms, always",
    asks=NORM,
    released=True,
    jointly=True,
    probability=shared.largest_first,
    largest_probability=lambda arm: 1.0,
    biased=True,
    paper="an ablation",
)
