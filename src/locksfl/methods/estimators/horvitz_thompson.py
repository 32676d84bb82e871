"""The mean of the clipped updates, whatever the noise on the norms: g_i / p_i, noise of std
z C / p_i.

Noise grows with 1/p, so that near-uniform probabilities are optimal for it (the paper's Lemma 2).
"""

from __future__ import annotations

from locksfl.methods.estimators import Estimator, inverse

estimator = Estimator(
    name="horvitz-thompson",
    about="the mean of the clipped updates; noise grows with 1/p",
    weight=lambda norm, p, bound, xp: inverse(p, xp),
    bound=lambda p, at_clip, clip_norm, xp: clip_norm * inverse(p, xp),
    divisor=lambda dials: dials.cohort,
    own_bound=True,
    needs_floor=True,
)
