"""The noise on the sums by which a rule refines its public number, as rounds are played."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import std_is
from locksfl.arm import Arm
from locksfl.round import algorithm, draws, exact
from locksfl.round.algorithm import GivenClients
from locksfl.round.client import LocalWork
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate import block
from locksfl.simulate.simulator import Simulator
from quadratics import quadratic_clients, quadratic_model

ROUNDS, CLIENTS, SIZE = 200, 6, 2
SOURCES = [Randomness.seeded(5), Randomness(987654321, simulated=False)]


def aocs(**more):
    numbers = {"norm_multiplier": 3.0, "noise_multiplier": 1.0} | more
    return Arm.of("arm", CLIENTS, ROUNDS, "aocs", cohort=4.0, uploads=2.0, **numbers)


def refined(source):
    """[rounds, 4, 2] the sums that a run releases after the first. Its clients have no gradient, so
    that they are noise and nothing else."""
    seen = []

    def watched(real):
        def call(*given):
            found = real(*given)
            jax.debug.callback(lambda sums: seen.append(np.asarray(sums)), found[0].refined)
            return found

        return call

    silent = quadratic_clients(np.zeros(CLIENTS), np.zeros((CLIENTS, 1, SIZE)))
    simulator = Simulator(silent, quadratic_model(SIZE))
    with mock.patch.object(block, "play", watched(block.play)):
        list(simulator.play(aocs(), LocalWork(), Server(rounds=ROUNDS), source))
        jax.effects_barrier()
    return np.unique(np.stack(seen), axis=0)  # each device calls back


@pytest.mark.parametrize("source", SOURCES, ids=["float", "exact"])
def test_the_sums_that_refine_are_played_with_the_noise_that_is_charged(source, monkeypatch):
    """Five releases share one charge: sqrt(5) z_K on each number (false alarms: 1e-6). Noise of
    z_K, the sqrt(5) forgotten where it is drawn, is rejected, and so is a std 20% off."""
    found = refined(source)
    assert found.shape == (ROUNDS, 4, 2)
    assert std_is(found, 5**0.5 * 3.0)
    assert not std_is(found, 1.2 * 5**0.5 * 3.0)
    monkeypatch.setattr(Arm, "sum_multiplier", property(lambda arm: arm.norm_multiplier))
    assert not std_is(refined(source), 5**0.5 * 3.0)


def test_a_round_refuses_to_go_on_without_that_noise():
    """Nor with one number for all of them."""
    arm, ones = aocs(), jnp.ones(CLIENTS)
    members = draws.Members(jnp.arange(CLIENTS), ones > 0, ones, 0 * ones, 0 * ones)
    clients = GivenClients(jnp.zeros((CLIENTS, SIZE)))
    for noise, told in ((None, "none"), (jnp.zeros(()), r"shape \(\)")):
        drawn = draws.ServerDraws(jnp.zeros(()), jnp.zeros(SIZE), refine_noise=noise)
        with pytest.raises(ValueError, match=f"^refine_noise: {told}; rule 'aocs' under trust"):
            algorithm.play(arm.method, clients, members, FloatSums(drawn), arm.dials())
        zero = jnp.int32(0)
        steps = exact.NoiseSteps(zero, jnp.zeros(SIZE, jnp.int32), zero, zero, refine=noise)
        sums = exact.ExactSums(steps, draws.grid_of(arm))
        with pytest.raises(ValueError, match=r"^refine_noise: "):
            algorithm.play(arm.method, clients, members, sums, arm.dials())
    quiet = FloatSums(draws.ServerDraws(jnp.zeros(()), jnp.zeros(SIZE)))
    none = Arm("arm", CLIENTS, 1, "aocs", trust="none", cohort=4.0, uploads=2.0)
    algorithm.play(none.method, clients, members, quiet, none.dials())  # nobody adds noise
