"""The gate: uniform above it, and why its own value is 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locksfl.arm import Arm
from locksfl.methods import RULES
from locksfl.privacy import calibrate
from locksfl.privacy.forecast import expected_round

CLIP = 2.0


def arm_of(rule="gated", **more):
    usual = {"cohort": 6.0, "uploads": 2.0, "clip_norm": CLIP, "norm_low": 0.4}
    return Arm.of("a", 10, 5, rule, **(usual | more))


def probabilities(arm, own, public):
    return RULES[arm.rule].probability(np.array(own), public, 1.0, arm.dials(float), np)


def test_above_the_gate_all_are_alike():
    """Gate .45 of m C = 12: up to K' = 5.4 by norm, above it uniform; uploads are told alike."""
    arm, own = arm_of(gate=0.45), [0.0, 1.0, 2.0]
    by_norm = [0.9 * 2 * z / 5.3 + 0.1 * 2 / 6 for z in own]
    np.testing.assert_allclose(probabilities(arm, own, 5.3), by_norm)
    np.testing.assert_allclose(probabilities(arm, own, 5.5), [2 / 6] * 3)
    estimate = RULES["gated"].estimated_uploads
    assert estimate(5.0, 5.3, arm) == RULES["norm"].estimated_uploads(5.0, 5.3, arm)
    assert estimate(5.0, 5.5, arm) == 2.0


def test_a_gate_that_is_never_open_is_charged_as_uniform_and_said():
    arm = arm_of(uploads=3.0, norm_low=0.6, gate=0.45)
    assert arm.largest_probability == 0.5
    assert any("every round is uniform" in said for said in arm.warnings())
    open_at_times = arm_of(uploads=3.0, norm_low=0.5, gate=0.8)
    assert open_at_times.largest_probability == pytest.approx(0.9 * 0.5 / 0.5 + 0.1 * 0.5)
    assert open_at_times.warnings() == []


def test_its_own_gate_never_closes_and_costs_what_the_norm_rule_costs():
    arm, norm = (calibrate(arm_of(rule), 8.0, 1e-3, accountant="rdp") for rule in ("gated", "norm"))
    assert arm.gate == 1
    assert arm.warnings() == []
    assert arm.event() == norm.event()
    for public in (4.8, 8.0, 12.0):
        own = np.linspace(0, CLIP, 5)
        np.testing.assert_array_equal(*(probabilities(a, own, public) for a in (arm, norm)))


def errors(arm, norms, public, parameters):
    """(by norm, uniform): noise and sampling variance of a round of these norms, with one z."""
    x, b, m = np.asarray(norms), arm.uploads, arm.cohort

    def of(p, at_clip):
        noise = arm.noise_multiplier**2 * parameters / (m * at_clip) ** 2
        return noise + np.mean(np.where(x > 0, x**2 / np.where(p > 0, p, 1.0), 0.0)) / m

    p, at_clip = (probabilities(arm, CLIP * own, public) for own in (x, 1.0))
    return of(p, at_clip), of(np.full_like(x, b / m), b / m)


LENGTHS = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(LENGTHS, st.floats(0, 0.99), st.floats(0.01, 20), st.integers(1, 1000))
def test_by_norm_is_never_worse_at_the_true_sum(norms, floor, noise, parameters):
    arm = arm_of(norm_low=1 / 3, floor=floor, noise_multiplier=noise, norm_multiplier=1.0)
    share = np.mean(norms)
    if share < 1 / 3:  # then K_low is not the sum
        norms = [*norms, *[1.0] * len(norms)]
        share = np.mean(norms)
    by_norm, uniform = errors(arm, norms, share * 12, parameters)
    assert by_norm <= uniform * (1 + 1e-12)


@given(LENGTHS, st.floats(1 / 3, 1), st.floats(0, 0.99), st.floats(0.01, 20), st.integers(1, 1000))
def test_by_norm_is_better_for_any_norms_below_the_derived_share(norms, r, floor, z, d):
    """Where z^2 d (1 - 1/v^2) >= b r^2 / 4, K' may be anything."""
    arm = arm_of(norm_low=1 / 3, floor=floor, noise_multiplier=z, norm_multiplier=1.0)
    v = (1 - floor) / r + floor
    if z**2 * d * (1 - v**-2) < arm.uploads * r**2 / 4:
        return
    by_norm, uniform = errors(arm, norms, r * 12, d)
    assert by_norm <= uniform * (1 + 1e-12)


def test_above_the_derived_share_some_norms_are_served_better_by_uniform():
    """Half of what K' says, in a model of one parameter with hardly any noise."""
    arm = arm_of(norm_low=1 / 3, floor=0.0, noise_multiplier=0.1, norm_multiplier=1.0)
    by_norm, uniform = errors(arm, [0.45] * 4, 0.9 * 12, 1)
    assert by_norm > uniform


@pytest.mark.parametrize("trust", ["central", "local"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
def test_a_gate_at_a_half_makes_the_forecast_no_better(share, trust):
    """The rule of thumb that it had: rounds above it lose what the norms were paid for."""
    many = {"cohort": 100.0, "uploads": 10.0, "trust": trust, "norm_low": 0.1}
    noise = {"noise_multiplier": 1.0, "norm_multiplier": 0.5}
    open_, thumb = (
        expected_round(Arm.of("a", 1000, 100, "gated", gate=gate, **many, **noise), 10_000, share)
        for gate in (1.0, 0.45)
    )
    assert open_.error <= thumb.error * (1 + 1e-9)
    if share > 0.45:
        assert open_.error < 0.97 * thumb.error


@pytest.mark.parametrize("kind", [float, np.float32])
def test_next_to_the_gate_the_larger_probability_is_charged(kind):
    """Rounding decides whether K_low is above a gate of the same share: charged as uniform, a
    round by norm there would give more than is charged."""
    for share in np.linspace(0.5, 0.95, 200):
        low = 6 * share / 6  # as uploads / cohort is rounded
        arm = arm_of(uploads=6 * share, norm_low=low, gate=low * (1 - 1e-9), floor=0.1)
        dials = arm.dials(kind)
        public = RULES["gated"].settle(kind(0), dials, np)
        p = RULES["gated"].probability(kind(CLIP), public, 1.0, dials, np)
        assert p <= arm.largest_probability * (1 + 1e-6), share
