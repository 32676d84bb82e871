"""Facts: what a rule may ask of a client besides the norm of its update (`rules.FACTS`).

Each is a function of the client's own records, of the model and of the last released update v, and
is computed only if the rule asks for it. A client whose update is not finite has facts of zero
where they are about that update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl.models.build import Model
from locksfl.models.losses import losses
from locksfl.round.algorithm import Facts, facts_of_last, facts_of_updates
from locksfl.round.client import (
    HIGHEST,
    PRECISIONS,
    Chunk,
    DenseTrace,
    LocalWork,
    Records,
    Visit,
    mean_loss,
    read,
    size_weight,
)


class Visited(NamedTuple):
    """A chunk of clients, what was asked of them, and what they computed."""

    model: Model
    weights: Array
    records: Records
    chunk: Chunk
    work: LocalWork
    visit: Visit
    last: Array  # v; zero where it is not remembered

    @property
    def used(self) -> Array:
        """The records that each client uses, at least 1."""
        return jnp.maximum(1, jnp.sum(self.chunk.used, axis=1))

    @property
    def size(self) -> Array:
        """K_i / K_ref, or 1: what u_i was multiplied by."""
        return size_weight(self.used, self.work) * jnp.ones(self.used.shape)

    def mean(self, values: Array) -> Array:
        """The mean over each client's records."""
        return jnp.sum(jnp.where(self.chunk.used, values, 0.0), axis=1) / self.used


def measure_facts(names: tuple[str, ...], seen: Visited) -> Facts:
    """The facts of these names, one entry for each client of the chunk."""
    with jax.default_matmul_precision(PRECISIONS["full"]):
        return {name: MEASURES[name](seen) for name in names}


def _losses(seen: Visited) -> Array:
    """[c, rows] the loss of every record."""
    unpacked = seen.model.unravel(seen.weights)

    def one(rows: Array) -> Array:
        features, labels = read(seen.records, rows)
        return losses(seen.model, seen.model.apply(unpacked, features), labels)

    return jax.vmap(one)(seen.chunk.rows)


def _spread(seen: Visited) -> Array:
    """sqrt(mean |g_s|^2 - |mean g_s|^2) over the client's records s."""
    if isinstance(seen.visit.trace, DenseTrace):
        # an error is that of one record over K_i (or K_ref): g_s is this many times its product
        times = seen.used / seen.size
        pairs = zip(seen.visit.trace.inputs, seen.visit.trace.errors, strict=True)
        squares = jnp.zeros(seen.chunk.used.shape)
        for x, e in pairs:
            squares += (jnp.sum(jnp.square(x), -1) + 1.0) * jnp.sum(jnp.square(e), -1)
        mean_square = seen.mean(squares) * jnp.square(times)
        square_of_mean = jnp.square(seen.visit.norms / seen.size)
    else:
        mean_square, square_of_mean = _record_by_record(seen)
    return jnp.sqrt(jnp.maximum(mean_square - square_of_mean, 0.0))


def _record_by_record(seen: Visited) -> tuple[Array, Array]:
    """mean |g_s|^2 and |mean g_s|^2, holding one record's gradient at a time."""
    model, unpacked = seen.model, seen.model.unravel(seen.weights)

    def one(*client: Array) -> tuple[Array, Array]:
        def add(sums: Any, record: Any) -> Any:
            row, used = record
            features, labels = read(seen.records, row[None])
            gradient = jax.grad(mean_loss, argnums=1)(model, unpacked, features, labels, used[None])
            flat = ravel_pytree(gradient)[0]
            return (sums[0] + flat, sums[1] + jnp.sum(jnp.square(flat))), None

        nothing = (jnp.zeros(model.size), jnp.zeros(()))
        (summed, squares), _ = jax.lax.scan(add, nothing, client)
        return jnp.sum(jnp.square(summed)), squares

    squared, squares = jax.vmap(one)(seen.chunk.rows, seen.chunk.used)
    return squares / seen.used, squared / jnp.square(seen.used)


def _of_update(name: str) -> Callable[[Visited], Array]:
    """A fact about u_i, v, or both."""

    def measured(seen: Visited) -> Array:
        trace = seen.visit.trace
        if not isinstance(trace, DenseTrace):
            return facts_of_updates(trace, seen.last)[name]
        if name in OF_TRACE:
            return OF_TRACE[name](trace, seen)
        return facts_of_last(seen.last, seen.used.size)[name]

    return measured


def _along_dense(trace: DenseTrace, seen: Visited) -> Array:
    """<u_i, v>, u_i = sum_s e_s (x_s, 1)^T in each layer: the sum of e_s . (V x_s + v_b)."""
    product = jnp.zeros(seen.used.shape)
    layers = seen.model.unravel(seen.last).layers
    for x, e, layer in zip(trace.inputs, trace.errors, layers, strict=True):
        moved = jnp.einsum("csi,oi->cso", x, layer.weight, precision=HIGHEST) + layer.bias
        product += jnp.sum(e * moved, axis=(1, 2))
    return product


def _sum_dense(trace: DenseTrace, seen: Visited) -> Array:
    """The sum of the coordinates of u_i: of (sum of e_s) (sum of x_s + 1)."""
    total = jnp.zeros(seen.used.shape)
    for x, e in zip(trace.inputs, trace.errors, strict=True):
        total += jnp.sum(jnp.sum(e, axis=-1) * (jnp.sum(x, axis=-1) + 1.0), axis=1)
    return total


OF_TRACE = {"along": _along_dense, "sum": _sum_dense}
MEASURES: dict[str, Callable[[Visited], Array]] = {
    "norm": lambda seen: seen.visit.norms,
    "loss": lambda seen: seen.mean(_losses(seen)),
    "rms_loss": lambda seen: jnp.sqrt(seen.mean(jnp.square(_losses(seen)))),
    "size": lambda seen: seen.size,
    "spread": _spread,
    **{name: _of_update(name) for name in ("along", "sum", "last_norm", "last_sum", "parameters")},
}
