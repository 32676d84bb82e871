"""Which rule, how many rounds, which cohort: the plan with the least predicted error. No data.

The criterion, with all lengths in clip norms, is the rate of SGD with its best constant step:

    error = A / T + sqrt((noise^2 + sampling^2) / T)

(docs/program.md has the proof; noise and sampling are those of `forecast.expected_round`, over what
is kept of the mean). A = L D / C, `progress`, is the one number about optimisation: by how many
clip norms the gradient changes on the way from the first model to the best one. PROGRESS was chosen
on MNIST and is an assumption everywhere else.

A total of uploads or downloads that is given is spent: the rounds and the cohort with the least
error are taken. Where none is given, more rounds, and larger cohorts up to what a round may have,
help less and less: of the plans within NEAR of the least error, the one with the fewest uploads is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

from locksfl import _validate
from locksfl._tables import Count, Positive, Probability, Settings
from locksfl.arm import Arm, unsound
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.releases import Accountant, Relation
from locksfl.privacy.calibration import calibrate, search_noise
from locksfl.privacy.forecast import (
    HOPELESS,
    SPREAD,
    Expected,
    expected_round,
    reach,
    smallest_population,
    verdict,
)

PROGRESS = 3.0
NEAR = 1.1
PAYS = 0.97  # of the cost of a rule that asks for nothing; less is worth a larger cohort
SHARES = (0.1, 0.3, 0.5, 0.7, 1.0)  # mean norms over the clip norm, where it is not known
DRAWN_SHARES = (0.1, 0.3, 1.0)
# steps of about a third: the least error is flat
ROUNDS = tuple(sorted({round(base * 10**k) for k in range(5) for base in (1, 1.5, 2, 3, 4, 6, 8)}))
MOST_ROUNDS = 1000  # unless the question says otherwise
PARTS = tuple(10 ** (-k / 3) for k in range(10))  # of the most uploads that a round may have
FULL = next(name for name, rule in RULES.items() if rule.everyone)
BYTES = 4

Share = Annotated[float, _validate.rate]


@dataclass(frozen=True)
class Question(Settings):
    """What is fixed; the rest is planned. Limits are on expected numbers; None sets no limit."""

    clients: Count
    parameters: Count
    epsilon: Positive
    delta: Probability = 1e-5
    trust: str = "central"
    uploads: Positive | None = None  # a round
    uploads_in_all: Positive | None = None
    downloads: Positive | None = None  # a round: clients that are asked
    downloads_in_all: Positive | None = None
    rounds: Count | None = None  # the most
    norm_share: Share | None = None  # mean clipped norm over the clip norm
    progress: Positive = PROGRESS
    relation: Relation = "zero-out"
    accountant: Accountant = "pld"

    def check(self) -> None:
        """Refuse a trust that claims nothing, and limits that allow no upload."""
        _validate.one_of([name for name, t in TRUSTS.items() if t.private], trust=self.trust)
        for name in ("uploads", "uploads_in_all", "downloads", "downloads_in_all"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"{name} = {limit:g}: expected at least 1")

    @property
    def totalled(self) -> bool:
        """Whether there is a total to spend."""
        return self.uploads_in_all is not None or self.downloads_in_all is not None

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
        found = _calibrated(arm, self.epsilon, self.delta, self.relation, self.accountant)
        return self._plan(found, share)

    def rough_plan(self, arm: Arm, share: float) -> Plan:
        """The same in some milliseconds, by RDP: with a little more noise than a run's."""
        if not arm.parts[2].amplified:
            return self.plan(arm, share)
        rate = arm.sampling_rate * arm.largest_probability
        noise = search_noise(self.epsilon, self.delta, arm.rounds, rate, self.relation)
        norm = 0.0
        if arm.releases_norms:
            noise, norm = _split(noise, arm.norm_low * arm.cohort)
        return self._plan(replace(arm, noise_multiplier=noise, norm_multiplier=norm), share)

    def _plan(self, arm: Arm, share: float) -> Plan:
        expected = expected_round(arm, self.parameters, share)
        return Plan(arm, expected, predicted_error(expected, arm.rounds, self.progress), share)


