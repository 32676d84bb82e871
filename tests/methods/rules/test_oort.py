"""The rule oort: in proportion to Oort's statistical utility."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import ESTIMATES, never_above_what_is_charged, scores, unbiased_where_stated


def test_the_utility_over_its_bound():
    """Losses 3 and 4: sqrt(12.5) times the size, over B = 10."""
    facts = {"rms_loss": [12.5**0.5, 12.5**0.5, 40.0], "size": [1.0, 2.0, 1.0]}
    found = scores("oort", facts, loss_bound=10.0)
    np.testing.assert_allclose(found, [2 * 12.5**0.5 / 10, 4 * 12.5**0.5 / 10, 2], rtol=1e-6)


def test_its_largest_probability():
    never_above_what_is_charged("oort")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("oort", estimator, trust)
