"""A look at a model: losses, gradients and curvature over every client's data, exactly.

Only a simulation can do this. Clients are visited some at a time, so that memory stays bounded; all
records of a client count, whatever a round would use of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.data.population import Population
from locksfl.models.build import Model, records_at_once
from locksfl.round.algorithm import clip_factor
from locksfl.round.client import (
    Chunk,
    LocalWork,
    Records,
    SizeClass,
    choose_rows,
    epochs_update,
    gradient_update,
    mean_loss,
    measure,
    read,
    used_samples,
)
from locksfl.round.randomness import client_keys
from locksfl.simulate.layout import size_classes

FLOATS = 2**25  # what a chunk of clients may hold at a time
POWER_STEPS, POWER_TOLERANCE = 60, 1e-3
WHOLE = LocalWork()  # the mean gradient of all samples: grad f_i


class Look(NamedTuple):
    """What was seen of one w_t."""

    loss: float  # F
    gradient: float  # |grad F|^2
    mean_client: float  # mean |grad f_i|^2
    worst_client: float  # max |grad f_i|^2
    bias: float  # |grad F - mean g_i|^2
    worst_bias: float  # max |grad f_i - g_i|^2


class Observer:
    """A task that can be looked at, some clients at a time."""

    def __init__(self, population: Population, model: Model, work: LocalWork) -> None:
        self.population, self.model, self.work = population, model, work
        self.records = Records(
            features=jnp.asarray(population.features),
            labels=jnp.asarray(population.labels),
            starts=jnp.asarray(population.offsets[:-1].astype(np.int32)),
            sizes=jnp.asarray(population.sizes.astype(np.int32)),
            scale=jnp.float32(population.scale),
        )
        samples = population.samples  # every record as a client of its own
        ones = jnp.ones(samples, jnp.int32)
        self.alone = self.records._replace(starts=jnp.arange(samples, dtype=jnp.int32), sizes=ones)

    @property
    def exact(self) -> bool:
        """Whether every client's update is the gradient of all its records, in every round."""
        used = used_samples(self.population.sizes, self.work)
        return self.work.update == "gradient" and bool((used == self.population.sizes).all())

    def look(self, weights: Array, clip_norm: float, key: Array) -> Look:
        """Losses, gradients and what clipping takes, over all clients. `key` is for clients whose
        update is random; one draw of each is looked at."""
        n = self.population.clients
        mean, kept = jnp.zeros(self.model.size), jnp.zeros(self.model.size)
        losses, squares, biases = [], [], []
        task = (self.model, weights, self.records)
        for clients, whole, mine in self._groups(WHOLE, self.work):
            keys = client_keys(key, clients)
            loss, gradients = _gradients(*task, clients, keys, whole)
            updates = gradients
            if not self.exact:
                updates = _updates(*task, clients, keys, mine, self.work)
            updates = jnp.where(jnp.isfinite(updates), updates, 0.0)
            shrink = clip_factor(jnp.linalg.norm(updates, axis=1), jnp.float32(clip_norm))
            clipped = shrink[:, None] * updates
            mean += jnp.sum(gradients, axis=0) / n
            kept += jnp.sum(clipped, axis=0) / n
            losses.append(loss)
            squares.append(jnp.sum(gradients**2, axis=1))
            biases.append(jnp.sum((gradients - clipped) ** 2, axis=1))
        loss, square, bias = (np.concatenate(a).astype(float) for a in (losses, squares, biases))
        return Look(
            loss=float(loss.mean()),
            gradient=float(mean @ mean),
            mean_client=float(square.mean()),
            worst_client=float(square.max()),
            bias=float((mean - kept) @ (mean - kept)),
            worst_bias=float(bias.max()),
        )

    def smoothness(self, weights: Array, seed: int = 0) -> float:
        """The size of the Hessian's largest eigenvalue at w, by power iteration from below."""
        vector = jax.random.normal(jax.random.key(seed), (self.model.size,))
        found = 0.0
        for _ in range(POWER_STEPS):
            vector = vector / jnp.linalg.norm(vector)
            product = jnp.zeros_like(weights)
            for clients, shape in self._groups(WHOLE):
                product += _hessian_product(
                    self.model, weights, vector, self.records, clients, shape
                )
            product = product / self.population.clients
            last, found = found, float(jnp.linalg.norm(product))
            if found == 0 or abs(found - last) <= POWER_TOLERANCE * found:
                break
            vector = product
        return found

    def known_smoothness(self) -> float | None:
        """L where it is known: softmax regression, from the records alone."""
        if self.model.name != "softmax" or self.population.labels.ndim != 1:
            return None
        features = self.population.features.reshape(self.population.samples, -1)
        wide = features.shape[1] + 1
        moment = np.zeros((wide, wide))
        for i in range(self.population.clients):
            rows = slice(self.population.offsets[i], self.population.offsets[i + 1])
            x = features[rows].astype(np.float64) * self.population.scale
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            moment += x.T @ x / len(x) / self.population.clients
        return float(np.linalg.eigvalsh(moment)[-1] / 2) if np.isfinite(moment).all() else None

    def sample_spread(self, weights: Array) -> float:
        """sigma_L: E|grad of one record|^2 - |grad f_i|^2, the largest client's."""
        squares = []
        rows = max(1, min(4096, FLOATS // max(self.model.size, self._held)))
        for first in range(0, self.population.samples, rows):
            these = jnp.arange(first, min(first + rows, self.population.samples))
            squares.append(_lengths(self.model, weights, self.alone, these) ** 2)
        mean = np.add.reduceat(np.concatenate(squares).astype(float), self.population.offsets[:-1])
        mean /= self.population.sizes
        whole = np.zeros(self.population.clients)
        for clients, shape in self._groups(WHOLE):
            keys = client_keys(jax.random.key(0), clients)
            _, gradients = _gradients(self.model, weights, self.records, clients, keys, shape)
            whole[np.asarray(clients)] = np.asarray(jnp.sum(gradients**2, axis=1))
        return float(np.sqrt(max(0.0, np.max(mean - whole))))

    @property
    def _held(self) -> int:
        """Numbers that the model holds of one record, about."""
        shape = self.population.features.shape[1:]
        return FLOATS // records_at_once(self.model, shape, FLOATS)

    def _groups(self, *works: LocalWork) -> Iterator[tuple[Any, ...]]:
        """Clients of one shape in each kind of work, few enough to fit, and these shapes."""
        sizes = self.population.sizes
        classes, class_of = zip(*(size_classes(sizes, work) for work in works), strict=True)
        for kind in np.unique(np.stack(class_of, axis=1), axis=0):
            members = np.flatnonzero((np.stack(class_of, axis=1) == kind).all(axis=1))
            each = self.model.size + int(sizes[members].max()) * self._held
            size = max(1, FLOATS // each)
            for first in range(0, len(members), size):
                clients = jnp.asarray(members[first : first + size], jnp.int32)
                yield clients, *(one[k] for one, k in zip(classes, kind, strict=True))


@functools.partial(jax.jit, static_argnums=(0, 5))
def _gradients(
    model: Model, weights: Array, records: Records, clients: Array, keys: Array, shape: SizeClass
) -> tuple[Array, Array]:
    """f_i and grad f_i, over all records of each client."""
    chunk = choose_rows(records, clients, keys, shape, WHOLE)
    losses = _losses(model, weights, records, chunk)
    return losses, gradient_update(model, weights, records, chunk)


def _losses(model: Model, weights: Array, records: Records, chunk: Chunk) -> Array:
    def loss(rows: Array, used: Array) -> Array:
        return mean_loss(model, model.unravel(weights), *read(records, rows), used)

    return jax.vmap(loss)(chunk.rows, chunk.used)


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def _updates(
    model: Model, weights: Array, records: Records, clients: Array, keys: Array, shape: SizeClass,
    work: LocalWork,
) -> Array:  # fmt: skip
    """u_i as a round would have it."""
    chunk = choose_rows(records, clients, keys, shape, work)
    if work.update == "gradient":
        return gradient_update(model, weights, records, chunk)
    return epochs_update(model, weights, records, chunk, work)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _hessian_product(
    model: Model, weights: Array, vector: Array, records: Records, clients: Array, shape: SizeClass
) -> Array:
    """The Hessian of the sum of these clients' losses, times a vector."""
    chunk = choose_rows(records, clients, client_keys(jax.random.key(0), clients), shape, WHOLE)
    slope = jax.grad(lambda flat: jnp.sum(_losses(model, flat, records, chunk)))
    product: Array = jax.jvp(slope, (weights,), (vector,))[1]
    return product


@functools.partial(jax.jit, static_argnums=0)
def _lengths(model: Model, weights: Array, records: Records, rows: Array) -> Array:
    """|grad| of single records."""
    there = jnp.ones((len(rows), 1), bool)
    chunk = Chunk(rows[:, None], there, client_keys(jax.random.key(0), rows))
    return measure(model, weights, records, chunk, WHOLE).norms
