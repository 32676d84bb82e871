"""What an arm's rounds cost, for each observer and relation: the statement that we stand behind.

SERVER sees every message; PUBLIC sees the models only. The unit is one client with all its data.

* trust central: PUBLIC is protected by the noise on the sums and by the secret cohort; the server
  sees raw updates, so its epsilon is infinite.
* trust local: every message is noised before it leaves the client. Nothing is gained from sampling,
  because the server knows whom it asked; the charge is for a client asked in every round. PUBLIC
  sees less than SERVER and is charged the same.
* trust none: infinite for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from locksfl.accounting import Relation, central_epsilon, central_epsilons, local_epsilon
from locksfl.config import PrivacyConfig
from locksfl.plan import ArmPlan

OBSERVERS = ("SERVER", "PUBLIC")
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace")
CURVE_POINTS = 100


@dataclass(frozen=True)
class Cost:
    """An (epsilon, delta) guarantee against one observer under one relation; None is infinite."""

    observer: str
    relation: str
    epsilon: float | None
    delta: float
    accountant: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def statement(
    plans: Sequence[ArmPlan], rounds: Sequence[int], privacy: PrivacyConfig
) -> list[Cost]:
    """The cost of these arms together, each for so many rounds."""
    return [
        Cost(observer, relation, *_epsilon(plans, rounds, privacy, observer, relation))
        for observer in OBSERVERS
        for relation in RELATIONS
    ]


def _epsilon(
    plans: Sequence[ArmPlan],
    rounds: Sequence[int],
    privacy: PrivacyConfig,
    observer: str,
    relation: Relation,
) -> tuple[float | None, float, str]:
    trust = plans[0].method.trust
    if trust == "local":
        releases = [p.client_releases(t) for p, t in zip(plans, rounds, strict=True)]
        epsilon = local_epsilon(releases, privacy.delta, relation)
        return _finite(epsilon), privacy.delta, "gdp"
    if trust == "none" or observer == "SERVER":
        return None, privacy.delta, "none"
    spent = [(p.sampled_round(), t) for p, t in zip(plans, rounds, strict=True)]
    epsilon = central_epsilon(spent, privacy.delta, relation, privacy.accountant)
    return _finite(epsilon), privacy.delta, privacy.accountant


def epsilon_so_far(plan: ArmPlan, privacy: PrivacyConfig) -> list[float | None]:
    """For each round, the epsilon after it against the observer that the trust protects from,
    under the relation of the experiment. Between computed rounds the later value is given: an
    epsilon grows with the rounds, so that is true too."""
    trust, total = plan.method.trust, plan.rounds
    if trust == "none":
        return [None] * total
    if trust == "local":
        return [
            _finite(local_epsilon([plan.client_releases(t)], privacy.delta, privacy.relation))
            for t in range(1, total + 1)
        ]
    stride = -(-total // CURVE_POINTS)
    counts = sorted({*range(stride, total + 1, stride), total})
    values = central_epsilons(
        plan.sampled_round(), counts, privacy.delta, privacy.relation, privacy.accountant
    )
    return [_finite(values[-(-t // stride) - 1]) for t in range(1, total + 1)]


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
