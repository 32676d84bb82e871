"""The coin: never a larger error than uniform sampling, by formula and by play; docs/theory.md."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from checks import FALSE_ALARM, mean_is, std_is
from locksfl.arm import Arm
from locksfl.methods import RULES, Method
from locksfl.methods.events import Sampled
from locksfl.privacy import calibrate, calibrate_central
from locksfl.privacy.rdp import round_rdp
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

RNG = np.random.default_rng(0)
N, D, COHORT, CLIP, PLAYED = 30, 3, 12.0, 1.5, 200_000
VECTORS = RNG.normal(size=(N, D)) * np.geomspace(0.05, 3.0, N)[:, None]


def coin(**settings):
    return Arm.of("coin", N, 10, rule="coin", cohort=COHORT, clip_norm=CLIP, **settings)


# --- By formula -----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.01, 1))
def test_sampling_variance_is_at_most_that_of_uniform_at_equal_uploads(shares, rate):
    """Both from the variance of independent coins; their difference is the theorem's."""
    r, n = np.array(shares), len(shares)
    mean = r.mean()
    if mean < 1e-6:
        return
    by_coin = np.sum(rate * r * (1 - rate * r)) / (n * rate) ** 2
    less = rate * mean  # of uniform: the same number of uploads
    uniform = np.sum(less * (1 - less) * r**2) / (n * less) ** 2
    difference = (mean**2 - np.mean(r**2)) / (n * rate * mean)
    assert by_coin - uniform == pytest.approx(difference, rel=1e-6, abs=1e-9 / (n * rate * mean))
    assert by_coin <= uniform * (1 + 1e-9) + 1e-12


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_over_a_run_only_the_sum_of_the_variances_is_never_larger(rounds):
    """Against uniform sampling at one rate, with the uploads of the whole run. A single round can
    be 7 times worse, and so can a sum that weighs late rounds more: neither is the theorem's."""
    q, shares = 1e-3, np.array(rounds)
    if shares.mean() > 1e-6:
        coin, uniform = variances(q, shares)
        assert coin.sum() <= uniform.sum() * (1 + 1e-9)
    falling = np.array([[1.0] * 3] * 99 + [[1 / 7] * 3])
    coin, uniform = variances(q, falling)
    assert coin.sum() <= uniform.sum()
    assert coin[-1] == pytest.approx(7 * uniform[-1], rel=0.02)
    late = np.arange(100) == 99
    assert (late * coin).sum() > (late * uniform).sum()


def variances(q, shares):
    """Sampling variance of every round (rows) of the coin at rate q and of uniform sampling at q
    times the mean of all shares, each from the variance of independent coins."""
    n, less = shares.shape[1], q * shares.mean()
    coin = np.sum(q * shares * (1 - q * shares), axis=1) / (n * q) ** 2
    return coin, np.sum(less * (1 - less) * shares**2, axis=1) / (n * less) ** 2


def rdp(rate, z, order):
    """At an integer order, by the expansion of E_Q[(1 + q (e^L - 1))^order] in powers of q."""
    j = np.arange(order + 1)
    moments = [  # E_Q[(e^L - 1)^k], every one of which falls when z grows
        math.fsum(special.comb(k, i) * (-1) ** (k - i) * math.exp(i * (i - 1) / (2 * z * z))
                  for i in range(k + 1))
        for k in j
    ]  # fmt: skip
    return math.log(math.fsum(special.comb(order, j) * rate**j * moments)) / (order - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.floats(0.005, 0.9), st.floats(0.5, 5), st.floats(1.02, 10))
def test_noise_on_the_mean_falls_with_the_rate_at_integer_orders(order, rate, z, scale):
    """Rate and noise scaled together cost less, so that at equal cost z(q) / q falls."""
    scale = min(scale, 1 / rate)
    small, large = Sampled(rate, z), Sampled(rate * scale, z * scale)
    cost, scaled = (round_rdp(event, (float(order),))[0] for event in (small, large))
    assert scaled <= cost * (1 + 1e-9) + 1e-12
    if rdp(rate, z, order) > 1e-6:  # where the alternating sum has digits left
        assert cost == pytest.approx(rdp(rate, z, order), rel=1e-5, abs=1e-10)
    # noise that stays as it is while the rate grows costs more: the check can fail
    if scale > 1.01:
        assert round_rdp(Sampled(rate * scale, z), (float(order),))[0] > cost


def test_noise_on_the_mean_falls_with_the_rate_by_pld_too():
    """Where it was checked: T = 100, eps 8, delta 1e-5. For exact delta it is no theorem."""
    rates = (0.01, 0.05, 0.2, 1.0)
    each = [calibrate_central(8.0, 1e-5, 100, q).noise_multiplier / q for q in rates]
    np.testing.assert_allclose(each, (46.5, 13.9, 7.22, 6.00), rtol=4e-3)