@dataclass(frozen=True)
class Plan:
    """An arm with its noise, and what to expect of it."""

    arm: Arm
    expected: Expected
    error: float  # predicted
    norm_share: float

    @property
    def uploads_in_all(self) -> float:
        """Expected."""
        return self.arm.rounds * self.expected.uploads

    def told(self, parameters: int) -> dict[str, Any]:
        """As plain numbers, for a model of this size."""
        arm, expected = self.arm, self.expected
        norms = arm.cohort if arm.releases_norms else 0.0
        return {
            "rule": arm.rule,
            "norm_share": self.norm_share,
            "rounds": arm.rounds,
            "cohort": arm.cohort,
            "uploads": expected.uploads,
            "uploads_in_all": self.uploads_in_all,
            "downloads_in_all": arm.rounds * arm.cohort,
            "noise_multiplier": arm.noise_multiplier,
            "norm_multiplier": arm.norm_multiplier or None,
            "noise": expected.noise,
            "sampling_variance": expected.sampling**2,
            "kept": expected.kept,
            "error": self.error,
            "bytes_up": BYTES * arm.rounds * (expected.uploads * parameters + norms),
            "bytes_down": BYTES * arm.rounds * arm.cohort * parameters,
        }


def predicted_error(expected: Expected, rounds: int, progress: float = PROGRESS) -> float:
    """A / T + sqrt((noise^2 + sampling^2) / T), noise and sampling over what is kept."""
    return progress / rounds + expected.error / math.sqrt(rounds)


def choose(
    question: Question,
    rule: str,
    share: float,
    rounds: Sequence[int] | None = None,
    uploads: float | None = None,
) -> Plan:
    """The rounds and the cohort of a rule, as a rough plan.

    Args:
        question: what is fixed.
        rule: its name.
        share: the mean clipped norm over the clip norm.
        rounds: the numbers to choose from; all within the question's limits if not given.
        uploads: a round, if they are fixed.
    """
    limits = (uploads, question.uploads, question.downloads)
    parts = (1.0,) if any(limits) or question.totalled else PARTS
    found = []
    for tried in rounds or question.rounds_to_try():
        most = question.most_uploads(rule, tried, share)
        if uploads is not None:
            most = uploads if uploads <= most * (1 + 1e-9) else 0.0
        arms = (question.arm(rule, tried, part * most, share) for part in parts if part * most >= 1)
        found += [question.rough_plan(arm, share) for arm in arms]
    if not found:
        raise ValueError(
            f"rule {rule!r}: the limits leave no upload a round, of {question.clients} clients "
            f"with a mean norm of {share:g} clip norms; expected larger limits"
        )
    return pick(question, found)


def pick(question: Question, plans: Sequence[Plan]) -> Plan:
    """The best of them where there is a total to spend; else the cheapest that is nearly as
    good."""
    least = min(plans, key=lambda plan: plan.error)
    if question.totalled:
        return least
    near = (plan for plan in plans if plan.error <= NEAR * least.error)
    return min(near, key=lambda plan: (plan.uploads_in_all, plan.arm.rounds))


