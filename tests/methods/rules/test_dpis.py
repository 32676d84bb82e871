"""DPIS: the noise of a round follows the released norm sum, and every round costs the same."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize
from scripts.make_methods import AUDITED, strongest

import reference
from checks import mean_is, ragged, std_is
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.plan import calibrated
from locksfl.federation.server.rounds import draw_round, play_round, round_terms
from locksfl.federation.wire import Answer
from locksfl.methods import RULES
from locksfl.methods.dials import Dials
from locksfl.methods.events import Chosen
from locksfl.models.build import softmax
from locksfl.privacy import account, calibrate
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.forecast import expected_round
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.client import LocalWork
from locksfl.round.draws import Members, ServerDraws, grid_of
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_alone, play_sweep
from memory_network import MemoryNetwork

CLIENTS, ROUNDS, UPLOADS, EPSILON, DELTA = 2000, 60, 40.0, 6.0, 1e-5


@functools.cache
def arm(relation="zero-out", **more):
    plain = Arm.of("dpis", CLIENTS, ROUNDS, "dpis", uploads=UPLOADS, **more)
    return calibrate(plain, EPSILON, DELTA, relation=relation)


def given_round(found, updates, draws, coins=None):
    """A round of these updates, all of them present."""
    n = len(updates)
    ones = jnp.ones(n)
    members = Members(jnp.arange(n), ones > 0, ones, 0 * ones if coins is None else coins, 0 * ones)
    return play(found.method, GivenClients(updates), members, FloatSums(draws), found.dials())


# --- The rule -------------------------------------------------------------------------------------


def test_all_are_scored_and_every_upload_has_one_length():
    """p = b |g| / K', and every upload is K'/b long."""
    found = Arm("a", 10, 5, "dpis", uploads=3.0, clip_norm=2.0, trust="none")
    assert found.cohort == found.clients == 10
    assert found.norm_low == 0.3
    updates = jnp.diag(jnp.array([0.5, 1.0, 2.0, 9.0] + [1.5] * 6))
    draws = ServerDraws(jnp.zeros(()), jnp.zeros(10))
    result, uploads, norms = given_round(found, updates, draws)
    norm_sum = 0.5 + 1 + 2 + 2 + 9
    assert float(result.used_norm_sum) == pytest.approx(norm_sum)
    np.testing.assert_allclose(uploads.coefficient * norms, norm_sum / 3, rtol=1e-5)


def test_a_given_multiplier_is_that_of_every_round():
    """Charged as the rule norm with a cohort of all: norms at rate 1, the update at K_low."""
    noise = {"noise_multiplier": 4.0, "norm_multiplier": 6.0, "norm_low": 0.5}
    found = Arm.of("a", 10, 5, "dpis", uploads=3.0, **noise)
    event = found.event()
    assert (event.sampling_rate, event.second_rate) == (1.0, pytest.approx(3 / 10 / 0.5))
    norm = Arm.of("a", 10, 5, "norm", cohort=10.0, uploads=3.0, floor=0.0, **noise)
    assert norm.event() == event
    assert found.dials().ladder is None


def test_clients_that_add_noise_have_one_multiplier():
    found = calibrate(Arm("a", 10, 5, "dpis", uploads=3.0, trust="local"), EPSILON, DELTA)
    assert found.rungs == found.ladder == ()


def test_a_rule_whose_sum_is_of_a_secret_cohort_cannot_choose_the_noise():
    with pytest.raises(ValueError, match="needs a value that is released, and all_clients"):
        dataclasses.replace(RULES["norm"], noise_follows=True)


# --- The charge -----------------------------------------------------------------------------------


def true_rdp(found, rung, order):
    """Of a rung, by an integrator of its own: the norm sum of everybody is a Gaussian, and the
    update a Gaussian sampled at the rate b C / K_k."""
    rate, z = UPLOADS / CLIENTS / found.rungs[rung], found.ladder[rung]

    def density(y):
        there = math.log(rate) + y / z - 0.5 / z**2
        ratio = there if rate >= 1 else np.logaddexp(math.log1p(-rate), there)
        return math.exp(order * ratio - y * y / 2) / math.sqrt(2 * math.pi)

    value, _ = integrate.quad(density, -12, order / z + 12, limit=400, epsabs=0, epsrel=1e-11)
    return order / 2 / found.norm_multiplier**2 + math.log(value) / (order - 1)


def fixed_order(found):
    """The order at which the first rung costs what the last does."""
    return optimize.brentq(
        lambda a: math.log(true_rdp(found, 0, a) / true_rdp(found, -1, a)), 2.0, 12.0, xtol=1e-9
    )


def test_every_rung_costs_the_same_and_all_rounds_no_more_than_epsilon():
    found = arm()
    assert found.rungs[0] == UPLOADS / CLIENTS
    assert found.rungs[-1] == 1
    assert max(b / a for a, b in zip(found.rungs, found.rungs[1:], strict=False)) <= 1.1
    assert (np.diff(found.ladder) < 0).all()
    order = fixed_order(found)
    each = [true_rdp(found, k, order) for k in range(0, len(found.rungs), 5)]
    np.testing.assert_allclose(each, each[0], rtol=1e-6)
    total = math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    assert total + ROUNDS * each[0] == pytest.approx(EPSILON, rel=1e-4)
    # planted: the noise of the next rung, which is for a lower rate
    less = found.changed(ladder=(*found.ladder[1:], found.ladder[-1]))
    assert true_rdp(less, 0, order) > each[0] * (1 + 1e-3)
    assert epsilon_of([(less.event(), ROUNDS)], DELTA).epsilon > EPSILON


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("more", [{}, {"clip_quantile": 0.5}, {"norm_multiplier": 90.0}], ids=str)
def test_calibration_is_never_above_the_target(relation, more):
    found = arm(relation, **more)
    assert found.norm_multiplier == pytest.approx(
        more.get("norm_multiplier", found.norm_multiplier)
    )
    (cost,) = (c for c in account(found, DELTA) if (c.observer, c.relation) == ("PUBLIC", relation))
    assert EPSILON * (1 - 2e-3) <= cost.epsilon <= EPSILON
    assert cost.accountant == "rdp"


def test_norms_that_cost_more_than_all_are_refused():
    with pytest.raises(ValueError, match=r"norm_multiplier = 3\.0: 60 norm releases alone cost"):
        arm(norm_multiplier=3.0)


def test_the_charge_is_the_norm_sum_and_the_largest_of_the_updates():
    event = arm().event()
    assert isinstance(event, Chosen)
    assert {one.sampling_rate for one in event.choices} == {1.0}
    assert {one.first_multiplier for one in event.choices} == {arm().norm_multiplier}
    assert event.choices[0].second_rate == 1
    assert event.choices[-1].second_rate == UPLOADS / CLIENTS


# --- The round ------------------------------------------------------------------------------------


def test_the_rung_is_below_the_norm_sum_and_no_probability_passes_its_rate():
    """For 20,000 values of K', in the precision of a round, among them the rungs themselves."""
    found, dials = arm(), arm().dials()
    rng = np.random.default_rng(0)
    shares = np.exp(rng.uniform(math.log(found.norm_low), 0.0, 20_000))
    shares = np.concatenate([shares, found.rungs]).astype(np.float32)
    public = np.clip(shares * np.float32(CLIENTS), dials.least_norm_sum, np.float32(CLIENTS))
    rung = dials.rung(public, np)
    below = np.asarray(found.rungs)[rung]
    assert (below <= public / CLIENTS * (1 + 1e-6)).all()
    above = np.append(found.rungs, np.inf)[rung + 1]
    assert (above >= public / CLIENTS * (1 - 1e-6)).all()
    at = dials.at_public(public, np)
    np.testing.assert_array_equal(at.noise_multiplier, np.float32(found.ladder)[rung])
    rates = np.array([one.second_rate for one in found.event().choices])
    assert (at.largest_probability.astype(float) <= rates[rung]).all()
    for one in (0.5, 0.0213, 1.0):
        assert (
            found.at_public(one * CLIENTS).noise_multiplier
            == found.ladder[max(k for k, rung in enumerate(found.rungs) if rung <= one)]
        )


