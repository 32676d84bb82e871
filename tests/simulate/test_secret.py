"""Runs without a seed: the round of the reference, in whole numbers, from one client's own data."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import JOINT, SOUND, arm_for, ragged
from locksfl.data.population import Population
from locksfl.methods import TRUSTS, Method
from locksfl.models.build import build_model, from_equinox, mlp, softmax
from locksfl.privacy import calibrate
from locksfl.round import exact
from locksfl.round.client import LocalWork
from locksfl.round.draws import draw_secret, grid_of
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate import simulator as simulate
from locksfl.simulate.layout import public_classes
from locksfl.simulate.simulator import Simulator

CLIENTS = 24
SIZES = np.tile([1, 2, 7, 9, 12, 30], 4)
GRADIENT = LocalWork(min_samples=2, max_samples=12)
EPOCHS = LocalWork("epochs", epochs=2, batch=5, step=0.3, min_samples=2, max_samples=12)
SECRET = Randomness(987654321, simulated=False)
WEIGHTS = np.linspace(1, 3, CLIENTS)
USUAL = {
    "clients": CLIENTS,
    "rounds": 3,
    "cohort": 12.0,
    "uploads": 5.0,
    "clip_norm": 0.6,
    "step": 0.7,
    "floor": 0.2,
    "norm_low": 0.5,
    "weights": tuple(WEIGHTS / WEIGHTS.sum()),
    "noise_multiplier": 0.3,
    "norm_multiplier": 0.6,
}
PRIVATE = [method for method in SOUND + JOINT if TRUSTS[method.trust].private]


def play(simulator, arm, work=GRADIENT, randomness=SECRET, **options):
    rounds, state = [], None
    for done in simulator.play(arm, work, Server(rounds=arm.rounds), randomness, **options):
        rounds += done.rounds
        state = jax.tree.map(np.asarray, done.state)
    return rounds, state


@pytest.fixture(scope="module")
def simulators():
    return {
        "mlp": Simulator(ragged(SIZES), mlp(6, 3, (16,))),
        "softmax": Simulator(ragged(SIZES), softmax(6, 3)),
    }


LOCKS = [Method("norm", "capped", trust) for trust in ("central", "local")]


@pytest.mark.parametrize(
    ("mode", "method"),
    [("epochs", method) for method in PRIVATE] + [("gradient", method) for method in LOCKS],
    ids=str,
)
def test_every_round_is_the_reference_within_the_grid(simulators, method, mode):
    """All private methods from the same draws, and nothing is told that was not released."""
    name = "mlp" if mode == "gradient" else "softmax"
    work, widths = (GRADIENT, (6, 16, 3)) if mode == "gradient" else (EPOCHS, (6, 3))
    simulator, arm = simulators[name], arm_for(method, USUAL)
    rounds, state = play(simulator, arm, work)
    first = np.asarray(simulator.model.init(SECRET.model_key()))
    expected, _, steps = reference.play(
        arm, work, Server(rounds=3), widths, first, simulator.population, SECRET
    )
    close = {"rtol": 4e-4, "atol": 2e-5}
    for found, wanted in zip(rounds, expected, strict=True):
        np.testing.assert_allclose(found.released_norm_sum, wanted.released, **close)
        np.testing.assert_allclose(found.used_norm_sum, wanted.used, **close)
        np.testing.assert_allclose(found.noise, wanted.noise, **close)
        assert found.released_count == (None if wanted.count is None else round(wanted.count))
        assert found.norms is None
        assert np.isnan(found.signal)
        assert np.isnan(found.expected_weight)
        if TRUSTS[method.trust].guards_server:
            np.testing.assert_array_equal(found.cohort, wanted.cohort)
            np.testing.assert_array_equal(found.uploaded, wanted.uploaded)
        else:
            assert found.cohort is None
            assert found.uploaded is None
    np.testing.assert_allclose(state.weights, steps.flat, **close)


@pytest.mark.parametrize("rule", ["uniform", "norm"])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_one_length_and_weights_by_size_are_the_reference(simulators, rule, trust):
    simulator, work = simulators["softmax"], replace(GRADIENT, weight="size", reference_samples=5)
    arm = arm_for(Method(rule, "capped", trust), USUAL | {"lengths": "equal"})
    if rule == "norm":  # where lengths differ, so that the weights are seen
        arm = replace(arm, lengths="clipped")
    _, state = play(simulator, arm, work)
    first = np.asarray(simulator.model.init(SECRET.model_key()))
    others = {"equal": "clipped", "clipped": "equal"}
    wanted = [
        reference.play(one, work, Server(rounds=3), (6, 3), first, simulator.population, SECRET)[
            2
        ].flat
        for one in (arm, replace(arm, lengths=others[arm.lengths]))
    ]
    np.testing.assert_allclose(state.weights, wanted[0], rtol=4e-4, atol=2e-5)
    assert not np.allclose(state.weights, wanted[1], rtol=4e-4, atol=2e-5)


@pytest.mark.parametrize("source", [SECRET, Randomness.seeded(4)], ids=["no seed", "seed"])
def test_rates_follow_the_counts_as_in_the_reference(simulators, source):
    """The cohort, the noise and the model of every round under rate control."""
    method = Method("coin", "capped", "central")
    plain = arm_for(method, USUAL, uploads=4.0, cohort=20.0, rounds=6, noise_multiplier=0.0)
    arm = calibrate(plain.changed(norm_multiplier=0.0), 400.0, 1e-2)
    simulator = simulators["softmax"]
    rounds, state = play(simulator, arm, EPOCHS, source)
    first = np.asarray(simulator.model.init(source.model_key()))
    expected, _, steps = reference.play(
        arm, EPOCHS, Server(rounds=6), (6, 3), first, simulator.population, source
    )
    for found, wanted in zip(rounds, expected, strict=True):
        assert found.released_count == pytest.approx(wanted.count, abs=1e-3)
        np.testing.assert_allclose(found.noise, wanted.noise, rtol=4e-4)
    assert len({found.expected_cohort for found in rounds}) > 2
    np.testing.assert_allclose(state.weights, steps.flat, rtol=4e-4, atol=2e-5)


def test_blocks_devices_and_resumes_change_nothing(simulators):
    """To the last bit: whole numbers are the same in any order."""
    arm = arm_for(Method("norm", "capped", "central"), USUAL | {"rounds": 5})
    simulator = simulators["mlp"]
    _, whole = play(simulator, arm)
    _, paused = play(simulator, arm, pause_every=1)
    np.testing.assert_array_equal(whole.weights, paused.weights)
    server, state = Server(rounds=5), None
    for done in simulator.play(arm, GRADIENT, server, SECRET, pause_every=2):
        state = done.state
        break
    *_, last = simulator.play(
        arm, GRADIENT, server, SECRET, state=state, first_round=len(done.rounds)
    )
    np.testing.assert_array_equal(whole.weights, np.asarray(last.state.weights))


def test_computing_again_is_keeping(simulators, monkeypatch):
    """To the last bit, and public numbers alone decide which it is."""
    arm = arm_for(Method("norm", "capped", "central"), USUAL)
    for name, work in (("mlp", GRADIENT), ("softmax", EPOCHS)):
        simulator = simulators[name]
        _, kept = play(simulator, arm, work)
        monkeypatch.setattr(simulate, "KEEP_BYTES", 0)
        _, again = play(Simulator(simulator.population, simulator.model), arm, work)
        monkeypatch.undo()
        np.testing.assert_array_equal(kept.weights, again.weights)


# --- The sum is one of whole numbers, and each is its client's own --------------------


SEEN: list = []  # every noised sum that a round releases, as integers


@pytest.fixture(autouse=True, scope="module")
def released_numbers():
    def value(self):
        if self.high.ndim:
            jax.debug.callback(
                lambda high, low: SEEN.append(np.asarray(high, np.int64) * 2**16 + low),
                self.high,
                self.low,
            )
        return self.high * 65536.0 + self.low

    with mock.patch.object(exact.Words, "value", property(value)):
        yield


def sums(simulator, arm, work=GRADIENT, randomness=SECRET):
    """For each round, the exact sum before the noise: from one first model, with one set of
    clients' own draws, whatever the source of coins and noise."""
    SEEN.clear()
    same = dict.fromkeys(("model_key", "arm_key"), mock.Mock(return_value=SECRET.model_key()))
    with mock.patch.multiple(Randomness, **same):
        play(simulator, arm, work, randomness)
    jax.effects_barrier()
    rounds = SEEN[:: simulator.mesh.size]
    assert len(rounds) == arm.rounds
    size = simulator.model.size
    noise = (draw_secret(randomness, arm, t, size).update_noise for t in range(arm.rounds))
    return [
        total - drawn.reshape(-1, size).sum(axis=0, dtype=np.int64)
        for total, drawn in zip(rounds, noise, strict=True)
    ]


