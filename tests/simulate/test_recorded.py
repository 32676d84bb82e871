"""A model's rounds from the draws that were really made: recorded inside the compiled block, then
computed again in NumPy, number by number, on clients of two sizes of which some are broken."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import ragged
from locksfl.arm import Arm
from locksfl.models.build import softmax
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate import block
from locksfl.simulate.simulator import Simulator

CLIENTS, ROUNDS, WIDTHS = 24, 12, (6, 3)
SIZES = np.tile([3, 9], CLIENTS // 2)
BROKEN = (4, 9)


def arm(trust, **other):
    settings = {"noise_multiplier": 0.3, "norm_multiplier": 8.0, "clip_norm": 0.6, "step": 0.7}
    return Arm.of(
        "recorded", CLIENTS, ROUNDS, "norm", trust=trust, cohort=12.0, uploads=6.0, floor=0.2,
        norm_low=0.9, **settings | other,
    )  # fmt: skip


class Draws:
    """What the members and the server drew in a round, on every device."""

    def __init__(self):
        self.coins, self.norms, self.server = {}, {}, []

    def members(self, clients, coins, norm_noise):
        for client, coin, noise in zip(clients, coins, norm_noise, strict=True):
            if client >= 0:
                self.coins[int(client)], self.norms[int(client)] = float(coin), float(noise)

    def noise(self, norm, update):
        self.server.append((float(norm), np.asarray(update, float)))


def recording(seen):
    """The draws of the compiled block, told as they are made."""
    members, server = block.draw_members, block.draw_server

    def draw_members(*args):
        found = members(*args)
        told = (found.clients, found.coins, found.norm_noise)
        jax.debug.callback(lambda *a: seen[-1].members(*a), *told)
        return found

    def draw_server(*args):
        found = server(*args)
        jax.debug.callback(lambda *a: seen[-1].noise(*a), found.norm_noise, found.update_noise)
        return found

    return mock.patch.multiple(block, draw_members=draw_members, draw_server=draw_server)


def update_of(population, client, flat):
    features, labels = population.client(client)
    with np.errstate(invalid="ignore"):
        return reference.client_update(flat, WIDTHS, features, labels, LocalWork(), None)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_every_round_follows_from_the_draws_that_were_made(trust):
    """K~, K', who uploaded and the model after each round; both limits of K' bind."""
    population, plan = ragged(SIZES, broken=BROKEN), arm(trust)
    seen = [Draws()]
    with ExitStack() as stack:
        stack.enter_context(recording(seen))
        simulator = Simulator(population, softmax(*WIDTHS))
        played = simulator.play(
            plan, LocalWork(), Server(schedule="constant", rounds=ROUNDS), Randomness.seeded(3),
            pause_every=1,
        )  # fmt: skip
        flat, used = np.zeros(simulator.model.size), []
        for done in played:
            jax.effects_barrier()
            (log,), draws = done.rounds, seen[-1]
            np.testing.assert_array_equal(sorted(draws.coins), log.cohort)
            updates = np.array([update_of(population, i, flat) for i in log.cohort])
            assert len({norm for norm, _ in draws.server}) == 1, "devices disagree on the noise"
            wanted = reference.two_stages(
                plan,
                updates.reshape(len(log.cohort), flat.size),
                [draws.coins[i] for i in log.cohort],
                np.array([draws.norms[i] for i in log.cohort]),
                *draws.server[0],
                np.full(len(log.cohort), 1 / CLIENTS),
            )
            np.testing.assert_array_equal(log.uploaded, wanted.uploaded)
            np.testing.assert_allclose(log.released_norm_sum, wanted.released, rtol=1e-4)
            np.testing.assert_allclose(log.used_norm_sum, wanted.used, rtol=1e-4)
            after = np.asarray(done.state.weights, float)
            np.testing.assert_allclose(after, flat - plan.step * wanted.update, atol=2e-5)
            flat, used = after, [*used, log.used_norm_sum]
            seen.append(Draws())
    low, high = plan.norm_low * plan.cohort * plan.clip_norm, plan.cohort * plan.clip_norm
    assert min(used) == pytest.approx(low)
    if trust == "central":
        assert max(used) == pytest.approx(high)
    assert jnp.isfinite(flat).all()
