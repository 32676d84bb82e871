"""A grid of arms and seeds: each run is what it is alone, and a stopped grid goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from checks import ragged
from locksfl.experiment.comparison.runner import Cell, grid, play_cells, play_grid
from locksfl.experiment.config import parse_config
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.run import server_for
from locksfl.models.build import softmax
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import play_alone

CONFIG = parse_config(
    """
[data]
clients = 24
[train]
rounds = 3
average_last = 2
[privacy]
trust = "none"
[[arm]]
name = "uniform"
cohort = 6
[[arm]]
name = "locks"
rule = "norm"
cohort = 12
uploads = 6
"""
)
ARMS = plan_arms(CONFIG)


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(np.tile([1, 2, 3, 9, 14, 30], 4)), softmax(6, 3))


def test_a_run_of_a_grid_is_the_run_alone(simulator):
    """Records and weights; an arm of fewer rounds plays those, and the right ones are averaged."""
    arms = [ARMS[0], replace(ARMS[1], rounds=2)]
    (found,) = play_cells(simulator, CONFIG, grid(arms, [7]))
    assert found[0].key == {"seed": 7}
    for arm, run in zip(arms, found[1], strict=True):
        server = server_for(CONFIG.train, arm.rounds)
        work, source = CONFIG.local.work(), Randomness.seeded(7)
        alone = play_alone(simulator, arm, source, work, server)
        np.testing.assert_array_equal(run.weights, alone.weights)
        assert [record["accuracy"] for record in run.rounds] == [log.accuracy for log in alone[0]]
        assert run.outcome()["uploads"] == sum(int(log.uploaded.sum()) for log in alone[0])
        assert len(run.rounds) == arm.rounds
        assert (run.arm, run.seed) == (arm, 7)


def test_a_grid_that_was_stopped_goes_on_to_the_same_file(simulator, tmp_path):
    """A torn last line is dropped, a cell that is there is not played again, and the lines come in
    the order of the cells, with whatever else is in the file left alone."""
    cells = grid(ARMS, range(3), task="ragged")
    file = tmp_path / "grid.jsonl"
    wanted = play_grid(simulator, CONFIG, cells, file)
    assert [json.loads(line) for line in file.read_text().splitlines()] == wanted
    assert [line["seed"] for line in wanted] == [0, 1, 2]
    assert set(wanted[0]["arms"]) == {"uniform", "locks"}
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    heard: list[Cell] = []
    played: list[int] = []

    def line(runs):
        played.append(runs[0].seed)
        return {"arms": {run.arm.name: run.outcome() for run in runs}}

    assert play_grid(simulator, CONFIG, cells, file, line=line, on_cell=heard.append) == wanted
    assert file.read_text() == whole
    assert played == [1, 2]
    assert heard == cells
    assert play_grid(simulator, CONFIG, cells[::-1], file, line=line) == wanted[::-1]
    assert played == [1, 2]
    assert play_grid(simulator, CONFIG, cells[:1]) == wanted[:1]  # no file, nothing resumed


def test_a_gpu_plays_all_cells_together(simulator, monkeypatch):
    """The same runs up to rounding, given back cell by cell."""
    cells = grid(ARMS, range(9))
    alone = list(play_cells(simulator, CONFIG, cells))
    monkeypatch.setattr(simulator, "on_cpu", False)
    together = list(play_cells(simulator, CONFIG, cells))
    assert any(program.together > 1 for program, *_ in simulator._compiled)
    for (cell, runs), (same, others) in zip(alone, together, strict=True):
        assert cell == same
        for run, other in zip(runs, others, strict=True):
            assert (run.arm, run.seed) == (other.arm, other.seed)
            np.testing.assert_allclose(run.weights, other.weights, rtol=1e-4, atol=1e-5)
