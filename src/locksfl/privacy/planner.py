"""How many rounds, which cohort: the plan with the least predicted error. No data.

The criterion, with all lengths in clip norms, is the rate of SGD on a quadratic whose flat
directions have little left to learn, with its best constant step:

    error = (A / T)^2 + ((noise^2 + sampling^2) / T)^(2/3)

(docs/program.md has the proof; noise and sampling are those of `forecast.expected_round`, over what
is kept of the mean). A, the one number about optimisation, is `progress` where all norms pass the
clip; a clip norm that is 1/r times the mean norm makes it r^(2/3) times that. PROGRESS was chosen
on MNIST and Fashion-MNIST and is an assumption everywhere else.

A total of uploads or downloads that is given is spent: the rounds and the cohort with the least
error are taken. Where none is given, more rounds, and larger cohorts up to what a round may have,
help less and less: of the plans within NEAR of the least error, the one with the fewest uploads is
taken. `advice` chooses between the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from locksfl import _validate
from locksfl._tables import Count, Positive, Probability, Settings
from locksfl.arm import Arm
from locksfl.methods import ESTIMATORS, PRIVATE, RULES, TRUSTS
from locksfl.methods.releases import Accountant, Relation
from locksfl.methods.sound import unsound
from locksfl.privacy.calibration import calibrate, search_noise
from locksfl.privacy.forecast import Expected, expected_round

PROGRESS = 5.0
NEAR = 1.1
# r of the coin, tuned: its median in docs/results.md by the least number of clients; below, about 1
MEASURED = ((60_000, 0.2), (10_000, 0.7))
# steps of about a third: the least error is flat
ROUNDS = tuple(sorted({round(base * 10**k) for k in range(5) for base in (1, 1.5, 2, 3, 4, 6, 8)}))
MOST_ROUNDS = 1000  # unless the question says otherwise
PARTS = tuple(10 ** (-k / 3) for k in range(10))  # of the most uploads that a round may have
FINE = tuple(10 ** (-k / 20) for k in range(61))  # where as little as keeps to an error is wanted
FULL = next(name for name, rule in RULES.items() if rule.everyone)
BYTES = 4

Share = Annotated[float, _validate.rate]


@dataclass(frozen=True)
class Question(Settings):
    """What is fixed; the rest is planned. Limits are on expected numbers; None sets no limit."""

    clients: Count  # n
    parameters: Count  # d, of the model
    epsilon: Positive  # of the whole run, norms included
    delta: Probability = 1e-5
    trust: str = "central"  # who adds the noise
    uploads: Positive | None = None  # a round
    uploads_in_all: Positive | None = None  # of all rounds
    downloads: Positive | None = None  # a round: clients that are asked
    downloads_in_all: Positive | None = None  # of all rounds
    rounds: Count | None = None  # the most
    norm_share: Share | None = None  # r, the mean clipped norm over the clip norm, if known
    progress: Positive = PROGRESS  # A, the criterion's constant
    relation: Relation = "zero-out"
    accountant: Accountant = "pld"

    def check(self) -> None:
        """Refuse a trust that claims nothing, and limits that allow no upload."""
        _validate.one_of(PRIVATE, trust=self.trust)
        for name in ("uploads", "uploads_in_all", "downloads", "downloads_in_all"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"{name} = {limit:g}: expected at least 1")

    @property
    def totalled(self) -> bool:
        """Whether there is a total to spend."""
        return self.uploads_in_all is not None or self.downloads_in_all is not None

    @property
    def limited(self) -> bool:
        """Whether anything is to be used up: a round's limit, or a total."""
        return self.totalled or self.uploads is not None or self.downloads is not None

    @property
    def share(self) -> float:
        """r as given, or as it was measured with as many clients."""
        measured = (share for least, share in MEASURED if self.clients >= least)
        return self.norm_share or next(measured, 1.0)

    def rules(self) -> list[str]:
        """The rules that choose among the clients and are sound under the trust, those that ask
        them for nothing first."""
        trust = TRUSTS[self.trust]
        names = [
            name
            for name, rule in RULES.items()
            if rule.planned
            and any(not unsound(rule, estimator, trust) for estimator in ESTIMATORS.values())
        ]
        return sorted(names, key=lambda name: (RULES[name].asks is not None, RULES[name].released))

    def rounds_to_try(self) -> list[int]:
        """Numbers of rounds, up to the most that is allowed."""
        most = self.rounds or MOST_ROUNDS
        return [*(tried for tried in ROUNDS if tried < most), most]

    def most_uploads(self, rule: str, rounds: int, share: float) -> float:
        """The most uploads that a round may be expected to have."""
        most = math.inf
        asked = min(self.clients, self.downloads or most, (self.downloads_in_all or most) / rounds)
        possible = asked if RULES[rule].asks is None else share * asked
        return min(possible, self.uploads or most, (self.uploads_in_all or most) / rounds)

    def arm(self, rule: str, rounds: int, uploads: float, share: float) -> Arm:
        """The arm that is expected to upload so often, not yet calibrated. A rule that asks for
        norms has the cohort in which a client of norm C uploads for certain: a larger one would
        be charged as much, and download more."""
        stated = RULES[rule]
        settings: dict[str, Any] = {}
        if not stated.everyone:
            asked = uploads if stated.asks is None else uploads / share
            settings["cohort"] = min(asked, float(self.clients))
        if stated.released:  # so that it can hold a number of uploads
            settings["uploads"] = min(uploads, settings["cohort"])
        if "floor" in stated.takes and not TRUSTS[self.trust].clients_add_noise:
            settings["floor"] = 0.0  # true norms need none
        return Arm("", self.clients, rounds, rule, trust=self.trust, **settings)

    def plan(self, arm: Arm, share: float) -> Plan:
        """What to expect of the arm, with the noise that a run would be given."""
        noisy = _calibrated(arm, self.epsilon, self.delta, self.relation, self.accountant)
        return self._plan(noisy, share)

    def rough_plan(self, arm: Arm, share: float) -> Plan:
        """The same in some milliseconds, by RDP: with a little more noise than a run's."""
        if not arm.parts.trust.amplified:
            return self.plan(arm, share)
        rate = arm.sampling_rate * arm.largest_probability
        noise = search_noise(self.epsilon, self.delta, arm.rounds, rate, self.relation)
        norm = None
        if arm.releases_norms:
            noise, norm = _split(noise, arm.norm_low * arm.cohort)
        return self._plan(arm.changed(noise_multiplier=noise, norm_multiplier=norm), share)

    def _plan(self, arm: Arm, share: float) -> Plan:
        expected = expected_round(arm, self.parameters, share)
        progress = self.progress * share ** (2 / 3)
        return Plan(arm, expected, predicted_error(expected, arm.rounds, progress), share)


