"""Every run of the reproduction, a line each into a folder that can be stopped and resumed.

    settings.json   scale and seeds              runs.jsonl      a line a run, with its curve
    tuned.toml      clip and step of every       tuning.jsonl    with --tune: a line a try
                    method                       report.md, table.json, figure-MODEL.png and .svg,
                                                 likeness-MODEL.png and .svg: written last

The same seed gives the same files, byte for byte: nothing in them is timed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locksfl.arm import Arm
from locksfl.experiment.config import Config, DiagnosticsConfig
from locksfl.experiment.costs import statement
from locksfl.experiment.folder import write_atomically
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.records import round_record
from locksfl.experiment.run import diagnostics_lines, local_work, open_task, server_for
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
from locksfl.simulate.sweep import Setting, play_sweep

Record = dict[str, Any]
OnRun = Callable[[str], None]
LIKENESS_EVERY = 10
MANY = 16


class Lines:
    """A file of JSON lines, each written whole and synced; a torn last line is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kept = []
        if path.is_file():
            whole = path.read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in whole if line.endswith("\n")]
            os.truncate(path, sum(len(line.encode()) for line in kept))
        try:
            self.records = [json.loads(line) for line in kept]
        except ValueError as error:
            raise ValueError(f"{path}: damaged ({error})") from None

    def add(self, record: Record) -> None:
        """Append a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    def find(self, **wanted: Any) -> Record | None:
        """The record with these values, if it is there."""
        for record in self.records:
            if all(record[name] == value for name, value in wanted.items()):
                return record
        return None


@dataclass(frozen=True)
class Folder:
    """Where a reproduction goes, and what it is."""

    path: Path
    scale: Scale
    seeds: tuple[int, ...]

    @classmethod
    def create(
        cls, path: Path, scale: Scale, seeds: tuple[int, ...], tuned: str | None = None
    ) -> Folder:
        """A new folder; one that holds something is never written over. `tuned` is kept as its
        tuned.toml; without it the folder has none until it is tuned."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(
                f"--out {path}: already there; expected a new folder, or --resume to continue it"
            )
        path.mkdir(parents=True, exist_ok=True)
        if tuned is not None:
            write_atomically(path / "tuned.toml", tuned.encode())
        settings = {"scale": scale.name, "seeds": list(seeds)}
        write_atomically(path / "settings.json", (json.dumps(settings) + "\n").encode())
        return cls(path, scale, seeds)

    @classmethod
    def open(cls, path: Path) -> Folder:
        """A folder that `create` made."""
        try:
            settings = json.loads((path / "settings.json").read_text("utf-8"))
            scale = {s.name: s for s in (QUICK, FULL)}[settings["scale"]]
            return cls(path, scale, tuple(settings["seeds"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(f"--out {path}: not the folder of a reproduction") from None


class Bench:
    """Simulators, made when they are first needed and kept compiled: one a model for the report,
    and one for tuning. Every other held-out record is tuning's, and in no report."""

    def __init__(self, scale: Scale, data_dir: str | None = None) -> None:
        self.scale, self.data_dir = scale, data_dir
        self._simulators: dict[tuple[str, bool], Simulator] = {}

    def simulator(self, config: Config, tuning: bool = False) -> Simulator:
        """The one of the configured model."""
        name = (config.model.name, tuning)
        if name not in self._simulators:
            population, model = open_task(config)
            half = slice(0 if tuning else 1, None, 2)
            population = dataclasses.replace(
                population,
                test_features=population.test_features[half],
                test_labels=population.test_labels[half],
            )
            self._simulators[name] = Simulator(population, model)
        return self._simulators[name]

    def check_data(self) -> None:
        """Refuse, before anything is written, if the data are not there."""
        panel = next(panels(self.scale))
        self.simulator(self.config(panel, dict.fromkeys(METHODS, Tuned(1.0, 1.0))))

    def config(self, panel: Panel, tuned: dict[str, Tuned]) -> Config:
        """The panel as an experiment."""
        return config_for(self.scale, panel, tuned, self.data_dir)


def play(simulator: Simulator, config: Config, settings: Sequence[tuple[Arm, int]]) -> list[Record]:
    """Runs of these plans with these seeds: accuracy by round, and what was sent. Many are played
    together on a GPU; for few, one more program to compile would take longer than it saves."""
    sources = [Setting(plan, Randomness.seeded(seed)) for plan, seed in settings]
    work, server = local_work(config.local), server_for(config.train)
    at_once = 1 if len(settings) < MANY else None
    found = []
    for (plan, seed), played in zip(
        settings, play_sweep(simulator, sources, work, server, at_once=at_once), strict=True
    ):
        lines = [round_record(plan, log, simulator.model.size, None) for log in played.rounds]
        totals = {name: sum(line[name] for line in lines) for name in COUNTED}
        found.append({"seed": seed, "accuracy": [line["accuracy"] for line in lines], **totals})
    return found


COUNTED = ("cohort", "uploads", "bytes_up", "bytes_down")


def play_panels(
    folder: Folder, bench: Bench, tuned: dict[Panel, dict[str, Tuned]], on_run: OnRun
) -> list[Record]:
    """Every run that the folder does not have yet; all of them, in the order of the report."""
    lines = Lines(folder.path / "runs.jsonl")
    for panel in panels(folder.scale):
        config = bench.config(panel, tuned[panel])
        missing = [s for s in folder.seeds if lines.find(panel=panel.label, seed=s) is None]
        for _ in range(len(folder.seeds) - len(missing)):
            on_run(panel.label)
        if not missing:
            continue
        plans = plan_arms(config)
        costs = [_costs(plan, config) for plan in plans]
        simulator = bench.simulator(config)
        together = [[seed] for seed in missing] if simulator.on_cpu else [missing]
        for seeds in together:
            found = play(simulator, config, [(plan, seed) for seed in seeds for plan in plans])
            for i, seed in enumerate(seeds):
                mine = found[i * len(plans) : (i + 1) * len(plans)]
                arms = {
                    plan.name: {**run, **cost}
                    for plan, run, cost in zip(plans, mine, costs, strict=True)
                }
                lines.add({"panel": panel.label, "seed": seed, "arms": arms})
                on_run(panel.label)
    order = {panel.label: i for i, panel in enumerate(panels(folder.scale))}
    return sorted(lines.records, key=lambda record: (order[record["panel"]], record["seed"]))


def _costs(plan: Arm, config: Config) -> Record:
    return {
        "clip_norm": plan.clip_norm,
        "step": plan.step,
        "noise_multiplier": plan.noise_multiplier if plan.private else None,
        "norm_multiplier": plan.norm_multiplier or None,
        "claimed_epsilon": claimed_epsilon(plan, config.privacy),
        "privacy": [c.as_dict() for c in statement([plan], [plan.rounds], config.privacy)],
    }


def watch_likeness(bench: Bench, config: Config, seed: int) -> dict[str, list[Record]]:
    """The arms of a panel without privacy once more, with the clients laid side by side."""
    config = dataclasses.replace(config, diagnostics=DiagnosticsConfig(every=LIKENESS_EVERY))
    simulator, randomness = bench.simulator(config), Randomness.seeded(seed)
    work, server = local_work(config.local), server_for(config.train)
    arms: dict[str, list[Record]] = {}
    for plan in plan_arms(config):
        blocks = simulator.play(plan, work, server, randomness, pause_every=LIKENESS_EVERY)
        arms[plan.name] = [
            line
            for block in blocks
            for line in diagnostics_lines(config, simulator, plan, randomness, block)
        ]
    return arms


def runs_by_panel(scale: Scale, records: Iterable[Record]) -> dict[Panel, list[Record]]:
    """Runs by panel, in the order of the report."""
    found: dict[Panel, list[Record]] = {panel: [] for panel in panels(scale)}
    labels = {panel.label: panel for panel in found}
    for record in records:
        found[labels[record["panel"]]].append(record)
    return found
