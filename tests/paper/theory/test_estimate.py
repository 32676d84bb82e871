"""The constants of a run: against the reference's gradients, and its path against the run's own."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import ragged
from locksfl import load
from locksfl.arm import Arm
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.models.build import mlp, softmax
from locksfl.paper.theory import estimate
from locksfl.paper.theory.estimate import Estimates, bounds_by_round, dissimilarity, study
from locksfl.paper.theory.observe import Observer
from locksfl.round.client import LocalWork
from locksfl.simulate.simulator import Simulator
from small_runs import QUICK, quick, shared

FEATURES, CLASSES = 6, 3
SIZES = [4, 9, 5, 12, 3]


def clients_of(population):
    for i in range(population.clients):
        features, labels = population.client(i)
        yield features.reshape(len(labels), -1).astype(float) * population.scale, labels


def dials(clip_norm):
    return Arm("", 2, 1, cohort=1, clip_norm=clip_norm).dials()


def task(hidden=()):
    population = ragged(SIZES)
    model = mlp(FEATURES, CLASSES, hidden) if hidden else softmax(FEATURES, CLASSES)
    widths = (FEATURES, *hidden, CLASSES)
    flat = np.random.default_rng(2).normal(size=model.size) * 0.5
    return population, model, widths, flat


@pytest.mark.parametrize("hidden", [(), (5,)], ids=["softmax", "mlp"])
def test_a_look_is_the_reference(hidden):
    """Loss, gradients, spread of clients and of samples, and what clipping takes, in NumPy."""
    population, model, widths, flat = task(hidden)
    observer = Observer(Simulator(population, model), LocalWork())
    weights = jnp.asarray(flat, jnp.float32)
    clip = 0.7
    look = observer.look(weights, dials(clip), jax.random.key(0))
    gradients, losses, spreads = [], [], []
    for x, y in clients_of(population):
        gradients.append(reference.gradient(flat, widths, x, y))
        losses.append(reference.mean_loss(flat, widths, x, y))
        each = [reference.gradient(flat, widths, x[[k]], y[[k]]) for k in range(len(y))]
        spreads.append(np.mean([np.sum((g - gradients[-1]) ** 2) for g in each]))
    gradients = np.array(gradients)
    lengths = np.linalg.norm(gradients, axis=1)
    clipped = gradients / np.maximum(1, lengths / clip)[:, None]
    mean = gradients.mean(axis=0)
    assert (lengths > clip).any()
    assert look.loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert look.gradient == pytest.approx(mean @ mean, rel=1e-3)
    assert look.mean_client == pytest.approx(np.mean(lengths**2), rel=1e-3)
    assert look.worst_client == pytest.approx(np.max(lengths**2), rel=1e-3)
    bias = mean - clipped.mean(axis=0)
    assert look.bias == pytest.approx(bias @ bias, rel=1e-3)
    assert look.worst_bias == pytest.approx(np.max(np.sum((gradients - clipped) ** 2, 1)), rel=1e-3)
    assert observer.sample_spread(weights) == pytest.approx(math.sqrt(max(spreads)), rel=1e-3)


@pytest.mark.parametrize("hidden", [(), (5,)], ids=["softmax", "mlp"])
def test_the_smoothness_is_the_hessians(hidden):
    """Power iteration finds the largest eigenvalue in size, from below; softmax's known L is above
    it at every w, and is the Hessian's own bound."""
    population, model, _, flat = task(hidden)
    observer = Observer(Simulator(population, model), LocalWork())

    def loss(w):
        total = 0.0
        for x, y in clients_of(population):
            scores = model.apply(model.unravel(w), jnp.asarray(x, jnp.float32))
            right = scores[jnp.arange(len(y)), y]
            total += jnp.mean(jax.nn.logsumexp(scores, axis=1) - right) / population.clients
        return total

    hessian = jax.jit(jax.hessian(loss))
    for scale in (0.0, 1.0, 3.0):
        w = jnp.asarray(scale * flat, jnp.float32)
        top = np.abs(np.linalg.eigvalsh(np.asarray(hessian(w)))).max()
        seen = observer.smoothness(w)
        assert 0.98 * top <= seen <= 1.001 * top
        if not hidden:
            assert seen <= observer.known_smoothness()
    if hidden:
        assert observer.known_smoothness() is None
    else:
        rows = [np.c_[x, np.ones(len(x))] for x, _ in clients_of(population)]
        moment = np.mean([x.T @ x / len(x) for x in rows], axis=0)
        assert observer.known_smoothness() == pytest.approx(np.linalg.eigvalsh(moment)[-1] / 2)


