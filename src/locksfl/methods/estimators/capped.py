"""The mean of the clipped updates: g_i / p_i, clipped to S = C / p_C.

With true norms r / p(r) grows with r, so that the clip never binds and the mean is exact. With
noisy norms it binds when p_i is too small, and the mean shrinks.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.estimators import Estimator, inverse, within


def bound(p: Any, at_clip: Any, clip_norm: Any, xp: Any) -> Any:
    """S = C / p_C, the same for all."""
    safe = xp.where(at_clip > 0, at_clip, 1.0)
    return xp.broadcast_to(xp.where(at_clip > 0, clip_norm / safe, 0.0), xp.shape(p))


def weight(norm: Any, p: Any, bound: Any, xp: Any) -> Any:
    """1/p_i, limited so that |g_i| / p_i <= S."""
    return xp.minimum(inverse(p, xp), within(bound, norm, xp))


estimator = Estimator(
    name="capped",
    about="the mean of the clipped updates",
    weight=weight,
    bound=bound,
    divisor=lambda dials: dials.cohort,
    credited=True,
)
