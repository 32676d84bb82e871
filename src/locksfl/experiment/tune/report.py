"""What comes of a tuning: the tuned file, the report, and where the numbers came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import tomli_w

from locksfl._tables import Record
from locksfl._text import epsilon_text, markdown_table
from locksfl.experiment.config import config_of
from locksfl.experiment.tune.task import Task

REPORT = "report.md"
SCORE = "The score is the accuracy (for numbers, R^2) on public held-out records."
HEADS = ("arm", "rounds", "clip norm", "step", "score", "as it was")


def tuned_text(task: Task, found: Record) -> str:
    """The experiment's file with what was found; its comments are not kept."""
    table = copy.deepcopy(task.table)
    for arm in found["arms"]:
        mine = next(one for one in table["arm"] if one["name"] == arm["arm"])
        mine |= {"clip_norm": arm["clip_norm"], "step": arm["step"]}
    if task.axes.rounds:
        train = table.setdefault("train", {})
        train["rounds"] = found["rounds"]
        if "average_last" in train:
            train["average_last"] = min(train["average_last"], found["rounds"])
    config_of(table)  # what is written can be run
    return f"# locks tune: {way_text(found)}\n\n{tomli_w.dumps(table)}"


def way_text(found: Record) -> str:
    """Where the numbers came from, and what that cost, in one sentence."""
    if found["public"] is not None:
        return (
            f"{found['tuned']} are from trials on {found['public']}, declared public; nothing was "
            "charged."
        )
    costs = [c for c in found["privacy"] if c["epsilon"] is not None]
    told = ", ".join(
        f"{epsilon_text(c['epsilon'], 4)} against {c['observer']} ({c['relation']})" for c in costs
    )
    return (
        f"{found['tuned']} are from {len(found['trials'])} trials, charged to population "
        f"{found['population']}: together epsilon {told}, delta {costs[0]['delta']:g}."
    )


def row(told: Record) -> list[str]:
    """A trial, or the best of an arm, for people."""
    numbers = (told[name] for name in ("rounds", "clip_norm", "step"))
    scores = [told["score"], *([told["before"]] if "before" in told else [])]
    shown = ("-" if score is None else f"{score:.4f}" for score in scores)
    return [told["arm"], *(f"{number:.5g}" for number in numbers), *shown]


def notes(found: Record) -> Iterator[str]:
    """What a reader of the table has to know."""
    yield f"Tuned: {way_text(found)}"
    for arm in found["arms"]:
        if arm["edge"]:
            yield f"{arm['arm']}: best at the end of what was tried ({', '.join(arm['edge'])})."
    if found["public"] is not None:
        yield "Trials had the experiment's cohort and noise; other data may want other values."
    else:
        yield (
            f"All trials are releases, with models in {found['run']}: the best may be used as it "
            "is. A run of the tuned file is charged again."
        )


def report_text(found: Record) -> str:
    """Returns report.md."""
    best, trials = (map(row, found[name]) for name in ("arms", "trials"))
    parts = [f"# Tuning: {found['experiment']}", *notes(found), markdown_table(HEADS, best)]
    parts += ["## Trials", SCORE, markdown_table(HEADS[:-1], trials)]
    return "\n\n".join(parts) + "\n"
