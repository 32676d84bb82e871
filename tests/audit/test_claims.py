"""The accountant against a simulation of the rounds that it charges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from checks import client_cost
from locksfl.audit.claims import accountant
from locksfl.audit.suite import default_arms
from locksfl.experiment.costs import statement
from locksfl.privacy import epsilon_from_mu

ROUNDS = 4


def arms_of(trust):
    return [pair for pair in default_arms(ROUNDS) if pair[0].trust == trust]


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_claim_holds_in_a_simulation(trust):
    """One arm and all arms together, at a false-alarm rate of 1e-6 each. That an accountant which
    charges too little is refuted is shown by the faults of test_faults.py."""
    arms = arms_of(trust)
    rng = np.random.default_rng(1)
    for these in ([arms[0]], [arms[1]], arms):
        holds, told = accountant([arm for arm, _ in these], ROUNDS, these[0][1], rng)
        assert holds, told


@pytest.mark.parametrize("trust", ["central", "local"])
def test_all_arms_together_cost_more_than_the_largest(trust):
    """And no more than their sum; in local trust exactly the root of the summed squares."""
    arms = arms_of(trust)
    privacy = arms[0][1]
    alone = [statement([replace(arm, rounds=ROUNDS)], privacy) for arm, _ in arms]
    together = statement([replace(arm, rounds=ROUNDS) for arm, _ in arms], privacy)
    for costs in zip(*alone, together, strict=True):
        singles = [cost.epsilon for cost in costs[:-1]]
        if math.inf in singles:
            assert costs[-1].epsilon == math.inf
            continue
        assert max(singles) * 1.05 < costs[-1].epsilon <= sum(singles)
    if trust == "local":
        mu = sum(client_cost(arm, ROUNDS) for arm, _ in arms)
        assert together[0].epsilon == pytest.approx(epsilon_from_mu(math.sqrt(mu), privacy.delta))
