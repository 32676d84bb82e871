"""Rules that look at all members, attacked: at least half of a claim of 3 is proved and no more
than it, planted faults are caught, and the simulator plays what they state. Each bound is given at
a significance of 1e-6 and each property is checked at 1e-6: the false-alarm rates."""

from __future__ import annotations

import dataclasses

import pytest
from scripts import make_methods

from locksfl.arm import Arm
from locksfl.audit import attacks
from locksfl.audit.properties import check_arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.plan import calibrated
from locksfl.methods import TRUSTS
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness

EPSILON, DELTA, ROUNDS, REPETITIONS = 3.0, 1e-2, 2, 50_000
PRIVATE = [
    ("aocs", "central"),
    ("ocs", "local"),
    pytest.param("aocs", "local", marks=pytest.mark.long),
    pytest.param("rank", "local", marks=pytest.mark.long),
    pytest.param("top-k", "local", marks=pytest.mark.long),
    pytest.param("power-of-choice", "local", marks=pytest.mark.long),
]


def claim(rule, trust, **more):
    """An arm of 100 clients that claims 3."""
    privacy = PrivacyConfig(trust=trust, epsilon=EPSILON, delta=DELTA)
    numbers = {"cohort": 60.0, "uploads": 50.0} | more
    arm = Arm.of(f"{trust}-{rule}", 100, ROUNDS, rule, trust=trust, **numbers)
    return calibrated(arm, privacy), privacy


def strongest(arm, privacy):
    return make_methods.strongest(arm, privacy, REPETITIONS)


@pytest.mark.parametrize(("rule", "trust"), PRIVATE)
def test_half_of_the_claim_is_proved_and_no_more_than_it(rule, trust):
    found = strongest(*claim(rule, trust))
    assert found.claimed == pytest.approx(EPSILON, abs=2e-3)
    assert found.claimed / 2 <= found.lower <= found.claimed, found


@pytest.mark.parametrize(("rule", "trust"), PRIVATE)
def test_a_third_of_the_noise_is_caught(rule, trust, monkeypatch):
    real = TRUSTS[trust].noise_std
    less = dataclasses.replace(TRUSTS[trust], noise_std=lambda *given: real(*given) / 3)
    monkeypatch.setitem(TRUSTS, trust, less)
    assert strongest(*claim(rule, trust)).refuted


def test_sums_that_refine_without_their_noise_are_caught(monkeypatch):
    """A tenth of what was charged, on these sums alone; the norm sum is as it should be. (With much
    noise on the update, which would hide them.)"""
    arm, privacy = claim("aocs", "central")
    loud = arm.changed(norm_multiplier=1.5, noise_multiplier=20.0)
    assert not strongest(loud, privacy).refuted
    real = attacks.draw_server

    def quiet(*given):
        drawn = real(*given)
        return drawn._replace(refine_noise=drawn.refine_noise / 10)

    monkeypatch.setattr(attacks, "draw_server", quiet)
    assert strongest(loud, privacy).refuted


def test_a_norm_without_its_noise_is_caught_where_a_rule_compares_it(monkeypatch):
    arm, privacy = claim("ocs", "local")
    loud = arm.changed(norm_multiplier=1.5)
    assert not strongest(loud, privacy).refuted
    real = FloatSums.release_norms

    def quiet(self, method, values, members, dials):
        less = dials._replace(norm_multiplier=dials.norm_multiplier / 10)
        return real(self, method, values, members, less)

    monkeypatch.setattr(FloatSums, "release_norms", quiet)
    assert strongest(loud, privacy).refuted


LINES = [
    ("aocs", "central"),
    pytest.param("ocs", "local", marks=pytest.mark.long),
    pytest.param("top-k", "local", marks=pytest.mark.long),
    pytest.param("rank", "local", marks=pytest.mark.long),
    pytest.param("aocs", "local", marks=pytest.mark.long),
    pytest.param("power-of-choice", "local", marks=pytest.mark.long),
]


@pytest.mark.parametrize("seeded", [True, False], ids=["seed", "no seed"])
@pytest.mark.parametrize(("rule", "trust"), LINES)
def test_the_simulator_plays_what_the_rule_states(rule, trust, seeded):
    """Every line of the audit: coins, noise, contributions and what is stated."""
    checks = check_arm(*claim(rule, trust, uploads=30.0), Randomness(11, simulated=seeded))
    assert [(check.name, check.measured) for check in checks if not check.holds] == []
