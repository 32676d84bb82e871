"""Expectation, variance and sensitivity of a round, by Monte Carlo on `algorithm.play` itself.

A tiny population of fixed vectors stands for the clients, and the whole round is repeated 80,000
times with fresh coins: the first sample, the norm noise and the second sample.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import SOUND, arm_for, mean_is
from locksfl.methods import ESTIMATORS, Method
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

N, D, COHORT, UPLOADS, CLIP = 100, 4, 30.0, 20.0, 1.0
Q = COHORT / N
BATCH, BATCHES = 4000, 20
RNG = np.random.default_rng(8)
# norms that differ much, half of them clipped, around a direction that they share
VECTORS = RNG.normal(size=(N, D)) + np.array([1.0, 0.5, 0, 0])
VECTORS *= (RNG.lognormal(0, 0.9, N) / np.linalg.norm(VECTORS, axis=1))[:, None]
NORMS = np.linalg.norm(VECTORS, axis=1)
CLIPPED = VECTORS / np.maximum(1, NORMS / CLIP)[:, None]
LENGTHS = np.minimum(NORMS, CLIP)
WEIGHTS = np.linspace(0.5, 1.4, N) / np.linspace(0.5, 1.4, N).sum()
USUAL = {
    "clients": N,
    "rounds": 1,
    "cohort": COHORT,
    "uploads": UPLOADS,
    "clip_norm": CLIP,
    "floor": 0.2,
    "norm_low": UPLOADS / COHORT,
    "weights": tuple(WEIGHTS),
}


class Run(NamedTuple):
    updates: np.ndarray  # [repetitions, D]
    uploaders: np.ndarray
    cohorts: np.ndarray


def plan_for(method, **settings):
    return arm_for(method, USUAL, **settings)


@functools.cache
def draws(number):
    """A batch of repetitions: both coins of each client, its norm noise, and the server's draws."""
    rng = np.random.default_rng((100, number))
    first, second = rng.random((2, BATCH, N), np.float32)
    return first, second, *(rng.standard_normal((BATCH, k), np.float32) for k in (N, 1, D))


@functools.partial(jax.jit, static_argnums=0)
def _batch(method, drawn, dials, weights, vectors):
    def one(first, second, norm_noise, server_norm, update):
        there = first < dials.cohort / N
        members = Members(jnp.arange(N), there, weights, second, norm_noise)
        server = FloatSums(ServerDraws(server_norm[0], update))
        result, uploads, _ = play(method, GivenClients(vectors), members, server, dials)
        return result.update, jnp.sum(uploads.uploaded), jnp.sum(there)

    return jax.vmap(one)(*drawn)


@functools.cache
def repeat(plan):
    """The round of a plan, BATCHES * BATCH times."""
    weights = jnp.broadcast_to(plan.scaled_weights(), N)
    vectors = jnp.asarray(VECTORS, jnp.float32)
    runs = [_batch(plan.method, draws(i), plan.dials(), weights, vectors) for i in range(BATCHES)]
    return Run(*(np.concatenate([np.asarray(a[k], float) for a in runs]) for k in range(3)))


# --- The round is the reference's ------------------------------------------------


@pytest.mark.parametrize("rule", ["uniform", "norm"])
@pytest.mark.parametrize("trust", ["none", "central", "local"])
def test_one_round_of_vectors_is_the_reference(rule, trust):
    """The function that is repeated below, against NumPy, with noise on."""
    noise = {"noise_multiplier": 0.5, "norm_multiplier": 0.4} if trust != "none" else {}
    plan = plan_for(Method(rule, "capped", trust), **noise)
    rng = np.random.default_rng(1)
    there = rng.random(N) < Q
    members = Members(
        jnp.arange(N),
        jnp.asarray(there),
        jnp.ones(N),
        jnp.asarray(rng.random(N, np.float32)),
        jnp.asarray(rng.normal(size=N), jnp.float32),
    )
    draws = ServerDraws(jnp.float32(0.3), jnp.asarray(rng.normal(size=D), jnp.float32))
    clients = GivenClients(jnp.asarray(VECTORS, jnp.float32))
    result, uploads, _ = play(plan.method, clients, members, FloatSums(draws), plan.dials())
    wanted = reference.two_stages(
        plan,
        VECTORS[there],
        np.asarray(members.coins, float)[there],
        np.asarray(members.norm_noise, float)[there],
        0.3,
        np.asarray(draws.update_noise, float),
        np.full(there.sum(), 1 / N),
    )
    np.testing.assert_allclose(result.update, wanted.update, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(uploads.uploaded)[there], wanted.uploaded)


