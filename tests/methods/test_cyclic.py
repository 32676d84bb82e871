"""Turns and correlated noise: the schedule, the matrix, its sensitivity, and what is charged."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.matrix_factorization import sensitivity, toeplitz

from locksfl.arm import Arm
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import prepare
from locksfl.experiment.training import train
from locksfl.methods import cyclic
from locksfl.methods.cyclic import correlated, decorrelated, prefix_stds, strategy
from locksfl.methods.events import Sampled, Turns
from locksfl.methods.samplings.turns import group_of
from locksfl.privacy import Budget, account, calibrate, delta_from_mu, most_rounds
from locksfl.privacy.accountant import epsilon_of, epsilons_after, rdp_of
from locksfl.privacy.forecast import expected_round, reach
from locksfl.privacy.population import PlannedArm
from small_runs import QUICK

DELTA = 1e-5


def turns(separation=4, rounds=10, clients=30, **settings):
    return Arm.of("arm", clients, rounds, separation=separation, **settings)


def matrix(coefficients, rounds):
    return np.asarray(toeplitz.materialize_lower_triangular(jnp.asarray(coefficients), rounds))


# --- The schedule ------------------------------------------------


@pytest.mark.parametrize(("clients", "separation"), [(30, 4), (7, 7), (9, 1), (100, 8)])
def test_every_client_has_one_turn_in_every_cycle(clients, separation):
    groups = [group_of(clients, separation, t) for t in range(3 * separation)]
    for first in range(2 * separation):
        cycle = np.concatenate(groups[first : first + separation])
        assert sorted(cycle) == list(range(clients))
    assert {len(group) for group in groups} <= {clients // separation, -(-clients // separation)}
    assert all((np.diff(group) > 0).all() for group in groups if len(group) > 1)


def test_groups_do_not_follow_the_numbers_of_the_clients():
    """Splits deal by number; the shuffle is public, so it is one and the same for ever."""
    assert group_of(12, 3, 0).tolist() == group_of(12, 3, 3).tolist() == [0, 1, 3, 10]
    remainders = np.bincount(group_of(1000, 10, 0) % 10, minlength=10)
    assert remainders.min() > 0
    assert remainders.max() < 30


# --- The matrix ------------------------------------------------


def test_the_strategy_is_that_of_jax_privacy_and_costs_no_more_than_one():
    for rounds, bands in ((20, 4), (40, 8), (5, 9)):
        found = np.array(strategy(rounds, bands))
        assert len(found) == min(bands, rounds)
        assert 1 - 1e-3 < np.sum(found**2) <= 1
        theirs = np.asarray(toeplitz.optimize_banded_toeplitz(rounds, min(bands, rounds)))
        np.testing.assert_allclose(found, theirs, atol=2e-5)
        strategy.cache_clear()
        assert strategy(rounds, bands) == tuple(found)
    assert strategy(20, 1) == (1.0,)


def test_noise_round_by_round_is_the_inverse_of_the_matrix():
    rounds, coefficients = 12, strategy(12, 4)
    fresh = np.random.default_rng(0).normal(size=(rounds, 5))
    recent, noise = np.zeros((3, 5)), []
    for y in fresh:
        x, recent = correlated(y, recent, coefficients, np)
        noise.append(x)
    np.testing.assert_allclose(matrix(coefficients, rounds) @ noise, fresh, atol=1e-5)
    np.testing.assert_allclose(decorrelated(np.array(noise).T, coefficients, np).T, fresh)
    stream = toeplitz.inverse_as_streaming_matrix(jnp.asarray(coefficients))
    np.testing.assert_allclose(stream @ jnp.asarray(fresh), noise, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("rounds", "bands"), [(12, 4), (40, 8), (30, 1)])
def test_the_error_of_prefix_sums_is_that_of_jax_privacy(rounds, bands):
    squares = toeplitz.per_query_error(strategy_coef=jnp.asarray(strategy(rounds, bands)), n=rounds)
    np.testing.assert_allclose(
        prefix_stds(rounds, strategy(rounds, bands)) ** 2, squares, rtol=1e-4
    )


# --- Sensitivity ------------------------------------------------


def patterns(rounds, separation):
    """Every set of rounds in which a client may take part."""
    for number in range(1, rounds + 1):
        for chosen in itertools.combinations(range(rounds), number):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield chosen


def longest(coefficients, rounds, separation):
    """The most that a client moves C G, over all its rounds and all signs of its updates."""
    c = matrix(coefficients, rounds)
    return max(
        np.linalg.norm(c[:, list(chosen)] @ signs)
        for chosen in patterns(rounds, separation)
        for signs in itertools.product([1.0], *[[-1.0, 1.0]] * (len(chosen) - 1))
    )


@pytest.mark.parametrize("rounds", [1, 4, 9, 11])
@pytest.mark.parametrize(("separation", "bands"), [(1, 1), (2, 1), (2, 2), (3, 3), (4, 3), (4, 4)])
def test_no_client_moves_the_sums_by_more_than_is_charged(rounds, separation, bands):
    """By brute force, and by jax_privacy; equal where the last column is not cut off."""
    times = cyclic.turns(rounds, separation)
    charged, coefficients = math.sqrt(times), strategy(rounds, bands)
    found = longest(coefficients, rounds, separation)
    assert found <= charged
    theirs = sensitivity.get_sensitivity_banded(
        jnp.asarray(matrix(coefficients, rounds)), min(separation, rounds)
    )
    assert found == pytest.approx(theirs, rel=1e-4)
    if (times - 1) * separation + len(coefficients) <= rounds:
        assert found == pytest.approx(charged, rel=1e-3)


def test_more_bands_than_the_separation_would_cost_more_and_are_refused():
    charged = math.sqrt(cyclic.turns(9, 2))
    assert longest(strategy(9, 3), 9, 2) > 1.05 * charged
    with pytest.raises(ValueError, match="bands = 3: expected at most the separation, 2: with"):
        turns(2, bands=3)


# --- The accountant ------------------------------------------------


@pytest.mark.parametrize("bands", [1, 4])
def test_one_turn_is_the_gaussian_mechanism(bands):
    arm = turns(rounds=4, bands=bands, noise_multiplier=1.3)
    costs = {(c.observer, c.relation): c for c in account(arm, DELTA)}
    for relation, mu in (("zero-out", 1 / 1.3), ("replace", 2 / 1.3)):
        cost = costs["PUBLIC", relation]
        assert cost.accountant == "gdp"
        assert delta_from_mu(cost.epsilon, mu) == pytest.approx(DELTA, rel=1e-6)
        assert costs["SERVER", relation].epsilon == math.inf


def test_only_turns_count_and_nothing_is_amplified():
    event = Turns(4, 2.0)
    spent = epsilons_after(event, range(13), DELTA)
    assert spent[0] == 0
    assert spent[1:5] == [spent[1]] * 4
    assert spent[5:9] == [spent[5]] * 4
    assert spent[9] > spent[5] > spent[1]
    for relation in ("zero-out", "replace"):
        exact = epsilon_of([(event, 12)], DELTA, relation).epsilon
        everybody = epsilon_of([(Sampled(1.0, 2.0), 3)], DELTA, relation).epsilon
        # the accountant of coins rounds up, and doubles a distance under replace
        assert exact <= everybody <= (1.01 if relation == "zero-out" else 1.15) * exact
        assert epsilon_of([(Sampled(0.25, 2.0), 12)], DELTA, relation).epsilon < exact


def test_runs_of_turns_add_up_each_with_its_first_cycle():
    """Two runs of 5 rounds ask somebody four times, one of 10 rounds three times."""
    event = Turns(4, 2.0)
    two, one = (epsilon_of(s, DELTA).epsilon for s in ([(event, 5)] * 2, [(event, 10)]))
    assert two == epsilon_of([(event, 16)], DELTA).epsilon > one
    coins = (Sampled(0.1, 2.0), 20)
    for accountant in ("pld", "rdp"):
        mixed = epsilon_of([coins, (event, 5), (event, 5)], DELTA, accountant=accountant).epsilon
        alike = epsilon_of([coins, (Sampled(1.0, 2.0), 4)], DELTA, accountant=accountant).epsilon
        assert mixed == alike > two


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("rounds", [4, 5, 40])
def test_calibration_inverts_the_accountant(rounds, relation):
    arm = calibrate(turns(rounds=rounds), 3.0, DELTA, relation=relation)
    (cost,) = (c for c in account(arm, DELTA) if (c.observer, c.relation) == ("PUBLIC", relation))
    assert 3 * (1 - 1e-6) <= cost.epsilon <= 3
    independent = calibrate(turns(rounds=rounds, bands=1), 3.0, DELTA, relation=relation)
    assert independent.noise_multiplier == arm.noise_multiplier
    assert (
        most_rounds(replace(arm, rounds=1000), 3.0, DELTA, relation, "pld") == -(-rounds // 4) * 4
    )


def test_the_journal_of_a_population_charges_turns():
    plan = PlannedArm.of(turns(rounds=9, noise_multiplier=2.0))
    assert PlannedArm.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan
    orders = (1.5, 8.0, 32.0)
    mu_squared = 3 / 2.0**2
    for relation, times in (("zero-out", 1), ("replace", 4)):
        rdp = rdp_of(plan.terms["PUBLIC"], orders, relation)
        np.testing.assert_allclose(rdp, np.array(orders) / 2 * times * mu_squared)


def test_the_forecast_knows_that_the_noise_takes_itself_back():
    arm = turns(10, 100, 1000, noise_multiplier=5.0)
    noise = expected_round(arm, 50).noise
    gain = math.sqrt(100) / prefix_stds(100, arm.strategy)[-1]
    assert reach(arm, noise) == pytest.approx(gain * reach(replace(arm, bands=1), noise))
    assert gain > 1.5


# --- Refusals ------------------------------------------------

BUDGET = Budget(1.0, DELTA)
WEIGHTS = (1 / 30,) * 30


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"separation": 31}, "arm.arm.separation = 31: expected at most the 30 clients"),
        ({"separation": 2.5}, "arm.arm.separation = 2.5: expected a whole number >= 1"),
        ({"bands": 5}, "arm.arm.bands = 5: expected at most the separation, 4"),
        ({"bands": -1}, "arm.arm.bands = -1: expected a whole number >= 1"),
        ({"separation": 0, "cohort": 5, "bands": 2}, "bands = 2: expected a separation too"),
        ({"trust": "local"}, "arm.arm.trust = 'local': not where clients take turns: a client's"),
        ({"trust": "none", "bands": 2}, "bands = 2: trust 'none' adds no noise; leave it out"),
        ({"cohort": 10}, "cohort = 10: where clients take turns, it is clients / separation = 7.5"),
        ({"uploads": 5}, "uploads = 5: where clients take turns, it is clients / separation = 7.5"),
        ({"rule": "norm"}, "rule = 'norm': not where clients take turns: everybody whose turn"),
        ({"rule": "coin"}, "rule = 'coin': not where clients take turns: everybody whose turn"),
        ({"rule": "full"}, "rule = 'full': not where clients take turns: everybody whose turn"),
        (
            {"rule": "weights", "estimator": "weighted", "weights": WEIGHTS},
            "rule = 'weights': not where clients take turns: everybody whose turn",
        ),
        (
            {"clip_quantile": 0.5, "clip_multiplier": 1.0},
            "clip_quantile = 0.5: not where clients take turns: the noise of several rounds",
        ),
        ({"budget": BUDGET}, "not where clients take turns: each takes part equally often"),
        ({"dropouts": True}, "separation = 4: not in a federation"),
    ],
)
def test_what_is_not_sound_is_refused_in_one_line(settings, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        Arm.of("arm", **({"clients": 30, "rounds": 10, "separation": 4} | settings))
    assert "\n" not in str(caught.value)


TURNS = (
    'arm=[{name="turns", sampling="cyclic", separation=3, noise_multiplier=1.0}]',
    "privacy.trust=central",
)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["arm.turns.sampling=fixed-size"], "sampling = 'fixed-size': expected 'poisson', or 'cyc"),
        (["arm.turns.sampling=poisson"], "separation = 3: only with sampling 'cyclic'"),
        (['arm=[{name="a", cohort=4, bands=2}]'], "bands = 2: not with sampling 'poisson'"),
        (['arm=[{name="a", sampling="cyclic"}]'], "arm.a.separation is missing: sampling 'cyclic'"),
        (["train.rounds=auto"], "arm.turns.separation = 3: the planner knows cohorts of coins"),
        (["train.clip_quantile=0.5"], "arm.turns.clip_quantile = 0.5: not where clients take"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        parse_config(QUICK, (*TURNS, *changes), 3)
    assert "\n" not in str(caught.value)


def test_without_a_seed_only_independent_noise_is_played():
    refused = pytest.raises(ValueError, match=r"arm\.turns\.bands = 3: not without a seed")
    with refused:
        prepare(parse_config(QUICK, TURNS))
    assert prepare(parse_config(QUICK, TURNS, 3)).arms[0].strategy
    (arm,) = prepare(parse_config(QUICK, (*TURNS, "arm.turns.bands=1"))).arms
    assert (arm.cohort, arm.bands, arm.strategy) == (4.0, 1, ())
    with pytest.raises(ValueError, match=r"arm\.model\.bands = 3: not without a seed"):
        train(prepare(parse_config(QUICK, TURNS, 3)).population, epsilon=8.0, **LIBRARY)


LIBRARY = {"rounds": 4, "rule": "uniform", "sampling": "cyclic", "separation": 3}


def test_a_cohort_that_divides_the_clients_gives_the_separation():
    table = 'arm=[{name="turns", sampling="cyclic", cohort=COHORT, noise_multiplier=1.0}]'
    (arm,) = parse_config(QUICK, [table.replace("COHORT", "4")], 3).arms
    assert arm == parse_config(QUICK, TURNS, 3).arms[0]
    with pytest.raises(ValueError, match="or a cohort that divides the 12 clients"):
        parse_config(QUICK, [table.replace("COHORT", "5")], 3)
