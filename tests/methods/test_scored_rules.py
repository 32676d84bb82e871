"""Rules by loss, utility, diversity, norm without a floor, noise and gate: one section each for the
formulas, then what holds for all of them. (test_scored_rules_audited.py attacks them.)"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import locksfl
from checks import mean_is, ragged
from locksfl.arm import Arm, unsound
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import restore
from locksfl.federation.server.serving import as_federation
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.releases import UPDATE
from locksfl.methods.rules import NORM, Rule
from locksfl.models.build import softmax
from locksfl.privacy import calibrate, guarantee
from locksfl.round.algorithm import GivenClients, asked_values, play
from locksfl.round.client import LocalWork, mean_loss
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_alone, play_sweep

BY_SCORE = ("loss", "oort", "delta", "cosine", "angle", "correlation", "noise-aware")
BY_NORM = ("fedis", "dpis", "gated")
CLIP = 2.0


def arm_of(rule, clients=10, **more):
    """Ten clients of whom six are asked and three wanted."""
    given = {"uploads": 3.0, "clip_norm": CLIP, "trust": "none"}
    if not RULES[rule].everyone_scored:
        given["cohort"] = 6.0
    return Arm("a", clients, 5, rule, **(given | more))


def scores(rule, facts, **more):
    """What the rule asks of clients with these facts, as the round computes it."""
    arm = arm_of(rule, **more)
    given = {name: jnp.asarray(values, jnp.float32) for name, values in facts.items()}
    return np.asarray(asked_values(arm.method, jnp.zeros(1), given, arm.dials()))


def probabilities(rule, own, public, **more):
    arm = arm_of(rule, **more)
    return np.asarray(rule_of(rule).probability(np.array(own), public, 1.0, arm.dials(float), np))


def rule_of(name):
    return RULES[name]


# --- The formulas, by hand ------------------------------------------------------------------------


def test_loss():
    """C = 2, B = 2.5; above the bound C, and no number is 0."""
    found = scores("loss", {"loss": [0.0, 1.25, 2.5, 9.0, np.inf, np.nan]})
    np.testing.assert_allclose(found, [0, 1, 2, 2, 2, 0])
    np.testing.assert_allclose(scores("loss", {"loss": [1.25]}, loss_bound=5.0), [0.5])


def test_oort():
    """Losses 3 and 4: sqrt(12.5) times the size, over B = 10."""
    facts = {"rms_loss": [12.5**0.5, 12.5**0.5, 40.0], "size": [1.0, 2.0, 1.0]}
    found = scores("oort", facts, loss_bound=10.0)
    np.testing.assert_allclose(found, [2 * 12.5**0.5 / 10, 4 * 12.5**0.5 / 10, 2], rtol=1e-6)


def test_delta():
    """|u| = 3, <u, v> = 1, |v| = 2, spread 2: sqrt(9 - 2 + 4 + 4). Without v: norm and spread."""
    facts = {"norm": [3, 3, 0.6], "along": [1, 1, 0], "last_norm": [2, 2, 0], "spread": [2, 2, 0.8]}
    np.testing.assert_allclose(scores("delta", facts), [2, 2, 1])
    np.testing.assert_allclose(
        scores("delta", facts, clip_norm=9.0), [15**0.5, 15**0.5, 1], rtol=1e-6
    )


DIRECTIONS = {  # along v, at 60 degrees, across, against; then v = 0 and u = 0
    "norm": [3, 3, 3, 3, 3, 0],
    "along": [6, 3, 0, -6, 0, 0],
    "last_norm": [2, 2, 2, 2, 0, 2],
}


def test_cosine():
    np.testing.assert_allclose(scores("cosine", DIRECTIONS), [0, 0.5, 1, 2, 1, 1], atol=1e-6)


def test_angle():
    expected = [0, 2 / 3, 1, 2, 1, 1]
    np.testing.assert_allclose(scores("angle", DIRECTIONS), expected, rtol=1e-6, atol=1e-6)


def test_correlation():
    """(1, 2, 3) with v = (3, 2, 1), (1, 3, 2) and (2, 2, 2), which does not vary."""
    u = np.array([1.0, 2.0, 3.0])
    for v, wanted in (((3, 2, 1), 2.0), ((1, 3, 2), 0.5), ((2, 2, 2), 1.0), ((0, 0, 0), 1.0)):
        facts = {
            "norm": [np.linalg.norm(u)], "along": [u @ v], "last_norm": [np.linalg.norm(v)],
            "sum": [u.sum()], "last_sum": [np.sum(v)], "parameters": [3],
        }  # fmt: skip
        np.testing.assert_allclose(scores("correlation", facts), [wanted], rtol=1e-5)


def test_noise_aware():
    """r = 0.6, d z^2 = 12 * 0.25: C sqrt((0.36 + 3) / 4). Without noise, the norm."""
    facts = {"norm": [1.2, 9.0, 0.0], "parameters": [12, 12, 12]}
    found = scores("noise-aware", facts, trust="local", noise_multiplier=0.5, norm_multiplier=1.0)
    np.testing.assert_allclose(found, [2 * 0.84**0.5, 2, 2 * 0.75**0.5], rtol=1e-6)
    np.testing.assert_allclose(scores("noise-aware", facts), [1.2, 2, 0], rtol=1e-6)


def test_noise_aware_is_the_optimum():
    """No other probabilities with the same sum have less variance, by 1000 tries."""
    rng = np.random.default_rng(0)
    norms, noise = rng.uniform(0, CLIP, 20), 0.7
    facts = {"norm": norms, "parameters": np.full(20, 5.0)}
    a = scores("noise-aware", facts, trust="local", noise_multiplier=noise, norm_multiplier=1.0)

    def variance(p):
        return np.sum((norms**2 + 5 * (noise * CLIP) ** 2) / p)

    best = 6 * a / a.sum()
    for tried in best * np.exp(0.1 * rng.normal(size=(1000, 20))):
        assert variance(6 * tried / tried.sum()) > variance(best)


def test_fedis():
    """b z / K', without a floor: nothing for a norm of 0."""
    found = probabilities("fedis", [0.0, 1.0, 2.0], 8.0)
    np.testing.assert_allclose(found, [0, 3 / 8, 6 / 8])


