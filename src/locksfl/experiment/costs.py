"""What an arm's rounds cost, for each observer and relation: the statement that we stand behind.

The sums are in `locksfl.privacy`, which knows nothing of experiments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.privacy import OBSERVERS, RELATIONS, Cost, central_epsilons, guarantee, local_epsilon

__all__ = ["OBSERVERS", "RELATIONS", "Cost", "epsilon_so_far", "statement"]

CURVE_POINTS = 100


def statement(arms: Sequence[Arm], rounds: Sequence[int], privacy: PrivacyConfig) -> list[Cost]:
    """The cost of these arms together, each for so many rounds."""
    played = [dataclasses.replace(arm, rounds=t) for arm, t in zip(arms, rounds, strict=True)]
    return guarantee(played, privacy.delta, privacy.accountant)


def epsilon_so_far(
    arm: Arm, privacy: PrivacyConfig, rounds: Sequence[int] | None = None
) -> list[float | None]:
    """For each of these rounds (all, if not given; the first is 0), the epsilon after it against
    the observer that the trust protects from, under the relation of the experiment. Between
    computed rounds the later value is given: an epsilon grows with the rounds, so that is true too.
    """
    rounds = range(arm.rounds) if rounds is None else rounds
    if not arm.private:
        return [None] * len(rounds)
    if not arm.parts[2].amplified:
        most = math.inf if arm.budget is None else arm.budget.epsilon
        releases = (arm.client_releases(t + 1) for t in rounds)
        every = (local_epsilon([one], privacy.delta, privacy.relation) for one in releases)
        return [_finite(min(most, epsilon)) for epsilon in every]
    stride = -(-arm.rounds // CURVE_POINTS)
    computed = [min(arm.rounds, -(-(t + 1) // stride) * stride) for t in rounds]
    counts = sorted({*computed, arm.rounds})  # the last one sets the accountant's grid
    values = central_epsilons(arm.sampled_round(), counts, *privacy.accounted)
    after = dict(zip(counts, values, strict=True))
    return [_finite(after[count]) for count in computed]


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
