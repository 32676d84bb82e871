"""Held-out records on the devices, and the score of a model on them: what every round logs.

The score is larger for a better model: accuracy for classes, the share of right yes or no for tags,
R^2 for numbers. All other metrics are computed once, at the end (`experiment.metrics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.data.population import Population
from locksfl.data.task import Task
from locksfl.models.build import Model
from locksfl.models.losses import losses


class TestData(NamedTuple):
    """Held-out records that belong to no client, split over the devices. Padding has no label
    (`Task.filler`), nor have some positions of a sequence."""

    features: Any  # [batches, rows, ...], as they are stored
    labels: Any  # [batches, rows, ...]
    scale: Any  # what stored features are multiplied by
    means: Any = None  # of numbers, [targets]: their means, and ...
    shares: Any = None  # ... 1 / the sum of squares around them


def in_batches(array: np.ndarray, filler: float, rows: int, multiple: int = 1) -> np.ndarray:
    """Records as [batches, rows, ...], filled up to a multiple of so many batches."""
    batches = -(-len(array) // (rows * multiple)) * multiple
    missing = [(0, batches * rows - len(array)), *[(0, 0)] * (array.ndim - 1)]
    filled = np.pad(array, missing, constant_values=filler)
    return filled.reshape(batches, rows, *array.shape[1:])


def held_out(population: Population, rows: int, multiple: int = 1) -> TestData:
    """A population's held-out records as a block takes them, on the host."""
    labels, task = population.test_labels, population.task
    tests = TestData(
        in_batches(population.test_features, 0, rows, multiple),
        in_batches(labels, task.filler, rows, multiple),
        np.float32(population.scale),
    )
    if task.kind != "numbers":
        return tests
    means = labels.mean(axis=0, dtype=np.float64)
    squares = np.square(labels - means).sum(axis=0)
    shares = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    return tests._replace(means=np.float32(means), shares=np.float32(shares))


def evaluate(model: Model, weights: Array, test: TestData) -> tuple[Array, Array]:
    """Sums over this device's held-out records: (points, losses). A sequence has one answer per
    labelled position, and one loss."""
    unpacked, task = model.unravel(weights), model.task

    def one(batch: tuple[Array, Array]) -> tuple[Array, Array]:
        features, labels = batch
        features = features.astype(jnp.float32) * test.scale
        scores = model.apply(unpacked, features.reshape(features.shape[0], -1))
        there = task.there(labels)
        points = jnp.sum(jnp.where(there, _points(task, scores, labels, test), 0))
        if there.ndim == 2:
            return points, jnp.sum(losses(model, scores, labels))
        filled = jnp.maximum(labels, 0) if task.kind == "classes" else labels
        return points, jnp.sum(jnp.where(there, losses(model, scores, filled), 0.0))

    points, lost = jax.lax.map(one, (test.features, test.labels))
    return jnp.sum(points), jnp.sum(lost)


def _points(task: Task, scores: Array, labels: Array, test: TestData) -> Array:
    """What each answer adds to the score: 1 if it is right, its share of right tags, or the share
    of the variance of numbers that it explains, so that all of them sum to R^2."""
    if task.kind == "classes":
        return jnp.argmax(scores, axis=-1) == labels
    if task.kind == "tags":
        return jnp.mean((scores > 0) == (labels > 0), axis=-1, dtype=jnp.float32)
    center, spread = (jnp.asarray(values, jnp.float32) for values in (task.center, task.spread))
    explained = jnp.square(labels - test.means) - jnp.square(labels - center - scores * spread)
    return jnp.mean(explained * test.shares, axis=-1)


def answers_of(task: Task, labels: Array, total: Callable[[Array], Array]) -> tuple[Any, Array]:
    """What the sums of `evaluate` are divided by to be the score and the mean loss."""
    there = task.there(labels)  # [batches, rows], or [batches, rows, L]
    answers = total(there)
    tests = answers if there.ndim == 2 else total(jnp.any(there, axis=-1))
    return (1 if task.score == "r2" else answers), tests
