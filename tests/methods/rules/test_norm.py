"""The rule norm (LOCKS): in proportion to the norm, with a floor."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.methods import RULES
from rule_checks import (
    ESTIMATES,
    arm_of,
    never_above_what_is_charged,
    probabilities,
    unbiased_where_stated,
)


def test_in_proportion_to_the_norm_and_a_floor():
    """b = 3, m = 6, lambda = 0.1, K' = 8."""
    found = probabilities("norm", [0.0, 1.0, 2.0], 8.0)
    np.testing.assert_allclose(found, [0.05, 0.9 * 3 / 8 + 0.05, 0.9 * 6 / 8 + 0.05])


def test_the_public_sum_and_the_uploads_that_it_tells_of():
    """K' from K_low = 0.5 m C = 6 to m C = 12; uploads (1 - lambda) b K~ / K' + lambda b."""
    arm = arm_of("norm", norm_low=0.5)
    settled = [float(RULES["norm"].settle(k, arm.dials(float), np)) for k in (-9.0, 8.0, 99.0)]
    assert settled == [6.0, 8.0, 12.0]
    uploads = [RULES["norm"].estimated_uploads(k, 6.0, arm) for k in (-1.0, 4.0, 6.0)]
    np.testing.assert_allclose(uploads, [0.3, 0.9 * 2 + 0.3, 3])


def test_its_largest_probability():
    never_above_what_is_charged("norm")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("norm", estimator, trust)
