"""Rounds of `algorithm.play` on fixed vectors: every outcome of the coins, or fresh ones."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from locksfl.arm import Arm, Dials
from locksfl.methods import Method
from locksfl.round.algorithm import GivenClients, play, query_norms, upload_probability
from locksfl.round.draws import Members, ServerDraws

Floats = npt.NDArray[np.float64]

DIMENSIONS, CLIP = 4, 1.0
BATCH = 2000


class Outcomes(NamedTuple):
    """One round per row: what the server got and how many uploaded; `chance` is 1/rows, or the
    exact probability of each."""

    chance: Floats
    updates: Floats
    uploads: Floats

    def mean(self, values: Floats) -> float:
        """The mean of one number per round."""
        return float(self.chance @ values)


class FixedClients(NamedTuple):
    """Clients whose updates are fixed."""

    vectors: Floats  # [n, d], some longer than C
    cohort: float
    uploads: float

    @property
    def clipped(self) -> Floats:
        """g_i."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return np.asarray(self.vectors / np.maximum(1, lengths / CLIP))

    @property
    def weights(self) -> Floats:
        """Public weights that differ, with b w_i <= q."""
        raw = np.linspace(0.5, 1.4, len(self.vectors))
        return np.asarray(raw / raw.sum())

    def mean(self) -> Floats:
        """The mean of g_i."""
        return np.asarray(self.clipped.mean(axis=0))

    def weighted_mean(self) -> Floats:
        """The sum of w_i g_i."""
        return np.asarray(self.weights @ self.clipped)


def population(clients: int, cohort: float, uploads: float, alike: bool = False) -> FixedClients:
    """Updates around one direction, with norms that differ much, or all as long as the clip."""
    rng = np.random.default_rng(8)
    vectors = rng.normal(size=(clients, DIMENSIONS)) + np.array([1.0, 0.5, 0, 0])
    lengths = np.full(clients, CLIP) if alike else rng.lognormal(-0.5, 0.9, clients)
    vectors *= (lengths / np.linalg.norm(vectors, axis=1))[:, None]
    return FixedClients(vectors, cohort, uploads)


def plan_for(fixed: FixedClients, method: Method, **settings: Any) -> Arm:
    """A round of that method on a population."""
    given: dict[str, Any] = {"uploads": fixed.uploads}
    if method.rule == "norm":
        given |= {"floor": 0.1, "norm_low": fixed.uploads / fixed.cohort}
    if method.rule == "weights":
        given |= {"weights": tuple(fixed.weights)}
    return Arm(
        name="arm",
        rule=method.rule,
        estimator=method.estimator,
        trust=method.trust,
        clients=len(fixed.vectors),
        rounds=1,
        cohort=fixed.cohort,
        clip_norm=CLIP,
        step=1.0,
        **(given | settings),
    )


@functools.partial(jax.jit, static_argnums=0)
def _play(
    method: Method, vectors: Array, weights: Array, dials: Dials, there: Array, coins: Array,
    norm_noise: Array, update_noise: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Rounds with given coins and noise: the updates, who uploaded, and each one's p_i."""

    def one(there: Array, coins: Array, norms: Array, update: Array) -> tuple[Array, Array, Array]:
        members = Members(jnp.arange(len(vectors)), there, weights, coins, norms)
        clients, zero = GivenClients(vectors), jnp.zeros(())
        result, uploads, _ = play(method, clients, members, ServerDraws(zero, update), dials)
        if method.parts[0].released:
            known = query_norms(method, clients.norms, members, zero, dials, jnp.sum)
            scores, used = known.scores, known.used
        else:
            scores, used = jnp.zeros(len(vectors)), zero
        p = upload_probability(method, scores, used, weights, dials)
        return result.update, uploads.uploaded, p

    return jax.vmap(one)(there, coins, norm_noise, update_noise)


def every_outcome(plan: Arm, vectors: Floats, weights: Floats | None = None) -> Outcomes:
    """All 3^n outcomes of both coins, each with its probability. Without noise."""
    n, q = len(vectors), plan.sampling_rate
    states = np.array(list(itertools.product((0, 1, 2), repeat=n)))
    quiet = np.zeros((len(states), n)), np.zeros((len(states), vectors.shape[1]))
    updates, uploaded, p = _run(plan, vectors, weights, states > 0, (states < 2) * 1.0, *quiet)
    factor = np.select([states == 0, states == 1], [np.full_like(p, 1 - q), q * (1 - p)], q * p)
    return Outcomes(np.prod(factor, axis=1), updates, uploaded.sum(axis=1).astype(float))


def sampled(
    plan: Arm, vectors: Floats, repetitions: int, seed: int, weights: Floats | None = None
) -> Outcomes:
    """Rounds with fresh coins and noise."""
    rng = np.random.default_rng((seed, 3))
    n, d = vectors.shape
    parts = []
    for first in range(0, repetitions, BATCH):
        rows = min(BATCH, repetitions - first)
        there = rng.random((rows, n)) < plan.sampling_rate
        coins, noise = rng.random((rows, n)), rng.standard_normal((rows, n))
        updates, uploaded, _ = _run(
            plan, vectors, weights, there, coins, noise, rng.standard_normal((rows, d))
        )
        parts.append((updates, uploaded.sum(axis=1)))
    updates, uploads = (np.concatenate(part).astype(float) for part in zip(*parts, strict=True))
    return Outcomes(np.full(repetitions, 1 / repetitions), updates, uploads)


def _run(plan: Arm, vectors: Floats, weights: Floats | None, *draws: Any) -> tuple[Any, ...]:
    public = plan.scaled_weights() if weights is None else weights
    public = np.broadcast_to(public, len(vectors))
    there, *numbers = draws
    arrays = (jnp.asarray(a, jnp.float32) for a in (vectors, public))
    drawn = (jnp.asarray(a, jnp.float32) for a in numbers)
    found = _play(plan.method, *arrays, plan.dials(), jnp.asarray(there), *drawn)
    return tuple(np.asarray(a, np.float64 if a.dtype != bool else bool) for a in found)