@dataclass(frozen=True)
class Plan:
    """An arm with its noise, and what to expect of it."""

    arm: Arm
    expected: Expected  # of a round on average
    error: float  # predicted
    norm_share: float  # the mean clipped norm over the clip norm, as assumed

    @property
    def uploads_in_all(self) -> float:
        """Expected."""
        return self.arm.rounds * self.expected.uploads

    def numbers(self, parameters: int) -> PlanNumbers:
        """The plan for a model of this size, without its arm."""
        arm, expected = self.arm, self.expected
        norms = arm.cohort if arm.releases_norms else 0.0
        return PlanNumbers(
            rule=arm.rule,
            norm_share=self.norm_share,
            rounds=arm.rounds,
            cohort=arm.cohort,
            uploads=expected.uploads,
            uploads_in_all=self.uploads_in_all,
            downloads_in_all=arm.rounds * arm.cohort,
            noise_multiplier=arm.noise_multiplier,
            norm_multiplier=arm.noise.norm_multiplier,
            noise=expected.noise,
            sampling_variance=expected.sampling**2,
            kept=expected.kept,
            error=self.error,
            bytes_up=BYTES * arm.rounds * (expected.uploads * parameters + norms),
            bytes_down=BYTES * arm.rounds * arm.cohort * parameters,
        )


