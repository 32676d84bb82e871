"""The rule uniform: every member alike."""

from __future__ import annotations

import numpy as np
import pytest

from rule_checks import arm_of, probabilities, unbiased_where_stated


def test_every_member_alike():
    np.testing.assert_array_equal(probabilities("uniform", [0.0, 1.0, 2.0], 0.0), [0.5] * 3)
    assert arm_of("uniform").largest_probability == 0.5


@pytest.mark.parametrize("trust", ["none", "central", "local"])
def test_its_mean(trust):
    unbiased_where_stated("uniform", "capped", trust)
