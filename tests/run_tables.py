"""Runs as tables of names and values, for tests that look at many of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from locksfl.experiment.config import Config
from locksfl.experiment.documents import read_statement
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.old_runs import lines_of
from locksfl.experiment.page.story import ArmStory, Story, of_run
from locksfl.experiment.record import Cost, PublicRound, Run, plain
from locksfl.experiment.records import flat, traffic
from locksfl.experiment.statement import unit_text


def costs_table(costs: tuple[Cost, ...]) -> list[dict[str, Any]]:
    return [{name: getattr(one, name) for name in one.__struct_fields__} for one in costs]


def line_tables(run: Path) -> list[dict[str, Any]]:
    """The rounds of a run, or of a bundle, each with all that it says and that follows from it."""
    if (run / "statement.json").is_file():
        statement = read_statement(run)
        blank = {"accuracy": None, "loss": None} if statement.evaluated else {}
        return [
            {"arm": arm.name, "round": number, **blank, **_public_round(one)}
            for arm in statement.arms
            for number, one in enumerate(arm.rounds, 1)
        ]
    folder = RunFolder.open(run)
    arms, size, score = {arm.name: arm for arm in folder.config.arms}, 0, "accuracy"
    if folder.finished:
        told = folder.run()
        size = told.public.parameters
        score = "r2" if hasattr(told.secret.arms[0].metrics, "r2") else "accuracy"
    lines = lines_of(folder.lines("rounds.jsonl"), list(arms.values()), True)
    return [flat(line, arms[line.arm], score, size) for line in lines]


def _public_round(one: PublicRound) -> dict[str, Any]:
    """A public round: scores and counts only if it has them."""
    table = plain(one)
    scores = table.pop("scores", {})
    renamed = {"accuracy": scores["score"], "loss": scores["loss"]} if scores else {}
    return table | renamed | table.pop("counts", {})


def run_table(run: Run, config: Config) -> dict[str, Any]:
    """A run's record as one table."""
    story, public, privacy = of_run(run, config), run.public, config.privacy
    debit = run.secret.population
    return {
        "name": config.name,
        "data": run.secret.data,
        "experiment": run.secret.experiment,
        "engine": config.engine,
        "simulated": public.simulated,
        "tuned_without_privacy": privacy.tuned_without_privacy,
        "accounting": privacy.accounting,
        "no_guarantee": privacy.accounting == "as-printed",
        "filter": privacy.filter,
        "task": story.task,
        "unit": unit_text(config),
        "held_out": {"public": public.held_out.public, "clients": public.held_out.clients},
        "classes_public": public.classes_public,
        "released_statistics": list(public.released_statistics),
        "population": None if debit is None else plain(debit),
        "arms": [_arm_table(story, arm, public.parameters) for arm in story.arms],
        "all_arms_composed": costs_table(public.all_arms),
        "all_arms_spent_so_far": costs_table(run.secret.all_arms_spent),
    }


def _arm_table(story: Story, arm: ArmStory, size: int) -> dict[str, Any]:
    played, plan, secret = arm.public, arm.plan, arm.secret
    assert secret is not None
    last, scores = played.rounds[-1], arm.scores(-1)
    score = {"R²": "r2", "accuracy": "accuracy"}[story.score_name]
    shown = arm.total._asdict()
    known = arm.true_counts or [one.counts for one in played.rounds if one.counts]
    each = [traffic(c.cohort, c.uploads, plan.releases_norms, size) for c in known if c]
    true = {k: sum(getattr(one, k) for one in each) for k in shown} if each else shown
    table: dict[str, Any] = {
        **{n: getattr(plan, n) for n in ("name", "rule", "estimator", "trust", "sampling")},
        "rounds": played.planned,
        "asked_rounds": story.config.train.rounds,
        "accuracy": None,
        score: scores and scores.score,
        "loss": scores and scores.loss,
        "asked_uploads": plan.uploads * played.planned,
        **true,
        "public": shown if plan.parts.trust.amplified else None,
        "seconds": secret.seconds,
        "compile_seconds": secret.compile_seconds,
        "clip_norm": plan.clip_norm,
        "step": plan.step,
        "noise_multiplier": played.noise.noise_multiplier,
        "norm_multiplier": played.noise.norm_multiplier,
        "exhausted": arm.exhausted,
        "answered": arm.answered or None,
        "claimed_epsilon": played.claimed_epsilon,
        "privacy": costs_table(played.privacy),
        "spent_so_far": costs_table(secret.spent),
        "few_uploads": arm.few_uploads,
        "metrics": structs.asdict(secret.metrics),
    }
    if story.config.train.stop_after:
        table["played_rounds"] = played.played
    if played.noise.ladder:
        table["ladder"] = list(played.noise.ladder)
    table |= plan.scheme.facts(plan)
    if last.clip_norm is not None:
        bits = played.noise.clip_multiplier
        table |= {"clip_multiplier": bits, "last_clip_norm": last.clip_norm}
    return table
