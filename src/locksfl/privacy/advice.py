"""Which rule to take, and why: the planner's plans of all rules beside each other. No data.

A rule that chooses by norm asks more clients than upload. It is taken only if it predicts no more
error than the rule that asks for nothing, and clearly less error or clearly fewer uploads. Where
nothing limits the uploads it is given the same rounds, so that only uploads are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from locksfl.arm import Noise
from locksfl.privacy.forecast import HOPELESS, SPREAD, reach, smallest_population, verdict
from locksfl.privacy.planner import (
    FULL,
    MEASURED,
    MOST_ROUNDS,
    NEAR,
    Plan,
    PlanNumbers,
    Question,
    choose,
)

PAYS = 0.97  # of the error of a rule that asks for nothing; less is worth a larger cohort
SAFELY = 0.998  # a run's noise may differ from the rough one of a search by so much more


@dataclass(frozen=True)
class Assumed:
    """What the plans rest on, besides the question."""

    norm_share: float  # the mean clipped norm over the clip norm
    norms: str  # how norms are spread, in words
    progress: float  # the criterion's constant
    most_rounds: int  # no plan has more


@dataclass(frozen=True)
class AtTotal(PlanNumbers):
    """The best plan of a rule with so many uploads in all."""

    total: float


@dataclass(frozen=True)
class Gain:
    """A rule that asks for norms beside one that asks for nothing, with the same rounds, uploads,
    clip norm and epsilon: ratios below 1 are in its favour."""

    cohort: float  # clients that it asks in a round
    noise: float  # ratio of its expected norm
    sampling_variance: float  # ratio
    error: float  # noise and sampling together, root mean square


@dataclass(frozen=True)
class Advice:
    """Everything that `locks plan` says."""

    question: Question  # as it was asked
    verdict: str  # fine, hard or hopeless
    reach: float  # the signal of all rounds over their noise
    reach_needed: float  # below it training is hopeless
    smallest_clients: int  # below so many it would be hopeless
    rule: str  # the one to take
    reason: str  # why that one, in words
    plans: dict[str, PlanNumbers]  # by rule
    full: PlanNumbers  # what every client in every round would give
    frontier: list[AtTotal]  # the best plans by uploads in all
    assumed: Assumed  # what is taken for granted


def advise(question: Question) -> Advice:
    """Which rule to take, with how many rounds and which cohort, and what to expect."""
    q = question
    plans = compared(q)
    rule = recommended(q, plans)
    taken = plans[rule]
    full = q.plan(q.arm(FULL, taken.arm.rounds, q.clients, q.share), q.share)
    signal = reach(taken.arm, taken.expected.noise)
    norms = f"log-normal (log-std {SPREAD:g}) cut at the clip norm, with the mean named"
    return Advice(
        question=q,
        verdict=verdict(signal),
        reach=signal,
        reach_needed=HOPELESS,
        smallest_clients=smallest_population(taken.arm, signal),
        rule=rule,
        reason=_reason(q, plans, rule),
        plans={name: plan.numbers(q.parameters) for name, plan in plans.items()},
        full=full.numbers(q.parameters),
        frontier=frontier(q),
        assumed=Assumed(q.share, norms, q.progress, q.rounds or MOST_ROUNDS),
    )


def compared(q: Question) -> dict[str, Plan]:
    """Each rule's plan, if the limits leave it an upload; first that of the one that asks for
    nothing. Without limits the others have its rounds, and the uploads that its error takes."""
    plain, *others = q.rules()
    plans = {plain: choose(q, plain, q.share)}
    rounds = None if q.limited else [plans[plain].arm.rounds]
    most_error = SAFELY * plans[plain].error
    for name in others:
        if q.most_uploads(name, 1, q.share) >= 1:
            plans[name] = choose(q, name, q.share, rounds, most_error=most_error)
    bare = {name: replace(plan.arm, noise=Noise()) for name, plan in plans.items()}
    return {name: q.plan(arm, q.share) for name, arm in bare.items()}


def recommended(q: Question, plans: dict[str, Plan]) -> str:
    """The rule to take: the plain one, unless others predict no more error, and less error or
    fewer uploads by enough to be worth asking more clients. Of those with about the fewest uploads
    the one with the least error."""
    (name, plain), *others = plans.items()
    better = {
        other: plan
        for other, plan in others
        if plan.error <= plain.error
        and (plan.error < PAYS * plain.error or plan.uploads_in_all * NEAR < plain.uploads_in_all)
    }
    fewest = min((plan.uploads_in_all for plan in better.values()), default=0.0)
    few = [other for other in better if q.limited or better[other].uploads_in_all <= NEAR * fewest]
    return min(few, key=lambda other: better[other].error, default=name)


def _reason(q: Question, plans: dict[str, Plan], rule: str) -> str:
    """Why this rule, in words."""
    plain = next(iter(plans))
    if len(plans) == 1:
        return "the limits leave no upload to a rule that chooses by norm"
    if q.norm_share is None and q.share == 1:
        return (
            f"with fewer than {MEASURED[-1][0]:,} clients private training clips nearly all "
            "updates to the same length, so that their norms do not tell clients apart"
        )
    measured = "" if q.norm_share else ", as measured in populations of this size"
    where = f"where the mean norm is {q.share:g} clip norms{measured},"
    if rule == plain:
        return f"{where} choosing by norm saves too little"
    theirs, ours = plans[plain], plans[rule]
    if ours.error < PAYS * theirs.error:
        return f"{where} it predicts {1 - ours.error / theirs.error:.0%} less error than {plain}"
    saved = 1 - ours.uploads_in_all / theirs.uploads_in_all
    return f"{where} it needs {saved:.0%} fewer uploads than {plain} for the same predicted error"


def frontier(question: Question) -> list[AtTotal]:
    """The least predicted error by uploads in all: rough plans for each rule."""
    q = question
    most_rounds = q.rounds or MOST_ROUNDS
    rows = []
    for total in (q.clients * 10 ** (k / 2) for k in range(-2, 5)):
        asked = replace(q, uploads_in_all=max(1.0, total))
        for rule in q.rules():
            most = q.most_uploads(rule, 1, q.share)
            if most >= 1 and most * most_rounds >= total:  # it can be spent
                plan = choose(asked, rule, q.share)
                rows.append(AtTotal(**vars(plan.numbers(q.parameters)), total=total))
    return rows


def gains(question: Question, rounds: int, uploads: float, share: float) -> dict[str, Gain]:
    """When does sampling by norm pay? The gain of each rule that asks for norms, by RDP, for the
    same rounds, expected uploads, clip norm and epsilon."""
    q = question
    plain, *others = q.rules()
    theirs = q.rough_plan(q.arm(plain, rounds, uploads, share), share).expected

    def gain(rule: str) -> Gain:
        plan = q.rough_plan(q.arm(rule, rounds, uploads, share), share)
        ours, variance = plan.expected, theirs.sampling**2
        sampling = ours.sampling**2 / variance if variance else 1.0
        noise, error = ours.noise / theirs.noise, ours.error / theirs.error
        return Gain(plan.arm.cohort, noise, sampling, error)

    return {rule: gain(rule) for rule in others}
