"""Every accountant that a setting may name, on all that it charges: never below the truth where
that is known, agreed with by the second opinion, and named alike by whoever prints and checks."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.experiment.config import parse_config
from locksfl.experiment.costs import epsilons_by_observer
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Cost as StatedCost
from locksfl.experiment.verify import verify
from locksfl.methods import TRUSTS, releases
from locksfl.methods.events import Chosen, Rounds, Sampled, Turns
from locksfl.methods.releases import ACCOUNTANTS, OBSERVERS
from locksfl.privacy import Counts, account, calibrate, guarantee, spent
from locksfl.privacy.accountant import ASKED, epsilon_of, epsilons_after
from locksfl.privacy.ledger import by_observer
from locksfl.privacy.recompute import recomputed
from locksfl.privacy.terms import LedgerArm
from small_runs import new_path, play, summary

EVERY = pytest.mark.parametrize("accountant", ACCOUNTANTS)
RELATIONS = pytest.mark.parametrize("relation", ["zero-out", "replace"])
DELTA = 1e-5
SEEN = {
    "coins": [Rounds(Sampled(0.2, 1.5), 50)],
    "everybody": [Rounds(Sampled(1.0, 4.0), 10)],
    "coins beside turns": [Rounds(Sampled(0.2, 1.5), 20), Rounds(Turns(4, 4.0), 9)],
    "rungs": [Rounds(Chosen((Sampled(0.2, 1.5), Sampled(0.1, 1.0))), 20)],
}
RUN = """
name = "every"
seed = 3
[data]
clients = 12
split = { kind = "iid" }
[local]
max_samples = 20
[train]
rounds = 3
[privacy]
trust = "central"
epsilon = 6.0
[[arm]]
name = "arm"
cohort = 4
"""


def test_every_name_has_an_accountant():
    assert set(ASKED) == set(ACCOUNTANTS)
    assert all(each[-1].name == name for name, each in ASKED.items())


@EVERY
@RELATIONS
@pytest.mark.parametrize("name", SEEN)
def test_the_second_opinion_agrees(accountant, relation, name):
    seen = SEEN[name]
    charged = epsilon_of(seen, DELTA, relation, accountant)
    assert charged.by in (accountant, "rdp")
    again = recomputed(seen, DELTA, relation, accountant, charged.epsilon)
    assert again.problem(charged.epsilon) is None
    assert "too small" in again.problem(0.9 * charged.epsilon)


@EVERY
@RELATIONS
def test_it_is_never_below_the_exact_cost_of_gaussians(accountant, relation):
    """Ten sums over everybody are turns one round apart, of which the cost is known exactly."""
    exact = epsilon_of([Rounds(Turns(1, 4.0), 10)], DELTA, relation).epsilon
    charged = epsilon_of(SEEN["everybody"], DELTA, relation, accountant)
    assert exact * (1 - 1e-9) <= charged.epsilon <= 2.5 * exact


@EVERY
def test_it_grows_round_by_round(accountant):
    steps = epsilons_after(Sampled(0.2, 1.5), range(0, 50, 10), DELTA, accountant=accountant)
    assert steps[0] == 0
    assert all(a < b for a, b in itertools.pairwise(steps))


@EVERY
@RELATIONS
def test_calibration_inverts_it(accountant, relation):
    given = {"relation": relation, "accountant": accountant}
    arm = calibrate(Arm("arm", 100, 20, cohort=20), 6.0, DELTA, **given)
    (cost,) = (
        c for c in account(arm, DELTA, accountant)
        if (c.observer, c.relation) == ("PUBLIC", relation)
    )  # fmt: skip
    assert 6.0 * (1 - 1e-3) <= cost.epsilon <= 6.0


@EVERY
def test_a_run_that_asks_for_it_is_published_and_holds(accountant):
    run, bundle = play(parse_config(RUN, [f"privacy.accountant={accountant}"])), new_path()
    publish_folder(run, bundle)
    assert verify(bundle).faults == []
    costs = summary(run)["arms"][0]["privacy"]
    assert {c["accountant"] for c in costs if c["observer"] == "PUBLIC"} == {accountant}
    assert f"| 1e-05 | {accountant} |" in (bundle / "STATEMENT.md").read_text()


def test_a_third_observer_is_one_line(monkeypatch):
    """Whoever goes through the observers takes it as it is: costs, what was spent, a ledger's arm
    and its JSON, tables. Only this sees a list of two observers beside the one in releases.py."""
    monkeypatch.setitem(OBSERVERS, "AUDITOR", "whoever has seen every tenth round")
    central = TRUSTS["central"]

    def terms(arm, most):
        tenth = (Rounds(arm.event(), arm.rounds // 10),)
        return {**central.terms(arm, most), "AUDITOR": tenth}

    monkeypatch.setitem(TRUSTS, "central", dataclasses.replace(central, terms=terms))
    arm = Arm.of("a", 100, 40, cohort=10.0, noise_multiplier=1.0)
    costs = guarantee([arm], 1e-5, "rdp")
    assert [cost.observer for cost in costs] == [
        who for who in OBSERVERS for _ in releases.RELATIONS
    ]
    epsilon = {(cost.observer, cost.relation): cost.epsilon for cost in costs}
    assert 0 < epsilon["AUDITOR", "replace"] < epsilon["PUBLIC", "replace"]
    planned = LedgerArm.of(arm)
    assert LedgerArm.from_dict(json.loads(json.dumps(planned.as_dict()))) == planned
    nobody = np.zeros(100)
    so_far = spent([Counts(planned, 4, nobody, nobody, nobody)], 1e-5, "rdp")
    assert [cost.observer for cost in so_far] == [cost.observer for cost in costs]
    assert list(by_observer(costs, "zero-out")) == ["server", "public", "auditor"]
    assert len(epsilons_by_observer(StatedCost.of(costs))) == len(OBSERVERS)
    with pytest.raises(ValueError, match="expected what each of SERVER, PUBLIC, AUDITOR sees"):
        dataclasses.replace(planned, terms={"AUDITOR": planned.terms["AUDITOR"]})