FEW, SIZE = 20, 20_000
SHARES = [0.02, 0.05, 0.3, 1.0]  # K' / (n C)


def few(found):
    """The arm with fewer clients: its rates, and so its charge, stay."""
    return dataclasses.replace(found, clients=FEW, cohort=float(FEW), uploads=FEW * 0.02)


def is_of_the_rung_below(noise, found, share):
    """Whether a round's update is noise as charged, and cannot be that of the other end."""
    rung = max(k for k, low in enumerate(found.rungs) if low <= share * (1 + 1e-6))
    stds = np.array(found.ladder) * share * found.clip_norm / found.uploads
    other = 0 if rung > len(stds) / 2 else -1
    return std_is(noise, stds[rung]) and not std_is(noise, stds[other])


@pytest.mark.parametrize("share", SHARES)
def test_noise_is_that_of_the_rung_below_the_norm_sum(share):
    """False alarms: 1e-6; the noise of the other end of the ladder is rejected."""
    found = few(arm(clip_norm=0.5))
    updates = jnp.zeros((FEW, SIZE)).at[:, 0].set(0.5 * share)
    draws = ServerDraws(jnp.zeros(()), jax.random.normal(jax.random.key(3), (SIZE,)))
    result, uploads, _ = given_round(found, updates, draws, coins=jnp.ones(FEW))
    assert not uploads.uploaded.any()
    assert float(result.used_norm_sum) == pytest.approx(0.5 * share * FEW)
    assert is_of_the_rung_below(np.asarray(result.update, float), found, share)


