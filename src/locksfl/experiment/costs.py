"""What an arm's rounds cost, for each observer and relation: the statement that we stand behind.

The sums are in `locksfl.privacy`, which knows nothing of experiments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from locksfl._tables import or_null
from locksfl._text import epsilon_text
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.record import Cost as StatedCost
from locksfl.methods.events import Rounds
from locksfl.methods.releases import OBSERVERS
from locksfl.privacy import Cost, epsilon_of, epsilons_after, guarantee

CURVE_POINTS = 100


def epsilons_by_observer(costs: Sequence[StatedCost], between: str = "/") -> list[str]:
    """The cells of a table: for each observer, the epsilon of every relation."""
    return [
        between.join(epsilon_text(c.epsilon) for c in costs if c.observer == observer)
        for observer in OBSERVERS
    ]


def statement(arms: Sequence[Arm], privacy: PrivacyConfig) -> list[Cost]:
    """The cost of these arms together."""
    return guarantee(arms, privacy.delta, privacy.accountant)


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
        sent = [one for one in arm.messages() if one is not None]
        every = (
            epsilon_of([Rounds(one, t + 1) for one in sent], privacy.delta, privacy.relation)
            for t in rounds
        )
        return [or_null(min(most, charged.epsilon)) for charged in every]
    stride = -(-arm.rounds // CURVE_POINTS)
    computed = [min(arm.rounds, -(-(t + 1) // stride) * stride) for t in rounds]
    counts = sorted({*computed, arm.rounds})  # the last one sets the accountant's grid
    values = epsilons_after(arm.event(), counts, *privacy.accounted)
    after = dict(zip(counts, values, strict=True))
    return [or_null(after[count]) for count in computed]
