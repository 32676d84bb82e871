"""The matrix of docs/methods.md: it is what the code states, and no row is private for nothing."""

from __future__ import annotations

import math

import pytest
from scripts.make_methods import (
    AUDITED,
    DELTA,
    DOCS,
    OBSERVER,
    TRAINING,
    bounds,
    filled,
    refusal,
    standard_arm,
    training_arm,
)

from locksfl.methods import RULES
from locksfl.privacy import guarantee


def private_arms():
    """(the name of its audit, the arm) of every rule and way to train under every private trust
    that takes it, in the standard setting."""
    for trust in OBSERVER:
        for rule in RULES:
            if not refusal(rule, trust):
                yield f"{trust}-{rule}", standard_arm(rule, trust)
        for name, way in TRAINING.items():
            if not isinstance(arm := training_arm(way, trust), str):
                yield f"{trust}-{name}", arm


def test_the_page_is_what_the_code_states():
    page = (DOCS / "methods.md").read_text("utf-8")
    assert filled(page) == page, "python -m scripts.make_methods"


def test_every_private_method_has_an_accountant_and_an_audit():
    """A finite epsilon against the observer from whom the trust protects; and an attack that proved
    at least half of a claim of 3, and no more than it."""
    arms, proved = dict(private_arms()), bounds()
    assert len(arms) > 40
    for name, arm in arms.items():
        costs = {(c.observer, c.relation): c.epsilon for c in guarantee([arm], DELTA, "pld")}
        for relation in ("zero-out", "replace"):
            epsilon = costs[OBSERVER[arm.trust], relation]
            assert math.isfinite(epsilon)
        found = proved[name]
        assert found["claimed"] == pytest.approx(AUDITED["epsilon"], abs=2e-3)
        assert AUDITED["epsilon"] / 2 <= found["lower"] <= found["claimed"], found
    assert proved.keys() == arms.keys()
