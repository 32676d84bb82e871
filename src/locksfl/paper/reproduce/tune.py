"""Clip and step of every method: one grid for all, tuned without privacy, and said so.

The grid is over the clip norm C and the reach C x step, the farthest that a first step can go: the
noise of a step grows with the reach, whatever the clip norm. The best is the highest accuracy over
the last tenth of the rounds, averaged over seeds and on held-out data that no report uses.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import tomli_w

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl._validate import positive
from locksfl.experiment.comparison.runner import Cell, Run, play_grid
from locksfl.experiment.plan import plan_arms
from locksfl.paper.reproduce.runs import Bench, OnRun
from locksfl.paper.reproduce.settings import METHODS, Panel, Scale, Tuned, panels

CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0)
REACHES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SEEDS = (1000, 1001)
GRID = [Tuned(clip, reach / clip) for clip in CLIPS for reach in REACHES]

Table = dict[Panel, dict[str, Tuned]]


def text_of(file: Path | None) -> str:
    """A file that --tune wrote; without one, the package's own."""
    if file is not None:
        return file.read_text("utf-8")
    return resources.files("locksfl.paper.reproduce").joinpath("tuned.toml").read_text("utf-8")


def stored(scale: Scale, text: str, file: Path | str) -> Table:
    """What the text of such a file has for every method of every panel."""
    table: Table = {panel: {} for panel in panels(scale)}
    try:
        for entry in tomllib.loads(text)["tuned"]:
            panel = Panel(entry["version"], entry["model"], float(entry["epsilon"]))
            if entry["scale"] == scale.name and panel in table:
                pair = Tuned(entry["clip_norm"], entry["step"])
                positive(**pair._asdict())
                table[panel][entry["method"]] = pair
    except (KeyError, ValueError, TypeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{file}: not a file that --tune wrote ({why})") from None
    for panel, method in itertools.product(table, METHODS):
        if method not in table[panel]:
            raise ValueError(
                f"{file}: nothing for {scale.name} {panel.label} {method}; "
                "expected it, or --tune to find it"
            )
    return table


def tune(path: Path, bench: Bench, on_run: OnRun) -> Table:
    """Try the grid for every method of every panel, and keep the best in tuned.toml. Noise does not
    depend on clip or step: one calibration serves all tries of a method."""
    entries, table = [], Table()

    def on_cell(cell: Cell) -> None:
        for _ in GRID:
            on_run(f"tuning {cell.key['panel']}")

    for panel in panels(bench.scale):
        config = bench.config(panel, dict.fromkeys(METHODS, GRID[0]))
        cells = []
        for arm in plan_arms(config):
            tries = [dataclasses.replace(arm, **pair._asdict()) for pair in GRID]
            runs = list(itertools.product(tries, SEEDS))
            cells.append(Cell({"panel": panel.label, "method": arm.name}, runs))
        table[panel], file = {}, path / "tuning.jsonl"
        simulator = bench.simulator(config, tuning=True)
        for line in play_grid(simulator, config, cells, file, line=_scores, on_cell=on_cell):
            method, scores = line["method"], line["scores"]
            if len(scores) != len(GRID):
                raise ValueError(f"{file}: {len(scores)} tries, expected the grid's {len(GRID)}")
            best = int(np.argmax(scores))
            table[panel][method] = GRID[best]
            entries.append(_entry(bench.scale, panel, method, best, scores))
    text = "# Clip and step of every method, chosen without privacy: locks reproduce --tune\n\n"
    content = text + tomli_w.dumps({"tuned": entries})
    write_atomically(path / "tuned.toml", content.encode())
    return table


def _scores(runs: Sequence[Run]) -> Record:
    """The score of every pair of the grid: the mean over its seeds."""
    finals = [last_tenth(run.outcome()["accuracy"]) for run in runs]
    return {"scores": np.reshape(finals, (len(GRID), len(SEEDS))).mean(axis=1).tolist()}


def last_tenth(curve: list[float]) -> float:
    """Returns the mean accuracy over the last tenth of the rounds."""
    return float(np.mean(curve[-max(1, len(curve) // 10) :]))


def _entry(scale: Scale, panel: Panel, method: str, best: int, scores: list[float]) -> Record:
    clip, step = GRID[best]
    return {
        "scale": scale.name,
        **panel._asdict(),
        "method": method,
        "clip_norm": clip,
        "step": round(step, 6),
        "accuracy": round(scores[best], 4),
        "at_edge_of_grid": edges(clip, step),
    }


def edges(clip_norm: float, step: float) -> list[str]:
    """Which of the two is at an end of the grid, so that a better one may lie beyond it."""
    pairs = (("clip_norm", clip_norm, CLIPS), ("reach", clip_norm * step, REACHES))
    inside = {name: ends[0] * 1.001 < value < ends[-1] * 0.999 for name, value, ends in pairs}
    return [name for name, there in inside.items() if not there]
