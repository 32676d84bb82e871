"""Noise is as strong as charged, and where the design puts it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import std_is
from locksfl.arm import Arm
from locksfl.methods import TRUSTS, Method
from locksfl.methods.dials import Dials
from locksfl.methods.events import Exact
from locksfl.privacy.terms import terms_of
from locksfl.round.algorithm import Norms, Uploads, WeightedSum, aggregate, query_norms
from locksfl.round.draws import ServerDraws, draw_members, draw_server
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness

KEY = Randomness.seeded(11).arm_key("arm")
Z, Z_NORM, CLIP, COHORT, UPLOADS = 1.3, 0.7, 0.4, 30.0, 20.0
DIALS = Dials(
    cohort=jnp.float32(COHORT),
    uploads=jnp.float32(UPLOADS),
    clip_norm=jnp.float32(CLIP),
    floor=jnp.float32(0.2),
    least_norm_sum=jnp.float32(UPLOADS * CLIP),
    noise_multiplier=jnp.float32(Z),
    norm_multiplier=jnp.float32(Z_NORM),
    step=jnp.float32(1.0),
    largest_probability=jnp.float32(1.0),
)
K_USED = 0.8 * COHORT * CLIP
AT_CLIP = 0.8 * UPLOADS * CLIP / K_USED + 0.2 * UPLOADS / COHORT
P = np.array([0.9, 0.5, 0.2, 0.7])
UPLOADED = np.array([True, False, True, True])
SUMMED = np.full(20_000, 3.0, np.float32)

# the noise on the sum, by estimator and trust: z times the bound of what one client adds
SCALES = {
    "capped": np.full(4, CLIP / AT_CLIP),
    "horvitz-thompson": CLIP / P,
    "literal": np.full(4, CLIP),
}
EXPECTED = {
    ("capped", "central"): Z * CLIP / AT_CLIP / COHORT,
    ("literal", "central"): Z * CLIP / UPLOADS,
    ("capped", "local"): Z * np.sqrt(3) * CLIP / AT_CLIP / COHORT,
    ("horvitz-thompson", "local"): Z * CLIP * np.sqrt(np.sum(P[UPLOADED] ** -2.0)) / COHORT,
    ("literal", "local"): Z * np.sqrt(3) * CLIP / UPLOADS,
}


def noised(estimator, trust, rounds=range(4)):
    """What the noise adds to the average in several rounds."""
    method = Method("norm", estimator, trust)
    uploads = Uploads(
        jnp.zeros(4), jnp.asarray(UPLOADED), jnp.asarray(SCALES[estimator]), jnp.ones(4)
    )
    sent = WeightedSum(jnp.asarray(SUMMED), uploads)
    norms = Norms(jnp.zeros(4), jnp.float32(K_USED), jnp.float32(K_USED))
    divisor = UPLOADS if estimator == "literal" else COHORT
    added = []
    for t in rounds:
        noise = draw_server(KEY, t, SUMMED.size).update_noise
        sums = FloatSums(ServerDraws(jnp.zeros(()), noise))
        result = aggregate(method, sent, norms, sums, DIALS)
        added.append(np.asarray(result.update, float) - SUMMED / divisor)
        np.testing.assert_allclose(result.signal, np.linalg.norm(SUMMED) / divisor, rtol=1e-5)
    return np.array(added), float(result.noise)


@pytest.mark.parametrize(("estimator", "trust"), EXPECTED)
def test_update_noise_is_as_charged(estimator, trust):
    """Chi-square at 1e-6 over 80,000 numbers; a sigma that is 5% off is rejected, either way."""
    added, told = noised(estimator, trust)
    sigma = EXPECTED[estimator, trust]
    assert std_is(added, sigma)
    assert not std_is(added, 1.05 * sigma)
    assert not std_is(added, 0.95 * sigma)
    assert told == pytest.approx(sigma * np.sqrt(SUMMED.size), rel=1e-5)


def test_no_noise_without_noise():
    added, told = noised("capped", "none")
    np.testing.assert_allclose(added, 0, atol=1e-7)
    assert told == 0
    assert not TRUSTS["none"].private


def test_central_update_noise_does_not_depend_on_who_came():
    """Its size is public: nobody, somebody, everybody."""
    central = TRUSTS["central"].noise_std
    stds = [
        central(jnp.ones(4), jnp.float32(2.0), jnp.array(who), DIALS, jnp.sum, jnp)
        for who in ([False] * 4, [True, False, False, False], [True] * 4)
    ]
    assert len({float(std) for std in stds}) == 1
    local = TRUSTS["local"].noise_std
    nobody = local(jnp.ones(4), jnp.float32(2.0), jnp.zeros(4, bool), DIALS, jnp.sum, jnp)
    assert nobody == 0


def test_norm_noise_is_as_charged():
    """z_K C once on the sum (central), z_s C by each client (local); 5% off is rejected. In local
    trust the released norm is clipped to [0, C], so its noise is seen where that cannot bind."""
    rounds, clients = 20_000, jnp.arange(3)
    true = jnp.array([0.1, 0.2, 0.4])

    def sums(trust, dials, norms):
        def one(t):
            members = draw_members(KEY, t, clients, jnp.ones(3))
            sums = FloatSums(draw_server(KEY, t, 1))
            method = Method("norm", "capped", trust)
            found = query_norms(method, norms, members, sums, dials)
            return found.scores, found.released

        return jax.jit(jax.vmap(one))(jnp.arange(rounds))

    scores, released = sums("central", DIALS, true)
    np.testing.assert_array_equal(scores, np.broadcast_to(true, (rounds, 3)))
    added = np.asarray(released, float) - 0.7
    sigma = Z_NORM * CLIP
    assert std_is(added, sigma)
    assert not std_is(added, 1.05 * sigma)
    assert not std_is(added, 0.95 * sigma)

    wide = DIALS._replace(clip_norm=jnp.float32(100.0), norm_multiplier=jnp.float32(0.07))
    scores, released = sums("local", wide, jnp.array([40.0, 50.0, 60.0]))
    added = np.asarray(scores, float) - [40, 50, 60]
    assert std_is(added, 7.0)
    assert not std_is(added, 1.05 * 7.0)
    assert not std_is(added, 0.95 * 7.0)
    np.testing.assert_allclose(released, np.sum(scores, axis=1), rtol=1e-5)

    scores, _ = sums("local", DIALS, true)
    assert np.asarray(scores).min() == 0
    assert np.asarray(scores).max() == np.float32(CLIP)
    exact, released = sums("none", DIALS, true)
    np.testing.assert_allclose(released, 0.7, rtol=1e-6)
    np.testing.assert_array_equal(exact, np.broadcast_to(true, (rounds, 3)))


@pytest.mark.parametrize("trust", ["none", "central", "local"])
def test_empty_slots_release_nothing(trust):
    """Three clients, alone and among empty slots: the same scores, the same sum."""
    sums = FloatSums(draw_server(KEY, 0, 1))
    found = []
    for slots in ([4, 5, 6], [4, -1, 5, -1, -1, 6]):
        clients = jnp.array(slots)
        members = draw_members(KEY, 0, clients, jnp.ones(len(slots)))
        norms = jnp.where(clients < 0, 9.0, clients / 20)  # whatever stands in an empty slot
        method = Method("norm", "capped", trust)
        result = query_norms(method, norms, members, sums, DIALS)
        found.append((np.asarray(result.scores)[np.array(slots) >= 0], float(result.released)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


def test_local_scores_are_a_function_of_what_was_released():
    """Two clients that release the same norm look the same to the rule, whatever they have."""
    members = draw_members(KEY, 0, jnp.arange(2), jnp.ones(2))
    noise = jnp.array([0.0, -0.1 / (Z_NORM * CLIP)])
    members = members._replace(norm_noise=noise.astype(jnp.float32))
    method = Method("norm", "capped", "local")
    sums = FloatSums(ServerDraws(jnp.zeros(()), jnp.zeros(1)))
    found = query_norms(method, jnp.array([0.1, 0.2]), members, sums, DIALS)
    assert found.scores[0] == pytest.approx(float(found.scores[1]), rel=1e-6)


@pytest.mark.parametrize("trust", ["local", "central", "none"])
def test_the_noise_is_the_one_that_the_trust_says_it_releases(trust):
    """One uploader: the std on the sum over the derived sensitivity is the stated multiplier."""
    found = TRUSTS[trust]
    noise = {"noise_multiplier": 3.0} if found.private else {}
    terms = terms_of(Arm.of("a", 4, 1, trust=trust, cohort=4, **noise))
    ((public, _),), ((server, _),) = terms["PUBLIC"], terms["SERVER"]
    dials = Dials(*(jnp.float32(v) for v in (4, 2, 1, 0, 2, 3.0, 5.0, 1, 1)))
    bound = jnp.float32(7.0)
    scales, uploaded = jnp.full(4, bound), jnp.arange(4) == 1
    std = float(found.noise_std(scales, bound, uploaded, dials, jnp.sum, jnp))
    expected = getattr(public, "noise_multiplier", 0.0) * 7.0
    assert std == pytest.approx(expected, rel=1e-6)
    assert found.guards_server == (server != Exact())
    assert found.private == (trust != "none")


@pytest.mark.parametrize("trust", ["central", "local"])
def test_noise_is_added_by_the_server_or_by_clients(trust):
    with pytest.raises(ValueError, match="expected noise by the server or by clients"):
        dataclasses.replace(TRUSTS[trust], server_adds_noise=True, clients_add_noise=True)
