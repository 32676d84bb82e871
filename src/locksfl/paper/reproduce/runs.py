"""Every run of the reproduction, in a folder that can be stopped and resumed.

    settings.json   scale and seeds              runs.jsonl      one line for every play
    tuned.toml      clip and step of every       tuning.jsonl    with --tune: one line for every
                    method                                       play of the search
    report.md, table.json, figure-MODEL.svg, likeness-MODEL.svg: written last

The same seed gives the same files, byte for byte: nothing in them is timed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl.experiment.config import Config, DiagnosticsConfig
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import diagnostics_lines, server_for
from locksfl.grids.bench import Bench
from locksfl.grids.drive import NOBODY, Case, Executor, Outcome, Play, Plays, Watch, batches, drive
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

LIKENESS_EVERY = 10

Table = dict[Panel, dict[str, Tuned]]  # what is chosen for every method


class MethodRuns(NamedTuple):
    """A method of a panel, under every seed."""

    tuned: Tuned
    outcomes: Sequence[Outcome]


Runs = Mapping[str, MethodRuns]  # of one panel, by method


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
        return replace(scale, seeds=tuple(settings["seeds"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"--out {path}: not the folder of a reproduction") from None


@dataclass(frozen=True)
class Stage:
    """What a reproduction is played on."""

    scale: Scale
    bench: Bench
    data_dir: str | None = None

    def config(self, panel: Panel, tuned: Mapping[str, Tuned]) -> Config:
        """The panel as an experiment."""
        return config_for(self.scale, panel, tuned, self.data_dir)

    def check_data(self) -> None:
        """Refuse, before anything is written, if the data are not there."""
        panel = next(panels(self.scale))
        self.bench.simulator(self.config(panel, dict.fromkeys(METHODS, Tuned(1.0, 1.0))))


def play_panels(
    path: Path, stage: Stage, table: Table, executor: Executor, watch: Watch = NOBODY
) -> dict[Panel, Runs]:
    """Play every run that the folder does not have yet; all of them by panel, in the order of the
    report."""
    every = list(panels(stage.scale))
    cases = {
        number: Case(panel.label, partial(_runs, stage, panel, table[panel]))
        for number, panel in enumerate(every)
    }
    driven = drive(cases, executor, path / "runs.jsonl", watch)
    return dict(zip(every, driven.whole(), strict=True))


def _runs(stage: Stage, panel: Panel, tuned: Mapping[str, Tuned]) -> Plays[Runs]:
    """The methods of a panel under every seed."""
    config, seeds = stage.config(panel, tuned), stage.scale.seeds
    arms = config.arms
    outcomes = yield [Play(config, arm, seed, "report", True) for arm in arms for seed in seeds]
    each = zip(arms, batches(outcomes, len(seeds)), strict=True)
    return {arm.name: MethodRuns(tuned[arm.name], mine) for arm, mine in each}


def watch_likeness(
    stage: Stage, panel: Panel, tuned: Mapping[str, Tuned]
) -> dict[str, list[Record]]:
    """The non-private arms of a panel again, with the first seed and with diagnostics that compare
    the clients."""
    diagnostics = DiagnosticsConfig(every=LIKENESS_EVERY)
    config = replace(stage.config(panel, tuned), diagnostics=diagnostics)
    simulator = stage.bench.simulator(config, "report")
    randomness = Randomness.seeded(stage.scale.seeds[0])
    work, server = config.local.work(), server_for(config.train)
    return {
        arm.name: [
            line
            for block in simulator.play(arm, work, server, randomness, pause_every=LIKENESS_EVERY)
            for line in diagnostics_lines(config, simulator, arm, randomness, block)
        ]
        for arm in config.arms
    }
