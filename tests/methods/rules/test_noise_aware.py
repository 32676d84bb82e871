"""The rule noise-aware: the optimum where the noise of an upload is divided by p too."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.methods import RULES
from rule_checks import (
    CLIP,
    ESTIMATES,
    arm_of,
    never_above_what_is_charged,
    scores,
    unbiased_where_stated,
)


def test_the_length_with_its_noise():
    """r = 0.6, d z^2 = 12 * 0.25: C sqrt((0.36 + 3) / 4). Without noise, the norm."""
    facts = {"norm": [1.2, 9.0, 0.0], "parameters": [12, 12, 12]}
    found = scores("noise-aware", facts, trust="local", noise_multiplier=0.5, norm_multiplier=1.0)
    np.testing.assert_allclose(found, [2 * 0.84**0.5, 2, 2 * 0.75**0.5], rtol=1e-6)
    np.testing.assert_allclose(scores("noise-aware", facts), [1.2, 2, 0], rtol=1e-6)


def test_no_other_probabilities_have_less_variance():
    """With the same sum, by 1000 tries."""
    rng = np.random.default_rng(0)
    norms, noise = rng.uniform(0, CLIP, 20), 0.7
    facts = {"norm": norms, "parameters": np.full(20, 5.0)}
    a = scores("noise-aware", facts, trust="local", noise_multiplier=noise, norm_multiplier=1.0)

    def variance(p):
        return np.sum((norms**2 + 5 * (noise * CLIP) ** 2) / p)

    best = 6 * a / a.sum()
    for tried in best * np.exp(0.1 * rng.normal(size=(1000, 20))):
        assert variance(6 * tried / tried.sum()) > variance(best)


def variance_by(rule, norms, parameters, noise, told):
    """(the variance of the sum of uploads (g_i + noise) / p_i under local trust, the uploads);
    `told` is the noise on the released scores, [tries, clients] in standard units."""
    settings = {"trust": "local", "noise_multiplier": noise, "norm_multiplier": 0.3}
    arm = arm_of(
        rule, len(norms), cohort=float(len(norms)), uploads=0.3 * len(norms), norm_low=0.3,
        estimator="horvitz-thompson", **settings,
    )  # fmt: skip
    own = norms
    if RULES[rule].score is not None:
        facts = {"norm": norms, "parameters": np.full(len(norms), float(parameters))}
        own = scores(rule, facts, **settings)
    dials = arm.dials(float)
    released = np.clip(own + 0.3 * CLIP * told, 0.0, CLIP)
    public = RULES[rule].settle(released.sum(axis=1, keepdims=True), dials, np)
    p = RULES[rule].probability(released, public, 1.0, dials, np)
    second = (norms**2 + parameters * (noise * CLIP) ** 2) / p
    return float(np.mean(np.sum(second - norms**2, axis=1))), float(np.mean(p.sum(axis=1)))


@pytest.mark.parametrize("expected_noise", [1.0, 10.0, 100.0])  # d z^2
@pytest.mark.parametrize("noisy", [False, True], ids=["true scores", "noised scores"])
def test_its_variance_is_at_most_that_of_norm(expected_noise, noisy):
    """At the same uploads and with the same estimator. Halves of norms that differ by a factor of
    ten, 100 tries of the released scores."""
    rng = np.random.default_rng(1)
    norms = CLIP * np.repeat([0.1, 1.0], 50) * rng.uniform(0.5, 1.0, 100)
    told = rng.normal(size=(100, 100)) if noisy else np.zeros((1, 100))
    z = (expected_noise / 50) ** 0.5
    mine, uploads = variance_by("noise-aware", norms, 50, z, told)
    norm, as_many = variance_by("norm", norms, 50, z, told)
    assert uploads == pytest.approx(as_many, rel=1e-6)
    assert mine <= norm


def test_its_default_estimator_is_the_one_that_it_is_optimal_for():
    assert arm_of("noise-aware", trust="local").estimator == "horvitz-thompson"
    assert arm_of("noise-aware", trust="local").unbiased
    assert arm_of("norm", trust="local").estimator == "capped"
    assert arm_of("noise-aware", trust="central").estimator == "capped"


def test_its_largest_probability():
    never_above_what_is_charged("noise-aware")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("noise-aware", estimator, trust)
