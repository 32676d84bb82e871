"""Every member of the cohort alike: p = b / m."""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import Rule


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """b / m."""
    del public, weight
    return xp.broadcast_to(dials.uploads / dials.cohort, xp.shape(own))


rule = Rule(
    name="uniform",
    about="every member alike",
    probability=probability,
    largest_probability=lambda arm: arm.uploads / arm.cohort,
    planned=True,
    paper="McMahan et al. 2017 (FedAvg)",
)
