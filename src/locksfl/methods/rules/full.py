"""Every client, every round: p = 1."""

from __future__ import annotations

from typing import Any

from locksfl.methods.rules import Rule


def probability(own: Any, public: Any, weight: Any, dials: Any, xp: Any) -> Any:
    """1."""
    del public, weight, dials
    return xp.ones_like(own)


rule = Rule(
    name="full",
    about="every client, every round",
    probability=probability,
    largest_probability=lambda arm: 1.0,
    all_clients=True,
    paper="McMahan et al. 2017 (FedAvg)",
)
