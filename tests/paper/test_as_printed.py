"""The paper's formulas beside the sound ones, and the honest table to the digits of the design."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from locksfl.methods.releases import RELATIONS
from locksfl.paper.as_printed import (
    composed,
    composed_as_printed,
    honest_table,
)


def exact_delta(step: float, rounds: int, epsilon: float) -> float:
    """delta of T randomised responses, which are the worst (step, 0)-DP releases: the sum over
    the number i of lies of (P - e^epsilon Q)_+, where P/Q = e^((T - 2i) step)."""
    lies = np.arange(rounds + 1)
    p = stats.binom.pmf(lies, rounds, 1 / (1 + math.exp(step)))
    return float(p @ -np.expm1(np.minimum(0.0, epsilon - (rounds - 2 * lies) * step)))


def printed_holds(step: float, rounds: int, delta: float) -> bool:
    """Whether T releases of (step, delta / (T + 1)) can be no worse than the paper says: by the
    exact optimum (Kairouz, Oh and Viswanath, Theorem 3.3), 1 - (1 - delta_step)^T (1 - delta_0)."""
    each = delta / (rounds + 1)
    pure = exact_delta(step, rounds, composed_as_printed(step, rounds, each))
    return 1 - (1 - each) ** rounds * (1 - pure) <= delta


@given(st.floats(0.01, 3), st.integers(1, 60), st.floats(1e-8, 0.1))
def test_the_corrected_composition_bounds_the_exact_one(step, rounds, delta):
    assert exact_delta(step, rounds, composed(step, rounds, delta)) <= delta * (1 + 1e-6) + 1e-12


def test_the_printed_composition_does_not():
    """Large steps: it is below the truth. Small steps: above the corrected one."""
    step, rounds, delta = 3.0, 60, 1e-5
    printed = composed_as_printed(step, rounds, delta)
    assert printed < rounds * step
    assert exact_delta(step, rounds, printed) > 10 * delta
    assert composed_as_printed(0.1, 1000, delta) > 2 * composed(0.1, 1000, delta)
    lost = composed(0.5, 200, delta) - 0.5 * math.sqrt(400 * math.log(1e5))
    assert composed_as_printed(0.5, 200, delta) - composed(0.5, 200, delta) == pytest.approx(lost)


@given(st.floats(0.01, 1), st.integers(1, 200), st.floats(1e-8, 0.1))
def test_up_to_a_step_of_1_the_printed_composition_is_only_too_large(step, rounds, delta):
    assert composed_as_printed(step, rounds, delta) >= composed(step, rounds, delta)


@pytest.mark.parametrize(("rounds", "first"), [(100, 1.65), (300, 1.23), (1000, 1.10)])
def test_the_printed_composition_fails_from_here_on(rounds, first):
    """Against the exact optimum, at delta 1e-5: to two digits, and for every larger step. Below it
    the printed value holds although from 1.40 on (T = 100) it is under the corrected one, which is
    an upper bound itself. For few rounds it never fails."""
    hundredths = range(20, 400)
    fails = [i for i in hundredths if not printed_holds(i / 100, rounds, 1e-5)]
    assert fails == list(range(round(100 * first), 400))
    assert all(printed_holds(i / 100, 30, 1e-5) for i in hundredths)
    if rounds == 100:
        each = 1e-5 / 101
        under = [composed_as_printed(x, 100, each) < composed(x, 100, 5e-6) for x in (1.39, 1.4)]
        assert under == [False, True]


DESIGN = {  # (claimed, words of the reading): (zero-out, replace) against the server
    (10, "(expected)"): (19.5, 51.1),
    (10, "(the busiest)"): (25.6, 69.0),
    (10, "norms"): (36.5, 64.7),
    (50, "(expected)"): (77.3, 235),
    (50, "(the busiest)"): (106, 333),
    (50, "norms"): (159, 309),
}


@pytest.mark.parametrize("case", DESIGN)
def test_the_honest_table_has_the_figures_of_the_design(case):
    claimed, words = case
    (row,) = [r for r in honest_table() if r.claimed_epsilon == claimed and words in r.reading]
    for epsilon, figure in zip(row.server.values(), DESIGN[case], strict=True):
        assert epsilon == pytest.approx(figure, abs=0.05 if figure < 100 else 0.5)
    assert row.public == row.server
    assert row.server["zero-out"] > claimed


def test_a_trusted_server_would_have_come_near_the_claim():
    central = [r for r in honest_table() if "trusted" in r.reading]
    assert [r.public["zero-out"] for r in central] == pytest.approx([10.072, 62.59], abs=5e-3)
    assert all(r.server == dict.fromkeys(RELATIONS) for r in central)