def test_uniform_is_the_same_round():
    """Rule norm with all norms equal and their sum exact is rule uniform, coin by coin; so is a
    floor of almost 1. With norms that differ it is not."""
    equal = VECTORS / NORMS[:, None] * 0.9
    low = {"floor": 0.0, "norm_low": UPLOADS / COHORT}
    rng = np.random.default_rng(2)
    there = np.zeros(N, bool)
    there[rng.choice(N, int(COHORT), replace=False)] = True  # so that the sum is m times the norm
    members = Members(
        jnp.arange(N),
        jnp.asarray(there),
        jnp.ones(N),
        jnp.asarray(rng.random(N, np.float32)),
        jnp.zeros(N),
    )
    draws = ServerDraws(jnp.zeros(()), jnp.asarray(rng.normal(size=D), jnp.float32))

    def once(rule, vectors, **settings):
        plan = plan_for(Method(rule, "capped", "central"), noise_multiplier=0.5, **settings)
        clients = GivenClients(jnp.asarray(vectors, jnp.float32))
        result, uploads, _ = play(plan.method, clients, members, FloatSums(draws), plan.dials())
        return np.asarray(result.signal), np.asarray(uploads.uploaded)

    signal, uploaded = once("uniform", equal)
    for settings in (low, {"floor": 0.999999}):
        other, others = once("norm", equal, **settings)
        np.testing.assert_allclose(other, signal, rtol=1e-4)
        np.testing.assert_array_equal(others, uploaded)
    assert not np.array_equal(once("norm", VECTORS, **low)[1], once("uniform", VECTORS)[1])


# --- Expectation ------------------------------------------------

