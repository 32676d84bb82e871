"""The loss of each task: its values, its gradients, and what the round makes of them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec import structs

from locksfl import Task
from locksfl.models.build import Model, mlp, softmax, with_task
from locksfl.models.losses import errors, losses
from locksfl.round.client import Chunk, LocalWork, Records, Visit, combine, gradient_update, measure
from locksfl.round.facts import Visited, measure_facts

SQUARED = Task.numbers(low=[0, -2], high=[10, 2])
HUBER = structs.replace(SQUARED, loss="huber")
TASKS = {"squared": SQUARED, "huber": HUBER, "tags": Task("tags"), "classes": Task()}
RNG = np.random.default_rng(1)
SCORES = RNG.normal(size=(5, 2)) * 2
NUMBERS = np.c_[RNG.uniform(0, 10, 5), RNG.uniform(-2, 2, 5)]
LABELS = {
    "squared": NUMBERS,
    "huber": NUMBERS,
    "tags": RNG.integers(0, 2, (5, 2)),
    "classes": RNG.integers(0, 2, 5),
}


def by_hand(name, scores, labels):
    """One value per record, in NumPy alone."""
    if name == "tags":
        chance = 1 / (1 + np.exp(-scores))
        return -np.log(np.where(labels == 1, chance, 1 - chance)).mean(axis=1)
    if name == "classes":
        chance = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return -np.log(chance[np.arange(len(labels)), labels])
    off = scores - (labels - [5, 0]) / [5, 2]
    if name == "squared":
        return (off**2 / 2).mean(axis=1)
    return np.where(np.abs(off) <= 1, off**2 / 2, np.abs(off) - 0.5).mean(axis=1)


def of(name, build=softmax, **options) -> Model:
    return replace(build(3, 2, **options), task=TASKS[name])


@pytest.mark.parametrize("name", TASKS)
def test_values_and_derivatives(name):
    model, labels = of(name), jnp.asarray(LABELS[name])
    found = losses(model, jnp.asarray(SCORES), labels)
    np.testing.assert_allclose(found, by_hand(name, SCORES, LABELS[name]), rtol=1e-5)
    slopes = errors(model, jnp.asarray(SCORES, jnp.float32), labels)
    for output in range(2):
        step = 1e-6 * np.eye(2)[output]
        up, down = (by_hand(name, SCORES + sign * step, LABELS[name]) for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, output], (up - down) / 2e-6, rtol=1e-4, atol=1e-6)


def chunk_of(sizes, features, labels):
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    arrays = [jnp.asarray(a) for a in (features, labels, starts, sizes)]
    rows = np.minimum(starts[:, None] + np.arange(max(sizes)), len(features) - 1)
    used = np.arange(max(sizes)) < np.array(sizes)[:, None]
    keys = jax.random.split(jax.random.key(0), len(sizes))
    return Records(*arrays, jnp.float32(1)), Chunk(jnp.asarray(rows), jnp.asarray(used), keys)


@pytest.mark.parametrize("name", ["squared", "huber", "tags"])
@pytest.mark.parametrize("build", [softmax, mlp])
def test_a_round_follows_the_loss_of_its_task(name, build):
    """The dense path, which forms no gradient, agrees with gradients, and both with differences of
    the loss by hand; the fact "loss" is that loss."""
    sizes = [2, 3]
    features = RNG.normal(size=(5, 3)).astype(np.float32)
    labels = LABELS[name].astype(np.int32 if name == "tags" else np.float32)
    model = of(name, build, **({"hidden": (4,)} if build is mlp else {}))
    weights = model.init(jax.random.key(0)) + 0.3 * jax.random.normal(
        jax.random.key(1), (model.size,)
    )
    records, chunk = chunk_of(sizes, features, labels)
    exact = np.asarray(gradient_update(model, weights, records, chunk))
    visit: Visit = measure(model, weights, records, chunk, LocalWork())
    np.testing.assert_allclose(visit.norms, np.linalg.norm(exact, axis=1), rtol=1e-4)
    one = combine(visit.trace, jnp.array([1.0, -2.0]))
    np.testing.assert_allclose(one, exact[0] - 2 * exact[1], rtol=1e-4, atol=1e-6)

    def loss(flat):
        scores = np.asarray(model.apply(model.unravel(jnp.asarray(flat, jnp.float32)), features))
        return by_hand(name, scores.astype(float), labels)

    seen = Visited(model, weights, records, chunk, LocalWork(), visit, jnp.zeros(model.size))
    here = loss(weights)
    np.testing.assert_allclose(
        measure_facts(("loss",), seen)["loss"], [here[:2].mean(), here[2:].mean()], rtol=1e-5
    )
    along = RNG.normal(size=model.size)
    up, down = (loss(weights + sign * 1e-3 * along) for sign in (1, -1))
    slope = (up - down) / 2e-3
    wanted = [slope[:2].mean(), slope[2:].mean()]
    np.testing.assert_allclose(exact @ along, wanted, rtol=1e-2, atol=3e-3)


def test_a_compiled_round_belongs_to_one_model_and_task():
    model = softmax(4, 2)
    assert with_task(model, Task()) is model
    assert with_task(model, SQUARED).task == SQUARED
    assert with_task(model, SQUARED) is with_task(model, structs.replace(HUBER, loss="squared"))
