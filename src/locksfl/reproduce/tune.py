"""Clip and step of every method: one grid for all, tuned without privacy, and said so.

The grid is over the clip norm C and the reach C x step, the farthest that a first step can go: the
noise of a step grows with the reach, whatever the clip norm. The best is the highest accuracy over
the last tenth of the rounds, averaged over seeds that no report uses.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from locksfl.plan import plan_arms
from locksfl.reproduce.runs import Bench, Folder, Lines, OnRun, play
from locksfl.reproduce.settings import METHODS, Panel, Scale, Tuned, panels
from locksfl.runfolder import write_atomically

CLIPS = (0.3, 1.0, 3.0)
REACHES = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = (1000, 1001)
GRID = [Tuned(clip, reach / clip) for clip in CLIPS for reach in REACHES]

Table = dict[Panel, dict[str, Tuned]]


def stored(scale: Scale, file: Path) -> Table:
    """What a file that --tune wrote has for every method of every panel."""
    try:
        text = file.read_text("utf-8")
        entries = tomllib.loads(text)["tuned"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ValueError(f"{file}: not a file that --tune wrote ({error})") from None
    table: Table = {panel: {} for panel in panels(scale)}
    for entry in entries:
        panel = Panel(entry["version"], entry["model"], float(entry["epsilon"]))
        if entry["scale"] == scale.name and panel in table:
            table[panel][entry["method"]] = Tuned(entry["clip_norm"], entry["step"])
    for panel, methods in table.items():
        for method in METHODS:
            if method not in methods:
                raise ValueError(
                    f"{file}: nothing for {scale.name} {panel.label} {method}; "
                    "expected it, or --tune to find it"
                )
    return table


def _ours() -> str:
    return resources.files("locksfl.reproduce").joinpath("tuned.toml").read_text("utf-8")


def save_copy(folder: Folder) -> Path:
    """The package's settings beside the runs that use them."""
    path = folder.path / "tuned.toml"
    if not path.exists():
        write_atomically(path, _ours().encode())
    return path


def tune(folder: Folder, bench: Bench, on_run: OnRun) -> Table:
    """Try the grid for every method of every panel, and keep the best in tuned.toml."""
    lines = Lines(folder.path / "tuning.jsonl")
    entries, table = [], Table()
    for panel in panels(folder.scale):
        table[panel] = {}
        for method in METHODS:
            scores = _try(lines, bench, panel, method, on_run)
            best = int(np.argmax(scores))
            table[panel][method] = GRID[best]
            entries.append(_entry(folder.scale, panel, method, best, scores))
    text = "# Clip and step of every method, chosen without privacy: locks reproduce --tune\n\n"
    content = text + tomli_w.dumps({"tuned": entries})
    write_atomically(folder.path / "tuned.toml", content.encode())
    return table


def _try(lines: Lines, bench: Bench, panel: Panel, method: str, on_run: OnRun) -> list[float]:
    """The score of every pair of the grid. Noise does not depend on clip or step: one calibration
    serves all."""
    done = lines.find(panel=panel.label, method=method)
    if done is None:
        config = bench.config(panel, dict.fromkeys(METHODS, GRID[0]))
        (plan,) = (plan for plan in plan_arms(config) if plan.name == method)
        simulator, scores = bench.simulator(config), []
        tries = [dataclasses.replace(plan, clip_norm=clip, step=step) for clip, step in GRID]
        for some in [[one] for one in tries] if simulator.on_cpu else [tries]:
            found = play(simulator, config, [(one, seed) for one in some for seed in SEEDS])
            ends = np.array([_end(run["accuracy"]) for run in found]).reshape(-1, len(SEEDS))
            scores += ends.mean(axis=1).tolist()
            for _ in some:
                on_run(f"tuning {panel.label}")
        done = {"panel": panel.label, "method": method, "scores": scores}
        lines.add(done)
    else:
        for _ in GRID:
            on_run(f"tuning {panel.label}")
    scores = done["scores"]
    if len(scores) != len(GRID):
        raise ValueError(f"{lines.path}: {len(scores)} tries, expected the grid's {len(GRID)}")
    return list(scores)


def _end(curve: list[float]) -> float:
    """Accuracy over the last tenth of the rounds."""
    return float(np.mean(curve[-max(1, len(curve) // 10) :]))


def _entry(
    scale: Scale, panel: Panel, method: str, best: int, scores: list[float]
) -> dict[str, Any]:
    clip, step = GRID[best]
    reach = REACHES[best % len(REACHES)]
    edges = [
        name
        for name, value, values in (("clip_norm", clip, CLIPS), ("reach", reach, REACHES))
        if value in (values[0], values[-1])
    ]
    return {
        "scale": scale.name,
        "version": panel.version,
        "model": panel.model,
        "epsilon": panel.epsilon if math.isinf(panel.epsilon) else float(panel.epsilon),
        "method": method,
        "clip_norm": clip,
        "step": round(step, 6),
        "accuracy": round(scores[best], 4),
        "at_edge_of_grid": edges,
    }
