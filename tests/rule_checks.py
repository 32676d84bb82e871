"""What the tests of rules have in common: arms, stage 1 and whole rounds of given updates, and the
checks that every rule is put to."""

from __future__ import annotations

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import mean_is
from locksfl.arm import Arm
from locksfl.methods import RULES
from locksfl.round.algorithm import (
    GivenClients,
    asked_values,
    play,
    query_norms,
    upload_probability,
)
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

CLIP = 2.0


def arm_of(rule, clients=10, **more):
    """Ten clients of whom six are asked and three wanted."""
    given = {"uploads": 3.0, "clip_norm": CLIP, "trust": "none"}
    if not RULES[rule].all_clients:
        given["cohort"] = 6.0
    return Arm.of("a", clients, 5, rule, **(given | more))


def scores(rule, facts, **more):
    """What the rule asks of clients with these facts, as the round computes it."""
    arm = arm_of(rule, **more)
    given = {name: jnp.asarray(values, jnp.float32) for name, values in facts.items()}
    return np.asarray(asked_values(arm.method, jnp.zeros(1), given, arm.dials()))


def probabilities(rule, own, public, weight=1.0, **more):
    """p of clients with these values, in float64."""
    dials = arm_of(rule, **more).dials(float)
    return np.asarray(RULES[rule].probability(np.array(own), public, weight, dials, np))


# --- Cohorts of everybody -------------------------------------------------------------------------


def cohort_of_all(rule, clients, uploads, trust="none", **more):
    return Arm.of(
        "a", clients, 5, rule, trust=trust, uploads=uploads, **({"cohort": clients} | more)
    )


def members_of(n, present=None, coins=0.0, noise=0.0):
    ones = jnp.ones(n)
    there = ones > 0 if present is None else jnp.asarray(present)
    return Members(jnp.arange(n), there, ones, coins * ones, noise * ones)


def released_and_drawn(method, values, members, draws, dials, facts):
    """Stage 1, and p of every member."""
    norms = query_norms(method, values, members, FloatSums(draws), dials, facts)
    return norms, upload_probability(method, norms.scores, norms.used, members.weights, dials)


often = jax.jit(released_and_drawn, static_argnums=0)  # compiled once for many draws of one arm


def stage_one(
    arm, values, members=None, server_noise=0.0, refine_noise=0.0, play=released_and_drawn
):
    """(p of every member, what stage 1 released) of members with these norms, or losses."""
    values = jnp.asarray(values, jnp.float32)
    members = members_of(len(values)) if members is None else members
    facts = {"loss": values * arm.loss_bound / arm.clip_norm}
    draws = ServerDraws(
        jnp.float32(server_noise), jnp.zeros(1), refine_noise=jnp.asarray(refine_noise)
    )
    norms, p = play(arm.method, values, members, draws, arm.dials(), facts)
    return np.asarray(jnp.where(members.present, p, 0.0), float), norms


def variance(values, p):
    """sum of (1/p_i - 1) a_i^2."""
    return float(np.sum((1 / p - 1) * np.square(values)))


# --- The largest probability ----------------------------------------------------------------------


def never_above_what_is_charged(rule):
    """For any score, any released sum and any public numbers, in float64 and without the round's
    own clamp; something comes close, so that the statement is not idle."""

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def check(data):
        cohort = data.draw(st.floats(0.5, 50))
        share = data.draw(st.floats(1e-3, 1))
        clip = data.draw(st.sampled_from([1e-3, 1.0, 300.0]))
        low = min(1.0, share + data.draw(st.floats(0, 1)) * (1 - share))
        numbers = {"uploads": cohort * share, "clip_norm": clip, "cohort": cohort}
        if "norm_low" in RULES[rule].takes:
            numbers["norm_low"] = max(low, numbers["uploads"] / cohort)  # share, as rounded
        for name in sorted({"floor", "gate"} & set(RULES[rule].takes)):
            numbers[name] = data.draw(st.floats(0.01, 0.99))
        clients = 60
        if RULES[rule].all_clients:
            numbers |= {"uploads": clients * share, "cohort": None}
            if "norm_low" in numbers:
                numbers["norm_low"] = max(low, clients * share / clients)
        arm = Arm.of("a", clients, 5, rule, trust="central", **numbers)
        stated, dials = RULES[rule], arm.dials(float)
        released = data.draw(st.floats(-2, 3)) * arm.cohort * clip
        public = stated.settle(released, dials, np)
        own = clip * np.array([0.0, data.draw(st.floats(0, 1)), 1.0])
        p = stated.probability(own, public, 1.0, dials, np)
        assert np.all((p >= 0) & (p <= arm.largest_probability * (1 + 1e-12)))
        if "gate" in numbers and numbers["norm_low"] == pytest.approx(numbers["gate"], rel=1e-4):
            return  # rounding decides whether it is by norm, and the larger one is charged
        worst = stated.probability(clip, stated.settle(0.0, dials, np), 1.0, dials, np)
        assert worst == pytest.approx(arm.largest_probability, rel=1e-9)

    check()