def broken(population: Population, clients) -> Population:
    """The population in which these clients' records are NaN: they contribute nothing."""
    features = population.features.copy()
    for client in clients:
        features[population.offsets[client] : population.offsets[client + 1]] = np.nan
    return replace(population, features=features)


def with_records(simulator, population):
    """The same compiled programs on other data."""
    simulator.records = simulator._records(population)
    simulator.population = population


class Unit(eqx.Module):
    """A model that is singular at zero: x / |x|, then a matrix."""

    matrix: jax.Array

    def __init__(self, key):
        self.matrix = jax.random.normal(key, (3, 6)) * 0.3

    def __call__(self, x):
        return self.matrix @ (x / jnp.sqrt(jnp.sum(x * x)))


MODELS = {
    "softmax": lambda: softmax(6, 3),
    "mlp": lambda: mlp(6, 3, (16,)),
    "unit": lambda: from_equinox("unit", Unit),
    "cnn": lambda: build_model("cnn", (8, 8, 1), 3, filters=(2, 3), dense=8),
}
PLAIN = USUAL | {"cohort": 12.0, "uploads": 12.0, "rounds": 4}


def population_for(name):
    rng = np.random.default_rng(3)
    shape = (8, 8, 1) if name == "cnn" else (6,)
    total = int(SIZES.sum())
    return Population.from_split(
        rng.normal(size=(total, *shape)).astype(np.float32),
        rng.integers(0, 3, total),
        np.repeat(np.arange(CLIENTS), SIZES),
        rng.normal(size=(9, *shape)).astype(np.float32),
        rng.integers(0, 3, 9),
        classes=3,
    )


