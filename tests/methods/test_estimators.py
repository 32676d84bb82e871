"""What an upload weighs: never more than its bound, never 0/0."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import SOUND
from locksfl.methods import ESTIMATORS, Method
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import choose_uploads, contribution_bound, query_norms
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

CLIENTS = 8
METHODS = [method for method in SOUND if method.trust == "local"]  # all pairs that there are


def dials_of(*values):
    """Of cohort, uploads, C, floor, K_low and the multipliers; any probability is allowed."""
    return Dials(*map(jnp.float32, (*values, 1.0, 1.0)))


@functools.partial(jax.jit, static_argnums=0)
def stages(method, norms, members, dials):
    """Both stages: (p times weight, the contribution's norm, its bound, the public bound)."""
    sums = FloatSums(ServerDraws(jnp.zeros(()), jnp.zeros(1)))
    found = query_norms(method, norms, members, sums, dials)
    uploads = choose_uploads(method, norms, members, found.scores, found.used, dials)
    bound = contribution_bound(method, found.used, dials)
    sent = uploads.coefficient * norms
    return uploads.expected_weight, sent, uploads.scale, bound, uploads.uploaded


@st.composite
def rounds(draw):
    """Norms from 0 to huge, any floor, any clamp, any noise on norms, any coins."""
    clip = draw(st.sampled_from([1e-4, 0.3, 1.0, 50.0]))
    cohort = draw(st.floats(0.5, 50))
    uploads = cohort * draw(st.floats(1e-3, 1.0))
    low = uploads + draw(st.floats(0, 1)) * (cohort - uploads)
    floor = draw(st.sampled_from([0.0, 1e-3, 0.1, 0.5, 0.99]))
    numbers = st.sampled_from([0.0, 1e-20, 1e-6, 0.01, 0.5, 1.0, 1.0000001, 3.0, 1e6, 1e18])
    norms = np.array(draw(st.lists(numbers, min_size=CLIENTS, max_size=CLIENTS))) * clip
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    coins = rng.random(CLIENTS, np.float32) * draw(st.sampled_from([0.0, 0.01, 1.0]))
    dials = (cohort, uploads, clip, floor, low * clip, 0.0, draw(st.sampled_from([0.0, 0.3, 5.0])))
    members = Members(
        jnp.arange(CLIENTS),
        jnp.ones(CLIENTS, bool),
        jnp.asarray(rng.exponential(size=CLIENTS), jnp.float32),
        jnp.asarray(coins, jnp.float32),
        jnp.asarray(rng.normal(size=CLIENTS), jnp.float32),
    )
    return jnp.asarray(norms, jnp.float32), members, dials_of(*dials)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.estimator}-{m.rule}")
@settings(max_examples=100, deadline=None)
@given(case=rounds())
def test_a_contribution_keeps_its_bound(method, case):
    """|contribution| <= scale, which for all but horvitz-thompson is the public bound; every
    number is finite and who does not upload contributes exactly nothing."""
    norms, members, dials = case
    if ESTIMATORS[method.estimator].needs_floor:
        dials = dials._replace(floor=jnp.maximum(dials.floor, 0.01))
    expected, sent, scale, bound, uploaded = (
        np.asarray(a) for a in stages(method, norms, members, dials)
    )
    assert np.isfinite(sent).all()
    assert np.isfinite(scale).all()
    assert np.all(sent <= scale * (1 + 1e-5))
    assert np.all(sent[~uploaded] == 0)
    if method.estimator != "horvitz-thompson":
        np.testing.assert_allclose(scale, bound, rtol=1e-6)
    if method.estimator in ("literal", "weighted"):
        np.testing.assert_allclose(scale, dials.clip_norm, rtol=1e-6)
    assert np.all((expected >= 0) & (expected <= 1 + 1e-5))


@settings(max_examples=200, deadline=None)
@given(case=rounds())
def test_the_cap_never_binds_with_true_norms(case):
    """p_i times the weight is 1 for whoever can upload, for any floor and clamp: the cap is only
    for noised norms. With them it does bind somewhere: see below."""
    norms, members, dials = case
    expected, sent, _, bound, _ = stages(Method("norm", "capped", "none"), norms, members, dials)
    clipped = np.minimum(norms, dials.clip_norm)
    counts = (clipped > 1e-12 * dials.clip_norm) | (dials.floor > 0)
    np.testing.assert_allclose(np.asarray(expected)[counts], 1, rtol=1e-4)
    assert np.all(sent <= bound * (1 + 1e-5))


def test_the_cap_binds_with_noised_norms():
    """A client of norm C that released 0.1 C is cut to S, and horvitz-thompson is not."""
    dials = dials_of(30, 20, 1.0, 0.1, 20.0, 0.0, 1.0)
    one = jnp.ones(1)
    noise = jnp.array([-0.9])
    members = Members(jnp.zeros(1, int), jnp.ones(1, bool), one, jnp.zeros(1), noise)
    _, sent, _, bound, _ = stages(Method("norm", "capped", "local"), one, members, dials)
    assert sent[0] == pytest.approx(float(bound), rel=1e-6)
    _, sent, scale, _, _ = stages(Method("norm", "horvitz-thompson", "local"), one, members, dials)
    assert sent[0] == pytest.approx(float(scale[0]), rel=1e-6)
    assert sent[0] > 3 * bound


@pytest.mark.parametrize("trust", ["none", "local"])
def test_probability_zero_is_no_contribution(trust):
    """No floor and a known norm of 0: p = 0, nothing is sent and nothing is NaN, whatever g_i."""
    dials = dials_of(30, 20, 1.0, 0.0, 20.0, 0.0, 1.0)
    norms = jnp.array([0.0, 0.7 if trust == "local" else 0.0, 1.0])
    members = Members(
        jnp.arange(3), jnp.ones(3, bool), jnp.ones(3), jnp.zeros(3), jnp.array([-5.0, -5.0, 0.0])
    )
    expected, sent, scale, _, uploaded = stages(
        Method("norm", "capped", trust), norms, members, dials
    )
    assert uploaded.tolist() == [False, False, True]
    assert expected.tolist()[:2] == [0, 0]
    assert sent.tolist()[:2] == [0, 0]
    assert np.isfinite(scale).all()


def test_the_divisor_is_public():
    """n q or b, whoever came."""
    dials = dials_of(30, 20, 1.0, 0.0, 20.0, 0.0, 1.0)
    found = {name: float(e.divisor(dials)) for name, e in ESTIMATORS.items()}
    assert found == {"capped": 30, "horvitz-thompson": 30, "weighted": 20, "literal": 20}
