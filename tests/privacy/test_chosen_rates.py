"""Rate control: the rates follow what was released, and the charge holds on any path of them."""

from __future__ import annotations

import functools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from checks import mean_is
from locksfl.arm import Arm
from locksfl.methods.events import Chosen, Sampled
from locksfl.privacy import account, calibrate
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.population import PlannedArm, PopulationJournal, Run, Total, best_order
from locksfl.privacy.rdp import ORDERS
from locksfl.round.rates import RateControl

DELTA, ROUNDS = 1e-5, 100


@functools.cache
def arm(relation="zero-out", epsilon=8.0, cohort=200):
    plain = Arm("coin", 1000, ROUNDS, rule="coin", cohort=cohort, uploads=20)
    return calibrate(plain, epsilon, DELTA, relation=relation)


def true_rdp(rate, z, order):
    """ln E_Q[(1 - q + q e^(y/z - 1/2z^2))^order] / (order - 1), by an integrator of its own."""

    def density(y):
        ratio = np.logaddexp(np.log1p(-rate), math.log(rate) + y / z - 0.5 / z**2)
        return math.exp(order * ratio - y * y / 2) / math.sqrt(2 * math.pi)

    value, _ = integrate.quad(density, -12, order / z + 12, limit=400, epsabs=0, epsrel=1e-10)
    return math.log(value) / (order - 1)


@functools.cache
def costs(found, order):
    """Of each rung, at an order."""
    rates = np.array(found.rungs) / found.clients
    return np.array([true_rdp(q, z, order) for q, z in zip(rates, found.ladder, strict=True)])


@functools.cache
def fixed_order(relation="zero-out"):
    """The order at which all rungs cost the same, found from the ladder alone."""
    ends = [arm(relation).at_rung(k).event() for k in (0, -1)]
    off = [
        abs(math.log(true_rdp(ends[0].sampling_rate, ends[0].noise_multiplier, a)
                     / true_rdp(ends[1].sampling_rate, ends[1].noise_multiplier, a)))
        for a in ORDERS if a < 20
    ]  # fmt: skip
    return [a for a in ORDERS if a < 20][int(np.argmin(off))]


def conversion(order):
    return math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)


def holds(found, path, epsilon=8.0):
    """Whether the true costs of these rungs, added up at the fixed order, are within the claim."""
    each = costs(found, fixed_order())
    return each[path].sum() + conversion(fixed_order()) <= epsilon * (1 + 1e-9)


PATHS = st.lists(st.integers(0, 25), min_size=ROUNDS, max_size=ROUNDS)


def test_every_rung_costs_the_same_at_the_order_that_was_fixed():
    each = costs(arm(), fixed_order())
    np.testing.assert_allclose(each, each[0], rtol=1e-7)
    assert len(arm().rungs) == 26
    assert ROUNDS * each[0] + conversion(fixed_order()) == pytest.approx(8.0, rel=1e-4)
    found = {c.relation: c for c in account(arm(), DELTA) if c.observer == "PUBLIC"}
    assert 8.0 * (1 - 2e-3) <= found["zero-out"].epsilon <= 8.0
    assert found["zero-out"].accountant == "rdp"
    replaced = {c.relation: c for c in account(arm("replace"), DELTA) if c.observer == "PUBLIC"}
    assert 8.0 * (1 - 2e-3) <= replaced["replace"].epsilon <= 8.0


@settings(max_examples=20, deadline=None)
@given(PATHS)
def test_no_path_of_rates_passes_the_claim_and_wrong_charges_are_rejected(path):
    """By formula at the fixed order: the sum of the true costs of whatever rates were chosen."""
    path = np.array(path)
    assert holds(arm(), path)
    # the noise of the smallest rate at all rates
    careless = arm().changed(ladder=(arm().ladder[0],) * 26)
    assert not holds(careless, np.maximum(path, 13))
    assert epsilon_of([(careless.event(), ROUNDS)], DELTA).epsilon > 8.0


@functools.cache
def by_pld():
    """Each rung with the noise that PLD would give a run of its own rate: a wrong charge, because
    the order that is best differs from rate to rate."""
    each = [arm().at_rung(k).changed(noise_multiplier=0.0) for k in (0, 13, 25)]
    z = np.interp(np.arange(26), (0, 13, 25),
                  [calibrate(one, 8.0, DELTA).noise_multiplier for one in each])  # fmt: skip
    return arm().changed(ladder=tuple(z))