@dataclass(frozen=True)
class PlanNumbers:
    """A plan as a table shows it; lengths are in clip norms."""

    rule: str  # its name
    norm_share: float  # the mean clipped norm over the clip norm
    rounds: int
    cohort: float  # clients asked in a round
    uploads: float  # expected in a round
    uploads_in_all: float  # expected in all rounds
    downloads_in_all: float  # clients asked in all rounds
    noise_multiplier: float  # of the updates
    norm_multiplier: float | None  # None: the rule releases no norms
    noise: float  # the expected norm of the noise on the averaged update
    sampling_variance: float  # of the averaged update, by the two samples alone
    kept: float  # the share of the mean that arrives
    error: float  # predicted, by the planner's criterion
    bytes_up: float  # in all rounds
    bytes_down: float  # in all rounds


def predicted_error(expected: Expected, rounds: int, progress: float = PROGRESS) -> float:
    """(A / T)^2 + ((noise^2 + sampling^2) / T)^(2/3), noise and sampling over what is kept."""
    return (progress / rounds) ** 2 + (expected.error**2 / rounds) ** (2 / 3)


def choose(
    question: Question,
    rule: str,
    share: float,
    rounds: Sequence[int] | None = None,
    uploads: float | None = None,
    most_error: float = math.inf,
) -> Plan:
    """The rounds and the cohort of a rule, as a rough plan.

    Args:
        question: what is fixed.
        rule: its name.
        share: the mean clipped norm over the clip norm.
        rounds: the numbers to choose from; all within the question's limits if not given.
        uploads: a round, if they are fixed.
        most_error: what a plan that saves uploads may predict, if the rule can keep to it.
    """
    parts = PARTS if most_error == math.inf else FINE
    if uploads is not None or question.limited:
        parts = (1.0,)
    plans: list[Plan] = []
    for tried in rounds or question.rounds_to_try():
        most = question.most_uploads(rule, tried, share)
        if uploads is not None:
            most = uploads if uploads <= most * (1 + 1e-9) else 0.0
        arms = (question.arm(rule, tried, part * most, share) for part in parts if part * most >= 1)
        plans += [question.rough_plan(arm, share) for arm in arms]
    if not plans:
        raise ValueError(
            f"rule {rule!r}: the limits leave no upload a round, of {question.clients} clients "
            f"with a mean norm of {share:g} clip norms; expected larger limits"
        )
    return pick(question, plans, most_error)


def pick(question: Question, plans: Sequence[Plan], most_error: float = math.inf) -> Plan:
    """The best of them where there is a total to spend; else the cheapest that is nearly as
    good, and within `most_error` if one is."""
    least = min(plans, key=lambda plan: plan.error)
    if question.totalled:
        return least
    most = max(least.error, min(NEAR * least.error, most_error))
    near = (plan for plan in plans if plan.error <= most)
    return min(near, key=lambda plan: (plan.uploads_in_all, plan.arm.rounds))


def _split(noise: float, norm_sum: float) -> tuple[float, float]:
    """(z, z_K) of the two releases of a cohort that together cost what one of this multiplier does:
    exact where a client of norm C uploads for certain. The variance z^2 (1 + (z_K / K)^2) is least,
    which is a quadratic equation in x = 1 / z_K^2."""
    whole = 1 / noise**2
    x = (math.sqrt(1 + norm_sum**2 * whole) - 1) / norm_sum**2
    return 1 / math.sqrt(whole - x), 1 / math.sqrt(x)


@lru_cache(maxsize=1024)
def _calibrated(
    arm: Arm, epsilon: float, delta: float, relation: Relation, accountant: Accountant
) -> Arm:
    return calibrate(arm, epsilon, delta, relation=relation, accountant=accountant)
