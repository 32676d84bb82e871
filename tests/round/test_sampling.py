"""The first sample is independent coins; the rules give probabilities."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from checks import counts_are, mean_is
from locksfl.round.sampling import RULES, Dials, draw_cohort, second_sample, upload_probability

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


def dials(**changes):
    """Any numbers that are not given do not matter to the rules."""
    values = {"cohort": 30.0, "uploads": 20.0, "clip_norm": 1.0, "floor": 0.1, "norm_low": 20.0}
    values |= {"noise_multiplier": 0.0, "norm_multiplier": 0.0, "step": 1.0} | changes
    return Dials(**{name: jnp.float32(value) for name, value in values.items()})


@settings(max_examples=50, deadline=None)
@given(
    share=st.floats(1e-3, 1.0),
    low=st.floats(0.0, 1.0),
    floor=st.floats(0.0, 0.999),
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_probabilities_are_probabilities(share, low, floor, clip, seed):
    """In [0, 1] before the clip removes rounding, for any norms up to C and any K' allowed."""
    cohort, uploads = 30.0, 30.0 * share
    norm_low = (uploads + low * (cohort - uploads)) * clip
    rng = np.random.default_rng(seed)
    scores = np.concatenate([[0, clip], rng.uniform(0, clip, 6)]).astype(np.float32)
    weights = jnp.asarray(rng.exponential(size=8), jnp.float32)
    d = dials(cohort=cohort, uploads=uploads, clip_norm=clip, floor=floor, norm_low=norm_low)
    norm_sum = jnp.clip(jnp.float32(scores.sum()), d.norm_low, d.cohort * d.clip_norm)
    for name, rule in RULES.items():
        p = np.asarray(upload_probability(rule, jnp.asarray(scores), norm_sum, weights, d))
        assert np.all((p >= 0) & (p <= 1))
        raw = np.asarray(rule.probability(jnp.asarray(scores), norm_sum, weights, d))
        if name != "weights":
            assert raw.max() <= 1 + 1e-6
        np.testing.assert_array_equal(p, np.clip(raw, 0, 1))


def test_what_each_rule_gives():
    scores, n_weights = jnp.array([0.0, 0.4, 1.0]), jnp.array([0.0, 1.0, 3.0])
    expected = {
        "uniform": [20 / 30] * 3,
        "norm": [0.1 * 20 / 30 + 0.9 * 20 * s / 25 for s in (0.0, 0.4, 1.0)],
        "full": [1.0] * 3,
        "weights": [0.0, 20 / 30, 1.0],
    }
    assert set(expected) == set(RULES)
    for name, values in expected.items():
        p = upload_probability(RULES[name], scores, jnp.float32(25), n_weights, dials())
        np.testing.assert_allclose(p, values, rtol=1e-6, err_msg=name)


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


@pytest.mark.parametrize("rule", ["uniform", "norm", "full", "weights"])
def test_only_the_norm_rule_looks_at_norms(rule):
    """A rule that asks for no norms may not depend on them: nothing is charged for them."""
    one = upload_probability(RULES[rule], jnp.zeros(3), jnp.float32(20), jnp.ones(3), dials())
    two = upload_probability(RULES[rule], jnp.ones(3), jnp.float32(30), jnp.ones(3), dials())
    assert np.array_equal(one, two) != RULES[rule].uses_norms