def test_rates_charged_by_their_own_pld_are_rejected():
    path = np.arange(ROUNDS) % 26
    assert holds(arm(), path)
    assert not holds(by_pld(), path)
    assert epsilon_of([(by_pld().event(), ROUNDS)], DELTA).epsilon > 8.0


def test_a_charge_of_the_first_rung_alone_is_seen():
    """The planted accountant forgets that rates are chosen: its claim is below the truth."""
    careless = arm().changed(ladder=(arm().ladder[0],) * 26)
    with mock.patch.object(Arm, "event", lambda self: Sampled(0.02, self.ladder[0])):
        claim = account(careless, DELTA, "rdp")[2].epsilon
    assert claim <= 8.0
    assert not holds(careless, np.full(ROUNDS, 25), claim)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.5, 5.0)), min_size=1, max_size=4))
def test_a_chosen_round_costs_at_least_each_of_those_it_may_be(numbers):
    rungs = tuple(Sampled(q, z) for q, z in numbers)
    for relation in ("zero-out", "replace"):

        def by(event, relation=relation):
            return epsilon_of([(event, 10)], DELTA, relation, "rdp").epsilon

        each = [by(rung) for rung in rungs]
        assert by(Chosen(rungs)) >= max(each) * (1 - 1e-12)
        assert by(Chosen(rungs[:1])) == each[0]


def test_a_rung_without_its_noise_is_refused():
    with pytest.raises(ValueError, match="expected 26 numbers > 0, as many as there are rungs"):
        arm().changed(ladder=arm().ladder[:-1])


def test_a_population_is_charged_for_the_worst_rate(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path))
    run = Run("one", "study", (PlannedArm.of(arm()),))
    order = best_order(8.5, DELTA, arms=run.arms)
    assert order == pytest.approx(fixed_order(), rel=0.1)
    with PopulationJournal.make("patients", Total(8.5, DELTA, order=order)) as journal:
        journal.debit(run)
        assert journal.runs[0].arms == run.arms
        charge = ROUNDS * costs(arm(), order).max()
        assert journal.charged == pytest.approx(charge, rel=1e-6)
        with pytest.raises(ValueError, match="nothing was debited"):
            journal.debit(Run("two", "study", run.arms))


def uploads(found, share, seed):
    """Uploads of rounds whose mean norm share is `share(t)`."""
    rng, control, sent = np.random.default_rng(seed), RateControl(found), []
    for t in range(ROUNDS):
        now = control.arm
        sent.append(rng.binomial(found.clients, now.sampling_rate * share(t)))
        control.enter(sent[-1] + now.count_noise * rng.normal())
    return np.array(sent)


@pytest.mark.parametrize("cohort", [200, 1000])
@pytest.mark.parametrize(("early", "late"), [(1.0, 0.2), (0.2, 0.6), (0.3, 1.0)])
def test_uploads_follow_the_norms_down_and_up(early, late, cohort):
    """Within 10% of what was asked, in the mean of the last 50 rounds of 100 runs, also where a
    cohort far larger than any that is used would be allowed; the same rounds without control are
    not."""

    def share(t):
        return early if t < 20 else late

    found = np.array([uploads(arm(cohort=cohort), share, seed)[50:].mean() for seed in range(100)])
    error = found.std(ddof=1) / math.sqrt(len(found))
    assert abs(found.mean() - 20) < 2 + 5 * error
    fixed = np.random.default_rng(1).binomial(1000, 0.02 / early * late, (200, 50)).mean(axis=1)
    assert not mean_is(fixed, 20.0)


def test_a_rate_is_a_function_of_the_counts_alone():
    rng = np.random.default_rng(0)
    counts = rng.normal(20, 30, 60).tolist()  # also below 0
    whole, split = RateControl(arm(), counts), RateControl(arm(), counts[:30])
    for count in counts[30:]:
        assert split.arm.cohort in arm().rungs
        split.enter(count)
    assert split.arm == whole.arm
    assert RateControl(arm()).arm.cohort == 20.0  # r = 1 is safe: no more uploads than asked
