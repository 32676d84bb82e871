"""Loss distributions: published values, exactness where it is known, and pessimism throughout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locksfl.privacy import SampledRound, central_epsilon, central_epsilons, epsilon_from_mu
from locksfl.privacy.pld import choose_interval, hockey_stick, one_round, pld_epsilon
from locksfl.privacy.rdp import rdp_epsilon

DELTA = 1e-5
# event, rounds, delta, epsilon, epsilon of the other direction, scalar mixture
JOINT = [
    (SampledRound(0.3, 1.5, 10, 0.667), 100, 1e-5, 7.77, 5.75, 8.17),
    (SampledRound(0.1, 1.0, 10, 0.5), 200, 1e-6, 5.58, 3.34, 5.81),
]


def scalar_mixture(event, rounds, delta):
    """An upper bound: one Gaussian whose shift is 0, a or sqrt(a^2 + c^2)."""
    from dp_accounting.pld import privacy_loss_distribution

    a, c = 1 / event.norm_multiplier, 1 / event.noise_multiplier
    q, p = event.sampling_rate, event.upload_probability
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0, [0.0, a, math.hypot(a, c)], [1 - q, q * (1 - p), q * p],
        value_discretization_interval=1e-3,
    )  # fmt: skip
    return one.self_compose(rounds).get_epsilon_for_delta(delta)


def plane_delta(event, epsilon, *, reverse=False, step=0.005):
    """delta(epsilon) by a midpoint rule on the plane: no bound, but close."""
    a, c = 1 / event.norm_multiplier, 1 / event.noise_multiplier
    q, p = event.sampling_rate, event.upload_probability
    x = np.arange(-8, 8 + a, 0.02)[:, None]
    y = np.arange(-8, 8 + c, step)[None, :]
    ratio = (1 - q) + q * np.exp(a * x - a * a / 2) * ((1 - p) + p * np.exp(c * y - c * c / 2))
    gap = 1 - math.exp(epsilon) * ratio if reverse else ratio - math.exp(epsilon)
    density = np.exp(-(x * x + y * y) / 2) / (2 * math.pi)
    return float((np.maximum(gap, 0) * density).sum()) * 0.02 * step


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1.32, 9.18), (0.5, 57.18)])
def test_uniform_values_and_below_rdp(multiplier, epsilon):
    spent = [(SampledRound(0.2, multiplier), 100)]
    assert pld_epsilon(spent, DELTA) == pytest.approx(epsilon, abs=5.1e-3)
    assert pld_epsilon(spent, DELTA) < rdp_epsilon(spent, DELTA)
    doubled = [(SampledRound(0.4, multiplier), 100)]
    assert pld_epsilon(doubled, DELTA) > 1.2 * epsilon


@pytest.mark.parametrize(("event", "rounds", "delta", "epsilon", "other", "mixture"), JOINT)
def test_joint_values_and_upper_cross_checks(event, rounds, delta, epsilon, other, mixture):
    value = pld_epsilon([(event, rounds)], delta)
    assert value == pytest.approx(epsilon, abs=5.1e-3)
    assert scalar_mixture(event, rounds, delta) == pytest.approx(mixture, abs=5.1e-3)
    merged = (event.norm_multiplier**-2 + event.noise_multiplier**-2) ** -0.5
    without_thinning = pld_epsilon([(SampledRound(event.sampling_rate, merged), rounds)], delta)
    assert value < min(mixture, rdp_epsilon([(event, rounds)], delta), without_thinning)
    # The norm release is not free: forgetting it is told apart.
    forgot = SampledRound(event.sampling_rate, event.noise_multiplier, None, 0.667)
    assert abs(pld_epsilon([(forgot, rounds)], delta) - epsilon) > 0.1
    composed = one_round(event, choose_interval([(event, rounds)])).self_compose(rounds)
    directions = [
        pmf.get_epsilon_for_delta(delta) for pmf in (composed._pmf_remove, composed._pmf_add)
    ]
    assert directions == pytest.approx([epsilon, other], abs=5.1e-3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "event", [SampledRound(0.3, 1.5, 3, 0.667), SampledRound(0.8, 0.7, 0.9, 0.3)]
)
def test_one_round_lies_above_the_plane_and_close(event, reverse):
    epsilons = np.asarray([0.0, 0.1, 0.4, 1.0])
    bound = hockey_stick(event, epsilons, reverse=reverse)
    for epsilon, value in zip(epsilons, bound, strict=True):
        truth = plane_delta(event, float(epsilon), reverse=reverse)
        assert truth * (1 - 1e-4) - 1e-9 <= value <= truth * 1.02 + 1e-6


@pytest.mark.parametrize("event", [SampledRound(0.3, 1.5, 3, 0.667), SampledRound(1, 2, 1, 0.9)])
def test_client_in_over_client_out_is_the_worse_direction_of_one_round(event):
    epsilons = np.linspace(0, 3, 31)
    gap = hockey_stick(event, epsilons) - hockey_stick(event, epsilons, reverse=True)
    assert (gap >= -1e-12).all()
    assert gap.max() > 1e-4


@pytest.mark.parametrize("norm", [None, 5.0])
@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 10), (1.0, 3), (0.8, 40)])
def test_without_sampling_the_exact_gaussian_is_met_from_above(norm, multiplier, rounds):
    event = SampledRound(1.0, multiplier, norm)
    mu_squared = rounds * (multiplier**-2 + (norm**-2 if norm else 0))
    exact = epsilon_from_mu(math.sqrt(mu_squared), DELTA)
    assert exact <= pld_epsilon([(event, rounds)], DELTA) <= exact * 1.002
    replace = epsilon_from_mu(2 * math.sqrt(mu_squared), DELTA)
    assert replace <= central_epsilon([(event, rounds)], DELTA, "replace") <= replace * 1.25


@pytest.mark.parametrize("sampling_rate", [0.05, 0.3])
def test_far_norm_noise_and_sure_upload_reduce_to_uniform(sampling_rate):
    uniform = pld_epsilon([(SampledRound(sampling_rate, 1.2), 50)], DELTA)
    joint = pld_epsilon([(SampledRound(sampling_rate, 1.2, 1e5, 1.0), 50)], DELTA)
    assert uniform <= joint * (1 + 1e-4)
    assert joint == pytest.approx(uniform, rel=2e-3)
    thinned = pld_epsilon([(SampledRound(sampling_rate, 1.2, 1e5, 0.5), 50)], DELTA)
    assert thinned == pytest.approx(
        pld_epsilon([(SampledRound(sampling_rate / 2, 1.2), 50)], DELTA), rel=2e-3
    )


def test_mixed_rounds_compose_in_any_order_and_equal_rounds_are_merged():
    uniform, joint = SampledRound(0.2, 1.5), SampledRound(0.3, 1.5, 10, 0.667)
    there = central_epsilon([(uniform, 50), (joint, 50)], DELTA)
    back = central_epsilon([(joint, 20), (uniform, 50), (joint, 30)], DELTA)
    assert there == pytest.approx(back, rel=1e-6)
    alone = [central_epsilon([(event, 100)], DELTA) for event in (uniform, joint)]
    assert min(alone) < there < max(alone)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_progress_equals_the_single_calls_and_grows(relation):
    event = SampledRound(0.3, 1.5, 10, 0.667)
    for accountant in ("rdp", "pld"):
        progress = central_epsilons(event, [0, 1, 10, 50, 100], DELTA, relation, accountant)
        assert progress[0] == 0
        assert (np.diff(progress) > 0).all()
        last = central_epsilon([(event, 100)], DELTA, relation, accountant)
        assert progress[-1] == pytest.approx(last, rel=1e-9)


@pytest.mark.parametrize(
    ("event", "rounds", "delta"),
    [
        (SampledRound(1e-6, 1.0), 10_000, 1e-6),
        (SampledRound(1e-6, 1.0, 5.0, 0.5), 1000, 1e-6),
        (SampledRound(1e-3, 1.0, 5.0, 0.5), 10_000, 1e-6),
        (SampledRound(0.2, 0.55), 100, 1e-5),
        (SampledRound(0.2, 0.05), 10, 1e-5),
        (SampledRound(0.2, 0.03, 0.1, 0.3), 10, 1e-5),
        (SampledRound(0.2, 1e-3), 10, 1e-5),
        (SampledRound(0.2, 1e4, 1e4, 0.5), 10, 1e-5),
        (SampledRound(0.2, 1.0), 10, 1e-30),
    ],
)
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_far_corners_are_bounded_by_rdp_and_never_nan(event, rounds, delta, relation):
    rdp = rdp_epsilon([(event, rounds)], delta, relation)
    pld = pld_epsilon([(event, rounds)], delta, relation)
    both = central_epsilon([(event, rounds)], delta, relation)
    assert math.isfinite(rdp)
    assert pld >= 0
    assert both == min(rdp, pld)
    assert both >= central_epsilon([(event, max(1, rounds // 4))], delta, relation) * (1 - 1e-6)


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
        return pld_epsilon([(SampledRound(q, z, norm, upload), t)], DELTA)

    here = epsilon()
    assert here < epsilon(q=1.1 * rate)
    assert here < epsilon(z=multiplier / 1.1)
    assert here < epsilon(t=2 * rounds)
    assert here < rdp_epsilon([(SampledRound(rate, multiplier, norm, upload), rounds)], DELTA)
