"""What several rules have in common: pure functions, which a rule's file names where it uses them.

b is the uploads wanted, m the cohort, C the clip norm and lambda the floor. z_i is a member's
value, from 0 to C, as the server knows it: with the client's own noise, or exact if the server is
trusted. K' is the public number.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from locksfl.methods.rules import Facts, Rule

if TYPE_CHECKING:
    from locksfl.arm import Arm

# --- In proportion to a value, with a floor -------------------------------------------------------


def share_of_sum(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """(1 - lambda) b z_i / K' + lambda b / m."""
    del weight, xp
    by_value = dials.uploads * own / public
    return (1 - dials.floor) * by_value + dials.floor * dials.uploads / dials.cohort


def largest_share(arm: Arm) -> float:
    """That of z_i = C with the least sum: (1 - lambda) b C / K_low + lambda b / m."""
    share = arm.uploads / arm.cohort
    return min(1.0, (1 - arm.floor) * share / arm.norm_low + arm.floor * share)


def clamped_sum(released: Any, dials: Any, xp: Any) -> Any:
    """K': the released sum, clamped to [K_low, m C]; b C <= K_low, so that no share exceeds 1."""
    return xp.clip(released, dials.least_norm_sum, dials.cohort * dials.clip_norm)


def uploads_by_sum(released: float, public: float, arm: Arm) -> float:
    """The uploads to expect, from released numbers: (1 - lambda) b K~ / K' + lambda b."""
    return arm.uploads * ((1 - arm.floor) * max(0.0, released) / public + arm.floor)


# a rule in proportion to a value that is released first; a file gives its name, and what differs
by_sum = partial(
    Rule,
    released=True,
    settle=clamped_sum,
    probability=share_of_sum,
    largest_probability=largest_share,
    estimated_uploads=uploads_by_sum,
    takes=("floor", "norm_low"),
)

# --- In proportion to a value, up to 1 ------------------------------------------------------------


def share_up_to_one(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """min(1, b z_i / K'); 0 for z_i = 0, and 1 for the others if K' = 0."""
    del weight
    there = public > 0
    p = xp.where(there, dials.uploads * own / xp.where(there, public, 1.0), 1.0)
    return xp.where(own > 0, xp.minimum(1.0, p), 0.0)


def water_level(values: Any, uploads: Any, xp: Any) -> Any:
    """t such that the sum of min(1, a_i / t) is b; 0 if fewer than b values are positive.

    t = min over k < b of (sum of all but the k largest a_i) / (b - k): for any k the sum of
    min(1, a_i / t) is at most k + rest_k / t, with equality if exactly the k largest are at 1. So
    b <= k + rest_k / t for all k, with equality for one."""
    rest = xp.concatenate([xp.cumsum(xp.sort(values))[::-1], xp.zeros(1)])
    left = uploads - xp.arange(rest.shape[0])
    return xp.min(xp.where(left > 0, rest / xp.where(left > 0, left, 1.0), xp.inf))


# --- By order -------------------------------------------------------------------------------------


def larger_and_equal(own: Any, weight: Any, xp: Any) -> tuple[Any, Any]:
    """For each member, the number of members with a larger value and of those with the same value,
    itself included. Those of weight 0 are absent and do not count. Each value is looked up as it
    was sorted: a compiler that computes it a second time may round it otherwise."""
    values = xp.where(weight > 0, own, -1.0)
    ranked = xp.sort(values)
    own = ranked[xp.argsort(xp.argsort(values))]
    up_to, below = (xp.searchsorted(ranked, own, side=side) for side in ("right", "left"))
    return ranked.shape[0] - up_to, xp.maximum(up_to - below, 1)


def largest_first(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """1 for the b largest, 0 for the others; those that are equal at the limit share what is left.
    0 for the absent."""
    del public
    larger, equal = larger_and_equal(own, weight, xp)
    return xp.where(weight > 0, xp.clip((dials.uploads - larger) / equal, 0.0, 1.0), 0.0)


# --- Scores ---------------------------------------------------------------------------------------


def loss_over_bound(facts: Facts, dials: Any, xp: Any) -> Any:
    """C F_i / B, F_i the mean loss and B = loss_bound; the round limits it to C."""
    del xp
    return dials.clip_norm * facts["loss"] / dials.loss_bound


def clip_factor(norm: Any, dials: Any, xp: Any) -> Any:
    """What makes g_i of u_i, by |u_i|."""
    return 1.0 / xp.maximum(dials.shortest, norm / dials.clip_norm)


def cosine_between(product: Any, one: Any, other: Any, xp: Any) -> Any:
    """product / (one other), two lengths, between -1 and 1; 0 if one of them is 0."""
    there = (one > 0) & (other > 0)
    cosine = product / xp.where(there, one, 1.0) / xp.where(there, other, 1.0)
    return xp.where(there, xp.clip(cosine, -1.0, 1.0), 0.0)
