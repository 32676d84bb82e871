"""Lemmas 1 to 3 by the real round: what holds, what fails, and that a wrong claim is refused."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from locksfl.paper.theory.fixed_clients import arm_for, every_outcome, population
from locksfl.paper.theory.lemmas import PAPER, TABLES, findings, weighted_variance

FAILS = {
    "E Delta = mean g: Algorithm 1, (1/b) sum g_j, coin p_j",
    "E|Z| = b: the coin of Algorithm 1, p_j",
    "E|Z| = b: the coin of the proof, p_j/k",
    "E|Z| <= b: ours, by norm, all norms at C",
    "E Delta = mean g: Algorithm 1's sum, our coin",
    "E Delta = mean g: as printed",
    "E|Z| = b: as printed",
    "no round without an upload: as printed",
    "variance of ours: as printed",
}


@functools.cache
def found():
    return {f.claim: f for table in findings(20_000, seed=0).values() for f in table}


@pytest.mark.parametrize("claim", [claim.text for claims in TABLES.values() for claim in claims])
def test_every_verdict(claim):
    """Exact on 6 clients, and at 5 standard errors (6e-7) by Monte Carlo. Where a claim holds, one
    that is 15% off is refused, and so is a limit below what was found."""
    finding = found()[claim]
    assert finding.holds == (claim not in FAILS)
    if finding.holds and not finding.at_most:
        assert not replace(finding, claimed=1.15 * finding.claimed).holds
        assert not replace(finding, exact_claimed=1.15 * finding.exact_claimed).holds
    elif finding.holds:
        assert not replace(finding, claimed=0.85 * finding.measured).holds
        assert not replace(finding, exact_claimed=0.85 * finding.exact).holds


def test_of_what_the_paper_claims_only_lemma_2_for_the_algorithm_itself_fails():
    """Lemma 1 says less than b, and Lemma 3 speaks of sum p_i g_i: few uploads refute neither."""
    claims = [found()[claim.text] for claim in PAPER]
    assert [f.lemma for f in claims if not f.holds] == [2]
    assert {f.lemma for f in claims if f.holds} == {1, 2, 3}


def test_the_coins_of_lemma_1_ask_far_fewer_than_b():
    """b^2/m = 13.3 and b^3/m^2 = 8.9 at most; somewhat less where the clamp binds."""
    once = found()["E|Z| = b: the coin of Algorithm 1, p_j"]
    twice = found()["E|Z| = b: the coin of the proof, p_j/k"]
    assert 0.9 * 400 / 30 < once.measured < 400 / 30
    assert 0.9 * 8000 / 900 < twice.measured < 8000 / 900


def test_the_sum_of_algorithm_1_is_b_over_m_times_that_of_the_coin_that_sends_b():
    """(1/b) sum over Z of g_i at the rates b^2 |g_i| / (m z_S'), by hand over every cohort."""
    finding = found()["E Delta = mean g: Algorithm 1, (1/b) sum g_j, coin p_j"]
    fixed, q, m, b = population(6, 3.6, 2.0), 0.6, 3.6, 2.0
    norms, mean = np.linalg.norm(fixed.clipped, axis=1), fixed.mean()
    expected = 0.0
    for there in itertools.product((0, 1), repeat=6):
        cohort = np.array(there)
        chance = np.prod(np.where(cohort, q, 1 - q))
        rates = b / m * b * norms / np.clip(cohort @ norms, b, m)
        expected += chance * (cohort * rates) @ fixed.clipped @ mean / b
    assert finding.exact == pytest.approx(expected / (mean @ mean), rel=1e-5)


def test_lemma_1_with_norms_at_the_clip_is_passed_by_the_cohorts_that_are_too_large():
    """E|Z| = b E max(K/m C, |X|/m) over the cohort's size: binomial, exactly."""
    finding = found()["E|Z| <= b: ours, by norm, all norms at C"]
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
    finding = found()["variance of ours: as printed"]
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
