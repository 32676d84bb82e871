"""The rule ocs: the probabilities of the least variance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from locksfl.methods.rules.shared import water_level
from locksfl.paper.theory.optimal import best_rates
from rule_checks import (
    EDGES,
    PAPER_VECTORS,
    cohort_of_all,
    has_sound_edges,
    has_the_vectors_of_the_paper,
    stage_one,
    unbiased_where_stated,
    variance,
)


@pytest.mark.parametrize(("uploads", "expected"), PAPER_VECTORS)
def test_the_vectors_of_the_paper(uploads, expected):
    has_the_vectors_of_the_paper("ocs", uploads, expected)
    values = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
    level = water_level(values, uploads, np)
    np.testing.assert_allclose(np.minimum(1, values / level), expected, rtol=1e-12)


@pytest.mark.parametrize("edge", EDGES)
def test_few_positive_norms_upload_for_certain_and_others_never(edge):
    has_sound_edges("ocs", *EDGES[edge])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.floats(0.05, 0.99),
    st.floats(0.1, 1.0),
)
def test_the_water_level_is_that_of_the_theory_and_uses_up_the_uploads(values, share, rate):
    """And no probability exceeds 1, which is what is charged."""
    values = np.array(values)
    uploads = share * len(values)
    level = water_level(values, uploads, np)
    p = np.where(values > 0, np.minimum(1, values / (level or 1e-300)), 0.0)
    assert p.sum() == pytest.approx(min(uploads, np.sum(values > 0)), rel=1e-9)
    assert cohort_of_all("ocs", len(values), uploads).largest_probability == 1
    if values.any():
        rates = best_rates(values, uploads * rate, rate)
        np.testing.assert_allclose(rates, rate * p, rtol=1e-9, atol=1e-12)


def test_no_other_probabilities_have_less_variance():
    """SciPy's search from several starts finds the same p; it shows that the level is no mere
    convention."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        n = int(rng.integers(3, 8))
        values = rng.pareto(1.0, n) + 0.05
        uploads = float(rng.uniform(0.5, n - 0.5))
        p, _ = stage_one(cohort_of_all("ocs", n, uploads, clip_norm=float(values.max())), values)
        found = optimize.minimize(
            lambda p, a=values: np.sum(a**2 / p) / np.sum(a**2),
            np.full(n, uploads / n),
            jac=lambda p, a=values: -(a**2) / p**2 / np.sum(a**2),
            bounds=[(1e-6, 1.0)] * n,
            constraints={"type": "eq", "fun": lambda p, b=uploads: np.sum(p) - b},
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 500},
        )
        assert variance(values, p) <= variance(values, found.x) * (1 + 1e-5)
        np.testing.assert_allclose(p, found.x, atol=3e-3)


@pytest.mark.parametrize(
    ("estimator", "trust"), [("capped", "none"), ("horvitz-thompson", "none"), ("capped", "local")]
)
def test_its_mean(estimator, trust):
    unbiased_where_stated("ocs", estimator, trust)
