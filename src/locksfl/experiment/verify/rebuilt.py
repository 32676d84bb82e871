"""A public run made anew from its own facts: its settings, and the noise and events that it states.

What the settings fix is computed; what only the data could say is taken, within what the settings
allow. Whatever then differs from the run was not what its own parts lead to.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from locksfl.arm import MULTIPLIERS, Arm, Noise
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import Config, PrivacyConfig
from locksfl.experiment.own_code import described, is_own
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.record import PublicArm, PublicRound, PublicRun
from locksfl.methods import find_rule
from locksfl.methods.cyclic import check_secret
from locksfl.methods.events import (
    Chosen,
    Correlated,
    Event,
    Message,
    Rounds,
    Sampled,
    SampledTwice,
    Terms,
    with_matrix,
)
from locksfl.privacy import Budget
from locksfl.privacy.terms import terms_of

Some = TypeVar("Some")


def rebuilt(run: PublicRun) -> PublicRun:
    """The run with all but its epsilons made anew. Settings that no run could have had are refused
    with a ValueError, and so is a run without what has to be there."""
    config = described(run)
    config.check_arms()
    arms: list[PublicArm] = []
    plans: list[Arm] = []
    for stated, table, arm in zip(run.arms, run.settings.arm, config.arms, strict=True):
        noise = _noise(stated.noise, table, arm)
        plans.append(_plan(config, stated, table, arm, noise))
        arms.append(_arm(run, stated, table, noise, plans[-1]))
    if not run.simulated:
        _check_secret(config, plans)
    if len({type(arm.metrics) for arm in arms}) > 1:
        raise ValueError("arms: metrics of several tasks; expected one")
    return structs.replace(run, arms=tuple(arms))


def kept(value: Some | None, there: bool, where: str) -> Some | None:
    """A value where there has to be one, and None where there cannot be one."""
    if there and value is None:
        raise ValueError(f"{where}: missing")
    return value if there else None


def _noise(stated: Noise, table: ArmConfig, arm: Arm) -> Noise:
    """What the settings fix, and for the rest that is noised the stated multipliers. Whether own
    code releases norms is not known."""
    norms = _own_norms(stated, table) if is_own(table) else arm.releases_norms
    noised = (arm.private, arm.private and norms, arm.private and arm.clip_quantile is not None)
    found = {
        name: (getattr(table, name) or getattr(stated, name)) if there else None
        for name, there in zip(MULTIPLIERS, noised, strict=True)
    }
    if stated.ladder:
        if table.noise_multiplier is not None:
            raise ValueError("noise.ladder: the settings fix the noise of every round")
        found["noise_multiplier"] = stated.ladder[-1]
    return Noise(**found, ladder=stated.ladder)


def _own_norms(stated: Noise, table: ArmConfig) -> bool:
    """Whether an arm with own code releases norms: by a rule of the program's, or because only then
    their noise can be set, or as it is stated."""
    known = table.rule is None or ":" not in table.rule
    released = known and find_rule(table.rule or Arm.rule).released
    return released or (stated.norm_multiplier, table.norm_multiplier) != (None, None)


def _plan(config: Config, stated: PublicArm, table: ArmConfig, arm: Arm, noise: Noise) -> Arm:
    """An arm ready to run. What stands in for own code has no rungs, and costs something else."""
    if not is_own(table):
        return plan_arms(replace(config, arm=[table]), [noise])[0]
    limited = config.privacy.max_epsilon is not None
    rounds = min(arm.rounds, stated.planned) if limited else arm.rounds
    return arm.changed(rounds=rounds, noise_multiplier=noise.noise_multiplier)


def _check_secret(config: Config, arms: list[Arm]) -> None:
    """Refuse, as a run does, what only a simulation may have."""
    check_secret(arms)
    if config.engine is None:
        config.data.check_unit(simulated=False)
    if config.engine is None and config.diagnostics.every and arms[0].private:
        raise ValueError(f"diagnostics.every = {config.diagnostics.every}: only of a simulation")


def _arm(run: PublicRun, stated: PublicArm, table: ArmConfig, noise: Noise, plan: Arm) -> PublicArm:
    privacy, where = run.settings.privacy, f"arms.{stated.name}"
    early, printed = run.settings.train.stop_after is not None, privacy.accounting != "sound"
    played = min(stated.played, plan.rounds) if early else plan.rounds
    rounds = (*stated.rounds, *stated.rounds[-1:] * (played - stated.played))[:played]
    terms = _own_terms(stated, noise, plan, privacy) if is_own(table) else terms_of(plan)
    return structs.replace(
        stated,
        planned=plan.rounds,
        noise=noise,
        terms=_with_stated_matrix(terms, stated.terms),
        rounds=tuple(
            _round(run, one, plan, is_own(table), f"{where}.rounds.{number}")
            for number, one in enumerate(rounds, 1)
        ),
        metrics=kept(stated.metrics, run.evaluated, f"{where}.metrics"),
        claimed_epsilon=kept(stated.claimed_epsilon, printed, f"{where}.claimed_epsilon"),
        spent_so_far=kept(stated.spent_so_far, early, f"{where}.spent_so_far"),
    )


def _own_terms(stated: PublicArm, noise: Noise, arm: Arm, privacy: PrivacyConfig) -> Terms:
    """The terms of an arm with code of the operator's own, which is never imported: those of a rule
    of the program's that has the same noise and, as it is stated, what only that code knows."""
    if noise.ladder and not all(
        _has_rungs(event, noise.ladder) for event, _ in stated.terms["PUBLIC"]
    ):
        raise ValueError("noise.ladder: expected terms with a choice of each rung's noise")
    budget = (privacy.epsilon or 0.0, privacy.delta, privacy.relation)
    like = arm.changed(
        rule="norm" if noise.norm_multiplier else "uniform",
        estimator=None,
        uploads=None,
        lengths="clipped",
        norm_low=None,
        budget=Budget(*budget) if privacy.filter else None,
        **{name: getattr(noise, name) for name in MULTIPLIERS},
    )
    terms = dict(terms_of(like))
    for who, seen in terms.items():
        summed = None if who == "SERVER" or arm.dropouts else arm.clients
        pairs = zip(seen, (*stated.terms[who], *seen))  # noqa: B905
        terms[who] = tuple(
            Rounds(_own_event(event, other, noise, summed), rounds)
            for (event, rounds), (other, _) in pairs
        )
    return terms


