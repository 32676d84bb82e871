"""By norm, only in rounds in which that pays: a gate after Katharopoulos and Fleuret (ICML 2018).

They sample by norm once the variance that it saves exceeds its cost, for which they need the spread
of the scores. The released sum gives only their mean, r = K' / (m C), so this gate is a rule of
thumb.

    p_i = b / m                                       if K' / (m C) > gate
    p_i = (1 - lambda) b z_i / K' + lambda b / m      else, as in the rule norm

Both are functions of the client's own norm and of the public K'. The norms are charged in either
case, and the update at the larger of the two largest probabilities: that of the rule norm at K_low,
or b / m if K_low lies above the gate (then no round is by norm).

The default gate is .45. Noise on the mean falls by r at best, and the measured comparisons
(docs/results.md) gained where the predicted error was below .7 of uniform's: all of them had
r <= .38, and from r = .48 on none did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from locksfl.methods.rules import norm
from locksfl.methods.rules.shared import largest_share, share_of_sum, uploads_by_sum

if TYPE_CHECKING:
    from locksfl.arm import Arm


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """b / m above the gate, else that of the rule norm."""
    closed = public > dials.gate * dials.cohort * dials.clip_norm
    by_norm = share_of_sum(own, public, weight, dials, xp)
    return xp.where(closed, dials.uploads / dials.cohort, by_norm)


def largest_probability(arm: Arm) -> float:
    """That of the rule norm, unless every round is uniform."""
    if arm.norm_low > arm.gate:
        return arm.uploads / arm.cohort
    return largest_share(arm)


def estimated_uploads(released: float, public: float, arm: Arm) -> float:
    """b above the gate, else that of the rule norm."""
    if public > arm.gate * arm.cohort * arm.clip_norm:
        return arm.uploads
    return uploads_by_sum(released, public, arm)


rule = replace(
    norm.rule,
    name="gated",
    about="in proportion to the norm where that pays",
    probability=probability,
    largest_probability=largest_probability,
    estimated_uploads=estimated_uploads,
    takes=(*norm.rule.takes, "gate"),
    planned=False,
    paper="after Katharopoulos and Fleuret 2018",
)
