"""Local trust: the exact Gaussian conversion and what a client's releases cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from checks import sent
from locksfl.privacy import calibrate_local, delta_from_mu, epsilon_from_mu, mu_from_epsilon
from locksfl.privacy.accountant import epsilon_of, mu_squared

DELTA = 1e-5


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(1, 0.268), (2, 0.502), (4, 0.925), (8, 1.666), (10, 2.000), (50, 6.677)]
)
def test_mu_for_epsilon(epsilon, mu):
    assert mu_from_epsilon(epsilon, DELTA) == pytest.approx(mu, abs=5.1e-4)


@pytest.mark.parametrize(
    ("multiplier", "uploads", "norms", "zero_out", "replace", "digit"),
    [
        (1.32, 20, 0, 19.5, 51.1, 0.051),
        (1.32, 30, 0, 25.6, 69.0, 0.051),
        (0.5, 20, 0, 77.3, 235, 0.51),
        (0.5, 30, 0, 106, 333, 0.51),
        (1.32, 20, 30, 36.5, 64.7, 0.051),
        (0.5, 20, 30, 159, 309, 0.51),
    ],
)
def test_honest_epsilons_of_the_papers_multipliers(
    multiplier, uploads, norms, zero_out, replace, digit
):
    releases = sent(multiplier, uploads, multiplier, norms)
    assert epsilon_of(releases, DELTA).epsilon == pytest.approx(zero_out, abs=digit)
    assert epsilon_of(releases, DELTA, "replace").epsilon == pytest.approx(replace, abs=digit)
    if norms:  # a ledger that forgets the norms is told apart
        forgot = epsilon_of(sent(multiplier, uploads), DELTA).epsilon
        assert forgot < 0.6 * zero_out


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-2, 1e3), st.floats(1e-12, 1e-2))
def test_conversion_there_and_back(epsilon, delta):
    mu = mu_from_epsilon(epsilon, delta)
    assert epsilon_from_mu(mu, delta) == pytest.approx(epsilon, rel=1e-7)
    assert delta_from_mu(epsilon, mu) <= delta * (1 + 1e-9)


def test_delta_against_the_integral_of_the_definition():
    mu, epsilon = 1.3, 2.0

    def positive_part(x):
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x))

    value, _ = integrate.quad(positive_part, -5, 15, points=[epsilon / mu + mu / 2], limit=200)
    assert delta_from_mu(epsilon, mu) == pytest.approx(value, rel=1e-8)


def test_releases_compose_by_mu_squared():
    one, two = sent(2.0, 3), sent(1.0, 1, 4.0, 8)
    assert sum(mu_squared(each, "zero-out") for each in two) == pytest.approx(1 + 8 / 16)
    assert sum(mu_squared(each, "replace") for each in two) == pytest.approx(4 + 8 / 16)
    total = math.sqrt(3 / 4 + 1 + 8 / 16)
    assert epsilon_of([*one, *two], DELTA).epsilon == epsilon_from_mu(total, DELTA)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("epsilon", [0.1, 1, 10, 200])
@pytest.mark.parametrize("norms", [0, 30])
def test_calibrated_releases_cost_what_was_asked(relation, epsilon, norms):
    releases = calibrate_local(epsilon, DELTA, uploads=20, norms=norms, relation=relation)
    seen = sent(releases.noise_multiplier, 20, releases.norm_multiplier, norms)
    spent = epsilon_of(seen, DELTA, relation).epsilon
    assert epsilon * (1 - 1e-6) <= spent <= epsilon
    if norms:
        whole = sum(mu_squared(each, relation) for each in seen)
        assert norms / releases.norm_multiplier**2 == pytest.approx(0.1 * whole, rel=1e-6)


def test_a_given_norm_multiplier_is_kept_or_refused():
    releases = calibrate_local(10, DELTA, uploads=20, norms=30, norm_multiplier=10.0)
    assert releases.norm_multiplier == 10
    assert (
        10 * (1 - 1e-6)
        <= epsilon_of(sent(releases.noise_multiplier, 20, 10.0, 30), DELTA).epsilon
        <= 10
    )
    with pytest.raises(ValueError, match=r"norm_multiplier = 1.0: 30 norm releases alone cost"):
        calibrate_local(10, DELTA, uploads=20, norms=30, norm_multiplier=1.0)
    with pytest.raises(ValueError, match=r"uploads = 0: expected a whole number >= 1"):
        calibrate_local(10, DELTA, uploads=0)
    with pytest.raises(ValueError, match=r"norm_budget = 1.0: expected a number in \(0, 1\)"):
        calibrate_local(10, DELTA, uploads=20, norms=30, norm_budget=1.0)
