"""Calibration: what comes out costs what was asked, never more."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import coins
from locksfl.arm import Arm
from locksfl.methods.events import Sampled
from locksfl.privacy import calibrate, calibrate_central
from locksfl.privacy.accountant import epsilon_of

DELTA = 1e-5
BY_NORM = Arm("a", 100, 100, "norm", cohort=30, uploads=14.007, norm_low=0.7, floor=0)  # p = .667


@pytest.mark.parametrize(
    ("epsilon", "multiplier"),
    [(1, 8.274), (2, 4.502), (4, 2.546), (8, 1.535), (10, 1.326), (50, 0.5556)],
)
def test_multiplier_for_epsilon_by_rdp(epsilon, multiplier):
    noise = calibrate_central(epsilon, DELTA, 100, 0.2, accountant="rdp")
    assert noise.noise_multiplier == pytest.approx(multiplier, rel=4e-4)
    assert noise.norm_multiplier is None


@pytest.mark.parametrize(
    ("rate", "epsilon", "multiplier"),
    [(0.3, 1, 12.29), (0.3, 10, 1.795), (0.3, 50, 0.673), (0.1, 4, 1.481), (0.1, 10, 0.887)],
)
def test_multiplier_at_other_rates(rate, epsilon, multiplier):
    event = calibrate_central(epsilon, DELTA, 100, rate, accountant="rdp")
    assert event.noise_multiplier == pytest.approx(multiplier, rel=1e-3)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("epsilon", [0.3, 4, 50])
@pytest.mark.parametrize("norm_release", [False, True])
def test_calibrated_round_costs_what_was_asked(epsilon, accountant, relation, norm_release):
    kinds = {"relation": relation, "accountant": accountant}
    found = calibrate_central(epsilon, DELTA, 60, 0.3, upload_probability=0.667, **kinds)
    if norm_release:
        found = calibrate(replace(BY_NORM, rounds=60), epsilon, DELTA, **kinds)

    def event(less=1.0):
        return coins(0.3, less * found.noise_multiplier, found.norm_multiplier, 0.667)

    spent = epsilon_of([(event(), 60)], DELTA, relation, accountant).epsilon
    assert epsilon * (1 - 1e-3) <= spent <= epsilon
    assert (found.norm_multiplier is not None) == norm_release
    # The check can fail: 1 % less noise is too little.
    assert epsilon_of([(event(0.99), 60)], DELTA, relation, accountant).epsilon > epsilon


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 200), st.floats(1e-4, 1.0), st.integers(1, 2000), st.floats(1e-9, 1e-3))
def test_calibration_by_rdp_never_overspends(epsilon, rate, rounds, delta):
    noise = calibrate_central(epsilon, delta, rounds, rate, accountant="rdp").noise_multiplier
    event = Sampled(rate, noise)
    spent = epsilon_of([(event, rounds)], delta, accountant="rdp").epsilon
    assert epsilon * (1 - 1e-3) <= spent <= epsilon


def test_pld_needs_less_noise_than_rdp():
    tight, loose = (
        calibrate_central(8, DELTA, 100, 0.2, accountant=accountant).noise_multiplier
        for accountant in ("pld", "rdp")
    )
    assert 0.85 * loose < tight < loose


def test_the_split_has_the_least_variance():
    norm_sum = 0.7 * 30

    def variance(event):
        return event.noise_multiplier**2 * (1 + (event.norm_multiplier / norm_sum) ** 2)

    settings = {"accountant": "rdp", "upload_probability": BY_NORM.largest_probability}
    best = calibrate(BY_NORM, 8, DELTA, accountant="rdp")
    for factor in (0.6, 0.8, 1.25, 1.6):
        other = calibrate_central(
            8, DELTA, 100, 0.3, norm_multiplier=factor * best.norm_multiplier, **settings
        )
        assert variance(best) < variance(other) * (1 + 2e-3)
    assert variance(other) > 1.02 * variance(best)


def test_a_given_norm_multiplier_is_kept_or_refused():
    event = calibrate_central(8, DELTA, 100, 0.3, upload_probability=0.5, norm_multiplier=10)
    assert event.norm_multiplier == 10
    with pytest.raises(ValueError, match=r"norm_multiplier = 10: 100 norm releases alone cost"):
        calibrate_central(1, DELTA, 100, 0.3, upload_probability=0.5, norm_multiplier=10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, DELTA, 100, 0.2), "epsilon = 0: expected a number > 0"),
        ((math.inf, DELTA, 100, 0.2), "epsilon = inf: expected a number > 0"),
        ((1, 1, 100, 0.2), r"delta = 1: expected a number in \(0, 1\)"),
        ((1, DELTA, 0, 0.2), "rounds = 0: expected a whole number >= 1"),
        ((1, DELTA, 100, 2), r"sampling_rate = 2.0: expected a rate in \(0, 1\]"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_central(*arguments)


def test_bad_settings_of_the_norm_release():
    with pytest.raises(ValueError, match="norm_low = 0: expected a rate"):
        replace(BY_NORM, norm_low=0)
    with pytest.raises(ValueError, match="did you mean 'zero-out'"):
        calibrate_central(8, DELTA, 100, 0.3, relation="zeroout")
    with pytest.raises(ValueError, match=r"epsilon = 1e-05: expected a larger epsilon"):
        calibrate_central(1e-5, DELTA, 100, 0.3, accountant="rdp")
