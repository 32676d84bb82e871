"""The rule rank: by the rank of the loss."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import (
    cohort_of_all,
    jointly_never_above_one,
    sees_released_values_only,
    stage_one,
    unbiased_where_stated,
)


def test_ranks_follow_the_formula():
    losses = np.array([0.3, 0.9, 0.1, 0.5, 0.7])
    p, found = stage_one(cohort_of_all("rank", 5, 1.0), losses)
    scores = 100.0 ** (-np.array([3, 0, 4, 2, 1]) / 5)
    np.testing.assert_allclose(p, scores / scores.sum(), rtol=1e-5)
    assert float(found.used) == pytest.approx(p.min())
    p, _ = stage_one(cohort_of_all("rank", 5, 3.0), losses)  # the first are limited to 1
    assert p.sum() == pytest.approx(3.0, rel=1e-6)
    assert p.max() == 1.0
    below = p < 1
    np.testing.assert_allclose(p[below] / scores[below], (p / scores)[below][0], rtol=1e-5)
    p, _ = stage_one(cohort_of_all("rank", 4, 2.0), [0.0] * 4)
    np.testing.assert_allclose(p, [0.5] * 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "trust"),
    [("horvitz-thompson", "none"), ("capped", "none"), ("horvitz-thompson", "local")],
)
def test_its_mean(estimator, trust):
    unbiased_where_stated("rank", estimator, trust)
    assert cohort_of_all("rank", 5, 2.0, "local").estimator == "horvitz-thompson"


def test_its_largest_probability():
    jointly_never_above_one("rank")


def test_under_local_trust_it_sees_released_values_only():
    sees_released_values_only("rank", "probability")
