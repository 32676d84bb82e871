"""The rule full: every client, every round."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from checks import mean_is
from locksfl.methods import RULES
from rule_checks import CLIPPED, N, arm_of, played, probabilities


def test_everybody():
    np.testing.assert_array_equal(
        probabilities("full", [0.0, 1.0, 2.0], 0.0, uploads=None), [1.0] * 3
    )
    arm = arm_of("full", uploads=None)
    assert arm.largest_probability == 1
    assert arm.cohort == arm.uploads == arm.clients
    assert RULES["full"].everyone
    assert RULES["full"].sends == "its update"
    with pytest.raises(ValueError, match="asks all 10 clients"):
        arm_of("full")


@pytest.mark.parametrize("trust", ["none", "central", "local"])
def test_its_mean(trust):
    """False alarms: 1e-6. A mean that is 2% off is rejected."""
    noise = {"noise_multiplier": 0.05} if trust != "none" else {}
    updates = played(arm_of("full", N, uploads=None, trust=trust, **noise))
    assert mean_is(updates, CLIPPED.mean(axis=0))
    assert not mean_is(updates, 1.02 * CLIPPED.mean(axis=0))
    assert jnp.all(jnp.isfinite(updates))