def test_dpis():
    """All ten are scored; p = b |g| / K', and every upload is K'/b long."""
    arm = arm_of("dpis")
    assert arm.cohort == arm.clients == 10
    updates = jnp.diag(jnp.array([0.5, 1.0, 2.0, 9.0] + [1.5] * 6))
    ones = jnp.ones(10)
    members = Members(jnp.arange(10), ones > 0, ones, 0 * ones, 0 * ones)
    draws = ServerDraws(jnp.zeros(()), jnp.zeros(10))
    result, uploads, norms = play(arm.method, GivenClients(updates), members, draws, arm.dials())
    norm_sum = 0.5 + 1 + 2 + 2 + 9
    assert float(result.used_norm_sum) == pytest.approx(norm_sum)
    np.testing.assert_allclose(uploads.coefficient * norms, norm_sum / 3, rtol=1e-5)


def test_dpis_is_charged_without_amplification():
    """The norms at rate 1, the update at p_C = b C / K_low: no less than the rule norm with a
    cohort of all."""
    noise = {"noise_multiplier": 4.0, "norm_multiplier": 6.0, "norm_low": 0.5, "trust": "central"}
    event = arm_of("dpis", **noise).sampled_round()
    assert (event.sampling_rate, event.upload_probability) == (1.0, pytest.approx(3 / 10 / 0.5))
    norm = Arm("a", 10, 5, "norm", cohort=10.0, uploads=3.0, floor=0.0, clip_norm=CLIP, **noise)
    assert norm.sampled_round() == event


