"""Replay: on neighbouring data no release moves by more than is charged, whoever chooses and sums.

No result is a matter of luck, so that there are no false alarms. Faults that a replay finds and no
statistic does are planted by test_planted_faults.py.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import pytest
from msgspec import structs

from audit_faults import everywhere
from locksfl.arm import Arm
from locksfl.audit.replay import replayed
from locksfl.methods import COINS, ESTIMATORS, RULES, SAMPLINGS, TRUSTS
from locksfl.methods.sound import unsound
from locksfl.round import algorithm, draws
from locksfl.round.randomness import Randomness
from replay_cases import arm_of, cases, rows

EXAMPLES = str(Path(__file__).parent.parent.parent / "examples")

DOCS = Path(__file__).parent.parent.parent / "docs" / "audit.md"
SOURCES = {"seed": Randomness.seeded(3), "no seed": Randomness(3, simulated=False)}
CASES = cases()


def source_of(arm, name):
    """Correlated noise is refused without a seed."""
    return SOURCES["seed" if arm.strategy else name]


def test_every_private_method_is_replayed():
    """Only a replay that leaves a method out passes all others."""
    methods = {case[:4] for case in CASES}
    names = itertools.product(RULES.values(), ESTIMATORS.values(), TRUSTS.values())
    for rule, estimator, trust in names:
        if trust.private and not unsound(rule, estimator, trust):
            assert (rule.name, estimator.name, trust.name, COINS) in methods
    assert {case[3] for case in CASES} == set(SAMPLINGS)
    print(f"{len(methods)} (method, trust, sampling) replayed, with variants {len(CASES)}")
    assert f"({len(methods)} combinations, each with and" in DOCS.read_text("utf-8")


@pytest.mark.parametrize(("arm", "source"), rows(CASES, tuple(SOURCES)))
def test_no_release_moves_by_more_than_is_charged(arm, source):
    """And some of them by nearly as much: a charge that is 1% too small would be found."""
    holds, found = replayed(arm, source_of(arm, source))
    assert holds, found
    assert "at most 0.99" in found or "at most 1.0000" in found


def test_a_rule_of_a_users_own_is_replayed(monkeypatch):
    """A replay by the names of rules would know none of them."""
    monkeypatch.syspath_prepend(EXAMPLES)
    arm = arm_of("own_rule:rule", None, "central", COINS)
    holds, found = replayed(arm, SOURCES["seed"])
    assert holds, found


def more_likely(real, method, own, *rest):
    return jnp.minimum(1.0, 1.2 * real(method, own, *rest))


def counted(real, coins, p, present):
    """Only the coin, and not the weight, knows how many are likely to upload."""
    return real(coins, p * (1 - 0.001 * jnp.mean(p > 0.3)), present)


def told_less(arm, real):
    return structs.replace(real(arm), noise_multiplier=1.01 * arm.noise_multiplier)


def faulty(function, fault):
    return everywhere(function, functools.partial(fault, function))


FAULTS = {
    "its probability": lambda: faulty(algorithm.upload_probability, more_likely),
    "before the uploads": lambda: faulty(algorithm.asked_values, lambda f, *a: 1.01 * f(*a)),
    "other clients": lambda: faulty(draws.second_sample, counted),
    "the sum": lambda: mock.patch.object(
        Arm,
        "event",
        functools.partialmethod(lambda a, f: told_less(a, f), Arm.event),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("promise", FAULTS)
def test_each_promise_can_be_broken(promise):
    """A limit that is 1% too large, or nobody's, passes a replay that does not look at it."""
    arm = arm_of("norm", "capped", "central", COINS)
    with FAULTS[promise]():
        holds, found = replayed(arm, SOURCES["seed"])
    assert not holds
    assert promise in found
