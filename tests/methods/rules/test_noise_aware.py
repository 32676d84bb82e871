"""The rule noise-aware: the optimum where the noise of an upload is divided by p too."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.methods import RULES
from rule_checks import (
    CLIP,
    arm_of,
    scores,
)


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


def variance_by(rule, norms, parameters, noise, drawn):
    """(the variance of the sum of uploads (g_i + noise) / p_i under local trust, the uploads);
    `drawn` is the noise on the released scores, [tries, clients] in standard units."""
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
    released = np.clip(own + 0.3 * CLIP * drawn, 0.0, CLIP)
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
    drawn = rng.normal(size=(100, 100)) if noisy else np.zeros((1, 100))
    z = (expected_noise / 50) ** 0.5
    mine, uploads = variance_by("noise-aware", norms, 50, z, drawn)
    norm, as_many = variance_by("norm", norms, 50, z, drawn)
    assert uploads == pytest.approx(as_many, rel=1e-6)
    assert mine <= norm
