"""The first sample is independent coins, and so is the second."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy import stats

from checks import counts_are, mean_is
from locksfl.round.draws import draw_cohort, second_sample

CLIENTS, RATE, TIMES = 12, 1 / 3, 20_000


def drawn(sampler, seed=1):
    """[TIMES, CLIENTS] who was drawn."""
    rng = np.random.default_rng(seed)
    there = np.zeros((TIMES, CLIENTS), bool)
    for row in there:
        row[sampler(rng)] = True
    return there


def coins(rng):
    return draw_cohort(rng, CLIENTS, RATE)


def fixed_size(rng):
    return rng.choice(CLIENTS, round(CLIENTS * RATE), replace=False)


def without_the_last(rng):
    return draw_cohort(rng, CLIENTS - 1, RATE * CLIENTS / (CLIENTS - 1))


def sizes_are_binomial(there):
    """Chi-square at a false-alarm rate of 1e-6."""
    sizes = np.bincount(there.sum(axis=1), minlength=CLIENTS + 1)
    law = stats.binom(CLIENTS, RATE).pmf(np.arange(CLIENTS + 1))
    return counts_are(sizes, TIMES * law)


def clients_are_alike(there):
    return mean_is(there, np.full(CLIENTS, RATE))


def pairs_are_independent(there):
    first, second = np.triu_indices(CLIENTS, 1)
    pairs = there[:, first] & there[:, second]
    return mean_is(pairs, np.full(first.size, RATE**2))


def test_the_cohort_is_independent_coins():
    """Sizes, clients and pairs, each at 1e-6. A fixed-size sampler fails by its sizes and its
    pairs; one that forgets the last client, by its clients."""
    there = drawn(coins)
    assert sizes_are_binomial(there)
    assert clients_are_alike(there)
    assert pairs_are_independent(there)
    wrong = drawn(fixed_size)
    assert not sizes_are_binomial(wrong)
    assert not pairs_are_independent(wrong)
    assert not clients_are_alike(drawn(without_the_last))


def test_the_cohort_is_sorted_and_has_nobody_twice():
    rng = np.random.default_rng(0)
    for rate in (1e-9, 0.5, 1.0):
        cohort = draw_cohort(rng, 50, rate)
        assert (np.diff(cohort) > 0).all()
        assert set(cohort) <= set(range(50))
    assert draw_cohort(rng, 50, 1.0).size == 50
    assert draw_cohort(rng, 50, 1e-9).size == 0


def test_the_second_sample_is_a_coin_of_the_probability():
    """At 1e-6; half a percent more is rejected. Who is absent never uploads; p = 0 never, p = 1
    always, whatever the coin."""
    p = jnp.array([0.0, 0.1, 0.5, 0.9, 1.0])
    draws = np.random.default_rng(3).random((400_000, 5), np.float32)
    uploads = np.asarray(second_sample(jnp.asarray(draws), p, jnp.ones(5, bool)))
    assert mean_is(uploads, p)
    assert not mean_is(uploads, np.clip(np.asarray(p) + 0.005, 0, 1))
    extremes = jnp.array([[0.0], [1 - 2**-24]])
    assert not second_sample(extremes, jnp.zeros(1), jnp.ones(1, bool)).any()
    assert second_sample(extremes, jnp.ones(1), jnp.ones(1, bool)).all()
    assert not second_sample(jnp.asarray(draws), p, jnp.zeros(5, bool)).any()
