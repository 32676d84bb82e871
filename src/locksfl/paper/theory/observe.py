"""A look at a model: losses, gradients and curvature over every client's data, exactly.

Only a simulation can do this. Clients are visited some at a time, so that memory stays bounded; all
records of a client count, whatever a round would use of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.experiment.diagnostics import client_updates, gradients_per_update
from locksfl.methods.dials import Dials
from locksfl.models.build import Model, records_at_once
from locksfl.round.algorithm import clip_factor
from locksfl.round.client import (
    Chunk,
    LocalWork,
    Records,
    SizeClass,
    choose_rows,
    gradient_update,
    mean_loss,
    measure,
    read,
    used_samples,
)
from locksfl.round.randomness import client_keys
from locksfl.simulate.layout import size_classes
from locksfl.simulate.simulator import Simulator

FLOATS = 2**25  # what a chunk of clients may hold at a time
POWER_STEPS, POWER_TOLERANCE = 60, 1e-3
WHOLE = LocalWork()  # the mean gradient of all samples: grad f_i


class Look(NamedTuple):
    """What was seen of one w_t."""

    loss: float  # F
    gradient: float  # |grad F|^2
    mean_client: float  # mean |grad f_i|^2
    worst_client: float  # max |grad f_i|^2
    bias: float  # |grad F - mean g_i|^2, g_i over the scale
    worst_bias: float  # max |grad f_i - g_i|^2


class Observer:
    """A task that can be looked at, some clients at a time."""

    def __init__(self, simulator: Simulator, work: LocalWork) -> None:
        self.population, self.model = simulator.population, simulator.model
        self.records, self.work = simulator.records, work

    @property
    def exact(self) -> bool:
        """Whether every client's update is the gradient of all its records, in every round."""
        used = used_samples(self.population.sizes, self.work)
        plain = self.work.update == "gradient" and self.work.counts_once is None
        return plain and bool((used == self.population.sizes).all())

    @property
    def scale(self) -> float:
        """How many gradients long an update is, in the mean: that of local epochs is the local step
        times the local steps, times the mean gradient on the way."""
        return float(gradients_per_update(self.population.sizes, self.work).mean())

    def look(self, weights: Array, dials: Dials, key: Array) -> Look:
        """Losses, gradients and what clipping takes, over all clients. `key` is for clients whose
        update is random; one draw of each is looked at."""
        n = self.population.clients
        mean, kept = jnp.zeros(self.model.size), jnp.zeros(self.model.size)
        losses, squares, biases = [], [], []
        task, exact, scale = (self.model, weights, self.records), self.exact, self.scale
        for clients, shape in self._groups():
            loss, gradients = _gradients(*task, clients, shape)
            updates = jnp.where(jnp.isfinite(gradients), gradients, 0.0)
            if not exact:
                whom = (self.population.sizes, np.asarray(clients))
                updates = jnp.asarray(client_updates(*task, *whom, key, self.work))
            shrink = clip_factor(jnp.linalg.norm(updates, axis=1), dials)
            clipped = shrink[:, None] * updates / scale
            mean += jnp.sum(gradients, axis=0) / n
            kept += jnp.sum(clipped, axis=0) / n
            losses.append(loss)
            squares.append(jnp.sum(gradients**2, axis=1))
            biases.append(jnp.sum((gradients - clipped) ** 2, axis=1))
        loss, square, bias = (np.concatenate(a).astype(float) for a in (losses, squares, biases))
        return Look(
            loss=loss.mean(),
            gradient=float(mean @ mean),
            mean_client=square.mean(),
            worst_client=square.max(),
            bias=float((mean - kept) @ (mean - kept)),
            worst_bias=bias.max(),
        )

    def smoothness(self, weights: Array) -> float:
        """The size of the Hessian's largest eigenvalue at w, by power iteration from below."""
        vector = jax.random.normal(jax.random.key(0), (self.model.size,))
        size = 0.0
        for _ in range(POWER_STEPS):
            vector = vector / jnp.linalg.norm(vector)
            product = jnp.zeros_like(weights)
            for clients, shape in self._groups():
                task = (self.model, weights, self.records, clients)
                product += _hessian_product(*task, shape, vector)
            product = product / self.population.clients
            last, size = size, float(jnp.linalg.norm(product))
            if size == 0 or abs(size - last) <= POWER_TOLERANCE * size:
                break
            vector = product
        return size

    def known_smoothness(self) -> float | None:
        """L where it is known: softmax regression, from the records alone."""
        if self.model.name != "softmax" or self.population.labels.ndim != 1:
            return None

        def moment(client: int) -> np.ndarray:
            records, _ = self.population.client(client)
            x = records.reshape(len(records), -1).astype(np.float64) * self.population.scale
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            return x.T @ x / len(x)

        clients = range(self.population.clients)
        mean = functools.reduce(np.add, map(moment, clients)) / len(clients)
        return float(np.linalg.eigvalsh(mean)[-1] / 2) if np.isfinite(mean).all() else None

    def sample_spread(self, weights: Array) -> float:
        """sigma_L: E|grad of one record|^2 - |grad f_i|^2, the largest client's."""
        samples, squares = self.population.samples, []
        ones = jnp.ones(samples, jnp.int32)  # every record as a client of its own
        alone = self.records._replace(starts=jnp.arange(samples, dtype=jnp.int32), sizes=ones)
        rows = max(1, min(4096, FLOATS // max(self.model.size, self._held)))
        for first in range(0, samples, rows):
            these = jnp.arange(first, min(first + rows, samples))
            squares.append(_lengths(self.model, weights, alone, these) ** 2)
        mean = np.add.reduceat(np.concatenate(squares).astype(float), self.population.offsets[:-1])
        mean /= self.population.sizes
        whole = np.zeros(self.population.clients)
        for clients, shape in self._groups():
            _, gradients = _gradients(self.model, weights, self.records, clients, shape)
            whole[np.asarray(clients)] = jnp.sum(gradients**2, axis=1)
        return float(np.sqrt(max(0.0, np.max(mean - whole))))

    @property
    def _held(self) -> int:
        """Numbers that the model holds of one record, about."""
        shape = self.population.features.shape[1:]
        return FLOATS // records_at_once(self.model, shape, FLOATS)

    def _groups(self) -> Iterator[tuple[Array, SizeClass]]:
        """Clients of one shape, few enough to fit, and this shape."""
        classes, class_of = size_classes(self.population.sizes, WHOLE)
        for number, shape in enumerate(classes):
            members = np.flatnonzero(class_of == number).astype(np.int32)
            size = max(1, FLOATS // (self.model.size + shape.rows * self._held))
            for first in range(0, len(members), size):
                yield jnp.asarray(members[first : first + size]), shape


def _losses(
    model: Model, weights: Array, records: Records, clients: Array, shape: SizeClass
) -> tuple[Array, Chunk]:
    """f_i over all records of each client, and these records."""
    chunk = choose_rows(records, clients, client_keys(jax.random.key(0), clients), shape, WHOLE)

    def loss(rows: Array, used: Array) -> Array:
        return mean_loss(model, model.unravel(weights), *read(records, rows), used)

    return jax.vmap(loss)(chunk.rows, chunk.used), chunk


@functools.partial(jax.jit, static_argnums=(0, 4))
def _gradients(
    model: Model, weights: Array, records: Records, clients: Array, shape: SizeClass
) -> tuple[Array, Array]:
    """f_i and grad f_i, over all records of each client."""
    losses, chunk = _losses(model, weights, records, clients, shape)
    return losses, gradient_update(model, weights, records, chunk)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _hessian_product(
    model: Model, weights: Array, records: Records, clients: Array, shape: SizeClass, vector: Array
) -> Array:
    """The Hessian of the sum of these clients' losses, times a vector."""
    slope = jax.grad(lambda flat: jnp.sum(_losses(model, flat, records, clients, shape)[0]))
    return jax.jvp(slope, (weights,), (vector,))[1]


@functools.partial(jax.jit, static_argnums=0)
def _lengths(model: Model, weights: Array, records: Records, rows: Array) -> Array:
    """|grad| of single records."""
    there = jnp.ones((len(rows), 1), bool)
    chunk = Chunk(rows[:, None], there, client_keys(jax.random.key(0), rows))
    return measure(model, weights, records, chunk, WHOLE).norms
