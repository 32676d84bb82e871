"""Where a bound breaks: conditions that are too weak, assumptions left out, steps too large.

Every problem here has F(w) = |w|^2 / 2 and a round that is linear in w, so that E|grad F(w_t)|^2 =
E|w_t|^2 follows a recursion and is exact: nothing is sampled.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from locksfl.paper.theory.bound import Constants, corrected, printed, printed_conditions
from locksfl.paper.theory.round_count import printed_rounds


def second_moments(c, start, growth, chance=0.0):
    """E|w_t|^2 for t < T if each round makes it growth(eta_t) times as large and adds eta_t^2
    chance; and eta_t."""
    steps = c.step / np.sqrt(np.arange(1, c.rounds + 1))
    moments = [start]
    for eta in steps[:-1]:
        moments.append(growth(eta) * moments[-1] + eta**2 * chance)
    return np.array(moments), steps


def weighted_mean(moments, steps):
    return float(moments @ steps / steps.sum())


def test_the_mean_of_inverse_rates_is_not_enough_without_a_clip_norm():
    """f_0 = n w^2/2, all others 0: A^2 + 1 = n and sigma_G = 0. The client that matters uploads
    in one round of 50, the 99 others in nine of ten, so that (1/n^2) sum 1/rho_i = .0159 allows a
    step of .315. But the variance has |grad f_0|^2 / rho_0: V_0/b = .5 takes the worst rate, and
    allows .01."""
    n, uploads, rate = 100, 90.0, 0.02
    mean = (1 / rate + (n - 1) ** 2 / (uploads - rate)) / n**2
    step = 1 / (2 * n * mean)  # 2 L eta_b (A^2 + 1) mean = 1
    shared = {
        "rounds": 20, "smoothness": 1.0, "gap": 0.5, "uploads": uploads, "client_spread": 0.0,
        "dissimilarity": math.sqrt(n - 1),
    }  # fmt: skip

    def measured(c):
        # Delta = w / rho_0 with probability rho_0
        return weighted_mean(*second_moments(c, 1.0, lambda eta: 1 - 2 * eta + eta**2 / rate))

    by_the_mean = Constants(**shared, step=step, stretch=mean * uploads)
    assert corrected(by_the_mean).total == pytest.approx(0.887, abs=5e-4)
    assert measured(by_the_mean) == pytest.approx(626, abs=0.5)

    worst = {"stretch": uploads / (n * rate)}
    with pytest.raises(ValueError, match=r"V_0 / b = 31\.46, expected at most 1: eta_b at most"):
        corrected(Constants(**shared, **worst, step=step))
    allowed = Constants(**shared, **worst, step=0.01)
    assert measured(allowed) <= corrected(allowed).total


def test_sample_draws_that_clients_share_break_the_bound():
    """All 50 clients take part; f_i = w^2/2, and the gradient of a sample is w + x, x = 1 or -1.
    Where every client draws the same x, averaging them does not make it smaller."""
    n = 50
    c = Constants(
        rounds=30, step=1.0, smoothness=1.0, gap=0.0, uploads=n, sample_spread=1.0,
        client_spread=0.0,
    )  # fmt: skip
    bound = corrected(c).total
    assert bound == pytest.approx(0.0193, abs=5e-5)

    def measured(chance):
        return weighted_mean(*second_moments(c, 0.0, lambda eta: (1 - eta) ** 2, chance))

    assert measured(chance=1.0) == pytest.approx(0.266, abs=5e-4)  # shared
    assert measured(chance=1 / n) == pytest.approx(0.266 / n, rel=2e-3)  # independent
    assert measured(1 / n) <= bound < measured(1.0)


@pytest.mark.parametrize(
    ("clients", "parameters", "rounds", "step", "stretch", "claimed"),
    [(100, 1, 20, 9.0, 1.2, 0.0176), (400, 2, 74, 20.0, 1.0, 0.0034)],
    ids=["V_0 = 1.2", "T = d^2 log(T)^2"],
)
def test_the_printed_bound_fails_with_rates_below_1_and_with_the_papers_rounds(
    clients, parameters, rounds, step, stretch, claimed
):
    """Identical clients, |w|^2/2 from |w_0| = 1: A = sigma_G = sigma_L = c_nu = sigma_0 = 0, and
    both printed conditions hold. The paper has V_0 > 1 (a client uploads with probability
    b/(n V_0)) and T = d^2 log(T)^2. Every step is longer than 2/L: the gradient only grows."""
    c = Constants(
        rounds=rounds, step=step, smoothness=1.0, gap=0.5, uploads=clients, parameters=parameters,
        client_spread=0.0, stretch=stretch,
    )  # fmt: skip
    assert all(condition.holds for condition in printed_conditions(c))
    assert printed(c).total == pytest.approx(claimed, abs=5e-5)
    # Delta is w times the mean of coin_i / rho_i, which has mean 1 and variance (V_0 - 1)/n
    moments, steps = second_moments(
        c, 1.0, lambda eta: (1 - eta) ** 2 + eta**2 * (stretch - 1) / clients
    )
    assert steps.min() > 2
    assert (np.diff(moments) > 0).all()
    assert moments.min() == 1.0 > 50 * claimed
    with pytest.raises(ValueError, match=f"L eta_b = {step:g}, expected at most 1"):
        corrected(c)


def test_the_papers_rounds_for_two_parameters_are_74():
    assert printed_rounds(2)[1] == pytest.approx(74, abs=0.5)
