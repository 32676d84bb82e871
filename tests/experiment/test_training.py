"""The library call on a user's own arrays: it learns, says what it cost, and predicts."""

from __future__ import annotations

import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import locksfl
from locksfl import Model, OptimizerConfig, Population, train
from locksfl.experiment import training

CLASSES, WIDTH = 3, 6


def digits(samples, rng):
    """Three well separated clouds."""
    labels = rng.integers(0, CLASSES, samples)
    return (2.0 * np.eye(CLASSES, WIDTH)[labels] + 0.5 * rng.normal(size=(samples, WIDTH))), labels


@pytest.fixture(scope="module")
def population():
    rng = np.random.default_rng(0)
    x, y = digits(400, rng)
    users = [f"user-{k}" for k in rng.integers(0, 25, 400)]
    x_test, y_test = digits(200, rng)
    return Population.from_arrays(x, y, users, x_test, y_test, classes=CLASSES)


LEARNS = {
    "cohort": 12, "uploads": 6, "rounds": 20, "trust": "none", "seed": 1, "step": 2.0,
    "clip_norm": 2.0,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _share_compiled_rounds():
    """Trainings of one model on one population compile once."""
    real = training.Simulator
    with mock.patch.object(training, "Simulator", functools.cache(real)):
        yield


@pytest.fixture(scope="module")
def trained(population):
    return train(population, **LEARNS)


def test_it_learns_and_predicts(population, trained):
    assert trained.accuracy > 0.9  # chance is a third
    right = trained.predict(population.test_features) == population.test_labels
    assert right.mean() == pytest.approx(trained.accuracy)
    assert trained.scores(population.test_features[:4]).shape == (4, CLASSES)
    assert trained.weights.shape == (trained.model.size,) == ((WIDTH + 1) * CLASSES,)


def test_its_history_is_the_lines_of_a_run(trained):
    assert [record["round"] for record in trained.history] == list(range(1, 21))
    assert trained.history[-1]["accuracy"] == trained.accuracy
    for record in trained.history:
        size = trained.model.size
        assert record["bytes_up"] == 4 * (record["cohort"] + size * record["uploads"])
    assert any(record["uploads"] < record["cohort"] for record in trained.history)


def test_no_trust_is_said_to_protect_nobody(trained):
    assert {cost.observer for cost in trained.privacy} == {"SERVER", "PUBLIC"}
    assert all(cost.epsilon == math.inf for cost in trained.privacy)
    assert trained.simulated is True


def test_a_private_run_states_its_epsilon(population):
    seen = []
    result = train(
        population,
        cohort=12,
        uploads=6,
        rounds=3,
        epsilon=4.0,
        delta=1e-4,
        accountant="rdp",
        on_round=seen.append,
    )
    public = {c.relation: c.epsilon for c in result.privacy if c.observer == "PUBLIC"}
    assert 4.0 * (1 - 1e-3) <= public["zero-out"] <= 4.0 < public["replace"]
    assert all(c.epsilon == math.inf for c in result.privacy if c.observer == "SERVER")
    assert {c.delta for c in result.privacy} == {1e-4}
    assert seen == result.history
    assert seen[-1]["epsilon"] == pytest.approx(public["zero-out"])
    assert result.simulated is False  # no seed: nobody can repeat it


def test_a_seed_repeats_a_run(population, trained):
    options = {**LEARNS, "model": trained.model}
    again = train(population, **options)
    np.testing.assert_array_equal(again.weights, trained.weights)
    other = train(population, **{**options, "seed": 2})
    assert (other.weights != trained.weights).any()


def test_the_step_of_an_optimizer_counts(population, trained):
    """step= and OptimizerConfig(step=) are the same setting, and neither hides the other."""
    options = {"rule": "uniform", "cohort": 12, "rounds": 2, "trust": "none", "seed": 1}
    options["model"] = trained.model
    plain = train(population, step=0.25, **options)
    inside = train(population, optimizer=OptimizerConfig(step=0.25), **options)
    default = train(population, **options)
    np.testing.assert_array_equal(plain.weights, inside.weights)
    assert np.abs(default.weights).max() > 2 * np.abs(plain.weights).max()


def test_a_model_of_ones_own(population):
    """Anything that maps flat weights and records to scores can be trained."""

    def init(key):
        return 0.1 * jax.random.normal(key, (WIDTH * CLASSES,))

    mine = Model(
        "bilinear",
        WIDTH * CLASSES,
        init,
        lambda flat: flat.reshape(WIDTH, CLASSES),
        lambda weights, records: jnp.tanh(records) @ weights,
    )
    result = train(population, rule="full", model=mine, rounds=15, trust="none", seed=0, step=2.0)
    assert result.model is mine
    assert result.accuracy > 0.9
    assert all(record["cohort"] == record["uploads"] == 25 for record in result.history)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cohort": 30}, "cohort = 30: expected at most the 25 clients"),
        ({}, "cohort is missing"),
        ({"cohort": 5}, "noise_multiplier is missing"),
        ({"cohort": 5, "epsilon": -1}, "privacy.epsilon = -1"),
        ({"cohort": 5, "epsilon": 1, "trust": "locl"}, "did you mean 'local'"),
        ({"cohort": 5, "epsilon": 1, "clip_norm": 0}, "clip_norm = 0"),
        ({"cohort": 5, "epsilon": 1, "model": "cnn"}, "model.name = 'cnn': expected images"),
        ({"cohort": 5, "epsilon": 1, "seed": -3}, "seed = -3"),
    ],
)
def test_settings_are_refused_as_in_a_file(population, options, expected):
    with pytest.raises(ValueError, match=expected) as caught:
        train(population, **options)
    assert "\n" not in str(caught.value)


def test_the_package_offers_what_it_lists():
    assert all(getattr(locksfl, name) is not None for name in locksfl.__all__)
    with pytest.raises(AttributeError, match="trian"):
        _ = locksfl.trian
