"""A play on a bench is the arm played alone, whoever else is played beside it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from checks import ragged
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import server_for
from locksfl.grids import bench as benches
from locksfl.grids.bench import Bench
from locksfl.grids.drive import Play
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
PLAYS = [Play(CONFIG, arm, seed) for arm in CONFIG.arms for seed in range(9)]


@pytest.fixture
def bench(monkeypatch):
    people = ragged(np.tile([1, 2, 3, 9, 14, 30], 4))
    monkeypatch.setattr(benches, "open_task", lambda config: (people, softmax(6, 3)))
    return Bench()


def test_a_play_is_the_arm_played_alone(bench):
    simulator, work = bench.simulator(CONFIG), CONFIG.local.work()
    for play, outcome in zip(PLAYS[8:10], bench(PLAYS[8:10]), strict=True):
        source = Randomness.seeded(play.seed)
        logs, _ = play_alone(simulator, play.arm, source, work, server_for(CONFIG.train))
        assert list(outcome.scores) == [log.accuracy for log in logs]
        assert (outcome.score, outcome.loss) == (logs[-1].accuracy, logs[-1].loss)
        assert outcome.uploads == sum(int(log.uploaded.sum()) for log in logs)


def test_a_gpu_plays_many_at_once(bench, monkeypatch):
    """The same outcomes up to rounding, in the order that was asked for."""
    alone = bench(PLAYS)
    simulator = bench.simulator(CONFIG)
    monkeypatch.setattr(simulator, "on_cpu", False)
    together = bench(PLAYS)
    assert any(program.at_once > 1 for program, *_ in simulator._compiled)
    for one, other in zip(alone, together, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.uploads == other.uploads


def test_in_another_process_a_bench_opens_data_of_its_own(bench):
    bench(PLAYS[:1])
    assert not pickle.loads(pickle.dumps(bench))._open


def test_the_halves_are_equally_large_and_a_record_is_needed_for_each():
    whole = Simulator(ragged([3, 4]), softmax(6, 3))
    sizes = [len(half.population.test_labels) for half in benches.halves(whole)]
    assert sizes == [len(whole.population.test_labels) // 2] * 2
    with pytest.raises(ValueError, match="1 held-out record: expected 2 or more"):
        benches.halves(whole.scoring(slice(0, 1)))
