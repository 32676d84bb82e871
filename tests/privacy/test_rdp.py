"""Renyi accounting: published values, quadrature in both directions, monotony."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from checks import coins
from locksfl.methods.events import Sampled, SampledTwice
from locksfl.privacy import epsilon_from_mu
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.rdp import (
    REPLACE_ORDERS,
    composed_rdp,
    epsilon_from_rdp,
    rdp_epsilon,
    replace_rdp,
    round_rdp,
)

DELTA = 1e-5
JOINT = [
    (SampledTwice(0.3, 3, 0.667, 1.5), 4.0, 0.0920030854),
    (SampledTwice(0.3, 5, 0.9, 1.3), 8.0, 1.0721314967),
    (SampledTwice(0.2, 10, 0.5, 2), 8.0, 0.0158412490),
]
PAIRS = [
    (SampledTwice(0.3, 10, 0.667, 1.5), 100, 1e-5, 8.66),
    (SampledTwice(0.1, 10, 0.5, 1.0), 200, 1e-6, 6.22),
]


def plane_rdp(event, order, reverse=False):
    """ln E_Q[L^order] / (order-1), or with Q over P, by a fine trapezoid rule on the plane."""
    a, c = 1 / event.first_multiplier, 1 / event.noise_multiplier
    q, p = event.sampling_rate, event.second_rate
    x = np.arange(-14 - order * a, order * a + 14, 0.1)
    y = np.arange(-14 - order * c, order * c + 14, 0.1)
    inner = np.logaddexp(math.log1p(-p), math.log(p) + c * y - c * c / 2)
    log_ratio = np.logaddexp(
        math.log1p(-q), math.log(q) + (a * x - a * a / 2)[:, None] + inner[None, :]
    )
    weight = -(x[:, None] ** 2 + y[None, :] ** 2) / 2 + math.log(0.01 / (2 * math.pi))
    power = 1 - order if reverse else order
    return float(special.logsumexp(weight + power * log_ratio)) / (order - 1)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1.326, 10.001), (1.32, 10.072)])
def test_uniform_near_ten(multiplier, epsilon):
    spent = [(Sampled(0.2, multiplier), 100)]
    assert rdp_epsilon(spent, DELTA) == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(0.556, 49.92), (0.5, 62.59)])
def test_uniform_at_large_epsilon(multiplier, epsilon):
    """Orders near 1 decide: with integer orders only the answer is far off."""
    spent = [(Sampled(0.2, multiplier), 100)]
    assert rdp_epsilon(spent, DELTA) == pytest.approx(epsilon, abs=6e-3)
    orders = tuple(float(order) for order in range(2, 65))
    assert epsilon_from_rdp(orders, composed_rdp(spent, orders), DELTA) > 1.15 * epsilon


@pytest.mark.parametrize(("event", "order", "value"), JOINT)
def test_joint_values_and_planted_faults(event, order, value):
    assert round_rdp(event, (order,))[0] == pytest.approx(value, abs=5.1e-11)
    twice = SampledTwice(2 * event.sampling_rate, event.first_multiplier, 0.9, 1.5)
    forgot = Sampled(event.sampling_rate * 0.667, event.noise_multiplier)
    for wrong in (twice, forgot):
        assert abs(round_rdp(wrong, (order,))[0] / value - 1) > 0.01


@pytest.mark.parametrize(("event", "order", "value"), JOINT)
def test_integer_formula_against_the_plane_in_both_directions(event, order, value):
    assert plane_rdp(event, order) == pytest.approx(value, rel=1e-9)
    assert plane_rdp(event, order, reverse=True) < value


@pytest.mark.parametrize("order", [1.02, 1.5, 2.7, 6.3])
@pytest.mark.parametrize(
    "event", [SampledTwice(0.3, 2.0, 0.4, 0.7), SampledTwice(0.9, 0.8, 0.95, 0.4)]
)
def test_real_orders_against_a_finer_quadrature(event, order):
    value = round_rdp(event, (order,))[0]
    assert value == pytest.approx(plane_rdp(event, order), rel=1e-9)
    assert plane_rdp(event, order, reverse=True) <= value


def test_quadrature_meets_the_integer_formula_and_the_chord_lies_above():
    for event in (Sampled(0.2, 1.3), SampledTwice(0.3, 3, 0.667, 1.5), Sampled(1, 0.3)):
        near, exact = round_rdp(event, (3 - 1e-9, 3.0))
        assert near == pytest.approx(exact, rel=1e-7)
    event = SampledTwice(0.3, 1, 0.667, 0.5)
    chord = round_rdp(event, (14.5,))[0]
    assert plane_rdp(event, 14.5) < chord < plane_rdp(event, 15.0)


def test_uniform_integer_orders_agree_with_dp_accounting():
    import dp_accounting
    from dp_accounting import rdp

    orders = (2.0, 5.0, 16.0, 64.0)
    for rate, multiplier in ((0.2, 1.32), (0.01, 0.8), (1.0, 4.0)):
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        event = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
        upstream = rdp.RdpAccountant([int(order) for order in orders]).compose(event)
        ours = round_rdp(Sampled(rate, multiplier), orders)
        assert ours == pytest.approx(list(upstream._rdp), rel=1e-9)


@pytest.mark.parametrize(("event", "rounds", "delta", "epsilon"), PAIRS)
def test_joint_epsilon_over_integer_orders(event, rounds, delta, epsilon):
    orders = tuple(float(order) for order in range(2, 129))
    rdp = composed_rdp([(event, rounds)], orders)
    assert epsilon_from_rdp(orders, rdp, delta) == pytest.approx(epsilon, abs=5.1e-3)
    assert rdp_epsilon([(event, rounds)], delta) <= epsilon


def test_far_norm_noise_and_sure_upload_reduce_to_uniform():
    uniform = round_rdp(Sampled(0.2, 1.3))
    assert round_rdp(SampledTwice(0.2, 1e7, 1.0, 1.3)) == pytest.approx(list(uniform), rel=1e-6)
    thinned = round_rdp(SampledTwice(0.2, 1e7, 0.5, 1.3))
    assert thinned == pytest.approx(list(round_rdp(Sampled(0.1, 1.3))), rel=1e-5)
    sure = (1.5, 3.0, 9.0)
    merged = (1.3**-2 + 4.0**-2) ** -0.5
    assert round_rdp(SampledTwice(0.2, 4.0, 1.0, 1.3), sure) == pytest.approx(
        list(round_rdp(Sampled(0.2, merged), sure)), rel=1e-9
    )


def test_unsampled_gaussian_is_exact_and_replace_is_its_doubled_shift():
    spent = [(Sampled(1.0, 4.0), 20)]
    orders = np.asarray((1.01, 1.7, 4.0, 33.0, 500.0))
    exact = 20 * orders / (2 * 4.0**2)
    assert composed_rdp(spent, tuple(orders.tolist())) == pytest.approx(exact, rel=1e-9)
    alpha = np.asarray(REPLACE_ORDERS)
    assert (replace_rdp(spent) >= 4 * 20 * alpha / (2 * 4.0**2) * (1 - 1e-9)).all()
    truth = epsilon_from_mu(2 * math.sqrt(20) / 4.0, DELTA)
    assert truth <= rdp_epsilon(spent, DELTA, "replace") <= 1.12 * truth


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.02, 0.9),
    st.floats(0.4, 5.0),
    st.one_of(st.none(), st.floats(0.5, 20.0)),
    st.floats(0.1, 1.0),
    st.integers(1, 500),
    st.sampled_from(["zero-out", "replace"]),
)
def test_epsilon_is_monotone(rate, multiplier, norm, upload, rounds, relation):
    def epsilon(q=rate, z=multiplier, k=norm, p=upload, t=rounds, d=DELTA):
        return epsilon_of([(coins(q, z, k, p), t)], d, relation, "rdp").epsilon

    here = epsilon()
    assert here < epsilon(q=1.1 * rate)
    assert here < epsilon(z=multiplier / 1.1)
    assert here < epsilon(t=2 * rounds)
    assert here < epsilon(d=DELTA / 10)
    assert here <= epsilon(p=min(1.0, 1.1 * upload))
    if norm is not None:
        assert here < epsilon(k=norm / 1.1)
        assert here >= epsilon(k=None)
    if relation == "replace":
        assert (
            here
            > epsilon_of(
                [(coins(rate, multiplier, norm, upload), rounds)], DELTA, accountant="rdp"
            ).epsilon
        )


def test_orders_outside_the_table_are_refused():
    with pytest.raises(ValueError, match="expected numbers in"):
        round_rdp(Sampled(0.2, 1.0), (1.0,))
    with pytest.raises(ValueError, match="expected numbers in"):
        round_rdp(Sampled(0.2, 1.0), (5000.0,))