@pytest.mark.parametrize("seeded", [True, False], ids=["seed", "no seed"])
@pytest.mark.parametrize("share", SHARES)
def test_a_federation_adds_the_same_noise(share, seeded):
    found = few(arm()).changed(norm_multiplier=1e-6)

    def respond(run, question, kept):
        del run, kept
        sent = np.array([share]) if question.stage == "norm" else np.zeros(SIZE, np.float32)
        return Answer(released=sent)

    played = play_round(
        found,
        MemoryNetwork(dict.fromkeys(range(FEW), respond)),
        np.zeros(SIZE, np.float32),
        draw_round(found, Randomness(3, simulated=seeded), 0, SIZE),
        terms=round_terms(found, "r", 1, "zero-out"),
        seconds=1.0,
        reserve=lambda cohort: cohort,
    )
    assert is_of_the_rung_below(np.asarray(played.result.update, float), found, share)
    assert round_terms(found, "r", 1, "zero-out").noise_multiplier == min(found.ladder)


N, D = 12, 3
RNG = np.random.default_rng(3)
VECTORS = (RNG.normal(size=(N, D)) + np.array([1.5, -1.0, 0.5])) * np.geomspace(0.1, 2.0, N)[
    :, None
]


def test_the_estimate_is_unbiased_whatever_the_rung():
    """False alarms: 1e-6. Coins that come up a sixth too often are rejected."""
    plain = Arm("a", N, 5, "dpis", uploads=3.0, clip_norm=2.0)
    found = calibrate(plain, 300.0, 1e-2)
    assert found.unbiased
    updates = jnp.asarray(VECTORS, jnp.float32)

    def updates_of(times):
        @jax.jit
        @jax.vmap
        def one(key):
            coin, norm, noise = jax.random.split(key, 3)
            draws = ServerDraws(jax.random.normal(norm), jax.random.normal(noise, (D,)))
            coins = jax.random.uniform(coin, (N,)) * times
            result, *_ = given_round(found, updates, draws, coins)
            return result.update, result.used_norm_sum

        return one(jax.random.split(jax.random.key(1), 40_000))

    lengths = np.linalg.norm(VECTORS, axis=1)
    mean = np.mean(VECTORS * np.minimum(1, 2.0 / lengths)[:, None], axis=0)
    seen, used = updates_of(1.0)
    assert len(np.unique(found.dials(float).rung(np.asarray(used, float), np))) >= 3
    assert mean_is(seen, mean)
    assert not mean_is(updates_of(6 / 7)[0], mean)


# --- Engines --------------------------------------------------------------------------------------

SIZES = np.tile([1, 2, 7, 9, 12, 30], 4)


@functools.cache
def simulator():
    return Simulator(ragged(SIZES), softmax(6, 3))


@functools.cache
def small(**more):
    """Twenty-four clients; norms that differ, and noise that lets K' move between rungs."""
    usual = {"uploads": 5.0, "clip_norm": 0.6, "step": 0.7, "norm_multiplier": 2.0}
    return calibrate(Arm.of("a", len(SIZES), 6, "dpis", **(usual | more)), 60.0, 1e-2)


