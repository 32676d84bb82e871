"""The rule cosine: by the cosine to the last update."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import ESTIMATES, never_above_what_is_charged, scores, unbiased_where_stated


def test_one_minus_the_cosine():
    """Along v, at 60 degrees, across, against; then v = 0 and u = 0. C = 2."""
    facts = {"norm": [3] * 5 + [0], "along": [6, 3, 0, -6, 0, 0], "last_norm": [2, 2, 2, 2, 0, 2]}
    np.testing.assert_allclose(scores("cosine", facts), [0, 0.5, 1, 2, 1, 1], atol=1e-6)


def test_its_largest_probability():
    never_above_what_is_charged("cosine")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("cosine", estimator, trust)
