"""The accountant for training loops that are not ours."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from locksfl.methods.events import Sampled
from locksfl.privacy import Meter, epsilon_from_mu
from locksfl.privacy.accountant import epsilon_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_training_loop.py"
STEP = {"noise_multiplier": 1.1, "sampling_rate": 0.02}


def test_steps_cost_what_rounds_cost():
    meter = Meter(delta=1e-5, accountant="rdp")
    for _ in range(30):
        meter.step(**STEP)
    meter.step(noise_multiplier=np.float32(2), sampling_rate=0.5, steps=5)
    rounds = [(Sampled(0.02, 1.1), 30), (Sampled(0.5, 2.0), 5)]
    assert meter.epsilon() == epsilon_of(rounds, 1e-5, accountant="rdp").epsilon
    assert meter.steps == 35
    # 30 steps alone cost less, so the other five were charged
    assert meter.epsilon() > 1.5 * epsilon_of(rounds[:1], 1e-5, accountant="rdp").epsilon


def test_a_full_batch_is_the_gaussian_mechanism():
    """Rate 1: mu = sqrt(steps) / z, twice that under replace, and epsilon is known exactly."""
    for relation, sensitivity in (("zero-out", 1), ("replace", 2)):
        meter = Meter(1e-5, relation)
        meter.step(noise_multiplier=8.0, sampling_rate=1.0, steps=16)
        exact = epsilon_from_mu(sensitivity * 0.5, 1e-5)
        assert exact <= meter.epsilon() <= (1.02 if sensitivity == 1 else 2.1) * exact


def test_a_limit_is_asked_for_before_a_step_and_costs_nothing():
    meter = Meter(1e-5, accountant="rdp")
    while meter.allows(2.0, **STEP, steps=50):
        meter.step(**STEP, steps=50)
    assert meter.steps > 0
    assert meter.epsilon() <= 2.0
    meter.step(**STEP, steps=50)
    assert meter.epsilon() > 2.0


def test_no_steps_cost_nothing_and_no_noise_everything():
    meter = Meter(1e-5)
    assert (meter.epsilon(), meter.steps) == (0.0, 0)
    assert not meter.allows(1e9, noise_multiplier=0.0, sampling_rate=0.1)
    meter.step(noise_multiplier=0, sampling_rate=0.1)
    meter.step(**STEP)
    assert meter.epsilon() == math.inf


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"noise_multiplier": -1.0, "sampling_rate": 0.1}, "noise_multiplier = -1.0"),
        ({"noise_multiplier": math.nan, "sampling_rate": 0.1}, "noise_multiplier = nan"),
        ({"noise_multiplier": 1.0, "sampling_rate": 1.5}, "sampling_rate = 1.5"),
        ({**STEP, "steps": 2.5}, "steps = 2.5"),
    ],
)
def test_wrong_numbers_are_refused(given, expected):
    meter = Meter(1e-5)
    with pytest.raises(ValueError, match=expected):
        meter.step(**given)
    assert meter.steps == 0
    with pytest.raises(ValueError, match="delta = 2"):
        Meter(2)


def test_the_example_for_other_loops_spends_what_it_planned(capsys):
    spent = runpy.run_path(str(EXAMPLE))["main"]()
    assert 2.99 < spent <= 3.0
    assert "accuracy 0.9" in capsys.readouterr().out