def test_gated():
    """Gate 0.45 of m C = 12: up to K' = 5.4 by norm, above it uniform; uploads are told alike."""
    own = [0.0, 1.0, 2.0]
    numbers = {"norm_low": 0.4, "uploads": 2.0}
    by_norm = [0.9 * 2 * z / 5.3 + 0.1 * 2 / 6 for z in own]
    np.testing.assert_allclose(probabilities("gated", own, 5.3, **numbers), by_norm)
    np.testing.assert_allclose(probabilities("gated", own, 5.5, **numbers), [2 / 6] * 3)
    arm = arm_of("gated", **numbers)
    assert arm.gate == 0.45
    estimate = RULES["gated"].estimated_uploads
    assert estimate(5.0, 5.3, arm) == RULES["norm"].estimated_uploads(5.0, 5.3, arm)
    assert estimate(5.0, 5.5, arm) == 2.0


def test_a_gate_that_is_never_open_is_charged_as_uniform_and_said():
    arm = arm_of("gated", norm_low=0.6)
    assert arm.largest_probability == 0.5
    assert any("every round is uniform" in said for said in arm.warnings())
    open_at_times = arm_of("gated", norm_low=0.5, gate=0.8)
    assert open_at_times.largest_probability == pytest.approx(0.9 * 0.5 / 0.5 + 0.1 * 0.5)
    assert open_at_times.warnings() == []


# --- What holds for all of them -------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*BY_SCORE, *BY_NORM])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_probability_exceeds_what_is_charged(rule, data):
    """For any score, any released sum and any public numbers, in float64 and without the round's
    own clamp; something comes close, so that the statement is not idle."""
    cohort = data.draw(st.floats(0.5, 50))
    uploads = cohort * data.draw(st.floats(1e-3, 1))
    clip = data.draw(st.sampled_from([1e-3, 1.0, 300.0]))
    share = uploads / cohort
    low = min(1.0, share + data.draw(st.floats(0, 1)) * (1 - share))
    numbers = {"uploads": uploads, "clip_norm": clip, "norm_low": max(low, share)}
    for name in {"floor", "gate"} & set(RULES[rule].takes):
        numbers[name] = data.draw(st.floats(0.01, 0.99))
    clients = 60
    if RULES[rule].everyone_scored:
        numbers["uploads"] = clients * share
    else:
        numbers["cohort"] = cohort
    arm = Arm("a", clients, 5, rule, trust="central", **numbers)
    stated, dials = RULES[rule], arm.dials(float)
    released = data.draw(st.floats(-2, 3)) * arm.cohort * clip
    public = stated.settle(released, dials, np)
    own = clip * np.array([0.0, data.draw(st.floats(0, 1)), 1.0])
    p = stated.probability(own, public, 1.0, dials, np)
    assert np.all((p >= 0) & (p <= arm.largest_probability * (1 + 1e-12)))
    worst = stated.probability(clip, stated.settle(0.0, dials, np), 1.0, dials, np)
    assert worst == pytest.approx(arm.largest_probability, rel=1e-9)


N, D, ROUNDS = 12, 3, 40_000
RNG = np.random.default_rng(3)
VECTORS = (RNG.normal(size=(N, D)) + np.array([1.5, -1.0, 0.5])) * np.geomspace(0.1, 2.0, N)[
    :, None
]
LAST = np.array([0.3, -0.2, 0.4])
# the longest updates have the least loss and spread: where a cap is not by norm, it binds
GIVEN = {"loss": np.geomspace(2.0, 0.02, N), "rms_loss": np.geomspace(3.0, 0.03, N)}
GIVEN["spread"] = np.geomspace(0.2, 0.01, N)


def played(arm, coins_times=1.0):
    """[rounds, D] updates of rounds with fresh coins and noise."""
    facts = {name: jnp.asarray(values, jnp.float32) for name, values in GIVEN.items()}
    clients = GivenClients(jnp.asarray(VECTORS, jnp.float32), jnp.asarray(LAST, jnp.float32), facts)
    dials, ones = arm.dials(), jnp.ones(N)

    def one(key):
        first, second, third, fourth, fifth = jax.random.split(key, 5)
        there = jax.random.uniform(first, (N,)) < arm.sampling_rate
        coins = jax.random.uniform(second, (N,)) * coins_times
        members = Members(jnp.arange(N), there, ones, coins, jax.random.normal(third, (N,)))
        draws = ServerDraws(jax.random.normal(fourth), jax.random.normal(fifth, (D,)))
        return play(arm.method, clients, members, draws, dials)[0].update

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), ROUNDS)), float)


