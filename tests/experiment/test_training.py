"""The library call on a user's own arrays: it learns, says what it cost, and predicts."""

from __future__ import annotations

import dataclasses
import math
import pickle
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import locksfl
from locksfl import Model, OptimizerConfig, Population, load, train, train_many
from locksfl._arrays import unpack_arrays
from locksfl.methods import RULES
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total
from locksfl.simulate import cache
from locksfl.simulate.simulator import Simulator

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
    """As in a user's process, what is compiled once is compiled."""
    with mock.patch.dict("os.environ", {cache.VARIABLE: ""}):
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


def test_its_repr_shows_what_may_be_shown(trained):
    assert repr(trained) == "<Trained softmax: 21 weights, 20 rounds, epsilon ∞, simulated>"
    costs = [
        locksfl.privacy.Cost("SERVER", "zero-out", math.inf, 1e-5, "rdp"),
        locksfl.privacy.Cost("PUBLIC", "zero-out", 7.99123, 1e-5, "rdp"),
    ]
    private = dataclasses.replace(trained, privacy=costs, simulated=False)
    assert repr(private).endswith("20 rounds, epsilon 8.00 (PUBLIC, zero-out)>")  # rounded up


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


def compiled(monkeypatch):
    """Every program that is compiled from now on."""
    made, real = [], Simulator._lower
    monkeypatch.setattr(Simulator, "_lower", lambda *a: made.append(a[1]) or real(*a))
    return made


def test_a_second_training_compiles_nothing(population, trained, monkeypatch):
    """Another seed, step, clip norm or noise is an argument of the compiled round; so are data."""
    made = compiled(monkeypatch)
    again = train(population, **{**LEARNS, "seed": 5, "step": 1.0, "clip_norm": 3.0})
    assert again.model is trained.model
    assert made == []
    rng = np.random.default_rng(1)
    x, y = digits(400, rng)
    owners = np.repeat(np.arange(25), population.sizes)
    others = Population.from_arrays(x, y, owners, x[:200], y[:200], classes=CLASSES)
    train(others, **LEARNS)
    assert made == []
    train(population, **{**LEARNS, "rounds": 21})  # the count can fail: this is another program
    assert len(made) == 1


def test_a_rule_that_was_edited_is_compiled_anew(population, monkeypatch):
    """Its name is the same; with the old program it would be charged for another rule."""
    made = compiled(monkeypatch)
    settings = {**LEARNS, "rule": "uniform", "rounds": 2}
    settings = {name: value for name, value in settings.items() if name != "uploads"}
    train(population, **settings)
    before = len(made)
    train(population, **settings)
    assert len(made) == before  # the same rule: nothing new
    edited = dataclasses.replace(RULES["uniform"], probability=lambda *given: given[0] * 0 + 0.5)
    monkeypatch.setitem(RULES, "uniform", edited)
    train(population, **settings)
    assert len(made) == before + 1


def test_a_process_keeps_so_many_programs(monkeypatch):
    monkeypatch.setattr(cache, "_programs", type(cache._programs)())
    monkeypatch.setattr(cache, "MOST_PROGRAMS", 2)
    made = []
    for key in ("a", "b", "a", "c", "a", "b"):  # b was used least recently when c came
        found = cache.compiled_once({}, key, "cpu", lambda key=key: made.append(key) or key.upper())
        assert found == key.upper()
    assert made == ["a", "b", "c", "b"]
    with jax.default_matmul_precision("highest"):  # traced anew: products are others
        cache.compiled_once({}, "b", "cpu", lambda: made.append("precise b") or "B")
    assert made[-1] == "precise b"
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    used = {}
    for _ in range(2):  # a simulator keeps its own
        cache.compiled_once(used, "d", "cpu", lambda: made.append("d") or "D")
    cache.compiled_once({}, "d", "cpu", lambda: made.append("other d") or "D")
    assert made[-2:] == ["d", "other d"]
    assert cache._locks == {}


