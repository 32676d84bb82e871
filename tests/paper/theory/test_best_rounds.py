"""How many rounds: the paper's equation, and the corrected bound at a fixed epsilon."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from checks import sent
from locksfl.methods.events import Sampled
from locksfl.paper.theory.bound import Constants, corrected, printed
from locksfl.paper.theory.round_count import (
    Regime,
    advice,
    at_printed_rounds,
    limit,
    noise_of_everyone,
    noised,
    printed_rounds,
    with_best_step,
)
from locksfl.privacy import calibrate_central, mu_from_epsilon
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.rdp import round_rdp

S = Regime(
    clients=20_000, uploads=20_000.0, parameters=100, epsilon=1.0, delta=1e-5, clip_norm=1.0,
    smoothness=1.0, gap=2.0,
)  # fmt: skip


@pytest.mark.parametrize("d", [2, 10, 7850, 10**6])
def test_both_roots_solve_the_papers_equation(d):
    small, large = printed_rounds(d)
    for root in (small, large):
        assert root == pytest.approx(d**2 * math.log(root) ** 2, rel=1e-9)
    assert 1 < small < 8 < large
    if d >= 10:
        assert small == pytest.approx(1 + 1 / d, rel=0.2 / d)
    # between the roots d^2 log(T)^2 is larger than T, beyond them smaller
    middle, beyond = math.sqrt(small * large), 2 * large
    assert d**2 * math.log(middle) ** 2 > middle
    assert d**2 * math.log(beyond) ** 2 < beyond


def test_one_parameter_has_no_such_number_of_rounds():
    assert printed_rounds(1) is None


def test_the_paper_asks_for_ten_thousand_million_rounds_of_softmax_on_mnist():
    assert printed_rounds(7850)[1] == pytest.approx(3.64e10, rel=1e-2)


def by_hand(regime, step, rounds, trust):
    """The bound at a step and T, written out: 2 Delta F/(eta T) + L eta V, c_nu = 0."""
    s = regime
    if trust == "local":
        mu = mu_from_epsilon(s.epsilon, s.delta)
        uploads = max(1.0, rounds * s.uploads / s.clients)
        noise = (2 * s.clip_norm / mu) ** 2 * uploads / s.uploads
    else:
        rate = s.uploads / s.clients
        event = calibrate_central(s.epsilon, s.delta, rounds, rate, accountant="rdp")
        noise = (event.noise_multiplier * s.clip_norm / s.uploads) ** 2
    variance = s.clip_norm**2 / s.uploads + s.parameters * noise
    return 2 * s.gap / (step * rounds) + s.smoothness * step * variance


@pytest.mark.parametrize(
    ("trust", "change"),
    [
        ("central", {"clients": 100, "uploads": 20.0, "parameters": 7850, "epsilon": 10.0}),
        ("central", {"smoothness": 3.0, "clip_norm": 0.5, "gap": 0.2}),
        ("local", {"clients": 100, "uploads": 20.0, "parameters": 7850, "epsilon": 10.0}),
        ("local", {"uploads": 300.0, "parameters": 5, "epsilon": 8.0, "gap": 50.0}),
    ],
)
def test_a_grid_search_over_step_and_rounds_finds_nothing_better(trust, change):
    """What `locks theory rounds` says beside brute force: many T, each with 200 steps up to 1/L.
    That the search can fail: half the step, or one round fewer, is seen to be worse."""
    regime = replace(S, **change)
    best = advice(regime, trust)
    rounds, bound, least = best.rounds, best.bound.total, best.limit
    assert bound == pytest.approx(by_hand(regime, best.step, rounds, trust), rel=1e-9)
    steps = np.geomspace(1e-4, 1, 200) / regime.smoothness
    grid = {
        int(t): by_hand(regime, steps, int(t), trust).min()
        for t in {*np.geomspace(1, 4 * rounds, 12).astype(int), rounds - 1, rounds}
    }
    assert grid[rounds] >= bound * (1 - 1e-9)  # no better step
    assert grid[rounds] < 1.001 * bound
    for t, value in grid.items():
        assert value >= least, t  # nothing below the limit
        if t < rounds:
            assert value > 1.1 * least, t  # no fewer rounds come within 10% of it
    assert bound <= 1.1 * least
    assert by_hand(regime, best.step / 2, rounds, trust) > 1.05 * grid[rounds]


@pytest.mark.parametrize(
    ("trust", "clients", "uploads", "rounds", "freed", "largest"),
    [
        ("central", 100, 20.0, 2, "7.24", "8"),
        ("central", 100, 20.0, 128, "2.43", "41"),
        ("central", 100, 20.0, 2048, "2.04", "465"),
        ("local", 100, 20.0, 5, "38", "393"),
        ("local", 10_000, 1000.0, 10, "3.8", "8.31"),
    ],
)
def test_what_a_free_step_gains(trust, clients, uploads, rounds, freed, largest):
    """Beside the largest step, 1/L."""
    regime = Regime(clients, uploads, 7850, 10.0, 1e-5, 1.0, 1.0, 2.3)
    c = noised(regime, rounds, trust)
    totals = [corrected(x, "constant").total for x in (with_best_step(c), c)]
    assert [f"{total:.3g}" for total in totals] == [freed, largest]


@pytest.mark.parametrize("trust", ["central", "local"])
@pytest.mark.parametrize("rate", [0.02, 1.0])
def test_more_rounds_with_smaller_steps_never_hurt(trust, rate):
    """The bound at its best step falls with T, to the limit and not below it."""
    regime = replace(S, uploads=rate * S.clients)
    each = [with_best_step(noised(regime, 4**i, trust)) for i in range(11)]
    bounds = [corrected(c, "constant").total for c in each]
    least, product = limit(regime, trust)
    assert bounds == sorted(bounds, reverse=True)
    assert least < bounds[-1] < 1.01 * least
    assert each[-1].step * each[-1].rounds == pytest.approx(product, rel=0.01)


def test_the_variance_of_the_noise_grows_no_faster_than_the_rounds():
    """Why: at every integer order, k^2 times as many rounds of k times the noise cost no more (the
    log of a sum of exponentials in 1/z^2 is convex, and 0 at 0); nor does the limit, everyone at
    z/q."""
    orders = (2.0, 3.0, 8.0, 40.0)
    for rate, z in ((0.01, 0.6), (0.2, 1.0), (0.2, 5.0), (0.9, 2.0)):
        cost = np.array(round_rdp(Sampled(rate, z), orders))
        for k in (1.1, 4.0):
            assert np.all(k**2 * np.array(round_rdp(Sampled(rate, k * z), orders)) <= cost)
        assert np.all(np.array(orders) * rate**2 / (2 * z**2) <= cost)


def test_the_limit_is_its_formula():
    """2 C sqrt(2 d L Delta F)/(n mu), 2 sqrt(n) times that under local trust; eta T goes as
    1/sqrt(d). Under central trust mu is the accountant's, by RDP: 8% below the exact one here."""
    exact = mu_from_epsilon(1.0, 1e-5)
    by_rdp = 1 / calibrate_central(1.0, 1e-5, 1, 1.0, accountant="rdp").noise_multiplier
    assert 0.9 * exact < by_rdp < exact
    for trust, mu in (("central", by_rdp), ("local", exact / (2 * math.sqrt(20_000)))):
        bound, product = limit(S, trust)
        assert bound == pytest.approx(2 * math.sqrt(2 * 100 * 2.0) / (20_000 * mu), rel=1e-9)
        assert product == pytest.approx(20_000 * mu * math.sqrt(2 * 2.0 / 100), rel=1e-9)
        wide_bound, wide_product = limit(replace(S, parameters=400), trust)
        assert wide_bound == pytest.approx(2 * bound, rel=1e-9)
        assert wide_product == pytest.approx(product / 2, rel=1e-9)


