"""Epsilons from public terms by dp_accounting: close to ours, and wrong ones are told apart."""

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path

import pytest

from locksfl.arm import Arm
from locksfl.methods.events import Event, Exact, Rounds, Sampled, SampledTwice
from locksfl.privacy import dp_sums, recompute
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.guarantees import guarantee
from locksfl.privacy.recompute import CLOSE, Recomputed, recomputed
from locksfl.privacy.terms import terms_of

# (rate, multiplier, rounds, delta): from epsilon .03 to 280, and 740, under replace 3,000
SETTINGS = [
    (0.2, 1.32, 100, 1e-5), (0.2, 0.5, 100, 1e-5), (0.01, 0.8, 1000, 1e-6), (1.0, 2.0, 20, 1e-5),
    (0.2, 8.3, 100, 1e-5), (0.001, 4.0, 5000, 1e-7), (0.5, 0.1, 4, 1e-5), (0.1, 30.0, 10, 1e-5),
    (0.67, 0.79, 1443, 3e-5),
]  # fmt: skip


def coins(rate, noise, rounds):
    return Rounds(Sampled(rate, noise), rounds)


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), SETTINGS)
def test_dp_accounting_alone_is_close_to_what_is_printed(rate, noise, rounds, delta):
    """Within a percent here, and 5% less is too small."""
    for relation, by in itertools.product(("zero-out", "replace"), ("pld", "rdp")):
        event = Sampled(rate, noise)
        printed = epsilon_of([(event, rounds)], delta, relation, by).epsilon
        found = recomputed([coins(rate, noise, rounds)], delta, relation, by, printed)
        assert found.problem(printed) is None
        assert abs(found.epsilon / printed - 1) <= 2 * CLOSE["pld"]
        assert "too small" in found.problem(0.95 * printed)
        assert "lead to" in found.problem(1.1 * printed)
        if found.by.startswith("locks"):  # its RDP is too high: the bounds beside it hold
            assert printed > 8
            assert found.low <= printed <= 1.001 * found.high < 1.7 * printed


def test_two_sums_of_a_secret_sample_are_ours_with_bounds_beside():
    """The values are those of the design."""
    for (q, first, p, noise, rounds, delta), known in (
        ((0.3, 10.0, 0.667, 1.5, 100, 1e-5), 7.77),
        ((0.1, 10.0, 0.5, 1.0, 200, 1e-6), 5.58),
    ):
        found = recomputed(
            [Rounds(SampledTwice(q, first, p, noise), rounds)], delta, "zero-out", "pld", known
        )
        assert found.by == "locks pld"
        assert found.epsilon == pytest.approx(known, abs=0.005)
        assert 0.9 * known < found.low < known < found.high
        assert "dp_accounting has" in Recomputed(known, "locks pld", 1.01 * known).problem(known)
        everybody = Rounds(SampledTwice(1.0, first, p, noise), rounds)  # two mechanisms
        assert recomputed([everybody], delta, "zero-out", "pld", 30.0).by in ("pld", "rdp")


def test_what_dp_accounting_is_given_are_python_floats():
    """Its RDP of ints and float32 is silently too small: a multiplier of 2 costs as 2.0 does."""
    for by in ("pld", "rdp"):
        whole, real = (recomputed([coins(0.2, z, 10)], 1e-5, "zero-out", by, 1) for z in (2, 2.0))
        assert whole == real


@pytest.mark.parametrize("norms", [False, True])
def test_a_filter_of_one_relation_under_the_other_one(norms):
    """By a search here, by tables there."""
    from locksfl.privacy.budget import Budget

    for epsilon, kept in itertools.product((5.0, 12.0, 40.0), ("zero-out", "replace")):
        more = {"rule": "norm", "norm_multiplier": 3.0} if norms else {}
        budget = Budget(epsilon, 1e-5, kept)
        arm = Arm.of(
            "a", 50, 40, trust="local", cohort=10, noise_multiplier=4.0, budget=budget, **more
        )
        for cost in guarantee([arm], 1e-5, "pld"):
            terms = terms_of(arm)[cost.observer]
            found = recomputed(terms, 1e-5, cost.relation, "pld", cost.epsilon)
            assert found.by == "gaussian"
            assert found.problem(cost.epsilon) is None
            assert found.problem(cost.epsilon * 0.999) is not None


def test_a_kind_of_event_that_it_does_not_know_is_refused():
    """Never left out of the sum."""

    class Guess(Event, frozen=True):
        """A kind of release that is new here."""

    for by in ("pld", "rdp"):
        with pytest.raises(TypeError, match="Guess"):
            recomputed([Rounds(Guess(), 5), coins(0.1, 1.0, 5)], 1e-5, "zero-out", by, 1.0)


def test_the_second_opinion_reads_events_and_no_accountant_of_ours():
    """Its own sensitivities and compositions: what it takes from the program are the events alone.
    A fallback to our accountant is imported where it is used, and named in its result."""
    for module in (recompute, dp_sums):
        tree = ast.parse(Path(module.__file__).read_text("utf-8"))
        taken = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
        ours = {name for name in taken if name.startswith("locksfl")}
        assert ours <= {"locksfl.methods.events", "locksfl.privacy.dp_sums"}


def test_nothing_without_noise_has_an_epsilon():
    found = recomputed([Rounds(Exact(), 1), coins(0.1, 1.0, 3)], 1e-5, "replace", "pld", 1.0)
    assert found == Recomputed(math.inf, "none")
    assert found.problem(1.0) == "the terms lead to inf"
    assert found.problem(math.inf) is None
