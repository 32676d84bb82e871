"""Which differences stand: by hand, and by trial."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.grids.comparison.statistics import Scored, holm, interval, paired


def line(right):
    """A method from [seeds, records] of right answers."""
    right = np.asarray(right, int)
    return Scored(right.mean(axis=1).tolist(), right.sum(axis=0), right.shape[1])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_an_interval_by_hand():
    """Mean 2, standard error 1 / sqrt(3), and 4.302653 for two degrees of freedom."""
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert interval([1.0]) is None


def test_a_paired_difference_by_hand():
    """Two seeds, .5 and .25 apart: s^2 / 2 = 1/64. Records 0, .5, .5, .5 apart: v / 4 = 1/64. Three
    degrees of freedom, for which the distribution has a closed form: p = .124028."""
    better = line([[1, 1, 1, 1], [1, 1, 1, 0]])
    than = line([[1, 1, 0, 0], [1, 0, 1, 0]])
    found = paired(better, than)
    assert found.mean == pytest.approx(0.375)
    assert found.high - found.mean == pytest.approx(3.182446 * np.sqrt(1 / 32), abs=1e-6)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.p == pytest.approx(0.124028, abs=1e-6)
    assert paired(better, than, margin=0.375).p == pytest.approx(1.0)
    assert paired(line([[1, 0]]), line([[0, 0]])).low is None
    same = paired(better, better, margin=-0.001)
    assert (same.mean, same.p) == (0.0, 0.0)
    assert paired(better, better).p == 1.0


def answers(rng, share, seeds=5, records=500):
    """What a method gets right: almost the same records with every seed."""
    right = rng.random(records) < share
    return line(right ^ (rng.random((seeds, records)) < 0.01))


def test_a_planted_difference_stands_and_a_null_one_does_not():
    """400 pairs of methods that are equally good, on records that favour one of them by chance.
    Ahead with p < .05 should be at most 1 in 40: above 30 of 400 with probability 3e-8. Over
    seeds alone, which say nothing of the records, most would be called different."""
    rng = np.random.default_rng(0)
    nulls = [(answers(rng, 0.9), answers(rng, 0.9)) for _ in range(400)]
    ahead = [found.p < 0.05 and found.mean > 0 for found in (paired(*pair) for pair in nulls)]
    assert sum(ahead) <= 30
    seeds_alone = 0
    for better, than in nulls:
        low, _ = interval(np.subtract(better.accuracy, than.accuracy))
        seeds_alone += low > 0
    assert seeds_alone > 100
    for _ in range(20):
        found = paired(answers(rng, 0.95), answers(rng, 0.80))
        assert found.p < 0.05 / 20
        assert found.low > 0