def test_random_updates_count_as_bias():
    """Subsampled or drifting clients: the update that a round would have, not the gradient."""
    population, model, _, flat = task()
    weights, key = jnp.asarray(flat, jnp.float32), jax.random.key(1)
    whole = Observer(Simulator(population, model), LocalWork())
    assert whole.exact
    assert whole.look(weights, dials(1e6), key).bias == pytest.approx(0, abs=1e-9)
    for work in (LocalWork(max_samples=2), LocalWork("epochs", epochs=3, batch=2, step=0.1)):
        observer = Observer(Simulator(population, model), work)
        assert not observer.exact
        look = observer.look(weights, dials(1e6), key)
        assert look.bias > 1e-4
        assert look.gradient == pytest.approx(
            whole.look(weights, dials(1e6), key).gradient, rel=1e-4
        )


def test_an_update_of_local_epochs_is_so_many_gradients():
    """Three local steps of .0001 are .0003 gradients: but for the drift nothing is left of the
    bias, which was all of the gradient. Clients with more steps than others count more: bias."""
    population, model, _, flat = task()
    weights, key = jnp.asarray(flat, jnp.float32), jax.random.key(1)
    work = LocalWork("epochs", epochs=3, batch=16, step=1e-4)
    observer = Observer(Simulator(population, model), work)
    assert observer.scale == pytest.approx(3e-4)
    look = observer.look(weights, dials(1e6), key)
    assert look.bias < 1e-4 * look.gradient
    uneven = dataclasses.replace(work, batch=2)
    observer = Observer(Simulator(population, model), uneven)
    assert observer.scale == pytest.approx(3e-4 * np.mean([2, 5, 3, 6, 2]))
    assert observer.look(weights, dials(1e6), key).bias > 1e-3 * look.gradient
    by_size = LocalWork(weight="size", reference_samples=10)
    assert Observer(Simulator(population, model), by_size).scale == np.mean(SIZES) / 10


def test_dissimilarity_is_the_lowest_line_above():
    x = np.array([0.0, 1.0, 2.0, 4.0])
    a, spread = dissimilarity(x, 3 * x + 2)
    assert (a**2 + 1, spread**2) == pytest.approx((3, 2), rel=1e-6)
    noisy = 3 * x + 2 - np.array([0.5, 0, 0.3, 0.7])
    a, spread = dissimilarity(x, noisy)
    assert ((a**2 + 1) * x + spread**2 >= noisy - 1e-9).all()
    assert dissimilarity(x, 0.5 * x)[0] == 0  # A^2 is never negative


def test_the_path_is_the_runs_own():
    """Played again round by round, an arm comes to the weights that its run saved."""
    run = quick()
    config = parse_config((run / "config.toml").read_text("utf-8"))
    with shared():
        population, model = experiment.open_task(config)
        simulator = Simulator(population, model)
    arm = experiment.plan_arms(config)[0]
    server = experiment.server_for(config.train, arm.rounds)
    randomness = experiment.Randomness.seeded(config.seed)
    work = config.local.work()
    weights = list(estimate.path(simulator, arm, work, server, randomness))
    assert len(weights) == arm.rounds + 1
    saved = load(run / "model-locks.npz").weights
    np.testing.assert_array_equal(np.asarray(weights[-1]), saved)
    assert not np.array_equal(weights[-2], saved)


SMALL = """
name = "still"
[data]
clients = 8
split = { kind = "iid" }
max_samples = 20
[train]
rounds = 6
clip_norm = 3.0
optimizer = { name = "sgd", step = 0.02, schedule = "inverse-sqrt" }
[privacy]
trust = "none"
[[arm]]
name = "uniform"
cohort = 4
[[arm]]
name = "literal"
rule = "norm"
estimator = "literal"
cohort = 4
uploads = 2
"""


