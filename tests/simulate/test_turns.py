"""Turns in the simulator: who is asked, the noise of sums over rounds, resuming, sweeps, and a tiny
comparison with independent noise.

Every statistical check has a false-alarm rate of 1e-6, and rejects planted faults.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.matrix_factorization import toeplitz
from scipy import stats

from checks import FALSE_ALARM, mean_is, ragged
from locksfl.arm import Arm
from locksfl.audit.transcript import known_gradients, population
from locksfl.experiment.run import restore
from locksfl.methods.cyclic import correlated, strategy
from locksfl.methods.samplings.turns import group_of
from locksfl.models.build import softmax
from locksfl.privacy import calibrate
from locksfl.round import draws
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_sweep

SEED = Randomness.seeded(5)
SECRET = Randomness(987654321, simulated=False)
ROUNDS, SEPARATION, SIZE = 24, 6, 20_000
EPSILON, DELTA = 3.0, 1e-5


def arm_of(bands, rounds=ROUNDS, clients=18, **settings):
    given = {"separation": SEPARATION, "bands": bands, "noise_multiplier": 0.4} | settings
    return Arm.of("arm", clients, rounds, **given)


def play(simulator, arm, source=SEED, **options):
    server = Server(schedule="constant", rounds=arm.rounds)
    rounds, states = [], []
    for done in simulator.play(arm, LocalWork(), server, source, **options):
        rounds, states = rounds + done.rounds, [*states, done.state]
    return rounds, jax.tree.map(np.asarray, states)


# --- The error of prefix sums ------------------------------------------------


def prefix_noise(arm):
    """[T, d] the noise in the model after every round, in units of z S; all updates are zero."""
    silent = population(np.zeros(18), np.ones(18, int), 0)
    _, states = play(Simulator(silent, known_gradients(SIZE)), arm, pause_every=1)
    divisor = float(arm.parts[1].divisor(arm.dials(float)))
    scale = divisor / (arm.noise_multiplier * arm.clip_norm * arm.step)
    return np.array([state.weights for state in states], np.float64) * scale


def predicted(bands):
    """[T] jax_privacy's squared error of the sum of the first rounds, for a column of length 1."""
    coefficients = jnp.asarray(strategy(ROUNDS, bands))
    return np.asarray(toeplitz.per_query_error(strategy_coef=coefficients, n=ROUNDS), np.float64)


def errors_are(found, squares):
    """Whether every sum has its variance (chi-square), and their mean over rounds its own."""
    each = np.sum(found**2, axis=1) / squares
    law, share = stats.chi2(SIZE), FALSE_ALARM / 2 / (2 * ROUNDS)
    inside = (law.ppf(share) <= each) & (each <= law.isf(share))
    return bool(inside.all()) and mean_is(np.mean(found**2, axis=0), np.mean(squares))


def test_the_error_of_prefix_sums_is_as_jax_privacy_predicts():
    """Banded against independent noise at equal epsilon: the same multiplier, smaller errors in the
    mean and at worst, by the factors that were predicted."""
    arms = {b: calibrate(arm_of(b, noise_multiplier=0.0), EPSILON, DELTA) for b in (SEPARATION, 1)}
    banded, independent = arms.values()
    assert banded.noise_multiplier == independent.noise_multiplier
    found = {bands: prefix_noise(arm) for bands, arm in arms.items()}
    for bands, noise in found.items():
        assert errors_are(noise, predicted(bands))
    assert not errors_are(found[1], predicted(SEPARATION))
    for of_rounds in (np.mean, np.max):
        ratio = {
            "measured": [of_rounds(np.mean(found[b] ** 2, axis=1)) for b in arms],
            "predicted": [of_rounds(predicted(b)) for b in arms],
        }
        gains = {name: np.sqrt(mine / other) for name, (mine, other) in ratio.items()}
        print(of_rounds.__name__, {name: round(float(gain), 4) for name, gain in gains.items()})
        assert gains["measured"] == pytest.approx(gains["predicted"], rel=0.02)
        assert gains["measured"] < 0.75


def forgets_a_band(fresh, recent, coefficients, xp):
    return correlated(fresh, recent.at[-1].set(0.0), coefficients, xp)


def in_the_wrong_order(fresh, recent, coefficients, xp):
    now, _ = correlated(fresh, recent, coefficients, xp)
    return now, xp.concatenate([recent[1:], now[None]])


def of_the_wrong_sign(fresh, recent, coefficients, xp):
    first, *rest = coefficients
    return correlated(fresh, recent, (first, *(-c for c in rest)), xp)


def too_little(fresh, recent, coefficients, xp):
    return correlated(0.97 * fresh, recent, coefficients, xp)


@pytest.mark.parametrize(
    "fault", [forgets_a_band, in_the_wrong_order, of_the_wrong_sign, too_little]
)
def test_a_wrong_correlation_is_seen(monkeypatch, fault):
    monkeypatch.setattr(draws, "correlated", fault)
    assert not errors_are(prefix_noise(arm_of(SEPARATION)), predicted(SEPARATION))