CASES = [
    (rule, estimator, trust)
    for rule in (*BY_SCORE, *BY_NORM)
    for estimator, trust in (
        ("capped", "none"), ("capped", "central"), ("horvitz-thompson", "none"),
        ("horvitz-thompson", "local"),
    )
    if not unsound(RULES[rule], ESTIMATORS[estimator], TRUSTS[trust])
]  # fmt: skip


@pytest.mark.parametrize(("rule", "estimator", "trust"), CASES)
def test_an_estimate_is_unbiased_where_that_is_stated_and_nowhere_else(rule, estimator, trust):
    """False alarms: 1e-6 for each check. Coins that come up a sixth too often are rejected."""
    noise = {"noise_multiplier": 0.05, "norm_multiplier": 0.4} if trust != "none" else {}
    arm = arm_of(rule, N, estimator=estimator, trust=trust, norm_low=0.5, **noise)
    lengths = np.linalg.norm(VECTORS, axis=1)
    mean = np.mean(VECTORS * np.minimum(1, CLIP / lengths)[:, None], axis=0)
    assert mean_is(played(arm), mean) == arm.unbiased
    if arm.unbiased:
        assert not mean_is(played(arm, coins_times=6 / 7), mean)


# --- Runs -----------------------------------------------------------------------------------------

SIZES = np.tile([2, 3, 5, 8], 4)


@functools.cache
def simulator():
    return Simulator(ragged(SIZES), softmax((6,), 3))


def run_arm(rule, trust, **more):
    """An arm of the sixteen clients, calibrated to epsilon 8 (300 if each adds noise)."""
    given = {"uploads": 6.0, "clip_norm": 0.5, "trust": trust, "norm_low": 0.6}
    if not RULES[rule].everyone_scored:
        given["cohort"] = 12.0
    if "gate" in RULES[rule].takes:
        given["gate"] = 0.8
    arm = Arm("a", len(SIZES), 3, rule, **(given | more))
    if not arm.private:
        return arm
    epsilon = 300.0 if trust == "local" else 8.0
    arm = calibrate(arm, epsilon, 1e-3, accountant="rdp")
    observer = "SERVER" if trust == "local" else "PUBLIC"
    costs = {(c.observer, c.relation): c.epsilon for c in guarantee([arm], 1e-3, "rdp")}
    assert costs[observer, "zero-out"] == pytest.approx(epsilon, rel=1e-3)
    assert costs[observer, "zero-out"] <= epsilon
    return arm


SOURCE = Randomness.seeded(5)


def run(arm, source=SOURCE, **options):
    rounds = []
    for block in simulator().play(arm, LocalWork(), Server(rounds=3), source, **options):
        rounds += block.rounds
    return rounds, jax.tree.map(np.asarray, block.state)


@pytest.mark.parametrize(("trust", "seeded"), [("none", True), ("central", False), ("local", True)])
@pytest.mark.parametrize("rule", [*BY_SCORE, *BY_NORM])
def test_each_rule_runs_under_every_trust(rule, trust, seeded):
    """With a seed, and in central trust without: then all is whole numbers (round/exact.py)."""
    arm = run_arm(rule, trust)
    rounds, state = run(arm, Randomness(5, simulated=seeded))
    assert len(rounds) == 3
    assert np.isfinite(state.weights).all()
    assert (state.last is not None) == RULES[rule].remembers
    used = np.array([log.used_norm_sum for log in rounds])
    whole = arm.cohort * arm.clip_norm
    assert ((used >= 0.6 * whole * (1 - 1e-6)) & (used <= whole * (1 + 1e-6))).all()


