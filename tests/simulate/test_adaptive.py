"""Adaptive clipping: the clip norm finds its quantile, from released counts alone."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import ragged, std_is
from locksfl.arm import Arm
from locksfl.experiment.run import restore
from locksfl.models.build import softmax
from locksfl.privacy import calibrate
from locksfl.round import algorithm
from locksfl.round.algorithm import GivenClients
from locksfl.round.client import LocalWork
from locksfl.round.draws import draw_members, draw_secret, draw_server, grid_of
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

CLIENTS = 24
SIZES = np.tile([1, 2, 7, 9, 12, 30], 4)
SOURCES = [Randomness.seeded(5), Randomness(987654321, simulated=False)]
ADAPTIVE = {"clip_quantile": 0.6, "clip_rate": 0.5, "clip_norm": 0.6, "step": 0.7}
NOISE = {"noise_multiplier": 0.3, "clip_multiplier": 2.0}


def arm_of(rule="uniform", **settings):
    if rule == "norm":
        settings = {"norm_multiplier": 0.6, "floor": 0.2, "norm_low": 0.5} | settings
    given = {"cohort": 12.0, "uploads": 5.0 if rule == "norm" else 12.0}
    return Arm.of("arm", CLIENTS, 4, rule, **(given | ADAPTIVE | NOISE | settings))


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(SIZES), softmax(6, 3))


def play(simulator, arm, source, **options):
    rounds, state = [], None
    for done in simulator.play(arm, LocalWork(), Server(rounds=4), source, **options):
        rounds, state = rounds + done.rounds, done.state
    return rounds, jax.tree.map(np.asarray, state)


@pytest.mark.parametrize("source", SOURCES, ids=["float", "exact"])
@pytest.mark.parametrize(
    "arm",
    [
        arm_of(),
        arm_of(uploads=5.0),
        arm_of("norm"),
        arm_of("norm", lengths="equal"),
        arm_of("coin"),
    ],
    ids=["uniform", "thinned", "norm", "equal", "coin"],
)
def test_every_clip_norm_is_the_reference(simulator, arm, source):
    """And with it K_low, contributions and noise, which are shares of it."""
    rounds, state = play(simulator, arm, source)
    first = np.asarray(simulator.model.init(source.model_key()))
    wanted, _, steps = reference.play(
        arm, LocalWork(), Server(rounds=4), (6, 3), first, simulator.population, source
    )
    close = {"rtol": 1e-3, "atol": 5e-5}
    np.testing.assert_allclose(state.weights, steps.flat, **close)
    clips = [log.clip_norm for log in rounds]
    assert clips[0] == np.float32(0.6)
    assert len(set(clips)) == 4
    last = replace(arm, clip_norm=clips[-1])
    noise = reference.bit_noise(arm, source, 3)
    np.testing.assert_allclose(
        state.clip_norm, reference.next_clip(last, wanted[-1].norms, noise), rtol=1e-3
    )


@pytest.mark.parametrize("source", SOURCES, ids=["float", "exact"])
def test_a_run_that_goes_on_is_the_same_to_the_last_bit(simulator, source):
    """The clip norm is in the checkpoint; a run that forgot it is another one."""
    arm, server = arm_of("norm"), Server(rounds=4)
    _, whole = play(simulator, arm, source)
    first = next(iter(simulator.play(arm, LocalWork(), server, source, pause_every=2)))
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves(first.state)]
    done = {"first_round": len(first.rounds)}
    state = restore(server, simulator.model, kept, arm, LocalWork())
    _, resumed = play(simulator, arm, source, state=state, **done)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    state = state._replace(clip_norm=jnp.float32(0.6))
    _, forgot = play(simulator, arm, source, state=state, **done)
    assert (forgot.weights != whole.weights).any()


NORMS = np.exp(np.random.default_rng(0).normal(size=2000)).astype(np.float32)  # the median is 1


def clip_norms(arm, start, rounds=160, sign=1.0):
    """C of each round, from `start` on: clients with fixed norms, through the round itself."""
    updates = jnp.asarray(NORMS)[:, None] * jnp.ones(1)
    dials, key, n = arm.dials(), Randomness.seeded(3).arm_key("arm"), len(NORMS)
    dials = dials._replace(clip_rate=sign * dials.clip_rate)

    def one(clip, t):
        coins = jax.random.uniform(jax.random.fold_in(key, t), (n,))
        clients = jnp.where(coins < arm.sampling_rate, jnp.arange(n), -1)
        members = draw_members(key, t, clients, jnp.ones(n))
        now = dials.at_clip(clip, jnp)
        draws = draw_server(key, t, 1)
        result, _, _ = algorithm.play(
            arm.method, GivenClients(updates), members, FloatSums(draws), now, adapts=True
        )
        return algorithm.adapted_clip(clip, result.released_bits, now), clip

    _, clips = jax.lax.scan(one, jnp.float32(start), jnp.arange(rounds))
    return np.asarray(clips, float)


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("cohort", "quantile"), [(20, 0.5), (100, 0.5), (400, 0.3), (400, 0.8)])
def test_it_converges_to_its_quantile(start, cohort, quantile):
    """Of norms that are log-normal, with the noise that `calibrate` chooses at epsilon 8. Over the
    last 50 rounds the mean share of norms within C has a standard error of at most .025 (cohort 20:
    the noise and the coins move C by .035 in a round, which its pull of .08 forgets in 12 rounds),
    so that .13 is 5 of them. For 100 and more it is .01, and .08 leaves room for the slowest way:
    from 100 times the .8 quantile C falls by .04 in a round at most. With the wrong sign it runs
    away, to where no norm is within C or all are."""
    arm = Arm("arm", len(NORMS), 160, cohort=cohort, clip_quantile=quantile)
    arm = calibrate(arm, 8.0, 1e-5, accountant="rdp")
    right = np.quantile(NORMS, quantile)

    def off(sign):
        clips = clip_norms(arm, start * right, sign=sign)[-50:]
        return abs(np.mean([np.mean(clip >= NORMS) for clip in clips]) - quantile)

    assert off(1.0) < (0.13 if cohort < 100 else 0.08)
    if start != 1.0:
        assert off(-1.0) > 0.9 * (quantile if start < 1 else 1 - quantile)


def test_the_noise_on_the_bits_is_as_charged():
    """In both paths: std is multiplier / 2; 5% more or less is rejected (false alarms: 1e-6)."""
    arm = Arm.of(
        "arm", 50, 1, cohort=50, noise_multiplier=1.0, clip_quantile=0.5, clip_multiplier=3.0
    )
    key = Randomness.seeded(1).arm_key("arm")
    floats = np.asarray(jax.vmap(lambda t: draw_server(key, t, 1).clip_noise)(jnp.arange(20_000)))
    secret = Randomness(7, simulated=False)
    whole = [int(draw_secret(secret, arm, t, 1).clip_noise) for t in range(4_000)]
    exact = np.array(whole) / float(grid_of(arm).bits)
    for found, size in ((1.5 * floats, 20_000), (exact / 2, 4_000)):
        assert len(set(found.tolist())) > 0.9 * size
        assert std_is(found, 1.5)
        assert not std_is(found, 1.5 * (1.05 if size > 5000 else 1.1))


def test_one_client_moves_the_sum_by_its_bound():
    """Present or absent: 1/2, exactly, whatever its update; two halves if it is exchanged."""
    arm, rng = arm_of(clip_multiplier=1e-6), np.random.default_rng(2)
    updates = jnp.asarray(rng.normal(size=(CLIENTS, 3)), jnp.float32)
    key = Randomness.seeded(3).arm_key("arm")
    members = draw_members(key, 0, jnp.arange(CLIENTS), jnp.ones(CLIENTS))
    silent = draw_server(key, 0, 3)._replace(clip_noise=0.0)

    def bits(updates, members):
        given = (GivenClients(updates), members, FloatSums(silent), arm.dials())
        return float(algorithm.play(arm.method, *given, adapts=True)[0].released_bits)

    absent = members._replace(present=members.present.at[4].set(False))
    found = {
        bits(updates.at[4].set(way), members) - bits(updates, absent)
        for way in ([0.0, 0.0, 0.0], [9e9, 0.0, 0.0], [0.1, 0.2, 0.0], [jnp.inf, 0.0, 0.0])
    }
    assert found == {0.5, -0.5}
