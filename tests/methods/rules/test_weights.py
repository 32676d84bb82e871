"""The rule weights: by public weights."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import CLIPPED, N, arm_of, probabilities, unbiased_where_stated

EVEN = (0.1,) * 10


def test_in_proportion_to_public_weights():
    """b w_i / q with n w_i = 0, 1, 2: the round limits it to 1."""
    found = probabilities("weights", [0.0] * 3, 0.0, np.array([0.0, 1.0, 2.0]), weights=EVEN)
    np.testing.assert_allclose(found, [0, 0.5, 1])
    assert arm_of("weights", weights=EVEN).largest_probability == pytest.approx(0.5)
    heavy = (0.15, *[0.85 / 9] * 9)
    assert arm_of("weights", weights=heavy).largest_probability == pytest.approx(0.75)


@pytest.mark.parametrize("trust", ["none", "central", "local"])
def test_its_mean_is_the_weighted_one(trust):
    w = np.linspace(1, 2, N)
    w /= w.sum()
    unbiased_where_stated("weights", "weighted", trust, mean=w @ CLIPPED, weights=tuple(w))
