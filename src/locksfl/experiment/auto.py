"""`rounds = "auto"` and `cohort = "auto"`: the planner's numbers take the place of the word.

They follow from public numbers alone: clients, parameters, epsilon, delta, the rule and the [plan]
table. They are filled in before the configuration is built, so that a run, its folder and its
bundle have numbers. All arms share the number of rounds, which the first arm decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

from locksfl._tables import Record, build_table
from locksfl.arm import Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import AUTO, Config, PlanConfig, numbered
from locksfl.methods import COINS, SAMPLINGS, TRUSTS, find_rule
from locksfl.privacy.planner import FULL, PROGRESS, Plan, Question, choose, pick


def settled(table: Record) -> Record:
    """The table of an experiment with a number in place of every "auto"."""
    train, arms = dict(table.get("train", {})), [dict(arm) for arm in table.get("arm", ())]
    config = _without_arms(table)
    if not arms:
        raise ValueError("arm is missing: expected at least one [[arm]] table")
    for arm in arms:
        scheme = SAMPLINGS.get(arm.get("sampling", COINS))
        if scheme is not None and not scheme.planned:
            setting = next(name for name in (*scheme.takes, "sampling") if name in arm)
            raise ValueError(
                f"arm.{arm.get('name')}.{setting} = {arm[setting]!r}: the planner knows "
                f"cohorts of coins only; expected numbers in place of {AUTO!r}"
            )
    limits: PlanConfig = build_table(PlanConfig, table.get("plan", {}), "plan")
    open_rounds = train.get("rounds") == AUTO
    question = _question(config, limits, "train.rounds" if open_rounds else "arm.cohort")
    if open_rounds:
        train["rounds"] = _first(question, limits, arms[0]).arm.rounds
    for arm in arms:
        if arm.get("cohort") == AUTO:
            plan = _planned(question, limits, arm, [train.get("rounds", config.train.rounds)])
            given = {name: value for name, value in arm.items() if name != "cohort"}
            arm |= {**_numbers(plan.arm), **given}
    return {**table, "train": train, "arm": arms, "plan": table.get("plan", {})}


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


def _first(question: Question, limits: PlanConfig, table: Record) -> Plan:
    """The plan of the arm that decides on the rounds: its cohort is open too, or given."""
    if table.get("cohort") == AUTO:
        return _planned(question, limits, table)
    typed: ArmConfig = build_table(ArmConfig, table, f"arm.{table.get('name')}")
    arm = typed.arm(question.clients, trust=question.trust, rounds=1)
    plans = [
        question.rough_plan(replace(arm, rounds=rounds), question.share)
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
    question: Question, limits: PlanConfig, table: Record, rounds: list[int] | None = None
) -> Plan:
    """The plan of an arm whose cohort is open."""
    where = f"arm.{table.get('name')}"
    name = str(table.get("rule", "uniform"))
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
        return choose(question, name, question.share, rounds, table.get("uploads"))
    except ValueError as error:
        raise ValueError(f"{where}.cohort = {AUTO!r}: {error}") from None


def _numbers(arm: Arm) -> Record:
    """The settings that take the place of "auto", rounded down: a total is kept."""
    settings = {"cohort": math.floor(100 * arm.cohort) / 100}
    if arm.releases_norms:
        settings["uploads"] = math.floor(100 * arm.uploads) / 100
    if "floor" in arm.parts.rule.takes:
        settings["floor"] = arm.floor
    return settings
