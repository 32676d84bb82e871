"""Loss distributions: published values, exactness where it is known, and pessimism throughout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import coins
from locksfl.methods.events import Sampled, SampledTwice
from locksfl.privacy import epsilon_from_mu
from locksfl.privacy.accountant import epsilon_of, epsilons_after
from locksfl.privacy.pld import choose_interval, hockey_stick, one_round, pld_epsilon
from locksfl.privacy.rdp import rdp_epsilon

DELTA = 1e-5
# event, rounds, delta, epsilon, epsilon of the other direction, scalar mixture
JOINT = [
    (SampledTwice(0.3, 10, 0.667, 1.5), 100, 1e-5, 7.77, 5.75, 8.17),
    (SampledTwice(0.1, 10, 0.5, 1.0), 200, 1e-6, 5.58, 3.34, 5.81),
]


def scalar_mixture(event, rounds, delta):
    """An upper bound: one Gaussian whose shift is 0, a or sqrt(a^2 + c^2)."""
    from dp_accounting.pld import privacy_loss_distribution

    a, c = 1 / event.first_multiplier, 1 / event.noise_multiplier
    q, p = event.sampling_rate, event.second_rate
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0, [0.0, a, math.hypot(a, c)], [1 - q, q * (1 - p), q * p],
        value_discretization_interval=1e-3,
    )  # fmt: skip
    return one.self_compose(rounds).get_epsilon_for_delta(delta)


def plane_delta(event, epsilon, *, reverse=False, step=0.005):
    """delta(epsilon) by a midpoint rule on the plane: no bound, but close."""
    a, c = 1 / event.first_multiplier, 1 / event.noise_multiplier
    q, p = event.sampling_rate, event.second_rate
    x = np.arange(-8, 8 + a, 0.02)[:, None]
    y = np.arange(-8, 8 + c, step)[None, :]
    ratio = (1 - q) + q * np.exp(a * x - a * a / 2) * ((1 - p) + p * np.exp(c * y - c * c / 2))
    gap = 1 - math.exp(epsilon) * ratio if reverse else ratio - math.exp(epsilon)
    density = np.exp(-(x * x + y * y) / 2) / (2 * math.pi)
    return float((np.maximum(gap, 0) * density).sum()) * 0.02 * step


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1.32, 9.18), (0.5, 57.18)])
def test_uniform_values_and_below_rdp(multiplier, epsilon):
    spent = [(Sampled(0.2, multiplier), 100)]
    assert pld_epsilon(spent, DELTA) == pytest.approx(epsilon, abs=5.1e-3)
    assert pld_epsilon(spent, DELTA) < rdp_epsilon(spent, DELTA)
    doubled = [(Sampled(0.4, multiplier), 100)]
    assert pld_epsilon(doubled, DELTA) > 1.2 * epsilon


@pytest.mark.parametrize(("event", "rounds", "delta", "epsilon", "other", "mixture"), JOINT)
def test_joint_values_and_upper_cross_checks(event, rounds, delta, epsilon, other, mixture):
    value = pld_epsilon([(event, rounds)], delta)
    assert value == pytest.approx(epsilon, abs=5.1e-3)
    assert scalar_mixture(event, rounds, delta) == pytest.approx(mixture, abs=5.1e-3)
    merged = (event.first_multiplier**-2 + event.noise_multiplier**-2) ** -0.5
    without_thinning = pld_epsilon([(Sampled(event.sampling_rate, merged), rounds)], delta)
    assert value < min(mixture, rdp_epsilon([(event, rounds)], delta), without_thinning)
    # The norm release is not free: forgetting it is told apart.
    forgot = Sampled(event.sampling_rate * 0.667, event.noise_multiplier)
    assert abs(pld_epsilon([(forgot, rounds)], delta) - epsilon) > 0.1
    composed = one_round(event, choose_interval([(event, rounds)])).self_compose(rounds)
    directions = [
        pmf.get_epsilon_for_delta(delta) for pmf in (composed._pmf_remove, composed._pmf_add)
    ]
    assert directions == pytest.approx([epsilon, other], abs=5.1e-3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "event", [SampledTwice(0.3, 3, 0.667, 1.5), SampledTwice(0.8, 0.9, 0.3, 0.7)]
)
def test_one_round_lies_above_the_plane_and_close(event, reverse):
    epsilons = np.asarray([0.0, 0.1, 0.4, 1.0])
    bound = hockey_stick(event, epsilons, reverse=reverse)
    for epsilon, value in zip(epsilons, bound, strict=True):
        truth = plane_delta(event, float(epsilon), reverse=reverse)
        assert truth * (1 - 1e-4) - 1e-9 <= value <= truth * 1.02 + 1e-6


@pytest.mark.parametrize("event", [SampledTwice(0.3, 3, 0.667, 1.5), SampledTwice(1, 1, 0.9, 2)])
def test_client_in_over_client_out_is_the_worse_direction_of_one_round(event):
    epsilons = np.linspace(0, 3, 31)
    gap = hockey_stick(event, epsilons) - hockey_stick(event, epsilons, reverse=True)
    assert (gap >= -1e-12).all()
    assert gap.max() > 1e-4


@pytest.mark.parametrize("norm", [None, 5.0])
@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 10), (1.0, 3), (0.8, 40)])
def test_without_sampling_the_exact_gaussian_is_met_from_above(norm, multiplier, rounds):
    event = coins(1.0, multiplier, norm)
    mu_squared = rounds * (multiplier**-2 + (norm**-2 if norm else 0))
    exact = epsilon_from_mu(math.sqrt(mu_squared), DELTA)
    assert exact <= pld_epsilon([(event, rounds)], DELTA) <= exact * 1.002
    replace = epsilon_from_mu(2 * math.sqrt(mu_squared), DELTA)
    assert replace <= epsilon_of([(event, rounds)], DELTA, "replace").epsilon <= replace * 1.25


@pytest.mark.parametrize("sampling_rate", [0.05, 0.3])
def test_far_norm_noise_and_sure_upload_reduce_to_uniform(sampling_rate):
    uniform = pld_epsilon([(Sampled(sampling_rate, 1.2), 50)], DELTA)
    joint = pld_epsilon([(SampledTwice(sampling_rate, 1e5, 1.0, 1.2), 50)], DELTA)
    assert uniform <= joint * (1 + 1e-4)
    assert joint == pytest.approx(uniform, rel=2e-3)
    thinned = pld_epsilon([(SampledTwice(sampling_rate, 1e5, 0.5, 1.2), 50)], DELTA)
    assert thinned == pytest.approx(
        pld_epsilon([(Sampled(sampling_rate / 2, 1.2), 50)], DELTA), rel=2e-3
    )


def test_mixed_rounds_compose_in_any_order_and_equal_rounds_are_merged():
    uniform, joint = Sampled(0.2, 1.5), SampledTwice(0.3, 10, 0.667, 1.5)
    there = epsilon_of([(uniform, 50), (joint, 50)], DELTA).epsilon
    back = epsilon_of([(joint, 20), (uniform, 50), (joint, 30)], DELTA).epsilon
    assert there == pytest.approx(back, rel=1e-6)
    alone = [epsilon_of([(event, 100)], DELTA).epsilon for event in (uniform, joint)]
    assert min(alone) < there < max(alone)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_progress_equals_the_single_calls_and_grows(relation):
    event = SampledTwice(0.3, 10, 0.667, 1.5)
    for accountant in ("rdp", "pld"):
        progress = epsilons_after(event, [0, 1, 10, 50, 100], DELTA, relation, accountant)
        assert progress[0] == 0
        assert (np.diff(progress) > 0).all()
        last = epsilon_of([(event, 100)], DELTA, relation, accountant).epsilon
        assert progress[-1] == pytest.approx(last, rel=1e-9)


@pytest.mark.parametrize(
    ("event", "rounds", "delta"),
    [
        (Sampled(1e-6, 1.0), 10_000, 1e-6),
        (SampledTwice(1e-6, 5.0, 0.5, 1.0), 1000, 1e-6),
        (SampledTwice(1e-3, 5.0, 0.5, 1.0), 10_000, 1e-6),
        (Sampled(0.2, 0.55), 100, 1e-5),
        (Sampled(0.2, 0.05), 10, 1e-5),
        (SampledTwice(0.2, 0.1, 0.3, 0.03), 10, 1e-5),
        (Sampled(0.2, 1e-3), 10, 1e-5),
        (SampledTwice(0.2, 1e4, 0.5, 1e4), 10, 1e-5),
        (Sampled(0.2, 1.0), 10, 1e-30),
    ],
)
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_far_corners_are_bounded_by_rdp_and_never_nan(event, rounds, delta, relation):
    rdp = rdp_epsilon([(event, rounds)], delta, relation)
    pld = pld_epsilon([(event, rounds)], delta, relation)
    both = epsilon_of([(event, rounds)], delta, relation).epsilon
    assert math.isfinite(rdp)
    assert pld >= 0
    assert both == min(rdp, pld)
    assert both >= epsilon_of([(event, max(1, rounds // 4))], delta, relation).epsilon * (1 - 1e-6)


@settings(max_examples=8, deadline=None)
@given(
    st.floats(0.02, 0.9),
    st.floats(0.6, 4.0),
    st.one_of(st.none(), st.floats(1.0, 20.0)),
    st.floats(0.2, 1.0),
    st.integers(2, 200),
)
def test_epsilon_is_monotone_and_below_rdp(rate, multiplier, norm, upload, rounds):
    def epsilon(q=rate, z=multiplier, t=rounds):
        return pld_epsilon([(coins(q, z, norm, upload), t)], DELTA)

    here = epsilon()
    assert here < epsilon(q=1.1 * rate)
    assert here < epsilon(z=multiplier / 1.1)
    assert here < epsilon(t=2 * rounds)
    assert here < rdp_epsilon([(coins(rate, multiplier, norm, upload), rounds)], DELTA)
