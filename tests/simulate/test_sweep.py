"""A sweep gives what its settings give one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checks import ragged
from locksfl.arm import Arm
from locksfl.models.build import mlp
from locksfl.privacy import calibrate
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate import sweep
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_sweep

SIZES = np.tile([1, 2, 3, 9, 14, 30], 4)
GRADIENT = LocalWork(min_samples=2, max_samples=12)
EPOCHS = LocalWork("epochs", epochs=2, batch=5, step=0.3, min_samples=2, max_samples=12)
SERVER = Server("momentum", rounds=4, average_last=2)
PLAN = Arm.of(
    "arm", 24, 4, "norm", "capped", "central", 12.0, 5.0, 0.6, 0.7, 0.2, 0.5,
    noise_multiplier=0.3, norm_multiplier=0.6,
)  # fmt: skip


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(SIZES), mlp(6, 3, (16,)))


def settings():
    """Seeds, clips, steps, noises, uploads; another arm's name; another rule."""
    plans = [
        PLAN,
        replace(PLAN, clip_norm=0.3, step=1.5),
        PLAN.changed(noise_multiplier=0.1, uploads=4.0, floor=0.0),
        replace(PLAN, name="other"),
        replace(PLAN, rule="uniform", norm_low=1.0),
    ]
    return [Setting(plan, Randomness.seeded(seed)) for plan in plans for seed in (5, 6)]


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4, atol=1e-5)
        for one, other in zip(a.rounds, b.rounds, strict=True):
            assert one.round == other.round
            np.testing.assert_array_equal(one.cohort, other.cohort)
            np.testing.assert_array_equal(one.uploaded, other.uploaded)
            np.testing.assert_allclose(one.norms, other.norms, rtol=1e-4, atol=1e-5)
            for name in ("released_norm_sum", "used_norm_sum", "signal", "noise"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-5)
            assert (one.accuracy is None) == (other.accuracy is None)
            if one.accuracy is not None:
                assert one.accuracy == pytest.approx(other.accuracy, abs=1e-6)
                assert one.loss == pytest.approx(other.loss, rel=1e-4)


@pytest.mark.parametrize("work", [GRADIENT, EPOCHS], ids=["gradient", "epochs"])
def test_together_is_one_by_one(simulator, work):
    """Eight settings of one program in pieces of four, two of another; chunks of three clients."""
    many = Simulator(simulator.population, simulator.model, chunk=3)
    wanted = play_sweep(simulator, settings(), work, SERVER, evaluate_every=2, at_once=1)
    found = play_sweep(many, settings(), work, SERVER, evaluate_every=2, at_once=5)
    assert_same(found, wanted)
    weights = [played.weights for played in wanted]
    apart = [np.abs(a - b).max() for i, a in enumerate(weights) for b in weights[:i]]
    assert min(apart) > 1e-3, "settings that give one result would prove nothing"
    programs = [program for program, *_ in many._compiled]
    assert sorted(program.at_once for program in programs) == [2, 4], "one program for each piece"


def test_rates_are_controlled_for_each_setting(simulator):
    """Two seeds and two clips of the coin: each has cohorts of its own, round by round."""
    coin = Arm("coin", 24, 4, "coin", cohort=16.0, uploads=4.0, clip_norm=2.0)
    plans = [calibrate(coin, 500.0, 1e-2), replace(calibrate(coin, 500.0, 1e-2), clip_norm=0.5)]
    given = [Setting(plan, Randomness.seeded(seed)) for plan in plans for seed in (5, 6)]
    wanted = play_sweep(simulator, given, GRADIENT, SERVER, at_once=1)
    found = play_sweep(simulator, given, GRADIENT, SERVER, at_once=4)
    assert_same(found, wanted)
    cohorts = [[log.expected_cohort for log in played.rounds] for played in found]
    assert cohorts == [[log.expected_cohort for log in played.rounds] for played in wanted]
    assert len(set(map(tuple, cohorts))) > 1
    assert {one[0] for one in cohorts} == {4.0}


