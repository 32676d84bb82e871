"""How many rounds: the paper's equation, and the corrected bound at a fixed epsilon."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from locksfl.methods.releases import ClientReleases, SampledRound
from locksfl.paper.theory.bound import corrected
from locksfl.paper.theory.rounds import (
    Regime,
    approximate_best,
    best_rounds,
    noised,
    printed_rounds,
)
from locksfl.privacy import central_epsilon, local_epsilon

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


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_best_number_of_rounds_is_the_best(trust):
    """No other T around it, near or far, has a smaller bound."""
    best, bound = best_rounds(S, trust)
    for rounds in {best - 1, best + 1, best // 3, 3 * best, 1, 1000} - {0}:
        c = replace(noised(S, rounds, trust), step=1 - 1e-12)
        assert corrected(c, "constant").total >= bound.total, rounds


def test_the_formulas_are_near_where_they_should_hold():
    """Epsilon small, everybody takes part: T* within a factor of two of the accountants' one; and
    it falls with d, like 1/sqrt(d), where the paper's grows like d^2."""
    for trust in ("central", "local"):
        small = replace(S, epsilon=0.3, gap=200.0)
        best, _ = best_rounds(small, trust)
        assert 0.5 < best / approximate_best(small, trust)[0] < 2
        wide, _ = best_rounds(replace(small, parameters=400), trust)
        assert 0.4 < wide / best < 0.6
    about = approximate_best(S, "central")
    assert about[0] == pytest.approx(20_000 * math.sqrt(2 / (100 * math.log(1e5))), rel=1e-12)
    assert about[1] == pytest.approx(4 * math.sqrt(200 * math.log(1e5)) / 20_000, rel=1e-12)
    # local is 2 sqrt(n) times worse
    ratio = approximate_best(S, "local")[1] / about[1]
    assert ratio == pytest.approx(2 * math.sqrt(20_000), rel=1e-12)


def test_the_noise_of_every_number_of_rounds_costs_the_epsilon():
    for rounds in (3, 50):
        c = noised(replace(S, uploads=2000.0), rounds, "central")
        event = SampledRound(0.1, c.server_noise * 2000.0)
        assert 0.99 < central_epsilon([(event, rounds)], 1e-5, accountant="rdp") <= 1.0
        c = noised(S, rounds, "local")  # everybody uploads every time
        sent = ClientReleases(c.client_noise, rounds)
        assert local_epsilon([sent], 1e-5, "replace") == pytest.approx(1.0, rel=1e-6)


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