@pytest.mark.parametrize(
    ("seeded", "more"), [(True, {}), (False, {"clip_quantile": 0.5})], ids=["seed", "no seed"]
)
def test_every_round_is_the_reference(seeded, more):
    """The norm sums, the noise and the model, once with a clip norm that adapts; several rungs are
    met."""
    found, source = small(**more), Randomness(11, simulated=seeded)
    rounds = []
    for block in simulator().play(found, LocalWork(), Server(rounds=6), source):
        rounds += block.rounds
    first = np.asarray(simulator().model.init(source.model_key()))
    expected, _, steps = reference.play(
        found, LocalWork(), Server(rounds=6), (6, 3), first, simulator().population, source
    )
    for one, wanted in zip(rounds, expected, strict=True):
        np.testing.assert_allclose(one.used_norm_sum, wanted.used, rtol=4e-4)
        np.testing.assert_allclose(one.noise, wanted.noise, rtol=4e-4)
    np.testing.assert_allclose(block.state.weights, steps.flat, rtol=4e-4, atol=2e-5)
    clips = [found.clip_norm if one.clip_norm is None else one.clip_norm for one in rounds]
    shares = [one.used / len(SIZES) / clip for one, clip in zip(expected, clips, strict=True)]
    assert len({sum(low <= share for low in found.rungs) for share in shares}) >= 3


def test_a_secret_rung_has_no_less_noise_than_is_charged():
    """The noise is drawn before K' is known, in steps; the steps in S follow the rung."""
    found = small()
    steps = np.asarray(grid_of(found).update, float)
    noise = found.update_multiplier * steps[-1]
    assert (noise / steps >= found.ladder).all()
    np.testing.assert_allclose(noise / steps, found.ladder, rtol=1e-3)
    assert math.log2(steps[-1]) % 1 == 0


def test_a_sweep_plays_the_same_rounds():
    settings = [Setting(small(step=step), Randomness.seeded(5)) for step in (0.5, 1.0)]
    settings.append(Setting(small(norm_low=0.4), Randomness.seeded(5)))  # fewer rungs
    together = play_sweep(simulator(), settings, LocalWork(), Server(rounds=6), at_once=2)
    for setting, both in list(zip(settings, together, strict=True))[:2]:
        alone = play_alone(simulator(), *setting, LocalWork(), Server(rounds=6))
        np.testing.assert_allclose(both.weights, alone.weights, rtol=1e-4, atol=1e-6)
    assert np.isfinite(together[2].weights).all()


# --- The audit, and what it is for ----------------------------------------------------------------


def test_half_of_the_claim_is_proved_on_a_long_ladder(monkeypatch):
    """With the paper's K_low, so that rounds are of many rungs; significance 1e-6. Rounds that all
    have the noise of the last rung are caught."""
    privacy = PrivacyConfig(trust="central", **AUDITED)
    found = calibrated(Arm("a", 100, 2, "dpis", uploads=10.0), privacy)
    bound = strongest(found, privacy)
    assert bound.claimed == pytest.approx(AUDITED["epsilon"], rel=2e-3)
    assert bound.claimed / 2 <= bound.lower <= bound.claimed
    real = Dials.at_public

    def careless(self, public, xp):
        at = real(self, public, xp)
        return at if self.ladder is None else at._replace(noise_multiplier=self.noise_multiplier)

    monkeypatch.setattr(Dials, "at_public", careless)
    assert strongest(found, privacy).refuted


def test_noise_falls_with_the_norms_as_that_of_the_best_rule_for_them():
    """60,000 clients, 60 uploads, 200 rounds, epsilon 8, delta 1e-6: within 15% of the coin that
    knows the mean norm, far below uniform; without the ladder it would be at p_C = 1."""
    many = {"clients": 60_000, "rounds": 200}
    found = calibrate(Arm.of("d", rule="dpis", uploads=60.0, **many), 8.0, 1e-6)
    uniform = calibrate(Arm.of("u", cohort=60.0, **many), 8.0, 1e-6, accountant="rdp")
    for share in (0.3, 0.1):
        coin = calibrate(
            Arm.of("c", rule="coin", cohort=60 / share, **many), 8.0, 1e-6, accountant="rdp"
        )
        noise = [expected_round(one, 1, share).noise for one in (found, coin, uniform)]
        assert noise[0] < 1.15 * noise[1]
        assert noise[0] < 0.4 * noise[2]
    assert found.ladder[0] > 20 * found.ladder[-1]
