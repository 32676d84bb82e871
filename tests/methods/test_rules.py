"""Rules give probabilities, from what they state that they ask for."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import PLAIN_RULES
from locksfl.methods import RULES, Method
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import upload_probability


def probabilities(rule, scores, norm_sum, weights, dials):
    """p_i, by a round of this rule."""
    method = Method(rule, "weighted" if RULES[rule].takes == ("weights",) else "capped", "none")
    return upload_probability(method, scores, norm_sum, weights, dials)


def dials(**changes):
    """Any numbers that are not given do not matter to the rules."""
    values = {"cohort": 30.0, "uploads": 20.0, "clip_norm": 1.0, "floor": 0.1}
    values |= {"least_norm_sum": 20.0, "noise_multiplier": 0.0, "norm_multiplier": 0.0}
    values |= {"step": 1.0, "largest_probability": 1.0} | changes
    return Dials(**{name: jnp.float32(value) for name, value in values.items()})


@settings(max_examples=50, deadline=None)
@given(
    share=st.floats(1e-3, 1.0),
    low=st.floats(0.0, 1.0),
    floor=st.floats(0.0, 0.999),
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_probabilities_are_probabilities(share, low, floor, clip, seed):
    """In [0, 1] before the clip removes rounding, for any norms up to C and any K' allowed."""
    cohort, uploads = 30.0, 30.0 * share
    norm_low = (uploads + low * (cohort - uploads)) * clip
    rng = np.random.default_rng(seed)
    scores = np.concatenate([[0, clip], rng.uniform(0, clip, 6)]).astype(np.float32)
    weights = jnp.asarray(rng.exponential(size=8), jnp.float32)
    d = dials(cohort=cohort, uploads=uploads, clip_norm=clip, floor=floor, least_norm_sum=norm_low)
    norm_sum = jnp.clip(jnp.float32(scores.sum()), d.least_norm_sum, d.cohort * d.clip_norm)
    for name in PLAIN_RULES:
        rule = RULES[name]
        p = np.asarray(probabilities(name, jnp.asarray(scores), norm_sum, weights, d))
        assert np.all((p >= 0) & (p <= 1))
        raw = np.asarray(rule.probability(jnp.asarray(scores), norm_sum, weights, d, jnp))
        if name != "weights":
            assert raw.max() <= 1 + 1e-6
        np.testing.assert_array_equal(p, np.clip(raw, 0, 1))


def test_what_each_rule_gives():
    scores, n_weights = jnp.array([0.0, 0.4, 1.0]), jnp.array([0.0, 1.0, 3.0])
    expected = {
        "uniform": [20 / 30] * 3,
        "norm": [0.1 * 20 / 30 + 0.9 * 20 * s / 25 for s in (0.0, 0.4, 1.0)],
        "full": [1.0] * 3,
        "weights": [0.0, 20 / 30, 1.0],
        "coin": [0.0, 0.4, 1.0],
    }
    assert set(expected) == set(PLAIN_RULES)
    for name, values in expected.items():
        p = probabilities(name, scores, jnp.float32(25), n_weights, dials())
        np.testing.assert_allclose(p, values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("rule", PLAIN_RULES)
def test_only_rules_that_ask_look_at_norms(rule):
    """A rule that asks for no norms may not depend on them: nothing is charged for them."""
    one = probabilities(rule, jnp.zeros(3), jnp.float32(20), jnp.ones(3), dials())
    two = probabilities(rule, jnp.ones(3), jnp.float32(30), jnp.ones(3), dials())
    assert np.array_equal(one, two) != (RULES[rule].asks is not None)
