"""What a client may spend, and a warning of a delta that protects nobody in particular. No JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.methods.releases import RELATIONS, Relation
from locksfl.privacy import gdp


@dataclass(frozen=True)
class Budget:
    """What one client may spend in local trust, in all. Kept by a filter.

    A Gaussian is charged mu^2 = (sensitivity/std)^2, chosen after everything before it, and the
    client stops before the sum would pass the budget: then all of it together is (epsilon, delta)-
    DP (a filter for GDP under full adaptivity: Smith and Thakurta 2022; Koskela, Tobaben and
    Honkela 2022). A whole round, norm and upload, is reserved before the client is asked; an upload
    that the coin does not draw is refunded, which is sound because nothing was released.
    """

    epsilon: float
    delta: float
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.one_of(RELATIONS, relation=self.relation)

    @property
    def mu_squared(self) -> float:
        """The budget as a sum of (sensitivity/std)^2."""
        return gdp.mu_from_epsilon(self.epsilon, self.delta) ** 2

    def most_uploads(self, arm: Arm) -> list[int]:
        """For k = 0 ... T norms released, the most uploads that can be paid beside them; -1 where
        the norms alone pass the budget. Whole numbers, so that host and device agree exactly."""
        limit = self.mu_squared
        upload = arm.client_releases(1, 0).mu_squared(self.relation)

        def cost(norms: int, uploads: int) -> float:
            return arm.client_releases(uploads, norms).mu_squared(self.relation)

        table = []
        for norms in range(arm.rounds + 1 if arm.releases_norms else 1):
            left = limit - cost(norms, 0)
            uploads = min(arm.rounds, max(-1, math.floor(left / upload)))
            while uploads >= 0 and cost(norms, uploads) > limit:
                uploads -= 1
            while 0 <= uploads < arm.rounds and cost(norms, uploads + 1) <= limit:
                uploads += 1
            table.append(uploads if left >= 0 else -1)
        return table

    def check(self, arm: Arm) -> None:
        """Refuse a budget that does not pay for one round."""
        one = arm.client_releases(1).mu_squared(self.relation)
        if one > self.mu_squared:
            cost = gdp.epsilon_from_mu(math.sqrt(one), self.delta)
            raise ValueError(
                f"epsilon = {self.epsilon!r}: smaller than one round costs, {cost:.4g}; expected "
                "more, or larger multipliers (nothing was spent)"
            )

    def worst_mu_squared(self, arm: Arm, relation: Relation) -> float:
        """The most that any client can spend under a relation while it keeps this budget."""
        whole = arm.client_releases(arm.rounds).mu_squared(relation)
        if relation == self.relation:
            return min(self.mu_squared, whole)
        pairs = [(k, u) for k, u in enumerate(self.most_uploads(arm)) if u >= 0]
        if not arm.releases_norms:
            return max(arm.client_releases(u).mu_squared(relation) for _, u in pairs)
        # without its norm nobody uploads
        return max(arm.client_releases(min(k, u), k).mu_squared(relation) for k, u in pairs)


def delta_warning(delta: float, clients: int) -> str | None:
    """Why this delta protects nobody in particular, or None."""
    if delta < 1 / clients:
        return None
    return (
        f"warning: delta = {delta:g} is not below 1 / clients = {1 / clients:g}: publishing one "
        "client in full, drawn at random, would satisfy it; expected much less"
    )
