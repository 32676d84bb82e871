"""LOCKS: in proportion to the norm of the clipped update, with a floor.

    K' = clip(released sum of norms, K_low, m C)          b C <= K_low <= m C, fixed beforehand
    p_i = (1 - lambda) b z_i / K' + lambda b / m          at most 1, because K' >= K_low >= b C

z_i is the norm as the server knows it: with the client's own noise, or exact if it is trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.rules import NORM, Rule

if TYPE_CHECKING:
    from locksfl.arm import Arm


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """(1 - lambda) b z_i / K' + lambda b / m."""
    del weight, xp
    by_norm = dials.uploads * own / public
    return (1 - dials.floor) * by_norm + dials.floor * dials.uploads / dials.cohort


def largest_probability(arm: Arm) -> float:
    """That of norm C with the least norm sum: (1 - lambda) b C / K_low + lambda b / m."""
    share = arm.uploads / arm.cohort
    return min(1.0, (1 - arm.floor) * share / arm.norm_low + arm.floor * share)


def settle(released: Any, dials: Any, xp: Any) -> Any:
    """K': the released sum, clamped to its public limits."""
    return xp.clip(released, dials.least_norm_sum, dials.cohort * dials.clip_norm)


def estimated_uploads(released: float, public: float, arm: Arm) -> float:
    """(1 - lambda) b K~ / K' + lambda b."""
    return arm.uploads * ((1 - arm.floor) * max(0.0, released) / public + arm.floor)


rule = Rule(
    name="norm",
    about="in proportion to the norm (LOCKS)",
    probability=probability,
    largest_probability=largest_probability,
    asks=NORM,
    released=True,
    settle=settle,
    estimated_uploads=estimated_uploads,
    takes=("floor", "norm_low"),
    planned=True,
    paper="the LOCKS paper, corrected",
    sends="its norm, then its update if it uploads",
)
