"""What holds for all rules that look at all members: under a private trust they see what is
released and nothing else. (test_every_rule.py has their formulas.)"""

from __future__ import annotations

import dataclasses

import pytest

from locksfl.arm import Arm
from locksfl.methods import RULES
from locksfl.methods.rules import NORM, Rule
from locksfl.privacy import calibrate, guarantee
from rule_checks import cohort_of_all

JOINT = [name for name, rule in RULES.items() if rule.compares]


def test_these_are_all():
    assert sorted(JOINT) == ["ocs", "power-of-choice", "rank", "top-k"]


def test_defaults_follow_what_a_rule_states():
    expected = {"ocs": "capped", "aocs": "capped", "rank": "horvitz-thompson"}
    for rule in (*JOINT, "aocs"):
        arm = cohort_of_all(rule, 24, 6.0)
        assert arm.estimator == expected.get(rule, "literal")
        assert arm.unbiased == (rule in expected) == (not RULES[rule].biased)


@pytest.mark.parametrize("rule", JOINT)
def test_a_server_that_adds_noise_to_sums_is_refused_with_the_reason(rule):
    with pytest.raises(ValueError, match="other clients' raw values") as refusal:
        cohort_of_all(rule, 20, 5.0, "central", cohort=10.0)
    assert str(refusal.value).startswith(f"arm.a.rule = {rule!r}: ")
    assert str(refusal.value).endswith("or 'local', whose clients release theirs")
    assert "\n" not in str(refusal.value)
    cohort_of_all(rule, 20, 5.0, "local", cohort=10.0)


@pytest.mark.parametrize("rule", JOINT)
def test_local_trust_charges_like_the_rule_norm(rule):
    """One released number for each member, an upload probability of 1 at most."""
    numbers = {"trust": "local", "cohort": 20.0, "uploads": 8.0, "estimator": "literal"}
    own, norm = (
        calibrate(Arm.of("a", 100, 10, name, **numbers), 8.0, 1e-5) for name in (rule, "norm")
    )
    assert own.largest_probability == 1
    assert own.norm_multiplier == norm.norm_multiplier == own.sum_multiplier
    assert guarantee([own], 1e-5, "pld") == guarantee([norm], 1e-5, "pld")


def test_statements_that_do_not_fit_are_refused():
    norm, aocs = RULES["norm"], RULES["aocs"]
    for name in ("refinements", "free_refinements"):
        with pytest.raises(ValueError, match=f"{name} = 2; expected a number > 0 with `refine`"):
            dataclasses.replace(norm, **{name: 2})
        with pytest.raises(ValueError, match=f"{name} = 0; expected"):
            dataclasses.replace(aocs, **{name: 0})
    for way in ({"settle_from_all": lambda *_: 1.0}, {"jointly": True}):
        with pytest.raises(ValueError, match="need a value that is released"):
            Rule("r", "", norm.probability, asks=NORM, **way)
        with pytest.raises(ValueError, match="expected one of jointly"):
            dataclasses.replace(aocs, **way)
