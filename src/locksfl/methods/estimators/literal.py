"""Algorithm 1 as printed: the sum of the uploaded updates divided by b, without 1/p. Biased towards
large norms."""

from __future__ import annotations

from locksfl.methods.estimators import Estimator, clip_bound, one

estimator = Estimator(
    name="literal",
    about="Algorithm 1 as printed: biased towards large norms",
    weight=one,
    bound=clip_bound,
    divisor=lambda dials: dials.uploads,
    unbiased=False,
)