def _has_rungs(event: Event, ladder: tuple[float, ...]) -> bool:
    """Whether every choice has at most the noise of its rung: a released count takes some."""
    return (
        isinstance(event, Chosen)
        and len(event.choices) == len(ladder)
        and all(
            one.noise_multiplier <= rung * (1 + 1e-9)
            for one, rung in zip(event.choices, ladder, strict=True)
        )
    )


def _own_event(event: Event, stated: Event, noise: Noise, summed: int | None) -> Event:
    """With rates and rungs as they are stated, and whether a sum has the noise of all clients."""
    match event, stated:
        case Sampled() | SampledTwice(), Chosen() if noise.ladder:
            return stated
        case Sampled(), Sampled(sampling_rate=rate):
            return structs.replace(event, sampling_rate=rate)
        case SampledTwice(), SampledTwice(sampling_rate=rate, second_rate=second):
            return structs.replace(event, sampling_rate=rate, second_rate=second)
        case Sampled(), SampledTwice(sampling_rate=rate, second_rate=second):
            if noise.clip_multiplier:  # of the whole cohort, of which some upload
                return SampledTwice(rate, noise.clip_multiplier, second, noise.known())
        case Message(release="update"), Message(uploaders=told) if told in (None, summed):
            return structs.replace(event, uploaders=told)
    return event


def _with_stated_matrix(terms: Terms, stated: Terms) -> Terms:
    """With the coefficients that correlate the noise, which take seconds to find and cost nothing
    if they are sound (docs/accounting.md): as many as bands, and their squares sum to at most 1."""
    events = [event for event, _ in stated["PUBLIC"] if isinstance(event, Correlated)]
    if not events:
        return terms
    strategy = events[0].strategy[: events[0].bands]
    if (squares := math.fsum(c * c for c in strategy)) > 1 + 1e-9:
        strategy = tuple(c / math.sqrt(squares) for c in strategy)
    return {who: tuple(with_matrix(one, strategy) for one in seen) for who, seen in terms.items()}


def _round(run: PublicRun, stated: PublicRound, plan: Arm, own: bool, where: str) -> PublicRound:
    """Counts that the settings fix. How many upload by an own rule is not known."""
    cohort, uploads, counts = plan.cohort, stated.upload_estimate, stated.counts
    if plan.controlled:
        cohort = min(plan.rungs, key=lambda rung: abs(rung - stated.expected_cohort))
    if math.isclose(cohort, stated.expected_cohort):
        cohort = stated.expected_cohort
    rule, _, trust = plan.parts
    if not (own or plan.counts or (rule.estimated_uploads and plan.releases_norms)):
        uploads = plan.uploads
    if counts is not None:
        members = min(counts.cohort, plan.clients)
        counts = structs.replace(counts, cohort=members, uploads=min(counts.uploads, members))
    adapts = plan.clip_quantile is not None
    return structs.replace(
        stated,
        expected_cohort=cohort,
        upload_estimate=uploads,
        scores=stated.scores if run.evaluated else None,
        clip_norm=kept(stated.clip_norm, adapts, f"{where}.clip_norm"),
        counts=kept(counts, trust.guards_server, f"{where}.counts"),
    )
