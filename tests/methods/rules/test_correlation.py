"""The rule correlation: by the correlation with the last update."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import ESTIMATES, never_above_what_is_charged, scores, unbiased_where_stated


@pytest.mark.parametrize(
    ("v", "expected"), [((3, 2, 1), 2.0), ((1, 3, 2), 0.5), ((2, 2, 2), 1.0), ((0, 0, 0), 1.0)]
)
def test_one_minus_the_correlation(v, expected):
    """(1, 2, 3) with v = (3, 2, 1), (1, 3, 2), and two that do not vary. C = 2."""
    u = np.array([1.0, 2.0, 3.0])
    facts = {
        "norm": [np.linalg.norm(u)], "along": [u @ v], "last_norm": [np.linalg.norm(v)],
        "sum": [u.sum()], "last_sum": [np.sum(v)], "parameters": [3],
    }  # fmt: skip
    np.testing.assert_allclose(scores("correlation", facts), [expected], rtol=1e-5)


def test_its_largest_probability():
    never_above_what_is_charged("correlation")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("correlation", estimator, trust)
