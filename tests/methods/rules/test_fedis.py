"""The rule fedis: in proportion to the norm, without a floor."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import (
    arm_of,
    never_above_what_is_charged,
    probabilities,
    unbiased_where_stated,
)


def test_in_proportion_to_the_norm_alone():
    """b z / K', without a floor: nothing for a norm of 0."""
    found = probabilities("fedis", [0.0, 1.0, 2.0], 8.0)
    np.testing.assert_allclose(found, [0, 3 / 8, 6 / 8])


def test_its_largest_probability():
    never_above_what_is_charged("fedis")


@pytest.mark.parametrize(
    ("estimator", "trust"),
    [("capped", "none"), ("capped", "central"), ("capped", "local"), ("horvitz-thompson", "none")],
)
def test_its_mean(estimator, trust):
    unbiased_where_stated("fedis", estimator, trust)


def test_noised_norms_are_not_divided_by():
    with pytest.raises(ValueError, match="a noised norm may be 0"):
        arm_of("fedis", trust="local", estimator="horvitz-thompson")
