"""Lemmas 1 to 3 by the real round: what holds, what fails, and that a wrong claim is refused."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from locksfl.paper.theory.coins import arm_for, every_outcome, population
from locksfl.paper.theory.lemmas import CLAIMS, findings, weighted_variance

FAILS = {
    "E|Z| <= b: by norm, all norms at C",
    "E|Z| = b: Algorithm 1, coin p_j with its 1/k",
    "E|Z| = b: the lemma, coin p_j/k",
    "E Delta = mean g: Algorithm 1, (1/b) sum, no 1/p",
    "E Delta = mean g: as printed",
    "E|Z| = b: as printed",
    "no round without an upload: as printed",
    "variance of the corrected one: as printed",
}


@functools.cache
def found():
    return {finding.claim: finding for finding in findings(20_000, seed=0)}


@pytest.mark.parametrize("claim", [claim.text for claim in CLAIMS])
def test_every_verdict(claim):
    """Exact on 6 clients, and at 5 standard errors (6e-7) by Monte Carlo. Where a claim holds, one
    that is 15% off is refused."""
    finding = found()[claim]
    assert finding.holds == (claim not in FAILS)
    if finding.holds and not finding.at_most:
        assert not replace(finding, claimed=1.15 * finding.claimed).holds
        assert not replace(finding, exact_claimed=1.15 * finding.exact_claimed).holds


def test_lemma_1_as_printed_asks_far_fewer_than_b():
    """b^2/m = 13.3 and b^3/m^2 = 8.9 at most; somewhat less where the clamp binds."""
    once = found()["E|Z| = b: Algorithm 1, coin p_j with its 1/k"]
    twice = found()["E|Z| = b: the lemma, coin p_j/k"]
    assert 0.9 * 400 / 30 < once.measured < 400 / 30
    assert 0.9 * 8000 / 900 < twice.measured < 8000 / 900


def test_lemma_1_with_norms_at_the_clip_is_passed_by_the_cohorts_that_are_too_large():
    """E|Z| = b E max(K/m C, |X|/m) over the cohort's size: binomial, exactly."""
    finding = found()["E|Z| <= b: by norm, all norms at C"]
    n, q, m, b, floor = 6, 0.6, 3.6, 2.0, 0.1
    expected = 0.0
    for size in range(n + 1):
        chance = math.comb(n, size) * q**size * (1 - q) ** (n - size)
        used = min(max(size, b), m)
        expected += chance * ((1 - floor) * b * size / used + floor * b * size / m)
    assert finding.exact == pytest.approx(expected, rel=1e-5)
    assert finding.exact > b


def test_lemma_3_as_printed_has_about_n_times_the_variance():
    """Its formula, exactly on 6 clients: (n/b) sum p_i (1 - b p_i/n) |g_i|^2."""
    finding = found()["variance of the corrected one: as printed"]
    small, large = population(6, 3.6, 2.0), population(100, 30.0, 20.0)
    assert finding.exact == pytest.approx(weighted_variance(small, 1 / 6), rel=1e-5)
    formula = weighted_variance(large, 1 / 100)
    assert abs(finding.measured - formula) < 5 * finding.standard_error
    assert 90 < formula / weighted_variance(large, 1.0) < 150
    empty = found()["no round without an upload: as printed"]
    assert empty.exact == pytest.approx(np.prod(1 - 2.0 / 6 * small.weights), rel=1e-5)


def test_every_outcome_has_its_probability():
    """The 3^n outcomes of the coins sum to 1 and give E|X| back; capped is exact in every
    coordinate, literal is not."""
    setting = population(6, 3.6, 2.0)
    mean = setting.clipped.mean(axis=0)
    for estimator, exact in (("capped", True), ("literal", False)):
        arm = arm_for(setting, "norm", estimator=estimator)
        outcomes = every_outcome(arm, setting.vectors)
        assert len(outcomes.chance) == 3**6
        assert outcomes.chance.sum() == pytest.approx(1, abs=1e-6)
        found_mean = outcomes.chance @ outcomes.updates
        assert np.allclose(found_mean, mean, atol=1e-6) == exact


def test_too_few_repetitions_are_refused():
    with pytest.raises(ValueError, match="repetitions = 5: expected at least 100"):
        findings(5)