MEAN = CLIPPED.mean(axis=0)
UNBIASED = {
    "uniform": plan_for(Method("uniform", "capped", "none")),
    "norm": plan_for(Method("norm", "capped", "none")),
    "no-floor": plan_for(Method("norm", "capped", "none"), floor=0.0),
    "clamped-low": plan_for(Method("norm", "capped", "none"), norm_low=0.95, floor=0.1),
    "few-uploads": plan_for(Method("norm", "capped", "none"), uploads=3.0, norm_low=0.1),
    "central": plan_for(
        Method("norm", "capped", "central"), noise_multiplier=0.5, norm_multiplier=3.0
    ),
    "ht-uniform": plan_for(Method("uniform", "horvitz-thompson", "none")),
    "ht-norm": plan_for(Method("norm", "horvitz-thompson", "none")),
    "ht-noised": plan_for(
        Method("norm", "horvitz-thompson", "local"), noise_multiplier=0.3, norm_multiplier=0.5
    ),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_of_all_clients_is_estimated(name):
    """Over both samples and all noise, at 1e-6, for any floor and clamp with true norms, and for
    horvitz-thompson with noised ones too. A mean that is 3% off is rejected."""
    found = repeat(UNBIASED[name]).updates
    assert mean_is(found, MEAN)
    assert not mean_is(found, 1.03 * MEAN)


def test_what_is_biased_is_found_biased():
    """The same check rejects Algorithm 1 as printed, with either constant, and the cap under
    noised norms, which shrinks; it is told by how much (the mean expected weight)."""
    literal = repeat(plan_for(Method("norm", "literal", "none"))).updates
    assert not mean_is(literal, MEAN)
    assert not mean_is(literal * UPLOADS / COHORT, MEAN)
    uniform = repeat(plan_for(Method("uniform", "literal", "none"))).updates
    assert mean_is(uniform, MEAN)  # without norms it is the plain average
    noised = Method("norm", "capped", "local")
    capped = repeat(plan_for(noised, noise_multiplier=0.1, norm_multiplier=0.5)).updates
    assert not mean_is(capped, MEAN)
    assert np.linalg.norm(capped.mean(axis=0)) < 0.97 * np.linalg.norm(MEAN)


def test_weighted_estimates_the_weighted_sum():
    """sum w_i g_i while b w_i <= q; where that fails, the client counts for less, and it shows."""
    method = Method("weights", "weighted", "none")
    assert UPLOADS * WEIGHTS.max() <= Q
    found = repeat(plan_for(method, weights=tuple(WEIGHTS))).updates
    assert mean_is(found, WEIGHTS @ CLIPPED)
    assert not mean_is(found, MEAN)
    heavy = WEIGHTS.copy()
    heavy[:5] = 0.05
    heavy /= heavy.sum()
    found = repeat(plan_for(method, weights=tuple(heavy))).updates
    assert not mean_is(found, heavy @ CLIPPED)
    assert mean_is(found, np.minimum(heavy, Q / UPLOADS) @ CLIPPED)


def test_as_many_upload_as_wanted():
    """E|Z| = b where K' is the sum itself; fewer where its lower clamp binds (1e-6)."""
    method = Method("norm", "capped", "none")
    free = repeat(plan_for(method, clip_norm=2.0, uploads=3.0, norm_low=0.1)).uploaders
    assert mean_is(free, 3.0)
    assert not mean_is(free, 3.05)
    assert mean_is(repeat(plan_for(Method("uniform", "capped", "none"))).uploaders, UPLOADS)
    bound = repeat(plan_for(method, uploads=6.0, norm_low=1.0, floor=0.2)).uploaders
    assert mean_is(bound, 6.0 * (0.8 * LENGTHS.mean() / CLIP + 0.2))
    assert not mean_is(bound, 6.0)
    assert bound.mean() < 5.8


# --- Variance ------------------------------------------------


def inverse_rates(plan, times=5_000):
    """1 / rho_i = E[1/(q p_i) | i in X], by NumPy: everybody else by coin, i itself for sure."""
    rng = np.random.default_rng(77)
    there = rng.random((times, N)) < Q
    known = np.broadcast_to(LENGTHS, there.shape)
    if plan.method.trust == "local":
        noise = plan.norm_multiplier * CLIP * rng.normal(size=there.shape)
        known = np.clip(LENGTHS + noise, 0, CLIP)
    others = np.sum(there * known, axis=1, keepdims=True) - there * known
    norm_sum = np.clip(others + known, plan.norm_low * COHORT * CLIP, COHORT * CLIP)
    if plan.method.rule == "uniform":
        return np.full(N, COHORT / UPLOADS / Q)
    return np.mean(1 / (Q * reference.probability(plan, known, norm_sum, None)), axis=0)


def variance(plan, minus=1.0):
    """(1/n^2) sum (1/rho_i - 1)|g_i|^2 + (1/n^2) sum d s_0^2 / rho_i."""
    rates = inverse_rates(plan)
    local = D * (plan.noise_multiplier * CLIP) ** 2 if plan.private else 0.0
    return np.sum((rates - minus) * LENGTHS**2 + rates * local) / N**2


VARIANCES = {
    "uniform": plan_for(Method("uniform", "horvitz-thompson", "none")),
    "exact-norm": plan_for(Method("norm", "horvitz-thompson", "none")),
    "noisy-norm": plan_for(Method("norm", "horvitz-thompson", "local"), norm_multiplier=0.3),
    "uniform-local": plan_for(Method("uniform", "horvitz-thompson", "local"), noise_multiplier=1.0),
    "noisy-norm-local": plan_for(
        Method("norm", "horvitz-thompson", "local"), norm_multiplier=0.3, noise_multiplier=1.0
    ),
    "capped": plan_for(Method("norm", "capped", "none")),
}


@pytest.mark.parametrize("name", VARIANCES)
def test_the_variance_is_the_formula(name):
    """Within 2%, and within 5 standard errors (1e-6). Rejected: the formula without its -1, one
    that is 4% off, and the same sum over the size that came out instead of n q."""
    plan = VARIANCES[name]
    run = repeat(plan)
    squares = np.sum((run.updates - MEAN) ** 2, axis=1)
    wanted = variance(plan)
    assert abs(squares.mean() / wanted - 1) < 0.02
    assert mean_is(squares, wanted)
    assert not mean_is(squares, 1.04 * wanted)
    assert not mean_is(squares, variance(plan, minus=0.0))
    if plan.noise_multiplier == 0:  # with noise this error happens to cancel here
        realised = run.updates * COHORT / np.maximum(run.cohorts, 1)[:, None]
        assert not mean_is(np.sum((realised - MEAN) ** 2, axis=1), wanted)


def test_norms_help_where_noise_comes_after_scaling():
    """The formulas order the methods as the runs do: by norm is better than uniform at the same
    uploads without noise, and worse when the noise is divided by p as well."""
    assert variance(VARIANCES["exact-norm"]) < variance(VARIANCES["uniform"])
    assert variance(VARIANCES["noisy-norm-local"]) > variance(VARIANCES["uniform-local"])
    spread = {name: repeat(plan).updates.var(axis=0).sum() for name, plan in VARIANCES.items()}
    assert spread["exact-norm"] < spread["uniform"]
    assert spread["noisy-norm-local"] > spread["uniform-local"]


# --- Sensitivity ------------------------------------------------


@pytest.mark.parametrize("name", [n for n, e in ESTIMATORS.items() if not e.own_bound])
def test_one_client_moves_the_sum_by_its_bound_at_most(name):
    """Central trust: the others' coins and K' fixed, one client present or zeroed out. Search
    over norms, floors and clamps: at most S, and S is reached; 0.9 S would be too little."""
    rng = np.random.default_rng(5)
    most = 0.0
    methods = [m for m in SOUND if m.estimator == name and m.trust == "central"]
    for case in range(60):
        method = methods[case % len(methods)]
        settings = {}
        if method.rule == "norm":
            share = rng.uniform(UPLOADS / COHORT, 1)
            settings = {"floor": rng.choice([0.0, 0.1, 0.7]), "norm_low": share}
        plan = plan_for(method, noise_multiplier=1.0, **settings)
        one = rng.integers(N)
        vectors = VECTORS.copy()
        vectors[one] *= rng.choice([1e-3, 0.3, 1.0, 1e3]) / NORMS[one]
        without = vectors.copy()
        without[one] = 0
        # noise that puts K' at a clamp, with the client or without it
        norm_sum_noise = jnp.float32(rng.choice([-1e6, 1e6]))
        members = Members(
            jnp.arange(N),
            jnp.asarray((rng.random(N) < Q) | (np.arange(N) == one)),
            jnp.broadcast_to(plan.scaled_weights(), N),
            jnp.asarray(rng.random(N, np.float32)).at[one].set(rng.choice([0.0, 0.5])),
            jnp.zeros(N),
        )
        sums = FloatSums(ServerDraws(norm_sum_noise, jnp.zeros(D)))
        dials = plan.dials()._replace(norm_multiplier=jnp.float32(1.0))
        found = [
            play(plan.method, GivenClients(jnp.asarray(v, jnp.float32)), members, sums, dials)
            for v in (vectors, without)
        ]
        assert found[0][0].used_norm_sum == found[1][0].used_norm_sum
        divisor = float(ESTIMATORS[name].divisor(dials))
        moved = np.asarray(found[0][0].update, float) - np.asarray(found[1][0].update, float)
        sensitivity = float(found[0][0].noise) / np.sqrt(D) * divisor  # at multiplier 1
        others = np.arange(N) != one
        np.testing.assert_array_equal(
            np.asarray(found[0][1].uploaded)[others], np.asarray(found[1][1].uploaded)[others]
        )
        most = max(most, np.linalg.norm(moved) * divisor / sensitivity)
    assert 0.9 < most <= 1 + 1e-4