# --- Rounds ------------------------------------------------

CLIENTS = 24
SIZES = np.tile([1, 2, 7, 9, 12, 30], 4)


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(SIZES), softmax(6, 3))


def small(bands, **settings):
    return arm_of(bands, 7, CLIENTS, separation=4, **settings)


@pytest.mark.parametrize("bands", [1, 4])
def test_the_group_whose_turn_it_is_uploads_all_of_it(simulator, bands):
    rounds, _ = play(simulator, small(bands))
    for log in rounds:
        assert log.cohort.tolist() == group_of(CLIENTS, 4, log.round).tolist()
        assert log.uploaded.all()
        assert log.expected_weight == pytest.approx(1.0)


def test_a_run_of_one_round_has_nothing_to_correlate(simulator):
    rounds, (state,) = play(simulator, replace(small(4), rounds=1))
    assert len(rounds) == 1
    assert state.recent_noise is None


def test_independent_noise_is_that_of_coins_and_may_be_secret(simulator):
    """bands = 1 draws what any arm of its name draws; without a seed, nobody is told who came."""
    one, coins = small(1), Arm.of("arm", CLIENTS, 7, cohort=6.0, noise_multiplier=0.4)
    quiet = Simulator(population(np.zeros(CLIENTS), np.ones(CLIENTS, int), 0), known_gradients(50))
    (_, mine), (_, theirs) = (play(quiet, arm) for arm in (one, coins))
    np.testing.assert_array_equal(mine[-1].weights, theirs[-1].weights)
    rounds, states = play(simulator, one, SECRET)
    assert all(log.cohort is None for log in rounds)
    assert np.isfinite(states[-1].weights).all()
    with pytest.raises(ValueError, match="bands = 4: not without a seed"):
        play(simulator, small(4), SECRET)


def test_a_run_that_goes_on_is_the_same_to_the_last_bit(simulator):
    """The noise of the last rounds is in the checkpoint; a run that forgot it is another one."""
    arm, server = small(4), Server(schedule="constant", rounds=7)
    _, whole = play(simulator, arm)
    first, states = [], []
    for done in simulator.play(arm, LocalWork(), server, SEED, pause_every=1):
        first, states = first + done.rounds, [*states, done.state]
        if len(first) == 3:
            break
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves(states[-1])]
    state = restore(server, simulator.model, kept, arm, LocalWork())
    assert state.recent_noise.shape == (3, simulator.model.size)
    _, resumed = play(simulator, arm, state=state, first_round=3)
    for one, other in zip(jax.tree.leaves(whole[-1]), jax.tree.leaves(resumed[-1]), strict=True):
        np.testing.assert_array_equal(one, other)
    forgot = state._replace(recent_noise=jnp.zeros_like(state.recent_noise))
    _, other = play(simulator, arm, state=forgot, first_round=3)
    assert (other[-1].weights != whole[-1].weights).any()


def test_one_device_or_chunks_of_one_client_make_no_difference(simulator, monkeypatch):
    _, wanted = play(simulator, small(4))
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *backend: one)
    _, found = play(Simulator(simulator.population, simulator.model, chunk=1), small(4))
    np.testing.assert_allclose(found[-1].weights, wanted[-1].weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[-1].recent_noise, wanted[-1].recent_noise, rtol=1e-4)


def test_settings_of_a_sweep_have_their_own_noise(simulator):
    """Arms with coins, with turns and with correlated noise are never of one program."""
    plans = [small(4), replace(small(4), clip_norm=0.5), small(1)]
    plans.append(Arm.of("arm", CLIENTS, 7, cohort=6.0, noise_multiplier=0.4))
    given = [Setting(plan, Randomness.seeded(5)) for plan in plans]
    server = Server(schedule="constant", rounds=7)
    wanted = play_sweep(simulator, given, LocalWork(), server, at_once=1)
    found = play_sweep(simulator, given, LocalWork(), server, at_once=2)
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.weights, other.weights, rtol=1e-4, atol=1e-5)
        cohorts = [[log.cohort.tolist() for log in one.rounds] for one in (mine, other)]
        assert cohorts[0] == cohorts[1]
    weights = [played.weights for played in wanted]
    assert min(np.abs(a - b).max() for i, a in enumerate(weights) for b in weights[:i]) > 1e-3


def test_the_log_has_the_size_of_the_noise_that_was_added():
    """What the model shows in a round of no update is the noise itself."""
    arm = small(4)
    quiet = Simulator(population(np.zeros(CLIENTS), np.ones(CLIENTS, int), 0), known_gradients(50))
    rounds, states = play(quiet, arm, pause_every=1)
    weights = np.array([np.zeros(50), *(state.weights for state in states)])
    norms = np.linalg.norm(np.diff(weights, axis=0), axis=1)
    np.testing.assert_allclose([log.noise for log in rounds], norms, rtol=1e-4)
