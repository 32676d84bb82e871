"""Rate control: a fixed number of uploads from members who upload as their norms ask.

A cohort of m brings about m r uploads, r the mean of |g_i| / C, which nobody knows. It is estimated
from the counts that were released before, and the next cohort is b / r, on a public ladder:

    r = sum_s w^(t-s) count_s / sum_s w^(t-s) m_s        with 5 rounds of r = 1 before the first

and w = 1 - 1/L. L is long enough that the noise of the counts, at the rung in use, moves the
estimate by some percent only, and no longer: r may rise as well as fall. Only released numbers are
used, so that choosing a rate releases nothing more; what a round of any of the rates costs,
`privacy.calibrate` makes equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from locksfl.arm import Arm

STEADY = 0.2  # the relative error of the estimate that the noise of the counts may cause
LEAST_MEMORY = 5.0  # rounds


class RateControl:
    """The rate of the next round, from the counts released so far and nothing else."""

    def __init__(self, arm: Arm, counts: Sequence[float] = ()) -> None:
        """Args:
        arm: an arm with rate control.
        counts: the released counts of the rounds that were played already.
        """
        self._arm, self._each = arm, _rungs(arm)
        self._sizes = np.log(arm.rungs)
        self._counted = self._asked = LEAST_MEMORY * arm.uploads  # as if all norms had been C
        for count in counts:
            self.enter(count)

    @property
    def arm(self) -> Arm:
        """The arm of the next round."""
        share = min(1.0, max(self._counted / self._asked, self._arm.uploads / self._arm.cohort))
        wanted = math.log(self._arm.uploads / share)
        return self._each[int(np.argmin(np.abs(self._sizes - wanted)))]

    def enter(self, count: float) -> None:
        """Take in the released count of the round that `arm` was for."""
        now = self.arm
        kept = 1 - 1 / self._memory(now)
        self._counted = kept * self._counted + count
        self._asked = kept * self._asked + now.cohort

    def _memory(self, now: Arm) -> float:
        """L, for counts as noisy as those of this rung."""
        b = self._arm.uploads
        return max(LEAST_MEMORY, (b + now.count_noise**2) / (STEADY * b) ** 2)


_rungs = lru_cache(maxsize=32)(Arm.at_rungs)
