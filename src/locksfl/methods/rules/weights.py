"""By public weights w_i that sum to 1 and depend on no data: p_i = min(1, b w_i / q)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.rules import Rule

if TYPE_CHECKING:
    from locksfl.arm import Arm


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """b w_i / q; `weight` is n w_i, and b w_i / q = b n w_i / m. The round limits it to 1."""
    del own, public, xp
    return dials.uploads * weight / dials.cohort


def largest_probability(arm: Arm) -> float:
    """That of the heaviest client."""
    return min(1.0, arm.uploads * max(arm.weights or (1.0,)) / arm.sampling_rate)


rule = Rule(
    name="weights",
    about="by public weights",
    probability=probability,
    largest_probability=largest_probability,
    takes=("weights",),
    paper="the paper's Lemma 3",
)
