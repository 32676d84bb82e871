"""What cannot be sound is refused in one line that names setting, value and expectation."""

from __future__ import annotations

import itertools
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import PLAIN_RULES, arm_for
from locksfl.arm import Noise
from locksfl.experiment.config import Config, DataConfig, PrivacyConfig, TrainConfig
from locksfl.experiment.plan import plan_arms
from locksfl.methods import ESTIMATORS, TRUSTS, Method
from locksfl.round.algorithm import upload_probability

CLIENTS = 20
EVEN = (1 / CLIENTS,) * CLIENTS
USUAL = {
    "clients": CLIENTS,
    "rounds": 2,
    "cohort": 10.0,
    "uploads": 5.0,
    "floor": 0.1,
    "norm_low": 0.5,
    "weights": EVEN,
}


def arm(rule="norm", estimator="capped", trust="central", **changes):
    return arm_for(Method(rule, estimator, trust), USUAL, name="a", **changes)


@pytest.mark.parametrize(
    ("estimator", "rule", "trust"), list(itertools.product(ESTIMATORS, PLAIN_RULES, TRUSTS))
)
def test_only_sound_combinations_are_planned(estimator, rule, trust):
    """All 60: the 32 of the design are accepted, the others refused by name, with what is
    expected instead."""
    trusts = {"horvitz-thompson": ("none", "local")}.get(estimator, ("none", "central", "local"))
    rules = ("weights",) if estimator == "weighted" else ("coin", "uniform", "norm", "full")
    tells = rule == "coin" and trust == "local"  # who uploads would show a norm to the server
    if trust in trusts and rule in rules and not tells:
        assert arm(rule, estimator, trust).method == Method(rule, estimator, trust)
        return
    with pytest.raises(ValueError, match=r"^arm\.a\.(estimator|rule) = ") as refused:
        arm(rule, estimator, trust)
    told = str(refused.value)
    if tells:
        assert told.endswith("expected a rule that releases what it asks for")
        return
    if trust not in trusts:
        assert repr(estimator) in told
        assert repr(trust) in told
        assert told.endswith("expected trust 'local' or 'none'")
    else:
        assert repr(rule) in told
        assert repr(estimator) in told
        partner = "rule 'weights'" if estimator == "weighted" else "estimator 'weighted'"
        assert told.endswith(f"expected {partner}")


