"""What comes of a tuning: the tuned file, the report, and where the numbers came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import tomli_w

from locksfl._text import epsilon_text, markdown_table
from locksfl.experiment.config import config_of
from locksfl.grids.tune.task import Task
from locksfl.grids.tune.trials import Best, Trial, Tuning

REPORT = "report.md"
SCORE = "The score is the accuracy (for numbers, R^2) on public held-out records."
HEADS = ("arm", "rounds", "clip norm", "step", "score", "as it was")


def tuned_text(task: Task, tuning: Tuning) -> str:
    """The experiment's file with what was chosen; its comments are not kept."""
    table = copy.deepcopy(task.table)
    for best in tuning.arms:
        mine = next(one for one in table["arm"] if one["name"] == best.arm)
        mine |= {"clip_norm": best.clip_norm, "step": best.step}
    if task.axes.rounds:
        train = table.setdefault("train", {})
        train["rounds"] = tuning.rounds
        if "average_last" in train:
            train["average_last"] = min(train["average_last"], tuning.rounds)
    config_of(table)  # what is written can be run
    return f"# locks tune: {way_text(tuning)}\n\n{tomli_w.dumps(table)}"


def way_text(tuning: Tuning) -> str:
    """Where the numbers came from, and what that cost, in one sentence."""
    if tuning.public is not None:
        return (
            f"{tuning.tuned} are from trials on {tuning.public}, declared public; nothing was "
            "charged."
        )
    costs = [
        f"{epsilon_text(c.epsilon, 4)} against {c.observer} ({c.relation})"
        for c in tuning.privacy
        if c.epsilon is not None
    ]
    return (
        f"{tuning.tuned} are from {len(tuning.trials)} trials, charged to population "
        f"{tuning.population}: together epsilon {', '.join(costs)}, delta "
        f"{tuning.privacy[0].delta:g}."
    )


def row(trial: Trial) -> list[str]:
    """A trial, or the best of an arm, for people."""
    numbers = (trial.rounds, trial.clip_norm, trial.step)
    scores = [trial.score, *([trial.before] if isinstance(trial, Best) else [])]
    shown = ("-" if score is None else f"{score:.4f}" for score in scores)
    return [trial.arm, *(f"{number:.5g}" for number in numbers), *shown]


def notes(tuning: Tuning) -> Iterator[str]:
    """What a reader of the table has to know."""
    yield f"Tuned: {way_text(tuning)}"
    for best in tuning.arms:
        if best.edge:
            yield f"{best.arm}: best at the end of what was tried ({', '.join(best.edge)})."
    if tuning.public is not None:
        yield "Trials had the experiment's cohort and noise; other data may want other values."
    else:
        yield (
            f"All trials are releases, with models in {tuning.run}: the best may be used as it "
            "is. A run of the tuned file is charged again."
        )


def report_text(tuning: Tuning) -> str:
    """Returns report.md."""
    best, trials = (map(row, each) for each in (tuning.arms, tuning.trials))
    parts = [f"# Tuning: {tuning.experiment}", *notes(tuning), markdown_table(HEADS, best)]
    parts += ["## Trials", SCORE, markdown_table(HEADS[:-1], trials)]
    return "\n\n".join(parts) + "\n"
