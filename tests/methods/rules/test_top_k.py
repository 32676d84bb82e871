"""The rule top-k, a biased ablation: the largest norms, always."""

from __future__ import annotations

import numpy as np

from checks import mean_is
from rule_checks import (
    CLIPPED,
    N,
    cohort_of_all,
    jointly_never_above_one,
    members_of,
    played,
    sees_released_values_only,
    stage_one,
)


def test_the_largest_upload_and_equal_ones_share_what_is_left():
    arm = cohort_of_all("top-k", 6, 2.5, clip_norm=1.0)
    there = [True] * 5 + [False]
    p, found = stage_one(arm, [0.5, 0.1, 0.9, 0.5, 0.0, 0.8], members_of(6, there))
    np.testing.assert_allclose(p, [0.75, 0, 1, 0.75, 0, 0])
    assert float(found.used) == 0.75
    p, _ = stage_one(cohort_of_all("top-k", 3, 1.0), [7.0, 8.0, 9.0])  # all clipped: all alike
    np.testing.assert_allclose(p, [1 / 3] * 3, rtol=1e-6)


def test_its_mean_is_that_of_the_largest():
    """Divided by b; of norms that are clipped alike, each has its share. False alarms: 1e-6; the
    mean of all is rejected."""
    arm = cohort_of_all("top-k", N, 6.0, clip_norm=2.0)
    assert arm.estimator == "literal"
    assert not arm.unbiased
    lengths = np.round(np.linalg.norm(CLIPPED, axis=1), 9)
    chosen = lengths >= np.sort(lengths)[-6]
    found = played(arm)
    above = lengths > np.sort(lengths)[-6]
    p = np.where(above, 1.0, (6 - above.sum()) / (chosen.sum() - above.sum())) * chosen
    assert mean_is(found, p @ CLIPPED / 6)
    assert not mean_is(found, CLIPPED.mean(axis=0))


def test_its_largest_probability():
    jointly_never_above_one("top-k")


def test_under_local_trust_it_sees_released_values_only():
    sees_released_values_only("top-k", "probability")
