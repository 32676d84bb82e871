"""How similar clients are: their updates and gradients, compared in some rounds.

The paper leaves open why dissimilar gradients matter, and which likeness would be a better guide
than the norm. These are the usual measures, for k clients with vectors v_i and mean v:

    dissimilarity   mean |v_i|^2 / |v|^2          1: all alike. Large: they cancel each other
    diversity       sum |v_i|^2 / |sum v_i|^2     dissimilarity / k (Yin et al., 2018)
    spread          sqrt(mean |v_i - v|^2)        at an optimum, of gradients: the sigma_G of theory
    cosine, angle   of every pair of clients
    correlation     of every pair: the cosine of v_i - (mean of its coordinates)
    drift           |mean of (w - w_i) / (step x steps)|, at an optimum what local epochs add to a
                    vanishing gradient: small although gradients are dissimilar (Wang et al., 2022)

All of them are exact functions of private data. Only a simulation can see them; they are released
to nobody and carry no guarantee. They stand in diagnostics.jsonl and its picture, nowhere else.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.models.build import Model
from locksfl.round.client import (
    LocalWork,
    Records,
    SizeClass,
    choose_rows,
    combine,
    measure,
    size_weight,
    used_samples,
)
from locksfl.round.randomness import client_keys

SHARES = (0.1, 0.5, 0.9)


def compared_clients(population: int, wanted: int) -> np.ndarray:
    """Client numbers spread evenly, so that shards of every class are among them."""
    return np.unique(np.linspace(0, population - 1, min(wanted, population)).astype(np.int32))


def likeness(
    model: Model,
    weights: Array,
    records: Records,
    sizes: np.ndarray,
    clients: np.ndarray,
    key: Array,
    work: LocalWork,
) -> dict[str, Any]:
    """The measures above at these weights, of the updates and of the gradients."""
    updates_of = functools.partial(client_updates, model, weights, records, sizes, clients, key)
    updates = updates_of(work)
    found = {"clients": len(clients), "updates": compare(updates)}
    if work.update == "gradient":
        return found
    full = LocalWork("gradient", min_samples=work.min_samples, max_samples=work.max_samples)
    mean_gradients = updates / gradients_per_update(sizes[clients], work)[:, None]
    drift = float(np.linalg.norm(np.mean(mean_gradients, axis=0)))
    return {**found, "gradients": compare(updates_of(full)), "drift": drift}


def gradients_per_update(sizes: np.ndarray, work: LocalWork) -> np.ndarray:
    """What u_i is divided by to be the mean gradient along a client's way: its local step times its
    local steps, and the weight of its size."""
    used = used_samples(sizes, work)
    moved = work.step * work.epochs * -(-used // work.batch) if work.update == "epochs" else 1.0
    return np.asarray(moved * size_weight(used, work), float)


def client_updates(
    model: Model,
    weights: Array,
    records: Records,
    sizes: np.ndarray,
    clients: np.ndarray,
    key: Array,
    work: LocalWork,
) -> np.ndarray:
    """u_i of each of these clients, [k, size], by the code that trains; zero where not finite."""
    used = used_samples(sizes, work)
    shape = SizeClass(
        rows=int(used.max()),
        subsample_from=int(sizes.max()) if (sizes > used).any() else 0,
        repeats=bool((sizes < used).any()),
    )
    keys = client_keys(key, jnp.asarray(clients))
    found = _updates(model, work, shape, weights, records, jnp.asarray(clients), keys)
    return np.asarray(found, np.float64)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _updates(
    model: Model,
    work: LocalWork,
    shape: SizeClass,
    weights: Array,
    records: Records,
    clients: Array,
    keys: Array,
) -> Array:
    def one(client_and_key: tuple[Array, Array]) -> Array:
        client, key = client_and_key
        chunk = choose_rows(records, client[None], key[None], shape, work)
        visit = measure(model, weights, records, chunk, work)
        return combine(visit.trace, jnp.ones(1))

    return jax.lax.map(one, (clients, keys))


def compare(vectors: np.ndarray) -> dict[str, Any]:
    """Every measure that the pairwise products of some vectors give; None where it is 0/0."""
    count = len(vectors)
    squared = np.sum(vectors**2, axis=1)
    mean = np.mean(vectors, axis=0)
    of_mean = float(mean @ mean)
    pairs = np.triu_indices(count, 1)
    cosines = _cosines(vectors)[pairs]
    correlations = _cosines(vectors - vectors.mean(axis=1, keepdims=True))[pairs]
    dissimilarity = float(np.mean(squared)) / of_mean if of_mean > 0 else None
    return {
        "norms": _quantiles(np.sqrt(squared)),
        "mean_norm": float(np.sqrt(of_mean)),
        "spread": float(np.sqrt(max(0.0, np.mean(squared) - of_mean))),
        "dissimilarity": dissimilarity,
        "diversity": None if dissimilarity is None else dissimilarity / count,
        "cosine": _quantiles(cosines),
        "angle": _quantiles(np.degrees(np.arccos(cosines))),
        "correlation": _quantiles(correlations),
    }


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Of every pair; NaN where a vector is zero."""
    norms = np.linalg.norm(vectors, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = vectors / norms[:, None]
    return np.clip(unit @ unit.T, -1.0, 1.0)


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    there = values[np.isfinite(values)]
    if not there.size:
        return None
    shares = {str(share): float(np.quantile(there, share)) for share in SHARES}
    return {"mean": float(there.mean()), **shares}