def contributions(simulator, population, arm, work):
    """What each client contributes to the first round when all others contribute nothing."""
    alone = []
    for client in range(CLIENTS):
        with_records(simulator, broken(population, set(range(CLIENTS)) - {client}))
        alone.append(sums(simulator, arm, work)[0])
    with_records(simulator, population)
    return np.array(alone)


@pytest.mark.parametrize("mode", ["gradient", "epochs"])
@pytest.mark.parametrize("name", ["softmax", "unit", "cnn"])
def test_a_sum_is_that_of_each_client_alone_wherever_it_stands(name, mode):
    """Everybody's contribution alone, then the sums of random cohorts, in which a client stands in
    any slot of any device: equal as integers. A sum of floats in its place is not."""
    work = GRADIENT if mode == "gradient" else EPOCHS
    population = population_for(name)
    simulator = Simulator(population, MODELS[name]())
    everyone = arm_for(Method("full", "capped", "central"), PLAIN | {"rounds": 1})
    alone = contributions(simulator, population, everyone, work)
    assert (np.abs(alone).sum(axis=1) > 0).all()
    some = arm_for(Method("uniform", "capped", "central"), PLAIN | {"rounds": 1}, name="some")
    for seed in range(3):
        source = Randomness(seed, simulated=False)
        found = sums(simulator, some, work, source)[0]
        cohort = draw_secret(source, some, 0, 1).cohort
        np.testing.assert_array_equal(found, alone[cohort].sum(axis=0))


