"""The best rates: against scipy's solver, against the known vectors, and the paper's program."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from locksfl.paper.theory.bound import Constants
from locksfl.paper.theory.optimal import (
    best_rates,
    importance,
    printed_objective,
    printed_optimum,
    printed_scale,
    rate_variance,
)


@pytest.mark.parametrize(
    ("uploads", "rates"), [(2, [0.1, 0.2, 0.3, 0.4, 1.0]), (3, [0.2, 0.4, 0.6, 0.8, 1.0])]
)
def test_the_vectors_of_optimal_client_sampling(uploads, rates):
    np.testing.assert_allclose(best_rates([1, 2, 3, 4, 10], uploads), rates, rtol=0, atol=1e-15)
    # in any order
    shuffled = best_rates([10, 3, 1, 4, 2], uploads)
    np.testing.assert_allclose(shuffled, np.array(rates)[[4, 2, 0, 3, 1]], rtol=0, atol=1e-15)


def by_solver(a, uploads, rate):
    """min sum a_i^2/rho_i, sum rho_i = b, rho_i <= q, by SLSQP with exact derivatives."""
    n = len(a)
    start = np.full(n, uploads / n)
    scale = np.sum(a**2 / start)
    found = optimize.minimize(
        lambda pi: np.sum(a**2 / pi) / scale,
        start,
        jac=lambda pi: -(a**2) / pi**2 / scale,
        bounds=[(1e-6, rate)] * n,
        constraints={"type": "eq", "fun": lambda pi: pi.sum() - uploads, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-18, "maxiter": 2000},
    )
    return found.x


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_scipys_to_1e_8(seed):
    """Norms alone, and with noise that is divided by p too; 2% nearer to uniform is worse."""
    rng = np.random.default_rng(seed)
    n, rate = 12, rng.uniform(0.4, 1.0)
    uploads = rate * n * rng.uniform(0.2, 0.8)
    scores = importance(rng.lognormal(0, 0.8, n), 10, 0.1 if seed % 2 else 0.0)
    mine, theirs = best_rates(scores, uploads, rate), by_solver(scores, uploads, rate)
    assert mine.sum() == pytest.approx(uploads, rel=1e-12)
    assert mine.max() <= rate * (1 + 1e-12)
    here, there = rate_variance(scores, mine), rate_variance(scores, theirs)
    assert here == pytest.approx(there, rel=1e-8)
    # the objective is flat: SLSQP knows its own rates to about 1e-8, the equation for c knows more
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    level = optimize.brentq(
        lambda c: np.minimum(rate, c * scores).sum() - uploads, 0, uploads / scores.min(),
        xtol=1e-15,
    )  # fmt: skip
    np.testing.assert_allclose(mine, np.minimum(rate, level * scores), rtol=0, atol=1e-8)
    off = 0.98 * mine + 0.02 * uploads / n  # feasible too
    assert rate_variance(scores, off) > here * (1 + 1e-8)


@given(
    st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=30),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
def test_the_rates_satisfy_the_conditions_of_an_optimum(norms, rate, share):
    """rho_i = min(q, c a_i): the slope a_i^2/rho_i^2 is the same below the limit, larger at it."""
    a = np.array(norms)
    if not a.any():
        return
    uploads = max(rate * len(a) * share, 1e-6)
    pi = best_rates(a, uploads, rate)
    assert (pi >= 0).all()
    assert (pi <= rate * (1 + 1e-9)).all()
    positive = np.count_nonzero(a)
    assert pi.sum() == pytest.approx(min(uploads, rate * positive), rel=1e-9)
    assert not pi[a == 0].any()
    inside = (a > 0) & (pi < rate * (1 - 1e-9))
    if inside.any():
        slopes = a[inside] / pi[inside]
        assert slopes.max() == pytest.approx(slopes.min(), rel=1e-6)
        assert (a[(a > 0) & ~inside] / rate >= slopes.min() * (1 - 1e-6)).all()


def test_much_noise_makes_the_best_rates_uniform():
    """a_i^2 = |g_i|^2 + d sigma^2: where noise is divided by p, norms stop to matter."""
    norms = np.array([0.1, 0.5, 1.0, 1.0])
    assert best_rates(importance(norms), 2, 1.0).max() > 5 * best_rates(norms, 2, 1.0).min()
    noisy = best_rates(importance(norms, 10_000, 1.0), 2, 1.0)
    np.testing.assert_allclose(noisy, 0.5, rtol=1e-4)


C = Constants(
    rounds=10, step=1.0, smoothness=1.0, gap=1.0, uploads=4.0, parameters=3, sample_spread=0.5,
    client_spread=1.0, dissimilarity=0.5, client_noise=0.3,
)  # fmt: skip


def test_the_papers_program_is_solved_by_uniform_sampling():
    """scipy finds p_i = 1 from anywhere; any other feasible point is worse."""
    n = 6
    solved = printed_optimum(C, n)
    assert solved.relative == 1.0
    assert solved.objective == pytest.approx(printed_objective(np.ones(n), C), rel=1e-12)
    rng = np.random.default_rng(1)
    found = optimize.minimize(
        lambda p: printed_objective(p, C) / solved.objective,
        rng.uniform(0.5, 0.9, n),
        bounds=[(1e-3, 1)] * n,
        constraints={"type": "ineq", "fun": lambda p: solved.allowed * n - np.sum(1 / p)},
        method="SLSQP",
        options={"ftol": 1e-15},
    )
    np.testing.assert_allclose(found.x, 1.0, atol=1e-8)
    assert found.fun == pytest.approx(1.0, abs=1e-8)
    for _ in range(20):
        assert printed_objective(rng.uniform(0.3, 1.0, n), C) > solved.objective


def test_the_objective_is_the_sum_over_rounds():
    """However many: a sum to 10^12 would take hours."""
    p = np.array([0.5, 0.8, 1.0])
    summed = printed_scale(C, 3) * sum(1 / (t + 1) for t in range(10)) * np.sum(1 / p)
    assert printed_objective(p, C) == pytest.approx(summed, rel=1e-12)
    assert printed_objective(p, replace(C, rounds=10**12)) < summed


def test_the_papers_program_may_have_no_point_at_all():
    """Feasible exactly while L eta_b^2 (A^2 + 1) <= b; the refusal says so, and what would do."""
    edge = math.sqrt(4.0 / 1.25)
    printed_optimum(Constants(**(vars(C) | {"step": 0.999 * edge})), 6)
    with pytest.raises(ValueError, match=r"sum 1/p_i = 1 n.*eta_b at most 1.788 works, or b from"):
        printed_optimum(Constants(**(vars(C) | {"step": 1.01 * edge})), 6)


@pytest.mark.parametrize(
    ("norms", "uploads", "rate", "said"),
    [
        ([1, 2], 3, 1.0, "uploads = 3: expected at most 2"),
        ([1, 2], 1, 0.4, "expected at most 0.8, every client at its limit q = 0.4"),
        ([], 1, 1.0, "one per client"),
        ([1, -2], 1, 1.0, "expected numbers >= 0"),
        ([1, math.nan], 1, 1.0, "expected numbers >= 0"),
        ([0, 0], 1, 1.0, "at least one above 0"),
        ([1, 2], 0, 1.0, "uploads = 0: expected a number > 0"),
        ([1, 2], 1, 1.5, "rate = 1.5"),
    ],
)
def test_bad_input_is_refused(norms, uploads, rate, said):
    with pytest.raises(ValueError, match=said):
        best_rates(norms, uploads, rate)
