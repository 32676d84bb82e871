"""Every run of the reproduction, in a folder that can be stopped and resumed.

    settings.json   scale and seeds              runs.jsonl      one line per panel and seed
    tuned.toml      clip and step of every       tuning.jsonl    with --tune: one line per method
                    method                       report.md, table.json, figure-MODEL.svg,
                                                 likeness-MODEL.svg: written last

The same seed gives the same files, byte for byte: nothing in them is timed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.experiment.comparison.runner import Run, grid, halves, play_grid
from locksfl.experiment.config import Config, DiagnosticsConfig, PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.run import diagnostics_lines, open_task, server_for
from locksfl.paper.reproduce.settings import (
    FULL,
    METHODS,
    QUICK,
    Panel,
    Scale,
    Tuned,
    config_for,
    panels,
)
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import Simulator

OnRun = Callable[[str], None]
LIKENESS_EVERY = 10


def begin(path: Path, scale: Scale, tuned: str | None = None) -> None:
    """Make a new folder; one that holds something is never written over. `tuned` is kept as its
    tuned.toml; without it the folder has none until it is tuned."""
    RunFolder.make(path)
    if tuned is not None:
        write_atomically(path / "tuned.toml", tuned.encode())
    settings = {"scale": scale.name, "seeds": list(scale.seeds)}
    write_atomically(path / "settings.json", (json.dumps(settings) + "\n").encode())


def begun(path: Path) -> Scale:
    """Returns the scale of the reproduction that `begin` made a folder for."""
    try:
        settings = json.loads((path / "settings.json").read_text("utf-8"))
        scale = {s.name: s for s in (QUICK, FULL)}[settings["scale"]]
        return dataclasses.replace(scale, seeds=tuple(settings["seeds"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"--out {path}: not the folder of a reproduction") from None


class Bench:
    """Simulators, made when they are first needed and kept compiled: one per model for the report,
    and one for tuning. Every other held-out record is tuning's, and in no report."""

    def __init__(self, scale: Scale, data_dir: str | None = None) -> None:
        self.scale, self.data_dir = scale, data_dir
        self._simulators: dict[tuple[str, bool], Simulator] = {}

    def simulator(self, config: Config, tuning: bool = False) -> Simulator:
        """The one of the configured model."""
        name = (config.model.name, tuning)
        if name not in self._simulators:
            whole = Simulator(*open_task(config))
            for mine, half in zip((True, False), halves(whole), strict=True):
                self._simulators[config.model.name, mine] = half
        return self._simulators[name]

    def check_data(self) -> None:
        """Refuse, before anything is written, if the data are not there."""
        panel = next(panels(self.scale))
        self.simulator(self.config(panel, dict.fromkeys(METHODS, Tuned(1.0, 1.0))))

    def config(self, panel: Panel, tuned: dict[str, Tuned]) -> Config:
        """The panel as an experiment."""
        return config_for(self.scale, panel, tuned, self.data_dir)


def play_panels(
    path: Path, bench: Bench, tuned: dict[Panel, dict[str, Tuned]], on_run: OnRun
) -> dict[Panel, list[Record]]:
    """Play every run that the folder does not have yet; returns all of them by panel, one record
    per seed, in the order of the report."""
    found = {}
    for panel in panels(bench.scale):
        config = bench.config(panel, tuned[panel])
        found[panel] = play_grid(
            bench.simulator(config),
            config,
            grid(plan_arms(config), bench.scale.seeds, panel=panel.label),
            path / "runs.jsonl",
            line=functools.partial(_line, config.privacy),
            on_cell=lambda cell: on_run(cell.key["panel"]),
        )
    return found


def _line(privacy: PrivacyConfig, runs: Sequence[Run]) -> Record:
    return {"arms": {run.arm.name: run.outcome() | _costs(run.arm, privacy) for run in runs}}


@functools.cache
def _costs(arm: Arm, privacy: PrivacyConfig) -> dict[str, Any]:
    return {
        "clip_norm": arm.clip_norm,
        "step": arm.step,
        "noise_multiplier": arm.noise_multiplier if arm.private else None,
        "norm_multiplier": arm.norm_multiplier or None,
        "claimed_epsilon": claimed_epsilon(arm, privacy),
        "privacy": [cost.as_dict() for cost in statement([arm], privacy)],
    }


def watch_likeness(bench: Bench, config: Config, seed: int) -> dict[str, list[Record]]:
    """The non-private arms of a panel again, with diagnostics that compare the clients."""
    config = dataclasses.replace(config, diagnostics=DiagnosticsConfig(every=LIKENESS_EVERY))
    simulator, randomness = bench.simulator(config), Randomness.seeded(seed)
    work, server = config.local.work(), server_for(config.train)
    return {
        arm.name: [
            line
            for block in simulator.play(arm, work, server, randomness, pause_every=LIKENESS_EVERY)
            for line in diagnostics_lines(config, simulator, arm, randomness, block)
        ]
        for arm in plan_arms(config)
    }
