"""What a device does with a message: train, clip, and hand the result to the guard.

The transport keeps `clipped` between the two stages; it is secret and never leaves as it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from locksfl.federation.device.guard import Guard
from locksfl.federation.device.terms import RoundTerms, Stage
from locksfl.federation.device.update import (
    LocalUpdate,
    Vector,
    clip,
    contribution,
    norm,
    safe_update,
)


def clipped_update(
    guard: Guard,
    terms: RoundTerms,
    stage: Stage,
    update: LocalUpdate,
    weights: npt.NDArray[np.floating],
) -> Vector:
    """g_i: the local update, clipped. The guard is asked first, so that nobody trains in vain."""
    guard.check(terms, stage)
    return clip(safe_update(update, weights, terms.round), terms.clip_norm)


def answer_norm(
    guard: Guard, terms: RoundTerms, update: LocalUpdate, weights: npt.NDArray[np.floating]
) -> tuple[float, Vector]:
    """Stage 1 of rule "norm": the released norm, and the clipped update to keep."""
    clipped = clipped_update(guard, terms, "norm", update, weights)
    return guard.release_norm(terms, norm(clipped)), clipped


def answer_update(
    guard: Guard,
    terms: RoundTerms,
    clipped: npt.ArrayLike,
    estimator: str,
    probability: float,
    bound: float,
) -> npt.NDArray[np.float32]:
    """Stage 2, or the only stage: the released contribution."""
    return guard.release_update(terms, contribution(estimator, clipped, probability), bound)
