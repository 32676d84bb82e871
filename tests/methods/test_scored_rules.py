"""Rules by a released score or norm: that they run, are measured as stated and refused as stated.
(test_every_rule.py has their formulas; test_rules_audited.py attacks them.)"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import locksfl
from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import restore
from locksfl.federation.server.serving import as_federation
from locksfl.methods import RULES
from locksfl.methods.releases import UPDATE
from locksfl.methods.rules import NORM, Rule
from locksfl.models.build import softmax
from locksfl.privacy import calibrate, guarantee
from locksfl.round.algorithm import GivenClients
from locksfl.round.client import LocalWork, mean_loss
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_alone, play_sweep
from rule_checks import arm_of

BY_SCORE = ("loss", "oort", "delta", "cosine", "angle", "correlation", "noise-aware")
BY_NORM = ("fedis", "dpis", "gated")


# --- Runs -----------------------------------------------------------------------------------------

SIZES = np.tile([2, 3, 5, 8], 4)


@functools.cache
def simulator():
    return Simulator(ragged(SIZES), softmax((6,), 3))


def run_arm(rule, trust, **more):
    """An arm of the sixteen clients, calibrated to epsilon 8 (300 if each adds noise)."""
    given = {"uploads": 6.0, "clip_norm": 0.5, "trust": trust, "norm_low": 0.6}
    if not RULES[rule].all_clients:
        given["cohort"] = 12.0
    if "gate" in RULES[rule].takes:
        given["gate"] = 0.8
    arm = Arm.of("a", len(SIZES), 3, rule, **(given | more))
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
            "delta": np.sqrt(np.sum((u * min(1, 0.5 / np.linalg.norm(u)) - v) ** 2) + spread**2),
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
    arm = Arm.of(
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
    more += "" if RULES[rule].all_clients else "\ncohort = 6"
    return parse_config(TOML.replace("RULE", rule).replace("MORE", more), seed=1)


@pytest.mark.parametrize("rule", BY_SCORE)
def test_a_federation_refuses_what_a_device_is_not_asked_for(rule):
    with pytest.raises(ValueError, match="a device of a federation is not asked for") as refusal:
        as_federation(config(rule))
    assert str(refusal.value).startswith(f"arm.a.rule = '{rule}': ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("rule", BY_NORM)
def test_a_federation_takes_what_needs_the_norm_alone(rule):
    (arm,) = as_federation(config(rule)).arms
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
        ({"released": False}, "a score that is released"),
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
        default = "horvitz-thompson" if rule == "noise-aware" else "capped"
        assert arm_of(rule, trust="local").estimator == default
        assert arm_of(rule, trust="central").unbiased == (rule == "noise-aware")
    for rule in BY_NORM:
        assert arm_of(rule, trust="central").unbiased