def jointly_never_above_one(rule):
    """Of any values, whoever is absent: from 0 to 1, 0 for the absent, and b in all (or as many as
    there are, or as are positive). Some member comes up to 1, which is what is charged."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for number in range(200):
        n = int(rng.integers(1, 30))
        uploads = float(rng.uniform(0.1, n))
        own, there = CLIP * rng.choice([0.0, 1.0, rng.random()], n), rng.random(n) < 0.8
        if number % 2:
            own = CLIP * rng.random(n)
        dials = cohort_of_all(rule, n, uploads, clip_norm=CLIP).dials(float)
        p = RULES[rule].probability(np.where(there, own, 0.0), 1.0, 1.0 * there, dials, np)
        assert np.all((p >= 0) & (p <= 1 + 1e-12))
        assert (p[~there] == 0).all()
        assert p.sum() == pytest.approx(min(uploads, there.sum()), rel=1e-9)
        largest = max(largest, p.max())
    assert largest == pytest.approx(cohort_of_all(rule, 5, 2.0).largest_probability)


# --- The mean -------------------------------------------------------------------------------------

N, D, ROUNDS = 12, 3, 30_000
RNG = np.random.default_rng(3)
VECTORS = (RNG.normal(size=(N, D)) + np.array([1.5, -1.0, 0.5])) * np.geomspace(0.1, 2.0, N)[
    :, None
]
LAST = np.array([0.3, -0.2, 0.4])
# the longest updates have the least loss and spread: where a cap is not by norm, it binds
GIVEN = {"loss": np.geomspace(2.0, 0.02, N), "rms_loss": np.geomspace(3.0, 0.03, N)}
GIVEN["spread"] = np.geomspace(0.2, 0.01, N)
CLIPPED = VECTORS * np.minimum(1, CLIP / np.linalg.norm(VECTORS, axis=1))[:, None]


@functools.cache
def compiled(arm):
    """A function of many keys and a factor of the coins: the updates of such rounds."""
    facts = {name: jnp.asarray(values, jnp.float32) for name, values in GIVEN.items()}
    clients = GivenClients(jnp.asarray(VECTORS, jnp.float32), jnp.asarray(LAST, jnp.float32), facts)
    dials = arm.dials()
    weights = jnp.broadcast_to(jnp.asarray(arm.scaled_weights()), (N,))

    def one(key, coins_times):
        keys = jax.random.split(key, 6)
        there = jax.random.uniform(keys[0], (N,)) < arm.sampling_rate
        coins = jax.random.uniform(keys[1], (N,)) * coins_times
        members = Members(jnp.arange(N), there, weights, coins, jax.random.normal(keys[2], (N,)))
        draws = ServerDraws(
            jax.random.normal(keys[3]), jax.random.normal(keys[4], (D,)),
            refine_noise=jax.random.normal(keys[5], (arm.parts[0].refinements, 2)),
        )  # fmt: skip
        return play(arm.method, clients, members, FloatSums(draws), dials)[0].update

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


def played(arm, coins_times=1.0):
    """[ROUNDS, D] updates of rounds with fresh cohorts, coins and noise."""
    return np.asarray(compiled(arm)(jax.random.split(jax.random.key(1), ROUNDS), coins_times))


def unbiased_where_stated(rule, estimator, trust, mean=None, **more):
    """The mean of the clipped updates, or the one given, where the arm says so and nowhere else.
    False alarms: 1e-6 for each check. Coins that come up a sixth too often are rejected."""
    if trust != "none":
        more["noise_multiplier"] = 0.05
        if RULES[rule].released:
            more["norm_multiplier"] = 0.4
    if "norm_low" in RULES[rule].takes:
        more["norm_low"] = 0.5
    arm = arm_of(rule, N, estimator=estimator, trust=trust, **more)
    expected = CLIPPED.mean(axis=0) if mean is None else mean
    stated = arm.unbiased or mean is not None
    assert mean_is(played(arm), expected) == stated
    if stated:
        assert not mean_is(played(arm, coins_times=6 / 7), expected)


# what most rules by a released value are checked with: capped is unbiased where its cap cannot bind
ESTIMATES = (
    ("capped", "none"), ("capped", "central"), ("horvitz-thompson", "none"),
    ("horvitz-thompson", "local"),
)  # fmt: skip


# --- What a rule is shown -------------------------------------------------------------------------


def shown_to(rule, spied):
    """Play stage 1 of a rule under local trust, of which `spied` wraps a function: what it was
    shown, and what the members had released."""
    seen, real = [], getattr(RULES[rule], spied)

    def spy(values, *rest):
        seen.append(values)
        return real(values, *rest)

    noise = {"noise_multiplier": 1.0, "norm_multiplier": 0.5}
    arm = cohort_of_all(rule, 6, 2.0, "local", clip_norm=1.0, **noise)
    drawn = jnp.asarray([0.3, -2.0, 0.1, 3.0, -0.2, 0.7])
    members = members_of(6, [True] * 5 + [False])._replace(norm_noise=drawn)
    values = np.array([0.2, 0.5, 0.9, 0.1, 0.4, 0.8])
    with mock.patch.dict(RULES, {rule: dataclasses.replace(RULES[rule], **{spied: spy})}):
        stage_one(arm, values, members)
    released = np.clip(values + 0.5 * np.asarray(drawn), 0.0, 1.0) * np.asarray(members.present)
    return [np.asarray(one, float) for one in seen], released


def sees_released_values_only(rule, spied):
    """Under local trust; a planted rule that peeks at raw values is seen."""

    def alike():
        seen, released = shown_to(rule, spied)
        assert seen
        return all(np.allclose(values, released, rtol=1e-6) for values in seen if values.ndim)

    assert alike()
    real = FloatSums.release_norms

    def peek(self, method, norms, *rest):
        return real(self, method, norms, *rest)._replace(shown=norms)

    with mock.patch.object(FloatSums, "release_norms", peek):
        assert not alike()


PAPER_VECTORS = [(2, [0.1, 0.2, 0.3, 0.4, 1]), (3, [0.2, 0.4, 0.6, 0.8, 1])]  # norms 1, 2, 3, 4, 10
EDGES = {  # norms, uploads, probabilities
    "few": ([0.0, 2.0, 1e-6, 0.0], 3, [0, 1, 1, 0]),
    "equal": ([1.0, 1.0, 1.0, 1.0], 2, [0.5] * 4),
    "none": ([0.0] * 4, 2, [0] * 4),
    "far apart": ([10.0, 10.0, 1e-9, 0.0], 2, [1, 1, 0, 0]),
}


def has_the_vectors_of_the_paper(rule, uploads, expected):
    """Absent members have no chance and change nothing, wherever they are."""
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    p, _ = stage_one(cohort_of_all(rule, 5, uploads, clip_norm=10.0), values)
    np.testing.assert_allclose(p, expected, rtol=1e-6)
    there = np.isin(np.arange(7), (1, 6), invert=True)
    arm = cohort_of_all(rule, 7, uploads, cohort=5.0, clip_norm=10.0)
    p, _ = stage_one(arm, [values[0], 7.0, *values[1:], 3.0], members_of(7, there))
    np.testing.assert_allclose(p[there], expected, rtol=1e-6)
    assert (p[~there] == 0).all()


def has_sound_edges(rule, values, uploads, expected):
    """Few positive norms upload for certain, and norms of 0 never."""
    p, _ = stage_one(cohort_of_all(rule, 4, uploads, clip_norm=10.0), values)
    np.testing.assert_allclose(p, expected, atol=1e-6)
