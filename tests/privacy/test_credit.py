"""The aggregation credit against every schedule of uploads that a plan allows, by enumeration.

A schedule says who uploads in which round. PUBLIC sees the sum of a round's |Z| uploads, each with
noise of its own, so one of them costs its client (sensitivity/std)^2 / |Z| (honest clients).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.privacy import Budget, epsilon_from_mu
from locksfl.privacy.guarantees import guarantee
from locksfl.privacy.journal import Books, Header

CLIENTS, ROUNDS, NOISE, DELTA = 3, 3, 4.0, 1e-5
TWO_ROUNDS = Budget(epsilon_from_mu(math.sqrt(2.5) / NOISE, DELTA), DELTA)


def schedules(allowed):
    """Every table, clients by rounds, of who uploads, that is allowed."""
    for bits in itertools.product((0, 1), repeat=CLIENTS * ROUNDS):
        table = np.array(bits).reshape(CLIENTS, ROUNDS)
        if allowed(table):
            yield table


def worst_shares(allowed):
    """The most that one client's uploads can sum to, each counted 1/|Z|."""
    return max(
        (table / np.maximum(1, table.sum(axis=0))).sum(axis=1).max() for table in schedules(allowed)
    )


def at_most(most):
    return lambda table: (table.sum(axis=1) <= most).all()


def everybody(table):
    return table.all()


def anybody(_table):
    return True


PLANS = {  # settings of the arm, the cap on a client's uploads, and the schedules that can happen
    "everybody, by rule full": ({"rule": "full"}, None, everybody),
    "everybody, by rule uniform": ({"cohort": 3}, None, everybody),
    "a cap that never binds": ({"cohort": 3}, 3, everybody),
    "a cap of two": ({"cohort": 3}, 2, at_most(2)),
    "a cap of one": ({"rule": "full"}, 1, at_most(1)),
    "a first coin": ({"cohort": 2.9}, None, anybody),
    "a second coin": ({"cohort": 3, "uploads": 2.9}, None, anybody),
    "devices that may drop out": ({"rule": "full", "dropouts": True}, None, anybody),
    "a budget for two rounds": ({"rule": "full", "budget": TWO_ROUNDS}, None, at_most(2)),
    "an estimator without credit": ({"rule": "full", "estimator": "literal"}, None, everybody),
}


@pytest.mark.parametrize("plan", PLANS)
def test_no_schedule_costs_public_more_than_the_guarantee(plan):
    settings, cap, allowed = PLANS[plan]
    arm = Arm.of("a", CLIENTS, ROUNDS, trust="local", noise_multiplier=NOISE, **settings)
    costs = guarantee([arm], DELTA, "pld", None if cap is None else (0, cap))
    told = {(cost.observer, cost.relation): cost.epsilon for cost in costs}
    shares = worst_shares(allowed)
    for relation, sensitivity in (("zero-out", 1.0), ("replace", 2.0)):
        worst = epsilon_from_mu(math.sqrt(shares) * sensitivity / NOISE, DELTA)
        public, server = told["PUBLIC", relation], told["SERVER", relation]
        assert worst * (1 - 1e-9) <= public <= server
        if arm.credited and arm.budget is None:  # and the worst one reaches it
            assert public == pytest.approx(worst, rel=1e-9)


def test_what_was_spent_counts_the_uploaders_that_there_were():
    """Every schedule: a client's sum of 1/|Z| in the ledger is what its uploads cost PUBLIC."""
    arm = Arm.of("a", CLIENTS, ROUNDS, cohort=2.9, trust="local", noise_multiplier=NOISE)
    head = Header.of("e", [(arm, None)], delta=DELTA, relation="zero-out", accountant="pld")
    for table in itertools.islice(schedules(anybody), 0, None, 7):
        books = Books(head)
        for t in range(ROUNDS):
            books.enter_round("a", t + 1, np.arange(CLIENTS), table[:, t].astype(bool))
        expected = (table / np.maximum(1, table.sum(axis=0))).sum(axis=1) / NOISE**2
        found = books.counts("a").mu_squared("PUBLIC", "zero-out")
        np.testing.assert_allclose(found, expected, rtol=1e-12)
