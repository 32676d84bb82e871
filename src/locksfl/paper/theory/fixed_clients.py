"""Rounds of `algorithm.play` on fixed vectors: every outcome of the coins, or fresh ones."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.methods import Method, find_rule
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import GivenClients, no_norms, play, query_norms, upload_probability
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

DIMENSIONS, CLIP = 4, 1.0
BATCH = 2000


class Outcomes(NamedTuple):
    """One round per row: what the server got and how many uploaded; `chance` is 1/rows, or the
    exact probability of each."""

    chance: Floats
    updates: Floats  # [rows, d]
    uploads: Floats  # [rows]


class FixedClients(NamedTuple):
    """Clients whose updates are fixed."""

    vectors: Floats  # [n, d], some longer than C
    cohort: float  # m, expected
    uploads: float  # b, expected

    @property
    def clipped(self) -> Floats:
        """g_i."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / np.maximum(1, lengths / CLIP)

    @property
    def weights(self) -> Floats:
        """Public weights that differ, with b w_i <= q."""
        raw = np.linspace(0.5, 1.4, len(self.vectors))
        return raw / raw.sum()

    def mean(self) -> Floats:
        """The mean of g_i."""
        return self.clipped.mean(axis=0)

    def weighted_mean(self) -> Floats:
        """The sum of w_i g_i."""
        return self.weights @ self.clipped


def population(clients: int, cohort: float, uploads: float, alike: bool = False) -> FixedClients:
    """Updates around one direction, with norms that differ much, or all as long as the clip."""
    rng = np.random.default_rng(8)
    vectors = rng.normal(size=(clients, DIMENSIONS)) + np.array([1.0, 0.5, 0, 0])
    lengths = np.full(clients, CLIP) if alike else rng.lognormal(-0.5, 0.9, clients)
    vectors *= (lengths / np.linalg.norm(vectors, axis=1))[:, None]
    return FixedClients(vectors, cohort, uploads)


def arm_for(fixed: FixedClients, rule: str, **settings: Any) -> Arm:
    """One round of a rule on a population, without noise unless the settings have it."""
    if "weights" in find_rule(rule).takes:
        settings["weights"] = tuple(fixed.weights)
    given: dict[str, Any] = {"cohort": fixed.cohort, "uploads": fixed.uploads, "trust": "none"}
    return Arm.of("", len(fixed.vectors), 1, rule, clip_norm=CLIP, **(given | settings))


@functools.partial(jax.jit, static_argnums=0)
def _play(
    method: Method, vectors: Array, weights: Array, dials: Dials, there: Array, coins: Array,
    norm_noise: Array, update_noise: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Rounds with given coins and noise: the updates, who uploaded, and each one's p_i."""

    def one(there: Array, coins: Array, norms: Array, update: Array) -> tuple[Array, Array, Array]:
        members = Members(jnp.arange(len(vectors)), there, weights, coins, norms)
        clients, floats = GivenClients(vectors), FloatSums(ServerDraws(jnp.zeros(()), update))
        result, uploads, _ = play(method, clients, members, floats, dials)
        known = no_norms(members, dials)
        if method.parts[0].released:
            known = query_norms(method, clients.norms, members, floats, dials)
        p = upload_probability(method, known.scores, known.used, weights, dials)
        return result.update, uploads.uploaded, p

    return jax.vmap(one)(there, coins, norm_noise, update_noise)


def every_outcome(arm: Arm, vectors: Floats, weights: Floats | None = None) -> Outcomes:
    """All 3^n outcomes of both coins, each with its probability. Without noise."""
    n, q = len(vectors), arm.sampling_rate
    states = np.array(list(itertools.product((0, 1, 2), repeat=n)))
    quiet = np.zeros((len(states), n)), np.zeros((len(states), vectors.shape[1]))
    updates, uploads, p = _run(arm, vectors, weights, states > 0, (states < 2) * 1.0, *quiet)
    factor = np.select([states == 0, states == 1], [np.full_like(p, 1 - q), q * (1 - p)], q * p)
    return Outcomes(np.prod(factor, axis=1), updates, uploads)


def sampled(
    arm: Arm, vectors: Floats, repetitions: int, seed: int, weights: Floats | None = None
) -> Outcomes:
    """Rounds with fresh coins and noise."""
    rng = np.random.default_rng((seed, 3))
    n, d = vectors.shape
    parts = []
    for first in range(0, repetitions, BATCH):
        rows = min(BATCH, repetitions - first)
        there = rng.random((rows, n)) < arm.sampling_rate
        coins, noise = rng.random((rows, n)), rng.standard_normal((rows, n))
        drawn = (there, coins, noise, rng.standard_normal((rows, d)))
        parts.append(_run(arm, vectors, weights, *drawn))
    updates, uploads, _ = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Outcomes(np.full(repetitions, 1 / repetitions), updates, uploads)


def _run(
    arm: Arm, vectors: Floats, weights: Floats | None, there: Any, *draws: Any
) -> tuple[Floats, Floats, Floats]:
    """The updates, how many uploaded, and each one's p_i."""
    public = np.broadcast_to(arm.scaled_weights() if weights is None else weights, len(vectors))
    fixed, weight, *drawn = (jnp.asarray(a, jnp.float32) for a in (vectors, public, *draws))
    played = _play(arm.method, fixed, weight, arm.dials(), jnp.asarray(there), *drawn)
    updates, uploaded, p = (np.asarray(a, np.float64) for a in played)
    return updates, uploaded.sum(axis=1), p