REFUSED = [
    ({"cohort": 21.0}, "arm.a.cohort = 21: expected at most the 20 clients"),
    ({"uploads": 11.0, "norm_low": 1.0}, "arm.a.uploads = 11: expected at most the cohort, 10"),
    ({"floor": 1.0}, "arm.a.floor = 1.0: expected a share in [0, 1)"),
    ({"floor": -0.1}, "arm.a.floor = -0.1: expected a share in [0, 1)"),
    ({"floor": float("nan")}, "arm.a.floor = nan: expected a share in [0, 1)"),
    ({"norm_low": 0.49}, "arm.a.norm_low = 0.49: expected at least uploads / cohort = 0.5"),
    ({"norm_low": 1.1}, "arm.a.norm_low = 1.1: expected a rate in (0, 1]"),
    ({"clip_norm": 0.0}, "arm.a.clip_norm = 0.0: expected a number > 0"),
    ({"step": float("inf")}, "arm.a.step = inf: expected a number > 0"),
    ({"cohort": 0.0}, "arm.a.cohort = 0.0: expected a number > 0"),
    ({"rounds": 0}, "rounds = 0: expected a whole number >= 1"),
    ({"weights": EVEN}, "arm.a.weights: only with rule 'weights', not 'norm'"),
    (
        {"estimator": "horvitz-thompson", "trust": "local", "floor": 0.0},
        "arm.a.floor = 0: estimator 'horvitz-thompson' divides by the probability; expected > 0",
    ),
    (
        {"rule": "full", "cohort": 10.0, "uploads": 10.0},
        "arm.a.cohort = 10: rule 'full' asks all 20 clients",
    ),
    (
        {"rule": "weights", "estimator": "weighted", "weights": None},
        "arm.a.weights: missing: rule 'weights' needs one number per client",
    ),
    (
        {"rule": "weights", "estimator": "weighted", "weights": (0.5, 0.5)},
        "arm.a.weights: expected 20 numbers >= 0 that sum to 1, got 2 that sum to 1",
    ),
    (
        {"rule": "weights", "estimator": "weighted", "weights": (0.1,) * 20},
        "arm.a.weights: expected 20 numbers >= 0 that sum to 1, got 20 that sum to 2",
    ),
    (
        {"rule": "weights", "estimator": "weighted", "weights": (-0.05, 0.15, *EVEN[2:])},
        "arm.a.weights: expected 20 numbers >= 0 that sum to 1",
    ),
    (
        {"rule": "weights", "estimator": "weighted", "weights": (float("nan"), *EVEN[1:])},
        "arm.a.weights: expected 20 numbers >= 0 that sum to 1, got 20 that sum to nan",
    ),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_unsound_numbers_are_refused(changes, told):
    with pytest.raises(ValueError, match="^" + re.escape(told)):
        arm(**changes)


def config(trust="central", epsilon=None, **settings):
    table = {"name": "a", "cohort": 10, "uploads": 5, **settings}
    return Config(
        data=DataConfig(clients=CLIENTS),
        train=TrainConfig(rounds=2),
        privacy=PrivacyConfig(trust=trust, epsilon=epsilon),
        arm=[{name: value for name, value in table.items() if value is not None}],
    )


UNPLANNED = [
    (
        {"cohort": None, "uploads": None},
        "arm.a.cohort is missing: expected the number",
    ),
    ({"floor": 0.2}, "arm.a.floor = 0.2: rule 'uniform' takes no floor"),
    ({"norm_low": 0.6}, "arm.a.norm_low = 0.6: rule 'uniform' takes no norm_low"),
    ({"norm_multiplier": 1.0}, "arm.a.norm_multiplier = 1.0: rule 'uniform' takes no"),
    ({}, "arm.a.noise_multiplier is missing: expected it, or privacy.epsilon"),
    (
        {"rule": "norm", "noise_multiplier": 1.0},
        "arm.a.norm_multiplier is missing: rule 'norm' releases norms",
    ),
    (
        {"epsilon": 3.0, "noise_multiplier": 1.0},
        "arm.a.noise_multiplier = 1.0: privacy.epsilon = 3.0 already fixes it",
    ),
    (
        {"trust": "none", "noise_multiplier": 1.0},
        "arm.a.noise_multiplier = 1.0: trust 'none' adds no noise",
    ),
]


@pytest.mark.parametrize(("settings", "told"), UNPLANNED, ids=[told for _, told in UNPLANNED])
def test_noise_is_given_once_and_in_full(settings, told):
    with pytest.raises(ValueError, match="^" + re.escape(told)):
        plan_arms(config(**settings))


def test_what_is_left_out_is_filled_in():
    """K_low is the least that is sound, the floor 0.1, full asks everybody."""
    settings = {"rule": "norm", "noise_multiplier": 1.0, "norm_multiplier": 2.0}
    (planned,) = plan_arms(config(**settings))
    assert (planned.norm_low, planned.floor) == (0.5, 0.1)
    assert planned.largest_probability == pytest.approx(0.9 + 0.05)
    whole = config(rule="full", cohort=None, uploads=None, noise_multiplier=1.0)
    (full,) = whole.arms
    assert (full.cohort, full.uploads, full.largest_probability) == (20.0, 20.0, 1.0)
    assert full.sampling_rate == 1
    dials = planned.dials()
    assert dials.least_norm_sum == np.float32(0.5 * 10 * planned.clip_norm)


@given(
    rule=st.sampled_from(PLAIN_RULES),
    uploads=st.floats(0.01, 10),
    low=st.floats(0, 1),
    floor=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
def test_the_largest_probability_bounds_every_probability(rule, uploads, low, floor, seed):
    """For random norms and norm sums within the clamp, to float32's rounding, and it is reached
    by a client of norm C at K_low, or by the heaviest: a smaller bound would be wrong."""
    rng = np.random.default_rng(seed)
    changes = {"uploads": uploads} if rule != "full" else {}
    if rule == "norm":
        share = uploads / 10
        changes |= {"floor": floor, "norm_low": share + low * (1 - share)}
    if rule == "weights":
        drawn = rng.exponential(size=CLIENTS) ** 3
        changes |= {"weights": tuple((drawn / drawn.sum()).tolist())}
    planned = arm(rule, "weighted" if rule == "weights" else "capped", **changes)
    dials = planned.dials()._replace(
        largest_probability=np.float32(1.0)
    )  # what the rule itself gives
    scores = jnp.asarray(np.append(rng.uniform(0, 1, CLIENTS - 1), 1.0), jnp.float32)
    weights = jnp.asarray(planned.scaled_weights() if rule == "weights" else np.ones(CLIENTS))
    top = 0.0
    for norm_sum in (dials.least_norm_sum, 0.5 * (dials.least_norm_sum + 10.0), jnp.float32(10.0)):
        p = upload_probability(planned.method, scores, norm_sum, weights, dials)
        top = max(top, float(jnp.max(p)))
    assert top <= planned.largest_probability * (1 + 1e-6)
    assert top >= planned.largest_probability * (1 - 1e-5)


def test_weights_that_ask_for_more_than_every_round_are_told_of():
    heavy = (0.5, *[0.5 / 99] * 99)
    table = {"name": "a", "rule": "weights", "cohort": 20, "uploads": 10, "noise_multiplier": 1.0}
    told, silent = (
        Config(arm=[table | {"weights": weights}], data=DataConfig(clients=100)).arms[0]
        for weights in (heavy, [0.01] * 100)
    )
    (line,) = told.warnings()
    assert line.startswith("arm.a.weights: the largest, 0.5, asks for more than every round")
    assert silent.warnings() == []


def test_noise_is_of_floats_and_none_where_it_is_not_known():
    """The faults: an int, or a number of NumPy, is another noise than what a checkpoint gives back
    (and its digest another run's); a 0 is taken for noise."""
    noise = Noise(np.float32(2), 3, 0, (1, np.float64(2)))
    assert noise == Noise(2.0, 3.0, None, (1.0, 2.0))
    assert {type(number) for number in noise.numbers} == {float}
    assert Noise.of(json.loads(json.dumps(noise.numbers))) == noise
    assert Noise.of([1.5, 0.0]) == Noise(1.5)  # as version 0.1 wrote it
    with pytest.raises(ValueError, match="noise_multiplier is missing"):
        _ = Noise(None, 3.0).known()