def true_scores(rule, weights, last):
    """The scores of all clients, from their records and jax.grad."""
    population, model = simulator().population, simulator().model
    found = []

    @jax.jit
    @jax.value_and_grad
    def loss(flat, x, y):
        return mean_loss(model, model.unravel(flat), x[None], y[None], jnp.ones(1, bool))

    for client in range(len(SIZES)):
        rows = slice(*population.offsets[client : client + 2])
        x, y = jnp.asarray(population.features[rows]), jnp.asarray(population.labels[rows])
        each = [loss(weights, *record) for record in zip(x, y, strict=True)]
        losses = np.array([one[0] for one in each], np.float64)
        gradients = np.array([one[1] for one in each], np.float64)
        u, v = gradients.mean(axis=0), np.asarray(last, np.float64)
        cosine = u @ v / (np.linalg.norm(u) * np.linalg.norm(v)) if v.any() else 0.0
        spread = np.sqrt(np.mean(np.sum(gradients**2, 1)) - u @ u)
        found.append({
            "loss": 0.5 * losses.mean() / 2.5,
            "oort": 0.5 * np.sqrt(np.mean(losses**2)) / 2.5,
            "delta": np.sqrt(np.sum((u - v) ** 2) + spread**2),
            "cosine": 0.5 * (1 - cosine) / 2,
            "angle": 0.5 * np.arccos(cosine) / np.pi,
            "correlation": 0.5 * (1 - (np.corrcoef(u, v)[0, 1] if v.any() else 0.0)) / 2,
        }[rule])  # fmt: skip
    return np.clip(found, 0.0, 0.5)


@pytest.mark.parametrize("seeded", [True, False], ids=["seed", "no seed"])
@pytest.mark.parametrize("rule", [rule for rule in BY_SCORE if rule != "noise-aware"])
def test_the_released_sum_is_that_of_the_true_scores(rule, seeded):
    """In the first round and in the second, whose last update is the first's; everybody is asked,
    and the noise is too little to matter."""
    more = {"trust": "central", "noise_multiplier": 1e-3, "norm_multiplier": 1e-4}
    arm = Arm(
        "a", len(SIZES), 2, rule, cohort=16.0, uploads=6.0, clip_norm=0.5, norm_low=0.4, **more
    )
    source = Randomness(5, simulated=seeded)
    weights, last = simulator().model.init(source.model_key()), np.zeros(simulator().model.size)
    server = Server(rounds=2)
    for block in simulator().play(arm, LocalWork(), server, source, pause_every=1):
        wanted = true_scores(rule, weights, last).sum()
        assert block.rounds[0].released_norm_sum == pytest.approx(wanted, rel=2e-3)
        after = block.state.weights
        step = server.eta(1.0, block.rounds[0].round)
        last, weights = np.asarray(weights - after) / step, after


def test_a_run_goes_on_where_it_stopped():
    """The last update is part of a checkpoint."""
    arm, server = run_arm("cosine", "central"), Server(rounds=3)
    whole, state = run(arm)
    first = next(iter(simulator().play(arm, LocalWork(), server, SOURCE, pause_every=2)))
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves(first.state)]
    again = restore(server, simulator().model, kept, arm, LocalWork())
    rest, end = run(arm, state=again, first_round=len(first.rounds))
    assert rest[-1].released_norm_sum == whole[-1].released_norm_sum
    np.testing.assert_array_equal(end.weights, state.weights)


def test_a_sweep_plays_the_same_rounds():
    settings = [Setting(run_arm("cosine", "central", step=step), Randomness.seeded(5))
                for step in (0.5, 1.0)]  # fmt: skip
    together = play_sweep(simulator(), settings, LocalWork(), Server(rounds=3), at_once=2)
    for setting, both in zip(settings, together, strict=True):
        alone = play_alone(simulator(), *setting, LocalWork(), Server(rounds=3))
        np.testing.assert_allclose(both.weights, alone.weights, rtol=1e-4, atol=1e-6)


