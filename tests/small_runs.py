"""Small experiments for the tests: each is run once a process and shared by all test files."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from locksfl.cli.main import main
from locksfl.data import npy_folder
from locksfl.data.importing import Request, import_table
from locksfl.data.population import Population
from locksfl.experiment import run as experiment
from locksfl.experiment.config import Config, parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.page.story import Story, of_run
from locksfl.simulate import simulator as simulate
from run_tables import line_tables, run_table

ROUNDS, CLIENTS = 4, 12
SIZE = 784 * 10 + 10  # parameters of softmax regression on the digits

CENTRAL = f"""
name = "small"

[data]
clients = {CLIENTS}
split = {{ kind = "shards", classes = 2 }}

[local]
max_samples = 40

[train]
rounds = {ROUNDS}

[privacy]
trust = "central"
epsilon = 8.0
accountant = "rdp"
tuned_without_privacy = true

[[arm]]
name = "uniform"
cohort = 4

[[arm]]
name = "locks"
rule = "norm"
cohort = 6
uploads = 4
floor = 0.1
norm_low = 0.8
"""

# multipliers instead of an epsilon, one arm: nothing to calibrate
QUICK = """
name = "quick"
[data]
clients = 12
split = { kind = "iid" }
[local]
max_samples = 20
[train]
rounds = 4
evaluate_every = 2
[privacy]
trust = "central"
accountant = "rdp"
[[arm]]
name = "locks"
rule = "norm"
cohort = 6
uploads = 3
noise_multiplier = 0.1
norm_multiplier = 1.0
"""

LOCAL = ("privacy.trust=local", "privacy.epsilon=50.0", "privacy.tuned_without_privacy=false")

_folder = tempfile.TemporaryDirectory(prefix="locks-tests-")  # gone when the process ends


def new_path() -> Path:
    """Somewhere new inside this process's own folder."""
    return Path(tempfile.mkdtemp(dir=_folder.name)) / "run"


_real_task, _real_simulator = experiment.open_task, experiment.Simulator
_tasks: dict[str, Any] = {}


@functools.cache
def _simulator(population: Any, model: Any) -> experiment.Simulator:
    return _real_simulator(population, model)


def _task(config: Config) -> Any:
    key = repr((config.data, config.model, config.features))
    if key not in _tasks:
        _tasks[key] = _real_task(config)
    return _tasks[key]


@contextmanager
def shared() -> Iterator[None]:
    """Runs on the same data share them, and with them their compiled rounds."""
    with (
        mock.patch.object(experiment, "open_task", _task),
        mock.patch.object(experiment, "Simulator", _simulator),
    ):
        yield


def call_locks(capsys: Any, *arguments: object, code: int = 0) -> str:
    """`locks ...` in this process, sharing: what it printed; where it fails, its errors too."""
    capsys.readouterr()
    with mock.patch.object(sys, "argv", ["locks", *map(str, arguments)]), shared():
        try:
            main()
            ended: Any = 0
        except SystemExit as end:
            ended = end.code or 0
    out, err = capsys.readouterr()
    assert ended == code, err
    return str(out + err) if code else str(out)


@contextmanager
def stopped_after(run: Path, written: int) -> Iterator[None]:
    """Ctrl-C when a run has saved so many rounds."""
    saved = experiment.Progress.save

    def save(progress: Any, *rest: Any, **given: Any) -> None:
        saved(progress, *rest, **given)
        if (run / "rounds.jsonl").read_bytes().count(b"\n") == written:
            raise KeyboardInterrupt

    with (
        mock.patch.object(experiment.Progress, "save", save),
        mock.patch.object(simulate, "BLOCK_SECONDS", 0.0),
    ):
        yield


def run_experiment(config: Config, folder: RunFolder, **options: Any) -> dict[str, Any]:
    """The real one, sharing; what it came to as one table."""
    with shared():
        return run_table(experiment.run_experiment(config, folder, **options), config)


def play(config: Config, **options: Any) -> Path:
    """Run an experiment to its end; its folder."""
    made = RunFolder.create(new_path(), config)
    run_experiment(config, made, **options)
    return made.path


def finished(trust: str = "central") -> Path:
    """The folder of a small finished run. Do not write to it: take a copy."""
    return _finished(trust)


@functools.cache
def _finished(trust: str) -> Path:
    changes = {"central": (), "local": LOCAL, "none": ("privacy.trust=none", "privacy.epsilon=inf")}
    return play(parse_config(CENTRAL, changes[trust], 7))


def quick(seed: int | None = 3, copy: int = 0) -> Path:
    """The folder of a finished run of one arm; another `copy` is another run."""
    return _quick(seed, copy)


@functools.cache
def _quick(seed: int | None, copy: int) -> Path:
    del copy
    return play(parse_config(QUICK, (), seed))


def copied(run: Path) -> Path:
    """A copy of a run, to damage."""
    target = new_path()
    shutil.copytree(run, target)
    return target


def lines(run: Path, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """The lines of a file of a run, each as one table."""
    if name == "rounds.jsonl":
        return line_tables(run)
    return [json.loads(line) for line in (run / name).read_text("utf-8").splitlines()]


def summary(run: Path) -> dict[str, Any]:
    """A run's record as one table."""
    made = RunFolder.open(run)
    return run_table(made.run(), made.config)


def story(run: Path) -> Story:
    """What its server sees of a run."""
    made = RunFolder.open(run)
    return of_run(made.run(), made.config)


def costs(table: list[dict[str, Any]]) -> dict[tuple[str, str], float | None]:
    """Epsilon by observer and relation."""
    return {(c["observer"], c["relation"]): c["epsilon"] for c in table}


RECORDS, LABELS = 6, 3  # of every patient


def patients(people: int = 11, prefix: str = "p") -> list[str]:
    """The lines of a table of people with six records each: four numbers and a private label."""
    rng = np.random.default_rng(0)
    rows = ["patient,a,b,c,d,y"]
    for person in range(people):
        for label in rng.integers(0, LABELS, RECORDS):
            values = ",".join(f"{value:.4f}" for value in rng.normal(size=4) + np.eye(4)[label])
            rows.append(f"{prefix}{person:02d},{values},{label}")
    return rows


@functools.cache
def imported(test: bool = False, **options: Any) -> Path:
    """The folder that `locks data import` makes of them: one of them is held out or, with `test`,
    two others in a file of their own. Do not write to it: take a copy."""
    place = new_path().parent
    (place / "table.csv").write_text("\n".join(patients()))
    held = place / "held.csv"
    held.write_text("\n".join(patients(2, "other-")))
    request = Request("patient", "y", **options)
    return import_table(place / "table.csv", place / "people", request, held if test else None)


def saved(place: Path, people: Population) -> Path:
    """A population in a folder, as an import makes it."""
    with npy_folder.new_folder(place) as building:
        for name in npy_folder.ARRAYS:
            np.save(building / f"{name}.npy", getattr(people, name))
        told = {name: getattr(people, name) for name in npy_folder.FACTS}
        sizes = {"samples": people.samples, "tests": len(people.test_labels)}
        header = npy_folder.Header(kind="table", clients=people.clients, **sizes, **told)
        npy_folder.finish(building, header)
    return place


def over(data: Path, *changes: str, seed: int | None = 3) -> Config:
    """The experiment QUICK over an imported folder, whose people are its clients."""
    named = (f'data={{name="{data}"}}', "arm.locks.cohort=5")
    return parse_config(QUICK, (*named, *changes), seed)
