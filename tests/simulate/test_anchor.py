"""Anchors (SVRG): the rounds of the reference, the variance of theory, the noise and the bound that
are charged, and the same run after a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import mean_is, ragged, std_is
from controlled import (
    METHODS,
    ROUNDS,
    SECRET,
    SEED,
    SIZES,
    N,
    arm_of,
    check_a_sweep,
    check_it_goes_on,
    named,
    play,
)
from locksfl.arm import Arm
from locksfl.methods import Method
from locksfl.models.build import softmax
from locksfl.round import algorithm, anchor, control
from locksfl.round.algorithm import GivenClients
from locksfl.round.client import Asked, LocalWork
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.floats import FloatSums
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from quadratics import chunk_of, quadratic_clients, quadratic_model, records_of

WORK = LocalWork(max_samples=12, control="anchor", anchor_every=3, anchor_ratio=0.25)
SERVER = Server("momentum", rounds=ROUNDS)
NONE = Method("norm", "literal", "none")


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(SIZES), softmax(6, 3))


def referred(arm, work, first, population, source):
    """The rounds of the paper, client by client: (their results, the steps, w~, G~)."""
    steps, rounds = reference.Steps(SERVER, arm.step, np.asarray(first, float)), []
    there, average = steps.flat, np.zeros_like(first)
    for t in range(SERVER.rounds):
        anchored = t % 3 == 0
        now = replace(arm, clip_norm=arm.clip_norm * (1.0 if anchored else 0.25))

        def update_of(client, flat, *given, anchored=anchored, there=there):
            del client
            found = reference.client_update(flat, *given)
            return found if anchored else found - reference.client_update(there, *given)

        given = (now, work, (6, 3), steps.flat, population, source, t)
        found = reference.play_round(*given, update_of)
        rounds.append(found)
        if anchored:
            there, average = steps.flat, found.update
            steps.take(found.update)
        else:
            steps.take(found.update + average)
    return rounds, steps, there, average


@pytest.mark.parametrize(
    ("method", "source"),
    [*((method, SEED) for method in (*METHODS, NONE)), *((m, SECRET) for m in METHODS)],
    ids=named,
)
def test_every_round_is_the_reference(simulator, method, source):
    """Two anchors, clients whose rows are subsampled, floats and whole numbers."""
    arm = arm_of(method)
    rounds, state = play(simulator, arm, WORK, SERVER, source)
    first = np.asarray(simulator.model.init(source.model_key()))
    wanted, steps, there, average = referred(arm, WORK, first, simulator.population, source)
    close = {"rtol": 1e-3, "atol": 5e-5}
    np.testing.assert_allclose(state.weights, steps.flat, **close)
    np.testing.assert_allclose(state.control.weights, there, **close)
    np.testing.assert_allclose(state.control.average, average, **close)
    for found, right in zip(rounds, wanted, strict=True):
        for name in ("released", "used"):
            seen = getattr(found, f"{name}_norm_sum")
            np.testing.assert_allclose(seen, getattr(right, name), **close)
        if source is SEED:
            np.testing.assert_array_equal(found.uploaded, right.uploaded)
            np.testing.assert_allclose(found.norms, right.norms, **close)


@pytest.mark.parametrize("source", [SEED, SECRET], ids=["float", "exact"])
def test_a_run_that_goes_on_is_the_same_to_the_last_bit(simulator, source):
    """Stopped between two anchors; a run that forgot the last one is another."""
    check_it_goes_on(
        simulator, WORK, SERVER, source, lambda state: anchor.first(WORK, state.weights, N)
    )


def test_a_sweep_is_one_by_one(simulator):
    check_a_sweep(simulator, WORK, SERVER)


# --- The variance ------------------------------------------------

RHO, ROWS = 0.3, 4
QUADRATIC = LocalWork(max_samples=2, control="anchor", anchor_every=2, anchor_ratio=1.0)
CURVATURE = np.linspace(0.5, 2.0, 30)


def released_squares(updates, rounds=20_000):
    """|average - mean|^2 of many rounds in which uniform sampling draws from these updates."""
    n = len(updates)
    arm = Arm("arm", n, 1, trust="none", cohort=n * RHO, clip_norm=1e6)
    mean, key = jnp.mean(updates, axis=0), SEED.arm_key("variance")

    @jax.jit
    def one(t):
        coins = jax.random.uniform(jax.random.fold_in(key, t), (n,))
        members = draw_members(key, t, jnp.where(coins < RHO, jnp.arange(n), -1), jnp.ones(n))
        draws = draw_server(key, t, updates.shape[1])
        result, _, _ = algorithm.play(
            arm.method, GivenClients(updates), members, FloatSums(draws), arm.dials()
        )
        return jnp.sum(jnp.square(result.update - mean))

    return np.asarray(jax.lax.map(one, jnp.arange(rounds), batch_size=1000))


def test_the_variance_falls_as_theory_says():
    """f_i = a_i/2 |w - b_i|^2: of the average of gradients (1/n^2) sum (1/rho - 1) |g_i|^2, .645
    here, and of differences (1/n^2) sum (1/rho - 1) a_i^2 |w - w~|^2, .0054: 120 times less. Both
    are measured (false alarms: 1e-6 each; 20,000 rounds give either to 1%). A client's four records
    have different centres and two are used: gradients of other rows at the anchor are rejected, and
    so is a variance 5% off."""
    rng = np.random.default_rng(3)
    n, size = len(CURVATURE), 5
    people = quadratic_clients(CURVATURE, rng.normal(size=(n, ROWS, size)))
    model, records = quadratic_model(size), records_of(people)
    keys, others = (jax.random.split(jax.random.key(seed), n) for seed in (1, 2))
    chunk, other = chunk_of(people, QUADRATIC, keys), chunk_of(people, QUADRATIC, others)
    here = jnp.asarray(rng.normal(size=size), jnp.float32)
    there = here + 0.1 * jnp.asarray(rng.normal(size=size), jnp.float32)
    before = anchor.Anchor(there, jnp.zeros(size))
    plain, differences = (
        anchor.updates(Asked(QUADRATIC, jnp.int32(t), model, here, records), before, chunk, None)
        for t in (0, 1)
    )

    each = (1 / RHO - 1) / n**2
    gap = float(jnp.sum(jnp.square(here - there)))
    by_theory = each * np.sum(CURVATURE**2) * gap
    by_gradients = each * float(jnp.sum(jnp.square(plain)))
    found = {"plain": released_squares(plain), "differences": released_squares(differences)}
    assert mean_is(found["plain"], by_gradients)
    assert mean_is(found["differences"], by_theory)
    assert not mean_is(found["differences"], 1.05 * by_theory)
    assert by_gradients / by_theory > 100

    faulty = plain - anchor.gradient_update(model, there, records, other)
    assert not mean_is(released_squares(faulty), by_theory)


def cycle_errors(updates, anchor_rate, cycles=20_000):
    """|sum of a cycle's steps - k times the mean gradient|^2, of cycles in which anchor rounds have
    a rate of their own. `updates`: of the anchor round, then of each difference round."""
    k, n, size = updates.shape
    work = replace(QUADRATIC, anchor_every=k, anchor_ratio=0.5)
    arms = [
        Arm.of("arm", n, k, cohort=n * rate, clip_norm=CLIP, noise_multiplier=NOISE)
        for rate in (anchor_rate, *[RHO] * (k - 1))
    ]
    mean, key = jnp.mean(updates, axis=1), SEED.arm_key("cycle")
    wanted = k * mean[0] + jnp.sum(mean[1:], axis=0)

    @jax.jit
    def one(cycle):
        state, taken = anchor.first(work, jnp.zeros(size), n), 0.0
        for t, arm in enumerate(arms):
            number = cycle * k + t
            coins = jax.random.uniform(jax.random.fold_in(key, number), (n,))
            cohort = jnp.where(coins < arm.sampling_rate, jnp.arange(n), -1)
            members = draw_members(key, number, cohort, jnp.ones(n))
            dials = anchor.dials_of(work, arm.dials(), t)
            drawn = draw_server(key, number, size)
            result, _, _ = algorithm.play(
                arm.method, GivenClients(updates[t]), members, FloatSums(drawn), dials
            )
            step, state = anchor.after(work, state, t, jnp.zeros(size), result.update, dials, None)
            taken = taken + step
        return jnp.sum(jnp.square(taken - wanted))

    return np.asarray(jax.lax.map(one, jnp.arange(cycles), batch_size=1000))


def average_variance(updates, rate, clip):
    """V of anchor.py: of an average over a cohort of this rate."""
    n, size = updates.shape
    sampling = (1 / rate - 1) * float(jnp.sum(jnp.square(updates))) / n**2
    return sampling + size * (NOISE * clip / (n * rate)) ** 2


CLIP, NOISE = 20.0, 0.02


@pytest.mark.parametrize("anchor_rate", [0.6, 1.0])
def test_the_steps_of_a_cycle_carry_the_variance_that_anchor_py_states(anchor_rate):
    """k^2 V_G + (k - 1) V_D over k = 4 steps, with noise and a larger cohort for anchors (false
    alarms: 1e-6). k V_G, as if the anchor's error were a new one in every step, is rejected. By the
    same formula they beat gradients with as many uploads only if anchors ask everybody."""
    rng = np.random.default_rng(9)
    n, k = len(CURVATURE), 4
    gradients = CURVATURE[:, None] * rng.normal(size=(n, 3))
    moves = CURVATURE[:, None] * 0.1 * rng.normal(size=(k - 1, 1, 3))
    updates = jnp.asarray(np.concatenate([gradients[None], moves]), jnp.float32)
    found = cycle_errors(updates, anchor_rate)
    anchors = average_variance(updates[0], anchor_rate, CLIP)
    differences = sum(average_variance(one, RHO, CLIP / 2) for one in updates[1:])
    assert mean_is(found, k**2 * anchors + differences)
    assert not mean_is(found, k * anchors + differences)

    as_many = (anchor_rate + (k - 1) * RHO) / k
    plain = k * average_variance(updates[0], as_many, CLIP)
    assert (found.mean() < plain) == (anchor_rate == 1)


@pytest.mark.parametrize(("k", "ratio"), [(2, 0.5), (10, 0.5), (10, 0.05)])
def test_no_split_of_the_budget_gives_anchors_less_noise_than_gradients(k, ratio):
    """All clients in every round, so that 1/z^2 adds up: of 400 splits the best has the noise that
    anchor.py states, to 1%, and none has less."""
    share = np.linspace(0, k, 402)[1:-1]  # of k rho, for the anchor round
    noise = k**2 / share + (k - 1) * ratio**2 / ((k - share) / (k - 1))
    stated = (1 + (1 - 1 / k) * ratio) ** 2
    assert stated * (1 - 1e-12) <= noise.min() / k <= stated * 1.01
    assert stated > 1


# --- The noise and the bound ------------------------------------------------


def silent_clients(size):
    """Six clients without a gradient: every released number is noise."""
    return Simulator(quadratic_clients(np.zeros(6), np.zeros((6, 1, size))), quadratic_model(size))


@pytest.mark.parametrize("source", [SEED, SECRET], ids=["float", "exact"])
def test_the_noise_of_a_difference_is_in_units_of_its_bound(source):
    """z C / m in an anchor round and z C'/ m in the others; 5% more or less is rejected (false
    alarms: 1e-6)."""
    size, ratio = 6000, 0.25
    arm = Arm.of("arm", 6, 4, cohort=3.0, clip_norm=2.0, noise_multiplier=0.7, step=1.0)
    server = Server(schedule="constant", rounds=4)
    work = replace(WORK, anchor_every=4)
    blocks = list(silent_clients(size).play(arm, work, server, source, pause_every=1))
    models = [np.zeros(size), *(np.asarray(block.state.weights, float) for block in blocks)]
    released = -np.diff(models, axis=0)  # G~, then D + G~
    std = 0.7 * 2.0 / 3.0
    assert std_is(released[0], std)
    assert not std_is(released[0], 1.05 * std)
    differences = released[1:] - released[0]
    assert std_is(differences, ratio * std)
    for wrong in (1.05, 0.95, 1 / ratio):
        assert not std_is(differences, wrong * ratio * std)
    logged = [block.rounds[0].noise for block in blocks]
    np.testing.assert_allclose(logged, std * np.sqrt(size) * np.array([1, ratio, ratio, ratio]))


PEOPLE, LENGTH = 8, 12


class Neighbours:
    """Clients of whom the first may have any data, all else alike: noise, coins, w, w~."""

    def __init__(self, rule, t):
        rng = np.random.default_rng(4)
        self.t, self.centres = t, rng.normal(size=(PEOPLE, 1, LENGTH))
        self.state = jnp.asarray(rng.normal(size=(3, LENGTH)), jnp.float32)
        self.arm = Arm.of(
            "arm", PEOPLE, 2, rule, cohort=float(PEOPLE), clip_norm=0.5, noise_multiplier=0.1
        )
        self.simulator = Simulator(self.people(1.0, 0.0), quadratic_model(LENGTH))

    def people(self, curvature, centre):
        self.centres[0] = centre
        return quadratic_clients([curvature] + [1.0] * (PEOPLE - 1), self.centres)

    def released(self, curvature, centre):
        """m times the average that round t releases."""
        self.simulator.records = self.simulator._records(self.people(curvature, centre))
        here, there, average = self.state
        server = Server(schedule="constant", rounds=self.t + 1)
        state = server.init(here)._replace(control=anchor.Anchor(there, average))
        given = (self.simulator, self.arm, WORK, server)
        _, after = play(*given, state=state, first_round=self.t)
        return PEOPLE * (np.asarray(here, float) - after.weights)

    def most(self):
        """The most that its data move the release, against a client without a gradient."""
        absent = self.released(0.0, 0.0)
        datas = [(1e4, 0.0), (-1e4, 3.0), (1e30, 1.0), (np.inf, 0.0), (0.05, 0.0)]
        return max(np.linalg.norm(self.released(*own) - absent) for own in datas)


@pytest.mark.parametrize("rule", ["uniform", "coin"])
@pytest.mark.parametrize("t", [0, 1], ids=["anchor", "difference"])
def test_one_client_moves_a_release_by_the_bound_of_the_round(rule, t):
    """Zero-out, whatever its data: C in an anchor round, C' in the others. A difference that is
    clipped to C, under the noise of C', is seen."""
    bound = 0.25 * 0.5 if t else 0.5
    assert 0.99 * bound < Neighbours(rule, t).most() <= bound * (1 + 1e-4)
    unclipped = replace(control.CONTROLS["anchor"], dials_of=lambda work, dials, t: dials)
    with mock.patch.dict(control.CONTROLS, anchor=unclipped):
        assert (Neighbours(rule, t).most() > 3 * bound) == (t == 1)
