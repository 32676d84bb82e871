"""The server's step against formulas in NumPy."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from locksfl.round.server import OPTIMIZERS, SCHEDULES, Server
from reference import Steps

UPDATES = np.random.default_rng(0).normal(size=(6, 4))


def run(server, base=0.3):
    """The state after each of six rounds."""
    state, states = server.init(jnp.arange(4.0)), []
    for t, update in enumerate(UPDATES):
        state = server.step(state, jnp.asarray(update, jnp.float32), jnp.float32(base), t)
        states.append(state)
    return states


@pytest.mark.parametrize("average", [0, 1, 3, 6])
@pytest.mark.parametrize(("optimizer", "schedule"), list(itertools.product(OPTIMIZERS, SCHEDULES)))
def test_every_step_is_the_formula(optimizer, schedule, average):
    """After every round: the weights, and the model, which is averaged once that has begun."""
    server = Server(optimizer, schedule, momentum=0.8, rounds=6, average_last=average)
    steps = Steps(server, 0.3, np.arange(4.0))
    for t, state in enumerate(run(server)):
        steps.take(UPDATES[t])
        np.testing.assert_allclose(state.weights, steps.flat, rtol=2e-5, atol=1e-6)
        model = server.model(state, t + 1)
        np.testing.assert_allclose(model, steps.model(), rtol=2e-5, atol=1e-6)
    other = dataclasses.replace(server, momentum=0.7, schedule=SCHEDULES[schedule == SCHEDULES[0]])
    assert not np.allclose(run(other)[-1].weights, steps.flat, rtol=1e-3)


def test_the_paper_s_step_by_hand():
    """eta_b / sqrt(t + 1), downhill: w = -1 - 1/sqrt(2) after two updates of 1."""
    server = Server(rounds=2)
    state = server.init(jnp.zeros(1))
    for t in range(2):
        state = server.step(state, jnp.ones(1), jnp.float32(1.0), t)
    assert state.weights[0] == pytest.approx(-1 - 2**-0.5, rel=1e-6)


def test_linear_decay_by_hand():
    """1, 2/3 and 1/3 of the step in three rounds: the last round still moves."""
    server = Server(schedule="linear", rounds=3)
    state, moved = server.init(jnp.zeros(1)), []
    for t in range(3):
        before = state.weights[0]
        state = server.step(state, jnp.ones(1), jnp.float32(0.6), jnp.int32(t))
        moved.append(float(before - state.weights[0]))
    assert moved == pytest.approx([0.6, 0.4, 0.2], rel=1e-6)


def test_a_checkpoint_holds_the_whole_state():
    """Weights, Adam's count and two moments, and the mean of iterates."""
    server = Server("adam", rounds=6, average_last=2)
    leaves = jax.tree.leaves(run(server)[-1])
    assert sorted(np.size(leaf) for leaf in leaves) == [1, 4, 4, 4, 4]