def test_the_papers_corollary_keeps_the_noise_and_forgets_the_epsilon():
    """At T = d^2 log(T)^2 and sigma_0 fixed the printed noise term is L eta_b^2 V_0 sigma_0^2 /
    (2 b alpha_kappa), whatever d: "O(sigma_0^2)". At a fixed epsilon sigma_0^2 grows with T, and
    the corrected bound at its best step as sqrt(d), the printed one as sqrt(d log T)."""
    ends = {}
    for d in (100, 1600):
        rounds = printed_rounds(d)[1]
        c = Constants(math.ceil(rounds), 0.5, 1.0, 2.0, 10.0, d, client_spread=0.0,
                      client_noise=3.0, stretch=1.5)  # fmt: skip
        bound = printed(c)
        term = 0.5**2 * 1.5 * 3.0**2 / (2 * 10 * bound.alpha_kappa)
        assert bound.terms["noise"] == pytest.approx(term, rel=1e-5)
        found = at_printed_rounds(replace(S, epsilon=0.1, parameters=d), "local", rounds)
        alpha = noise_of_everyone(replace(S, epsilon=0.1, parameters=d), "local")
        least = math.sqrt(2 * S.gap * alpha * math.log(rounds))
        assert found["printed"] == pytest.approx(least, rel=0.01)
        ends[d] = found["corrected"] / math.sqrt(d)
    assert ends[100] == pytest.approx(ends[1600], rel=0.02)


def test_the_noise_of_every_number_of_rounds_costs_the_epsilon():
    for rounds in (3, 50):
        c = noised(replace(S, uploads=2000.0), rounds, "central")
        event = Sampled(0.1, c.server_noise * 2000.0)
        assert 0.99 < epsilon_of([(event, rounds)], 1e-5, accountant="rdp").epsilon <= 1.0
        c = noised(S, rounds, "local")  # everybody uploads every time
        whole = epsilon_of(sent(c.client_noise, rounds), 1e-5, "replace").epsilon
        assert whole == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"uploads": 30_000.0}, "uploads = 30000.0: expected at most the 20000 clients"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"epsilon": -1.0}, "epsilon = -1.0: expected a number > 0"),
    ],
)
def test_bad_settings_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        replace(S, **change)
