"""By norm, unless the released norm sum is above a gate (after Katharopoulos and Fleuret 2018).

    p_i = b / m                                       if K' / (m C) > gate
    p_i = (1 - lambda) b z_i / K' + lambda b / m      else, as in the rule norm

Both are functions of the client's own norm and of the public K'. They turn sampling on once it
saves more than scoring costs. Here that cost is sunk: norms are charged in every round, and the
update at the larger of the two largest probabilities (that of the rule norm at K_low, or b / m if
K_low lies above the gate). So a round asks only: with the multiplier z that has been paid for,
which p_i has the smaller error? With r = K' / (m C), x = |g_i| / C, u = (1 - lambda) x / r + lambda
and v = (1 - lambda) / r + lambda, in clip norms,

                by norm            uniform
    noise       z^2 d / (b v)^2    z^2 d / b^2      v >= 1, as r <= 1
    sampling    E[x^2 / u] / b     E[x^2] / b       E[u] = 1 if r is the mean of x; x^2 / u and u
                                                    rise together, so that E[x^2 (u - 1) / u] >= 0

so that uniform is better in neither. If r is not the mean of x (noise on the sum, or K_low), u is
at least min(1, x / r), and by norm loses r^2 / (4 b) in sampling at most: it is better for any
norms where

    z^2 d (1 - 1 / v^2) >= b r^2 / 4,      r <= (1 + b / (4 d z^2))^(-1/2) if lambda = 0:

r <= .999 for b = 60, z = .46 and d = 39,700. An arm does not know d, and no usual model is so small
that it matters. So the derived gate is 1: once the norms are paid for, it never closes, and this is
the rule norm unless a gate is set. Whether norms are worth their price has to be asked before the
run, at equal epsilon: `locks plan` answers that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.rules import NORM, Rule
from locksfl.methods.rules.shared import (
    clamped_sum,
    largest_share,
    share_of_sum,
    uploads_by_sum,
)

if TYPE_CHECKING:
    from locksfl.arm import Arm

ROUNDING = 1e-5  # relative: 100 times what products of float32 are off by


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """b / m above the gate, else that of the rule norm."""
    closed = public > dials.gate * dials.cohort * dials.clip_norm
    by_norm = share_of_sum(own, public, weight, dials, xp)
    return xp.where(closed, dials.uploads / dials.cohort, by_norm)


def largest_probability(arm: Arm) -> float:
    """That of the rule norm, the larger one, unless every round is uniform. A round compares
    K_low with the gate in its own arithmetic, so that next to the gate either may come out."""
    if arm.norm_low > arm.gate * (1 + ROUNDING):
        return arm.uploads / arm.cohort
    return largest_share(arm)


def estimated_uploads(released: float, public: float, arm: Arm) -> float:
    """b above the gate, else that of the rule norm."""
    if public > arm.gate * arm.cohort * arm.clip_norm:
        return arm.uploads
    return uploads_by_sum(released, public, arm)


rule = Rule(
    name="gated",
    about="in proportion to the norm, uniform above a gate",
    asks=NORM,
    released=True,
    settle=clamped_sum,
    probability=probability,
    largest_probability=largest_probability,
    estimated_uploads=estimated_uploads,
    takes=("floor", "norm_low", "gate"),
    paper="after Katharopoulos and Fleuret 2018",
)
