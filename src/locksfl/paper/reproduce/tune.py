"""Clip and step of every method: one grid for all, tuned without privacy, and said so.

The grid is over the clip norm C and the reach C x step, the farthest that a first step can go: the
noise of a step grows with the reach, whatever the clip norm. The best is the highest accuracy over
the last tenth of the rounds, averaged over seeds and on held-out data that no report uses.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import tomli_w

from locksfl._files import write_atomically
from locksfl._validate import positive
from locksfl.grids.drive import NOBODY, Case, Executor, Play, Plays, Watch, batches, drive
from locksfl.grids.search import Pair, Searched, searched
from locksfl.paper.reproduce.runs import Stage, Table
from locksfl.paper.reproduce.settings import METHODS, Panel, Scale, Tuned, panels

CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0)
REACHES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SEEDS = (1000, 1001)


def text_of(file: Path | None) -> str:
    """A file that --tune wrote; without one, the package's own."""
    if file is not None:
        return file.read_text("utf-8")
    return resources.files("locksfl.paper.reproduce").joinpath("tuned.toml").read_text("utf-8")


class Entry(msgspec.Struct, frozen=True):
    """What was chosen for a method of a panel: a table of tuned.toml."""

    scale: str
    version: str
    model: str
    epsilon: float
    method: str
    clip_norm: float
    step: float
    accuracy: float  # of the choice, over the seeds
    at_edge_of_grid: list[str]


def stored(scale: Scale, text: str, file: Path | str) -> Table:
    """What the text of such a file has for every method of every panel."""
    table: Table = {panel: {} for panel in panels(scale)}
    try:
        for one in msgspec.convert(tomllib.loads(text)["tuned"], list[Entry]):
            panel = Panel(one.version, one.model, one.epsilon)
            if one.scale == scale.name and panel in table:
                positive(clip_norm=one.clip_norm, step=one.step)
                table[panel][one.method] = Tuned(one.clip_norm, one.step)
    except (KeyError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{file}: not a file that --tune wrote ({why})") from None
    for panel, method in itertools.product(table, METHODS):
        if method not in table[panel]:
            raise ValueError(
                f"{file}: nothing for {scale.name} {panel.label} {method}; "
                "expected it, or --tune to find it"
            )
    return table


def tune(path: Path, stage: Stage, executor: Executor, watch: Watch = NOBODY) -> Table:
    """Try the grid for every method of every panel, and keep the best in tuned.toml."""
    every = list(itertools.product(panels(stage.scale), METHODS))
    cases = {
        number: Case(f"tuning {panel.label}", partial(_search, stage, panel, method))
        for number, (panel, method) in enumerate(every)
    }
    searches = drive(cases, executor, path / "tuning.jsonl", watch).whole()
    entries, table = [], Table()
    for (panel, method), search in zip(every, searches, strict=True):
        clip, reach = search.best
        table.setdefault(panel, {})[method] = Tuned(clip, reach / clip)
        step, accuracy = round(reach / clip, 6), round(search.tried[search.best], 4)
        entries.append(Entry(stage.scale.name, *panel, method, clip, step, accuracy, search.edge))
    text = "# Clip and step of every method, chosen without privacy: locks reproduce --tune\n\n"
    content = text + tomli_w.dumps({"tuned": msgspec.to_builtins(entries)})
    write_atomically(path / "tuned.toml", content.encode())
    return table


def _search(stage: Stage, panel: Panel, method: str) -> Plays[Searched[float]]:
    """The grid of a method, each pair under every seed."""

    def tries(pairs: list[Pair], _: float | None) -> Plays[list[float]]:
        plays = []
        for clip, reach in pairs:
            config = stage.config(panel, dict.fromkeys(METHODS, Tuned(clip, reach / clip)))
            arm = next(arm for arm in config.arms if arm.name == method)
            plays += [Play(config, arm, seed, "tuning") for seed in SEEDS]
        outcomes = yield plays
        curves = batches(outcomes, len(SEEDS))
        return [float(np.mean([last_tenth(one.scores) for one in mine])) for mine in curves]

    return (yield from searched((CLIPS, REACHES), tries, lambda score: (score,), widen=0))


def last_tenth(curve: Sequence[float]) -> float:
    """Returns the mean accuracy over the last tenth of the rounds."""
    return float(np.mean(curve[-max(1, len(curve) // 10) :]))


def edges(clip_norm: float, step: float) -> list[str]:
    """Which of the two is at an end of the grid, so that a better one may lie beyond it."""
    pairs = (("clip_norm", clip_norm, CLIPS), ("reach", clip_norm * step, REACHES))
    inside = {name: ends[0] * 1.001 < value < ends[-1] * 0.999 for name, value, ends in pairs}
    return [name for name, there in inside.items() if not there]
