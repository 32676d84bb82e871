"""The sum of w_i times the clipped updates, for public weights w_i: not the mean.

Exact where b w_i <= q (the paper's Lemma 3, corrected).
"""

from __future__ import annotations

from locksfl.methods.estimators import Estimator, clip_bound, one

estimator = Estimator(
    name="weighted",
    about="the sum of w_i times the clipped updates: another objective",
    weight=one,
    bound=clip_bound,
    divisor=lambda dials: dials.uploads,
    weighted=True,
    unbiased=False,
)