def test_many_trainings_are_those_one_by_one(population, trained):
    options = {**LEARNS, "rounds": 20}
    del options["seed"]
    one, two = train_many(population, seeds=[1, 2], **options)
    np.testing.assert_allclose(one.weights, trained.weights, rtol=1e-5, atol=1e-6)
    assert one.history == trained.history
    assert (two.weights != one.weights).any()
    private = {"cohort": 12, "rule": "uniform", "rounds": 3, "accountant": "rdp", "delta": 1e-4}
    found = train_many(population, seeds=[3, 4], epsilons=[2.0, 6.0], **private)
    costs = [
        next(c.epsilon for c in one.privacy if (c.observer, c.relation) == ("PUBLIC", "zero-out"))
        for one in found
    ]
    assert costs == pytest.approx([2.0, 2.0, 6.0, 6.0], rel=1e-3)
    assert [one.simulated for one in found] == [True] * 4
    alone = train(population, seed=4, epsilon=6.0, **private)
    np.testing.assert_allclose(found[3].weights, alone.weights, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected at least one of each"):
        train_many(population, seeds=[], **private)
    with pytest.raises(ValueError, match="on_round"):
        train_many(population, epsilons=[2.0], on_round=print, **private)


def test_many_secret_runs_are_debited_together_or_not_at_all(population, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    total = Total(10.0, 1e-4, "zero-out", order=4.0)
    PopulationJournal.make("people", total).close()
    private = {"cohort": 12, "rule": "uniform", "rounds": 2, "delta": 1e-4, "accountant": "rdp"}
    private |= {"population_id": "people"}
    with pytest.raises(ValueError, match=r"of the total \(epsilon 10"):
        train_many(population, epsilons=[2.0, 4.0, 30.0], **private)
    with PopulationJournal.find("people") as journal:
        assert journal.account()["runs"] == []
    found = train_many(population, epsilons=[0.5, 1.0], **private)
    assert [one.population_id for one in found] == ["people"] * 2
    with PopulationJournal.find("people") as journal:
        (run,) = journal.account()["runs"]
    assert run["arms"] == ["model-1", "model-2"]


def test_a_result_is_saved_loaded_and_pickled(population, trained, tmp_path):
    trained.save(tmp_path / "model.npz")
    for again in (load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(trained))):
        np.testing.assert_array_equal(
            again.predict(population.test_features), trained.predict(population.test_features)
        )
    assert pickle.loads(pickle.dumps(trained)).history == trained.history
    meta, _ = unpack_arrays(tmp_path / "model.npz")
    assert [cost["epsilon"] for cost in meta["privacy"]] == [None] * 4  # JSON has no infinity
    assert meta["simulated"] is True
    assert trained.history[-1]["epsilon"] == math.inf


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


@pytest.mark.parametrize("as_class", [False, True])
def test_a_model_of_another_library_is_refused_in_one_line(population, as_class):
    """Found alone here: an AttributeError from inside, of torch.nn.Linear(6, 3)."""

    class Linear:
        def __call__(self, records):
            return records

    expected = r"model = (Linear|type): expected one of softmax, .*, \"package.module:function\", "
    with pytest.raises(ValueError, match=expected) as caught:
        train(population, model=Linear if as_class else Linear(), cohort=5, epsilon=1)
    assert "\n" not in str(caught.value)


def test_the_package_offers_what_it_lists():
    assert all(getattr(locksfl, name) is not None for name in locksfl.__all__)
    with pytest.raises(AttributeError, match="trian"):
        _ = locksfl.trian


def test_arms_that_no_experiment_may_have_are_refused(population):
    """By the library, too, whose settings are read from no file."""
    local = locksfl.LocalConfig(weight="size", reference_samples=10)
    with pytest.raises(ValueError, match=r"local.weight = 'size': no effect with lengths"):
        train(population, rule="uniform", cohort=5, rounds=1, lengths="equal", local=local)