def test_a_float_sum_in_place_of_the_integer_one_is_seen():
    """The same check on a planted fault: sums of float32, which round what is above 2^24. Clients
    that agree bring about such sums."""
    rng = np.random.default_rng(4)
    features = (1 + 0.1 * rng.normal(size=(SIZES.sum(), 6))).astype(np.float32)
    population = replace(
        population_for("softmax"), features=features, labels=np.zeros(len(features), np.int32)
    )
    settings = PLAIN | {"rounds": 1, "noise_multiplier": 0.05}
    arm = arm_for(Method("full", "capped", "central"), settings)

    def floats(one, other):
        total = (one.high * 65536.0 + one.low) + (other.high * 65536.0 + other.low)
        high = jnp.floor(total / 65536.0)
        return exact.Words(high.astype(jnp.int32), (total - high * 65536.0).astype(jnp.int32))

    simulator = Simulator(population, softmax(6, 3))
    alone = contributions(simulator, population, arm, GRADIENT)
    truth = alone.sum(axis=0)
    assert np.abs(truth).max() > 2**24
    np.testing.assert_array_equal(sums(simulator, arm)[0], truth)
    with mock.patch.object(exact, "add", floats):
        wrong = sums(Simulator(population, softmax(6, 3)), arm)[0]
    assert (wrong != truth).any()


def test_messages_of_one_noise_are_added_as_whole_numbers_too():
    """PUBLIC is credited with everybody's noise, which is on the sum of the messages, and so on no
    other function of them: a sum of floats tells more, by how it was rounded."""
    population = population_for("softmax")
    simulator = Simulator(population, softmax(6, 3))
    arm = arm_for(Method("full", "capped", "local"), PLAIN | {"rounds": 1})
    assert arm.credited
    alone = contributions(simulator, population, replace(arm, trust="central"), GRADIENT)
    found = sums(simulator, arm)[0]
    np.testing.assert_array_equal(found, alone.sum(axis=0))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, "full", marks=pytest.mark.long if name in ("cnn", "unit") else ())
        for name in MODELS
    ]
    + [("mlp", rule) for rule in ("norm", "dpis")],
)
def test_one_client_s_size_changes_nothing_for_the_others(name, rule):
    """A client of 5 broken records, or of 7, or of 40: the sum of the others, to the last bit. The
    model that is singular at zero lost every padded client when padding was rows of zeros."""
    others, everyone = population_for(name), {"rounds": 1, "cohort": float(CLIENTS)}
    arm = arm_for(Method(rule, "capped", "central"), PLAIN | everyone)
    if rule == "dpis":
        arm = calibrate(arm.changed(noise_multiplier=0.0, norm_multiplier=0.0), 20.0, 1e-2)
        assert len(set(grid_of(arm).update)) > 2
    for work in (LocalWork(), EPOCHS):
        found = []
        for size in (5, 7, 40):
            sizes = SIZES.copy()
            sizes[2] = size
            owner = np.repeat(np.arange(CLIENTS), sizes)
            rows = np.full((owner.size, *others.features.shape[1:]), np.nan, np.float32)
            labels = np.zeros(owner.size, int)
            rows[owner != 2] = others.features[np.repeat(np.arange(CLIENTS), SIZES) != 2]
            labels[owner != 2] = others.labels[np.repeat(np.arange(CLIENTS), SIZES) != 2]
            population = Population.from_split(
                rows, labels, owner, others.test_features, others.test_labels, classes=3
            )
            found.append(sums(Simulator(population, MODELS[name]()), arm, work)[0])
        assert np.abs(found[0]).max() > 0
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.slow
def test_nor_where_programs_are_optimised():
    """The same as users run it: XLA then fuses and rounds as it likes."""
    case = f"{__file__}::{test_one_client_s_size_changes_nothing_for_the_others.__name__}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", case, "-k", "mlp"],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout


def test_shapes_are_public_constants():
    """A client's shape is a function of its own size: the same whoever else is there."""
    rng = np.random.default_rng(1)
    for work in (LocalWork(), GRADIENT, LocalWork(min_samples=3, max_samples=100)):
        for finely in (True, False):
            shape_of: dict = {}
            for _ in range(50):
                sizes = rng.integers(1, rng.integers(3, 2000), 30)
                classes, class_of = public_classes(sizes, work, finely)
                for size, number in zip(sizes.tolist(), class_of.tolist(), strict=True):
                    shape = classes[number]
                    assert shape_of.setdefault(size, shape) == shape
                    used = min(max(size, work.min_samples), work.max_samples or size)
                    assert used <= shape.rows
                    assert shape.rows <= (work.max_samples or 4 * used)
                    assert (size > used) == (shape.subsample_from >= size)
                    assert shape.repeats == (size < used)