def test_the_count_costs_half_a_percent_of_noise():
    arm = calibrate(coin(), 8.0, 1e-3)
    assert arm.update_multiplier / arm.noise_multiplier == pytest.approx(math.sqrt(1.01))
    assert arm.count_noise == pytest.approx(arm.update_multiplier / 0.1)
    # both releases together are the Gaussian that is charged
    together = 1 / arm.update_multiplier**2 + 1 / arm.count_noise**2
    assert together == pytest.approx(arm.noise_multiplier**-2, rel=1e-12)
    assert together <= arm.noise_multiplier**-2
    uniform = Arm("u", N, 10, cohort=COHORT)
    assert calibrate(uniform, 8.0, 1e-3).noise_multiplier == arm.noise_multiplier


# --- By play --------------------------------------------------------------------------------------


def played(arm, vectors, rounds=PLAYED, seed=1):
    """(updates [rounds, D], uploads [rounds, N], released counts)"""
    given = GivenClients(jnp.asarray(vectors, jnp.float32))
    dials, ones = arm.dials(), jnp.ones(len(vectors))

    def one(key):
        first, second, third, fourth = jax.random.split(key, 4)
        there = jax.random.uniform(first, (len(vectors),)) < arm.sampling_rate
        coins = jax.random.uniform(second, (len(vectors),))
        members = Members(jnp.arange(len(vectors)), there, ones, coins, 0 * ones)
        noise = jax.random.normal(third, (D,))
        draws = ServerDraws(jnp.zeros(()), noise, jax.random.normal(fourth))
        result, uploads, _ = play(arm.method, given, members, FloatSums(draws), dials)
        return result.update, uploads.uploaded, result.released_count

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), rounds))
    return [np.asarray(part, float) for part in found]


def variance_is(samples, truth):
    """Whether the mean square of the rows may be `truth`, a sum over columns."""
    return mean_is(np.sum(np.square(samples), axis=1), truth)


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_played_rounds_have_the_mean_and_the_variance_of_the_formulas(noise):
    """Each check has a false-alarm rate of 1e-6."""
    arm = coin(trust="central", noise_multiplier=noise) if noise else coin(trust="none")
    shares = np.minimum(1.0, np.linalg.norm(VECTORS, axis=1) / CLIP)
    clipped = VECTORS * (CLIP * shares / np.linalg.norm(VECTORS, axis=1))[:, None]
    mean, q = clipped.mean(axis=0), COHORT / N
    variance = np.sum(q * shares * (1 - q * shares)) * (CLIP / COHORT) ** 2
    variance += D * (noise * math.sqrt(1.01) * CLIP / COHORT) ** 2

    updates, uploaded, counts = played(arm, VECTORS)
    assert mean_is(updates, mean)
    assert variance_is(updates - mean, variance)
    assert mean_is(uploaded, q * shares)
    if noise:
        beyond = counts - uploaded.sum(axis=1)
        assert std_is(beyond, noise * math.sqrt(1.01) / 0.1)
        assert not std_is(beyond, noise / 0.1 * 0.99)
        assert abs(np.corrcoef(beyond, updates[:, 0])[0, 1]) < stats.norm.isf(
            FALSE_ALARM / 2
        ) / math.sqrt(PLAYED)
    else:
        np.testing.assert_array_equal(counts, uploaded.sum(axis=1))

    rule = RULES["coin"]  # planted: a coin that is a little too likely
    planted = replace(rule, probability=lambda *a: jnp.minimum(1.0, 1.05 * rule.probability(*a)))
    with mock.patch.dict(RULES, {"coin": planted}):
        updates, uploaded, _ = played(arm, VECTORS)
    assert not mean_is(uploaded, q * shares)
    assert not variance_is(updates - mean, variance)


def test_an_upload_has_the_length_of_the_clip_norm_or_is_nothing():
    """NaN, Inf, zero and updates that floats cannot stretch to C upload nothing; whatever does
    upload is C long."""
    lengths = np.array([0.0, 1e-45, 1e-38, 1e-20, 1e-13, 1e-11, 1e-6, 0.3, 1.5, 20.0, 1e15])
    vectors = np.zeros((len(lengths), D))
    vectors[:, 0] = lengths
    arm = Arm("coin", len(lengths), 1, rule="coin", trust="none", cohort=11, clip_norm=CLIP)
    given = GivenClients(jnp.asarray(vectors, jnp.float32))
    always = Members(jnp.arange(11), jnp.ones(11, bool), jnp.ones(11), jnp.zeros(11), jnp.zeros(11))
    draws = ServerDraws(jnp.zeros(()), jnp.zeros(D))
    _, uploads, norms = play(arm.method, given, always, FloatSums(draws), arm.dials())
    uploaded = np.asarray(uploads.uploaded)
    assert not uploaded[:5].any()
    assert uploaded[5:].all()
    sent = np.asarray(uploads.coefficient) * np.asarray(norms)
    np.testing.assert_allclose(sent[5:], CLIP, rtol=1e-5)


def test_local_trust_is_refused_for_what_the_rule_states():
    with pytest.raises(ValueError, match="uploads would depend on a norm that is not released"):
        Arm("coin", N, 10, rule="coin", trust="local", cohort=COHORT)
    for estimator in ("capped", "literal"):
        assert Method("coin", estimator, "central").parts[0].count_share == 0.1
    with pytest.raises(ValueError, match=r"count_share = 1\.5; expected a number from 0"):
        type(RULES["coin"])("own", "", lambda *a: 1.0, count_share=1.5)
