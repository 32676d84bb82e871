"""The accountant for a training loop that is not ours: PyTorch, Opacus, NumPy.

Guarantee: if in every step each unit (a record, or a user with all its records) is drawn by a coin
of its own with the rate that is given here, its gradient is clipped to a norm C, and Gaussian noise
of standard deviation `noise_multiplier` * C is added once to the sum over those drawn, then the
model after all steps is (epsilon, delta)-DP for that unit, with the epsilon that is given here.

It does not hold for shuffled batches, or batches of a fixed size: these are not drawn by coins.
Rates and multipliers are fixed beforehand, and do not depend on how training goes.
"""

from __future__ import annotations

from collections import Counter

from locksfl import _validate
from locksfl.methods.events import Exact, Rounds, Sampled
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    Relation,
    as_count,
    as_float,
)
from locksfl.privacy.accountant import epsilon_of


class Meter:
    """Counts the steps of a training loop, and says what they cost.

    >>> meter = Meter(delta=1e-5)
    >>> for _ in range(100):
    ...     meter.step(noise_multiplier=1.1, sampling_rate=0.01)
    >>> round(meter.epsilon(), 3)
    0.55
    >>> meter.allows(1.0, noise_multiplier=1.1, sampling_rate=0.01, steps=100)
    True
    """

    def __init__(
        self, delta: float, relation: Relation = "zero-out", accountant: Accountant = "pld"
    ) -> None:
        """
        Args:
            delta: well below 1 / units.
            relation: "zero-out" (one unit's gradients present or absent; for coins, what Opacus
                calls adding or removing a record) or "replace" (its data exchanged for any other).
            accountant: "pld" is tighter, "rdp" faster.
        """
        _validate.probability(delta=as_float("delta", delta))
        _validate.one_of(RELATIONS, relation=relation)
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        self.delta, self.relation, self.accountant = delta, relation, accountant
        self._charged: Counter[Sampled | Exact] = Counter()

    def step(self, *, noise_multiplier: float, sampling_rate: float, steps: int = 1) -> None:
        """Charge so many steps; to be called whether or not anybody was drawn. A step without noise
        costs everything: epsilon is infinite from then on."""
        self._charged = self._with(noise_multiplier, sampling_rate, steps)

    def epsilon(self) -> float:
        """An upper bound on what all steps so far cost one unit; math.inf without noise."""
        return self._epsilon(self._charged)

    def allows(
        self, limit: float, *, noise_multiplier: float, sampling_rate: float, steps: int = 1
    ) -> bool:
        """Whether so many more steps would stay within a limit; nothing is charged."""
        return self._epsilon(self._with(noise_multiplier, sampling_rate, steps)) <= limit

    @property
    def steps(self) -> int:
        """How many were charged."""
        return self._charged.total()

    def _with(self, noise: float, rate: float, steps: int) -> Counter[Sampled | Exact]:
        count = as_count("steps", steps)
        bare = as_float("noise_multiplier", noise) == 0.0
        return self._charged + Counter({Exact() if bare else Sampled(rate, noise): count})

    def _epsilon(self, charged: Counter[Sampled | Exact]) -> float:
        seen = [Rounds(*each) for each in charged.items()]
        return epsilon_of(seen, self.delta, self.relation, self.accountant).epsilon