KINDS = ("gradient", "epochs")


def looked(changes=(), **options):
    return study(parse_config(SMALL, changes, 0), looks=2, **options)


def test_a_run_lies_under_its_corrected_bound():
    """After every number of rounds, with L known: what is drawn. It is marked as no release."""
    seen = looked(seeds=2)
    assert seen.gradient.shape == (2, 6)
    assert seen.estimates.smoothness == seen.estimates.smoothness_known
    assert seen.estimates.smoothness_seen < seen.estimates.smoothness_known
    assert (seen.weighted() <= np.array(seen.corrected)).all()
    told = seen.as_dict()
    assert "released to nobody" in told["note"]
    assert (told["estimates"]["fewest_samples"], told["estimates"]["most_samples"]) == (20, 20)
    assert told["estimates"]["gap"] == pytest.approx(math.log(10), rel=1e-5)


def bounded(changes=(), arm=0):
    """The bounds that a study would draw, of made-up estimates with L = 1."""
    config = parse_config(SMALL, changes, 0)
    planned = experiment.plan_arms(config)[arm]
    made_up = Estimates(0.9, 1.0, 2.3, 1.0, 1.0, 0.5, 1.0, 0.5, 2.0, 0.1, 0.2, 20, 20, 7850)
    work, server = config.local.work(), experiment.server_for(config.train)
    return bounds_by_round(made_up, planned, server, work, exact=True)


def test_where_there_is_no_bound_it_says_why():
    bounds, reasons = bounded()
    assert not reasons
    assert [len(values) for values in bounds.values()] == [6, 6]
    assert math.isnan(bounds["printed"][0])  # alpha_kappa is 0 after one round
    steep = bounded(["train.optimizer.step=5.0"])[1]
    assert "L eta_b = 5, expected at most 1: eta_b at most 0.9999 works" in steep["corrected"]
    assert "does not average to the mean update" in bounded(arm=1)[1]["corrected"]
    constant, reasons = bounded(["train.optimizer.schedule=constant"])
    assert constant["corrected"] is not None
    assert "'inverse-sqrt'" in reasons["printed"]
    assert "the bound is for sgd" in bounded(["train.optimizer.name=adam"])[1]["corrected"]
    noised = [
        "privacy.trust=local", "arm.uniform.rule=norm", "arm.uniform.noise_multiplier=1.0",
        "arm.uniform.norm_multiplier=1.0", "arm.literal.noise_multiplier=1.0",
        "arm.literal.norm_multiplier=1.0", "arm.literal.floor=0.0",
    ]  # fmt: skip
    assert "shrinks the mean" in bounded(noised)[1]["corrected"]
    assert "does not average" in bounded(noised, arm=1)[1]["corrected"]  # no floor, as printed


def test_how_gradients_differ_does_not_bound_updates_of_local_epochs():
    """sigma_G is small beside C here, and would give the smaller bound: with gradients it does."""
    wide = ["train.clip_norm=1000.0"]
    by_gradient, by_epochs = (
        bounded([*wide, f"local.update={kind}"])[0]["corrected"][-1] for kind in KINDS
    )
    assert by_gradient < by_epochs


def test_the_bound_says_something_about_local_epochs():
    """Below the first gradient, and above what was measured. The server's step of 10 is .05 in
    gradients; taken as it is, there would be no bound."""
    epochs = ["local.update=epochs", "local.epochs=5", "local.batch=20", "local.step=0.001"]
    server = ["train.rounds=150", "train.optimizer.schedule=constant", "train.optimizer.step=10.0"]
    seen = looked([*epochs, *server, "train.clip_norm=0.0075", "arm.uniform.cohort=8"])
    assert seen.estimates.scale == pytest.approx(0.005)
    assert seen.weighted()[0, -1] < seen.corrected[-1] < seen.gradient[0, 0]


def test_what_cannot_be_studied_is_refused():
    config = parse_config(QUICK, (), None)
    with pytest.raises(ValueError, match="seed is missing"):
        study(config)
    with pytest.raises(ValueError, match="--arm 'x': expected one of locks"):
        study(dataclasses.replace(config, seed=1), name="x")