def advise(question: Question) -> dict[str, Any]:
    """Everything that `locks plan` says, as plain tables. Where the mean norm is not known, the
    answers for several are rough plans."""
    q, known = question, question.norm_share is not None
    shares = SHARES if q.norm_share is None else (q.norm_share,)
    answers = [_answer(q, share, exact=known) for share in shares]
    share = shares[-1]
    taken = answers[-1][_taken(q, answers[-1])]
    every = q.arm(FULL, taken.arm.rounds, q.clients, share)
    full = q.plan(every, share) if known else q.rough_plan(every, share)
    found = reach(taken.arm, taken.expected.noise)
    return {
        "question": asdict(q),
        "verdict": verdict(found),
        "reach": found,
        "reach_needed": HOPELESS,
        "smallest_clients": smallest_population(taken.arm, found),
        "answers": [
            {
                "norm_share": share,
                "rule": _taken(q, plans),
                "plans": {name: plan.told(q.parameters) for name, plan in plans.items()},
            }
            for share, plans in zip(shares, answers, strict=True)
        ],
        "full": full.told(q.parameters),
        "frontier": frontier(q),
        "assumed": {
            "norms": f"log-normal (log-std {SPREAD:g}) cut at the clip norm, with the mean named",
            "progress": q.progress,
            "most_rounds": q.rounds or MOST_ROUNDS,
        },
    }


def _answer(q: Question, share: float, *, exact: bool) -> dict[str, Plan]:
    """Each rule's plan for clients of this mean norm, if the limits leave it an upload; that of the
    one that asks for nothing always."""
    plain, *others = q.rules()
    fit = [name for name in others if q.most_uploads(name, 1, share) >= 1]
    plans = {name: choose(q, name, share) for name in (plain, *fit)}
    if not exact:
        return plans
    bare = {
        name: replace(plan.arm, noise_multiplier=0.0, norm_multiplier=0.0)
        for name, plan in plans.items()
    }
    return {name: q.plan(arm, share) for name, arm in bare.items()}


def _taken(q: Question, plans: dict[str, Plan]) -> str:
    """The rule to take: the one with the least error where a total is spent. Else, of those that
    are nearly as good, the one with clearly the fewest uploads, or with the least error of such. It
    asks for norms only if that is worth it."""
    plain = next(name for name in plans if RULES[name].asks is None)
    error = {name: plan.error for name, plan in plans.items()}
    best = min(error, key=error.__getitem__)
    if q.totalled:
        return best if error[best] < PAYS * error[plain] else plain
    near = {name: plans[name].uploads_in_all for name in plans if error[name] <= NEAR * error[best]}
    few = [name for name, uploads in near.items() if uploads <= NEAR * min(near.values())]
    return plain if plain in few else min(few, key=error.__getitem__)


def frontier(question: Question) -> list[dict[str, Any]]:
    """The least predicted error by uploads in all: rough plans for each rule, and for a few mean
    norms where that is not known."""
    q = question
    shares = DRAWN_SHARES if q.norm_share is None else (q.norm_share,)
    most_rounds = q.rounds or MOST_ROUNDS
    rows = []
    for total in (q.clients * 10 ** (k / 2) for k in range(-2, 5)):
        asked = replace(q, uploads_in_all=max(1.0, total))
        for rule in q.rules():
            for share in shares if RULES[rule].asks is not None else shares[-1:]:
                most = q.most_uploads(rule, 1, share)
                if most >= 1 and most * most_rounds >= total:  # it can be spent
                    plan = choose(asked, rule, share)
                    rows.append({"total": total, **plan.told(q.parameters)})
    return rows


def gains(question: Question, rounds: int, uploads: float, share: float) -> dict[str, Any]:
    """When does sampling by norm pay? Each rule that asks for norms beside the one that does not,
    with the same rounds, expected uploads, clip norm and epsilon (by RDP, for all of them).

    Returns:
        By rule: the cohort, and the ratios of the noise, of the sampling variance, and of both
        together (root mean square).
    """
    q = question
    plain, *others = q.rules()
    theirs = q.rough_plan(q.arm(plain, rounds, uploads, share), share).expected
    found = {}
    for name in others:
        plan = q.rough_plan(q.arm(name, rounds, uploads, share), share)
        ours, variance = plan.expected, theirs.sampling**2
        found[name] = {
            "cohort": plan.arm.cohort,
            "noise": ours.noise / theirs.noise,
            "sampling_variance": ours.sampling**2 / variance if variance else 1.0,
            "error": ours.error / theirs.error,
        }
    return found


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