def test_blocks_and_wide_cohorts_do_not_matter(simulator, monkeypatch):
    """Blocks of three rounds, and slots for one client only, which the first block must widen."""
    wanted = play_sweep(simulator, settings()[:3], GRADIENT, SERVER, at_once=1)
    monkeypatch.setattr("locksfl.simulate.simulator.likely_count", lambda clients, rate: 1)
    for module in ("block", "simulator", "sweep"):
        monkeypatch.setattr(f"locksfl.simulate.{module}.ROUNDS_A_CALL", 3)
    again = Simulator(simulator.population, simulator.model)
    assert_same(play_sweep(again, settings()[:3], GRADIENT, SERVER, at_once=3), wanted)


def test_cohorts_of_similar_size_share_a_program(simulator, monkeypatch):
    """On a GPU, rooms are filled up and slots are made for the largest; of members, the counts are
    read. On a CPU, arms that are played one after another share a program too."""
    plans = [replace(PLAN, cohort=m, norm_low=0.9) for m in (6.0, 9.0, 12.0)]
    given = [Setting(plan, Randomness.seeded(seed)) for plan in plans for seed in (5, 6)]
    wanted = play_sweep(simulator, given, GRADIENT, SERVER, evaluate_every=4)
    cpu, gpu = (Simulator(simulator.population, simulator.model) for _ in range(2))
    monkeypatch.setattr(gpu, "on_cpu", False)
    for machine, rooms in ((cpu, [1]), (gpu, [12])):
        found = play_sweep(machine, given, GRADIENT, SERVER, evaluate_every=4, brief=True)
        assert [program.at_once for program, *_ in machine._compiled] == rooms
        for mine, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine.weights, other.weights, rtol=1e-4, atol=1e-5)
            for one, same in zip(mine.rounds, other.rounds, strict=True):
                counts = one.counts or (len(one.cohort), one.uploaded.sum())
                assert counts == (len(same.cohort), same.uploaded.sum())
                assert one.signal == pytest.approx(same.signal, rel=1e-4, abs=1e-5)
                assert (one.accuracy is None) == (same.accuracy is None)
    assert len({played.rounds[0].cohort.size for played in wanted}) > 2


def test_what_cannot_be_played_together_is_played_alone(simulator, monkeypatch):
    """Public weights are an array for each setting. On a CPU, everything is played alone."""
    weights = tuple(np.linspace(1, 3, 24) / np.linspace(1, 3, 24).sum())
    weighted = replace(PLAN, rule="weights", estimator="weighted", weights=weights)
    given = [Setting(weighted, Randomness.seeded(seed)) for seed in (5, 6)]
    assert list(sweep._groups(simulator, given, GRADIENT, 8)) == [[0], [1]]
    assert list(sweep._groups(simulator, settings()[:4], GRADIENT, None)) == [[0], [1], [2], [3]]
    monkeypatch.setattr(simulator, "on_cpu", False)
    assert list(sweep._groups(simulator, settings()[:4], GRADIENT, None)) == [[0, 1, 2, 3]]


def test_a_model_of_which_memory_holds_one_is_played_alone(simulator, monkeypatch):
    """On a GPU, too large to share a program: a group of one has no axis of settings."""
    given = settings()[:2]
    wanted = play_sweep(simulator, given, GRADIENT, SERVER, evaluate_every=4)
    monkeypatch.setattr("locksfl.simulate.simulator.SMALL_MODEL", 0)
    gpu = Simulator(simulator.population, simulator.model)
    monkeypatch.setattr(gpu, "on_cpu", False)
    found = play_sweep(gpu, given, GRADIENT, SERVER, evaluate_every=4, at_once=1, brief=True)
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.weights, other.weights, rtol=1e-4, atol=1e-5)
