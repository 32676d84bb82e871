"""The rule power-of-choice: the largest losses, always."""

from __future__ import annotations

import numpy as np

from checks import mean_is
from rule_checks import (
    CLIPPED,
    GIVEN,
    N,
    cohort_of_all,
    jointly_never_above_one,
    played,
    sees_released_values_only,
    stage_one,
)


def test_the_largest_losses():
    p, _ = stage_one(cohort_of_all("power-of-choice", 4, 2.0), [0.1, 0.4, 0.3, 0.2])
    np.testing.assert_allclose(p, [0, 1, 1, 0])


def test_its_mean_is_that_of_the_largest():
    """Divided by b, and the same in every round: a member has a probability of 1 or 0. The mean of
    all is rejected."""
    arm = cohort_of_all("power-of-choice", N, 6.0, clip_norm=2.0)
    assert arm.estimator == "literal"
    assert not arm.unbiased
    found, chosen = played(arm), np.argsort(-GIVEN["loss"])[:6]
    np.testing.assert_allclose(found - CLIPPED[chosen].mean(axis=0), 0, atol=1e-6)
    assert not mean_is(found, CLIPPED.mean(axis=0))


def test_its_largest_probability():
    jointly_never_above_one("power-of-choice")


def test_under_local_trust_it_sees_released_values_only():
    sees_released_values_only("power-of-choice", "probability")
