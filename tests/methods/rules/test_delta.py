"""The rule delta: by the distance from the last update, and the spread of a client's records."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import ESTIMATES, never_above_what_is_charged, scores, unbiased_where_stated


def test_distance_and_spread():
    """|u| = 3, <u, v> = 1, |v| = 2, spread 2: sqrt(9 - 2 + 4 + 4). Without v: norm and spread."""
    facts = {"norm": [3, 3, 0.6], "along": [1, 1, 0], "last_norm": [2, 2, 0], "spread": [2, 2, 0.8]}
    np.testing.assert_allclose(scores("delta", facts), [2, 2, 1])
    np.testing.assert_allclose(
        scores("delta", facts, clip_norm=9.0), [15**0.5, 15**0.5, 1], rtol=1e-6
    )


def test_it_is_the_clipped_update_that_is_compared():
    """v = (1, 0), u = (4, 0), C = 2: g = (2, 0) is 1 from v, and u would be 3. Scaled to C ("equal"
    lengths), u = (1/2, 0) is 1 from v too."""
    facts = {"norm": [4, 0.5], "along": [4, 0.5], "last_norm": [1, 1], "spread": [0, 0]}
    np.testing.assert_allclose(scores("delta", facts), [1, 0.5], rtol=1e-6)
    np.testing.assert_allclose(scores("delta", facts, lengths="equal"), [1, 1], rtol=1e-6)


def test_its_largest_probability():
    never_above_what_is_charged("delta")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("delta", estimator, trust)