def test_the_library_takes_a_rule_by_loss():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    population = locksfl.Population.from_arrays(
        x, y, np.arange(60) % 6, test_features=x, test_labels=y, classes=2
    )
    trained = locksfl.train(
        population, rule="loss", loss_bound=1.0, cohort=4, uploads=2, rounds=2, epsilon=8.0
    )
    assert {math.isinf(c.epsilon) for c in trained.privacy if c.observer == "PUBLIC"} == {False}


# --- Statements and refusals ----------------------------------------------------------------------

TOML = """
name = "scored"
[data]
clients = 12
[train]
rounds = 2
[privacy]
trust = "local"
epsilon = 300.0
accountant = "rdp"
[[arm]]
name = "a"
rule = "RULE"
uploads = 3
MORE
"""


def config(rule, more=""):
    more += "" if RULES[rule].everyone_scored else "\ncohort = 6"
    return parse_config(TOML.replace("RULE", rule).replace("MORE", more), seed=1)


@pytest.mark.parametrize("rule", BY_SCORE)
def test_a_federation_refuses_what_a_device_is_not_asked_for(rule):
    with pytest.raises(ValueError, match="a device of a federation is not asked for") as refusal:
        as_federation(config(rule))
    assert str(refusal.value).startswith(f"arm.a.rule = '{rule}': ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("rule", BY_NORM)
def test_a_federation_takes_what_needs_the_norm_alone(rule):
    (arm,) = as_federation(config(rule)).arms()
    assert arm.releases_norms


@pytest.mark.parametrize(
    ("rule", "more", "said"),
    [
        ("norm", "loss_bound = 3.0", r"arm\.a\.loss_bound = 3\.0: rule 'norm' takes no loss_bound"),
        ("loss", "gate = 0.5", r"arm\.a\.gate = 0\.5: rule 'loss' takes no gate"),
        ("loss", "loss_bound = 0.0", r"arm\.a\.loss_bound = 0\.0: expected"),
        ("gated", "gate = 1.5", r"arm\.a\.gate = 1\.5: expected"),
        ("fedis", "floor = 0.1", r"rule 'fedis' takes no floor"),
        ("dpis", "cohort = 6", r"arm\.a\.cohort = 6: rule 'dpis' scores all 12 clients"),
        ("fedis", 'estimator = "horvitz-thompson"', "a noised norm may be 0"),
        ("loss", 'estimator = "horvitz-thompson"\nfloor = 0.0', "divides by the probability"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(rule, more, said):
    with pytest.raises(ValueError, match=said) as refusal:
        config(rule, more)
    assert "\n" not in str(refusal.value)


def test_a_score_has_to_be_stated_soundly():
    loss = RULES["loss"]

    def stated(**changes) -> Rule:
        return dataclasses.replace(loss, name="own", **changes)

    for changes, said in (
        ({"asks": NORM}, "a domain of its own"),
        ({"asks": UPDATE}, "a domain of its own"),
        ({"facts": ("los",)}, "fact 'los'; expected one of norm, loss"),
        ({"facts": ()}, "a score and its facts, or neither"),
        ({"released": False}, "a score that is released, or compared"),
    ):
        with pytest.raises(ValueError, match=said):
            stated(**changes)


def test_clients_with_given_updates_say_which_fact_they_lack():
    with pytest.raises(ValueError, match="expected their loss"):
        GivenClients(jnp.ones((2, 3))).measure(("loss",))


def test_every_rule_says_where_it_comes_from_and_what_is_sent():
    for name, rule in RULES.items():
        assert rule.paper, name
        assert rule.sends.endswith("uploads") or rule.everyone, name


def test_the_default_estimator_is_unbiased_where_nothing_is_lost_by_it():
    """Without noise; with it, one bound for all keeps the noise small."""
    for rule in BY_SCORE:
        assert arm_of(rule).unbiased
        assert arm_of(rule, trust="local").estimator == "capped"
        assert arm_of(rule, trust="central").unbiased == (rule == "noise-aware")
    for rule in BY_NORM:
        assert arm_of(rule, trust="central").unbiased
