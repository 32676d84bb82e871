"""The one runner of grids: arms under several seeds, on one simulator.

A grid is a list of cells. A cell becomes one line of a file: it has a key that names it, and runs,
each an arm with a seed. A cell that the file already has is not played again, so a grid that was
stopped goes on where it stood, to the same file, byte for byte: nothing in it is timed.

    arms, simulator = plan_arms(config), Simulator(*open_task(config))
    lines = play_grid(simulator, config, grid(arms, range(10)), Path("grid.jsonl"))

On a CPU runs are played one after another; on a GPU many are played together (simulate/sweep.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.folder import append_lines, read_lines
from locksfl.experiment.records import round_record, totals
from locksfl.experiment.run import server_for
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_sweep

MANY = 16  # for fewer runs, one more program to compile would take longer than it saves


class Cell(NamedTuple):
    """One line of a grid: the values that name it, and its runs, each an arm with a seed."""

    key: Record
    runs: Sequence[tuple[Arm, int]]


class Run(NamedTuple):
    """An arm with a seed, played to its end."""

    arm: Arm
    seed: int
    rounds: list[Record]  # one record per round; cohort and uploads are the server's secret
    weights: np.ndarray  # of the final model

    def outcome(self) -> Record:
        """Returns the seed, the accuracy by round (None where not evaluated), and the totals."""
        accuracy = [record["accuracy"] for record in self.rounds]
        return {"seed": self.seed, "accuracy": accuracy, **totals(self.rounds)}


def halves(simulator: Simulator) -> tuple[Simulator, Simulator]:
    """Two simulators on the same clients: one to tune on, one to report from. Every other held-out
    record is tuning's, and in no report; the halves are equally large, so that programs are
    shared."""
    half = len(simulator.population.test_labels) // 2
    if not half:
        raise ValueError("1 held-out record: expected 2 or more, half of them for tuning")
    return simulator.scoring(slice(0, 2 * half, 2)), simulator.scoring(slice(1, None, 2))


def grid(arms: Sequence[Arm], seeds: Iterable[int], **key: Any) -> list[Cell]:
    """Returns one cell per seed, with a run of every arm; `key` is what else names the lines."""
    return [Cell({**key, "seed": seed}, [(arm, seed) for arm in arms]) for seed in seeds]


def outcomes(runs: Sequence[Run]) -> Record:
    """Returns what a line holds unless the caller wants more: the outcome of each arm."""
    return {"arms": {run.arm.name: run.outcome() for run in runs}}


def play_grid(
    simulator: Simulator,
    config: Config,
    cells: Sequence[Cell],
    file: Path | None = None,
    *,
    line: Callable[[Sequence[Run]], Record] = outcomes,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> list[Record]:
    """Play the cells that the file does not have yet, each appended to it when it is finished.

    config: local work and server step, the same for all arms; each arm plays its own rounds.
    file: JSON lines, begun or continued; a last line that is not whole is dropped. None: no file.
    line: makes a line of a cell's runs; the cell's key is put before it.
    on_cell: called once for each cell, whether it was played or found in the file.

    Returns one line per cell, in the order of the cells.
    """
    done = [] if file is None else read_lines(file, resumed=True)
    missing = []
    for cell in cells:
        if _find(done, cell.key) is None:
            missing.append(cell)
        else:
            on_cell(cell)
    for cell, runs in play_cells(simulator, config, missing):
        done.append({**cell.key, **line(runs)})
        if file is not None:
            append_lines(file, done[-1:])
        on_cell(cell)
    return [found for cell in cells if (found := _find(done, cell.key)) is not None]


def play_cells(
    simulator: Simulator, config: Config, cells: Sequence[Cell]
) -> Iterator[tuple[Cell, list[Run]]]:
    """Yields each cell with its runs: as soon as it is finished on a CPU, all at the end on a GPU,
    where they are played together."""
    for batch in [[cell] for cell in cells] if simulator.on_cpu else [cells]:
        asked = [run for cell in batch for run in cell.runs]
        runs = iter(play_runs(simulator, config, asked, at_once=1 if len(asked) < MANY else None))
        for cell in batch:
            yield cell, list(islice(runs, len(cell.runs)))


def play_runs(
    simulator: Simulator,
    config: Config,
    runs: Sequence[tuple[Arm, int]],
    *,
    at_once: int | None = None,
    brief: bool = False,
) -> list[Run]:
    """Play arms with seeds, in the order given. Arms of different numbers of rounds have servers,
    and so programs, of their own. `at_once`, `brief`: see `play_sweep`."""
    found: dict[int, Run] = {}
    work = config.local.work()
    for rounds in dict.fromkeys(arm.rounds for arm, _ in runs):
        numbers = [i for i, (arm, _) in enumerate(runs) if arm.rounds == rounds]
        played = play_sweep(
            simulator,
            [Setting(runs[i][0], Randomness.seeded(runs[i][1])) for i in numbers],
            work,
            server_for(config.train, rounds),
            evaluate_every=config.train.evaluate_every,
            at_once=at_once,
            brief=brief,
        )
        for i, (logs, weights) in zip(numbers, played, strict=True):
            arm, seed = runs[i]
            records = [round_record(arm, log, simulator.model, None) for log in logs]
            found[i] = Run(arm, seed, records, weights)
    return [found[i] for i in range(len(runs))]


def _find(lines: Iterable[Record], key: Record) -> Record | None:
    """The line with these values, if it is there."""
    return next((one for one in lines if key.items() <= one.items()), None)
