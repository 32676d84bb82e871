"""What the tests of control variates share: clients, arms, and runs that are stopped or swept."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from checks import arm_for
from locksfl.experiment.run import restore
from locksfl.methods import Method
from locksfl.round.randomness import Randomness
from locksfl.simulate.sweep import Setting, play_sweep

SIZES = np.tile([1, 2, 3, 9, 14, 30], 4)
N, ROUNDS = len(SIZES), 4
SEED, SECRET = Randomness.seeded(5), Randomness(987654321, simulated=False)
WEIGHTS = np.linspace(1, 3, N)
USUAL = {
    "clients": N,
    "rounds": ROUNDS,
    "cohort": 12.0,
    "uploads": 5.0,
    "clip_norm": 0.6,
    "step": 0.7,
    "floor": 0.2,
    "norm_low": 0.5,
    "noise_multiplier": 0.3,
    "norm_multiplier": 0.6,
    "weights": tuple(WEIGHTS / WEIGHTS.sum()),
}
METHODS = [
    Method("norm", "capped", "central"),
    Method("coin", "capped", "central"),
    Method("norm", "horvitz-thompson", "local"),
]


def arm_of(method):
    """An arm of the usual numbers."""
    silent = {} if method.parts[2].private else {"noise_multiplier": 0.0, "norm_multiplier": 0.0}
    return arm_for(method, USUAL, **silent)


def named(value):
    """The name of a method among the parameters of a test."""
    return f"{value.rule}-{value.trust}" if isinstance(value, Method) else ""


def play(simulator, arm, work, server, source=SEED, **options):
    """The rounds of a run, and its last state."""
    rounds, state = [], None
    for done in simulator.play(arm, work, server, source, **options):
        rounds, state = rounds + done.rounds, done.state
    return rounds, jax.tree.map(np.asarray, state)


def check_it_goes_on(simulator, work, server, source, forget):
    """Stopped after two rounds and resumed, a run is the same to the last bit; one whose control is
    what `forget` makes of its state is another."""
    arm = arm_of(METHODS[0])
    _, whole = play(simulator, arm, work, server, source)
    blocks = simulator.play(arm, work, server, source, pause_every=2)
    first = next(block for block in blocks if block.rounds[-1].round == 1)
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves(first.state)]
    state = restore(server, simulator.model, kept, arm, work)
    rest = (simulator, arm, work, server, source)
    _, resumed = play(*rest, state=state, first_round=2)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    state = state._replace(control=forget(state))
    _, forgot = play(*rest, state=state, first_round=2)
    assert (forgot.weights != whole.weights).any()


def check_a_sweep(simulator, work, server):
    """Four settings at once are the same as one by one."""
    arm = arm_of(METHODS[0])
    plans = [arm, replace(arm, clip_norm=0.3)]
    given = [Setting(plan, Randomness.seeded(seed)) for plan in plans for seed in (5, 6)]
    alone = play_sweep(simulator, given, work, server, at_once=1)
    together = play_sweep(simulator, given, work, server, at_once=4)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-4, atol=1e-5)
