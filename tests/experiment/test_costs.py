"""The statement charges what was released, to whom it was released."""

from __future__ import annotations

import pytest

from locksfl.experiment.config import parse_config
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.plan import plan_arms
from locksfl.methods.events import Sampled
from locksfl.privacy import epsilon_from_mu
from locksfl.privacy.accountant import epsilon_of
from small_runs import CENTRAL, costs, finished, lines, summary


def planned(*changes):
    config = parse_config(CENTRAL, changes)
    return plan_arms(config), config


def stated(*changes):
    arms, config = planned(*changes)
    made = [statement([p], config.privacy) for p in arms]
    return [costs([c.as_dict() for c in table]) for table in made], arms, config


@pytest.mark.parametrize(
    "changes", [(), ("privacy.relation=replace",), ("privacy.accountant=pld",)]
)
def test_both_arms_spend_the_asked_epsilon_and_never_more(changes):
    tables, _, config = stated(*changes)
    for table in tables:
        spent = table["PUBLIC", config.privacy.relation]
        assert 8.0 * (1 - 1e-3) <= spent <= 8.0
        assert table["SERVER", "zero-out"] is table["SERVER", "replace"] is None
        assert table["PUBLIC", "zero-out"] < table["PUBLIC", "replace"]


def test_the_norm_release_is_charged():
    """The update noise of LOCKS would cost less than the asked epsilon if norms were free, so the
    norms take a part of it; and a better look at the norms costs more."""
    (_, locks), config = planned()
    privacy = config.privacy
    event = locks.event()
    assert event.first_multiplier == locks.norm_multiplier > 0
    free = Sampled(event.sampling_rate * event.second_rate, event.noise_multiplier)
    unpaid = epsilon_of([(free, locks.rounds)], privacy.delta, accountant="rdp").epsilon
    assert unpaid < 0.95 * 8.0
    (_, closer), _ = planned(f"arm.locks.norm_multiplier={locks.norm_multiplier / 1.3}")
    assert closer.noise_multiplier > 1.02 * locks.noise_multiplier


def test_local_trust_charges_every_round_in_full():
    """mu^2 = T (1/z_s^2 + 4/z^2) under replace, whoever looks, whatever was drawn."""
    tables, arms, config = stated("privacy.trust=local")
    for table, arm in zip(tables, arms, strict=True):
        norm = 1 / arm.norm_multiplier**2 if arm.releases_norms else 0.0
        for relation, vector in (("zero-out", 1), ("replace", 4)):
            mu = (arm.rounds * (norm + vector / arm.noise_multiplier**2)) ** 0.5
            expected = epsilon_from_mu(mu, config.privacy.delta)
            for observer in ("SERVER", "PUBLIC"):
                assert table[observer, relation] == pytest.approx(expected, rel=1e-9)
        assert 8.0 * (1 - 1e-3) <= table["SERVER", "zero-out"] <= 8.0
    assert arms[1].releases_norms


def test_no_trust_is_no_guarantee():
    tables, arms, config = stated("privacy.trust=none", "privacy.epsilon=inf")
    assert all(epsilon is None for table in tables for epsilon in table.values())
    assert epsilon_so_far(arms[0], config.privacy) == [None] * 4
    assert all(arm.noise_multiplier == arm.norm_multiplier == 0 for arm in arms)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_all_arms_together_cost_more_than_the_largest(trust):
    told = summary(finished(trust))
    together = costs(told["all_arms_composed"])
    alone = [costs(arm["privacy"]) for arm in told["arms"]]
    for key, epsilon in together.items():
        singles = [table[key] for table in alone]
        if None in singles:
            assert epsilon is None
        else:
            assert max(singles) < epsilon <= sum(singles)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_epsilon_so_far_grows_to_the_statement(accountant, relation):
    tables, arms, config = stated(
        f"privacy.accountant={accountant}", f"privacy.relation={relation}", "train.rounds=7"
    )
    for arm, table in zip(arms, tables, strict=True):
        curve = epsilon_so_far(arm, config.privacy)
        assert len(curve) == 7
        assert curve == sorted(curve)
        assert curve[0] > 0
        assert curve[-1] == pytest.approx(table["PUBLIC", relation], rel=1e-6)


def test_epsilon_so_far_does_not_depend_on_which_rounds_are_asked():
    """A run asks block by block, and blocks are as long as the machine is fast."""
    arms, config = planned("train.rounds=7", "privacy.accountant=pld")
    for arm in arms:
        whole = epsilon_so_far(arm, config.privacy)
        assert [epsilon_so_far(arm, config.privacy, [t])[0] for t in range(7)] == whole
        assert epsilon_so_far(arm, config.privacy, [2, 5]) == [whole[2], whole[5]]


def test_epsilon_so_far_is_never_too_small_between_its_points(monkeypatch):
    """Over many rounds only some are computed; the others have the value of a later one."""
    monkeypatch.setattr("locksfl.experiment.costs.CURVE_POINTS", 3)
    (arm, _), config = planned("train.rounds=8")
    coarse = epsilon_so_far(arm, config.privacy)
    monkeypatch.undo()
    fine = epsilon_so_far(arm, config.privacy)
    assert all(c >= f for c, f in zip(coarse, fine, strict=True))
    assert coarse[-1] == fine[-1]
    assert len(set(coarse)) == 3


@pytest.mark.parametrize("trust", ["central", "local"])
def test_lines_of_a_run_end_at_the_statement(trust):
    observer = {"central": "PUBLIC", "local": "SERVER"}[trust]
    for arm in summary(finished(trust))["arms"]:
        curve = [line["epsilon"] for line in lines(finished(trust)) if line["arm"] == arm["name"]]
        assert curve == sorted(curve)
        assert curve[-1] == pytest.approx(costs(arm["privacy"])[observer, "zero-out"], rel=1e-6)


def test_uniform_sampling_of_a_cohort_is_charged_as_one_coin():
    """Nothing is released between the two coins: b of n, whatever the cohort."""
    one, _ = planned("arm.uniform.cohort=4")
    two, _ = planned("arm.uniform.cohort=8", "arm.uniform.uploads=4")
    assert two[0].noise_multiplier == pytest.approx(one[0].noise_multiplier, rel=1e-9)
