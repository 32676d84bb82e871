"""Clients whose losses are quadratics, for methods whose limits are known: a record (a, b) has the
loss a/2 |w - b|^2 and the gradient a (w - b)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scripts.audit_training import quadratic_model

from locksfl.data.population import Population
from locksfl.round.client import Records, SizeClass, choose_rows

__all__ = ["chunk_of", "quadratic_clients", "quadratic_model", "records_of"]


def quadratic_clients(curvature, centres):
    """Clients with a curvature a_i each, and a record for each of their centres [n, rows, size]."""
    n, rows, size = centres.shape
    each = np.broadcast_to(np.asarray(curvature, float)[:, None, None], (n, rows, 1))
    x = np.concatenate([each, centres], axis=2).reshape(n * rows, 1 + size).astype(np.float32)
    owner, labels = np.repeat(np.arange(n), rows), np.zeros(n * rows, np.int64)
    return Population.from_split(x, labels, owner, x[:1], labels[:1], classes=2)


def records_of(population):
    """Its records as a round reads them."""
    return Records(
        jnp.asarray(population.features),
        jnp.asarray(population.labels),
        jnp.asarray(population.offsets[:-1]),
        jnp.asarray(population.sizes),
        jnp.float32(population.scale),
    )


def chunk_of(population, work, keys):
    """All clients at work."""
    most = int(population.sizes.max())
    used = min(most, work.max_samples or most)
    shape = SizeClass(used, most if used < most else 0, repeats=False)
    return choose_rows(records_of(population), jnp.arange(population.clients), keys, shape, work)
