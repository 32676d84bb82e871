"""`rounds = "auto"` and `cohort = "auto"`: the planner's numbers take the place of the word.

They follow from public numbers alone: clients, parameters, epsilon, delta, the rule and the [plan]
table. They are filled in before the configuration is built, so that a run, its folder and its
bundle have numbers. All arms share the number of rounds, which the first arm decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

from locksfl._tables import Record, build_table, named
from locksfl.arm import Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import AUTO, Config, PlanConfig, numbered
from locksfl.methods import COINS, SAMPLINGS, TRUSTS, find_rule
from locksfl.privacy.planner import FULL, PROGRESS, Plan, Question, choose, pick


def settled(table: Record) -> Record:
    """The tables of an experiment with a number in place of every "auto"."""
    train, config = dict(table.get("train", {})), _without_arms(table)
    arms = [_typed(arm) for arm in table.get("arm", ())]
    if not arms:
        raise ValueError("arm is missing: expected at least one [[arm]] table")
    limits: PlanConfig = build_table(PlanConfig, table.get("plan", {}), "plan")
    open_rounds = train.get("rounds") == AUTO
    question = _question(config, limits, "train.rounds" if open_rounds else "arm.cohort")
    if open_rounds:
        train["rounds"] = _first(question, limits, *arms[0]).arm.rounds
    rounds = [train.get("rounds", config.train.rounds)]
    known = [
        _filled(arm, _planned(question, limits, arm, rounds).arm) if is_open else arm
        for arm, is_open in arms
    ]
    return {**table, "train": train, "arm": known, "plan": table.get("plan", {})}


def _typed(table: Record) -> tuple[ArmConfig, bool]:
    """An [[arm]] table, and whether its cohort is left to the planner."""
    is_open = isinstance(table, dict) and table.get("cohort") == AUTO
    rest = {k: v for k, v in table.items() if k != "cohort"} if is_open else table
    arm: ArmConfig = build_table(ArmConfig, rest, named("arm", table))
    given, scheme = arm.given(), SAMPLINGS.get(arm.sampling or COINS)
    if scheme is not None and not scheme.planned:
        setting = next(name for name in (*scheme.takes, "sampling") if name in given)
        raise ValueError(
            f"arm.{arm.name}.{setting} = {given[setting]!r}: the planner knows "
            f"cohorts of coins only; expected numbers in place of {AUTO!r}"
        )
    return arm, is_open


def _without_arms(table: Record) -> Config:
    """The experiment with one arm that needs no numbers, and with any number of rounds where that
    is open."""
    rest = {name: value for name, value in table.items() if name not in ("plan", "train")}
    train = {
        name: value
        for name, value in table.get("train", {}).items()
        if name != "average_last" and value != AUTO
    }
    return numbered({**rest, "train": train, "arm": [{"name": "planned", "rule": FULL}]})


def _question(config: Config, limits: PlanConfig, setting: str) -> Question:
    """What is known of an experiment."""
    from locksfl.experiment.run import open_task

    privacy = config.privacy
    where, fixed = f"{setting} = {AUTO!r}", privacy.accounting == "sound" and not privacy.filter
    if privacy.epsilon is None or not TRUSTS[privacy.trust].private or not fixed:
        raise ValueError(
            f"{where}: expected privacy.epsilon, which fixes the noise of any number of rounds "
            "(with a trust that adds noise, sound accounting and no filter)"
        )
    _, model = open_task(config)
    return Question(
        config.clients,
        model.size,
        privacy.epsilon,
        privacy.delta,
        privacy.trust,
        uploads_in_all=limits.uploads_in_all,
        norm_share=limits.norm_share,
        progress=limits.progress or PROGRESS,
        relation=privacy.relation,
        accountant=privacy.accountant,
    )


def _first(question: Question, limits: PlanConfig, arm: ArmConfig, is_open: bool) -> Plan:
    """The plan of the arm that decides on the rounds: its cohort is open too, or given."""
    if is_open:
        return _planned(question, limits, arm)
    once = arm.arm(question.clients, trust=question.trust, rounds=1)
    plans = [
        question.rough_plan(replace(once, rounds=rounds), question.share)
        for rounds in question.rounds_to_try()
    ]
    total = question.uploads_in_all or math.inf
    within = [plan for plan in plans if plan.uploads_in_all <= total]
    if not within:
        raise ValueError(
            f"plan.uploads_in_all = {total:g}: expected at least the uploads of one round of arm "
            f"{arm.name!r}, {plans[0].expected.uploads:g}"
        )
    return pick(question, within)


def _planned(
    question: Question, limits: PlanConfig, arm: ArmConfig, rounds: list[int] | None = None
) -> Plan:
    """The plan of an arm whose cohort is open."""
    where, name = f"arm.{arm.name}", arm.rule or "uniform"
    rule = find_rule(name, f"{where}.rule")
    if name not in question.rules():
        raise ValueError(
            f"{where}.cohort = {AUTO!r}: expected a number with rule {name!r}; planned are "
            f"{', '.join(question.rules())}"
        )
    if rule.asks is not None and limits.norm_share is None:
        raise ValueError(
            f"plan.norm_share is missing: rule {name!r} of {where} uploads by norm, so that its "
            "cohort depends on the mean norm; expected it, over the clip norm"
        )
    try:
        return choose(question, name, question.share, rounds, arm.uploads)
    except ValueError as error:
        raise ValueError(f"{where}.cohort = {AUTO!r}: {error}") from None


def _filled(arm: ArmConfig, planned: Arm) -> ArmConfig:
    """The table with numbers in place of "auto", rounded down, so that a total is kept; what was
    typed stays."""
    uploads, floor = arm.uploads, arm.floor
    if uploads is None and planned.releases_norms:
        uploads = math.floor(100 * planned.uploads) / 100
    if floor is None and "floor" in planned.parts.rule.takes:
        floor = planned.floor
    return replace(arm, cohort=math.floor(100 * planned.cohort) / 100, uploads=uploads, floor=floor)
