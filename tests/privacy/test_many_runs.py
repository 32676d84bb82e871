"""Runs on one population: what is debited never passes the total, whoever asks and how often, and
a debit is what the accountants say of the run."""

from __future__ import annotations

import dataclasses
import math
import shutil
import stat
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import client_cost
from locksfl.arm import Arm
from locksfl.privacy import Budget, calibrate, gdp, guarantee
from locksfl.privacy.accountant import Charged
from locksfl.privacy.population import (
    VARIABLE,
    PlannedArm,
    PopulationJournal,
    Run,
    Total,
    best_order,
    composed,
    planned_arm,
)

DELTA = 1e-5
CENTRAL = Arm.of("uniform", 1000, 50, cohort=100, noise_multiplier=1.2)
NORM = Arm.of("norm", 500, 20, rule="norm", cohort=50, uploads=20, noise_multiplier=1.5,
           norm_multiplier=4.0)  # fmt: skip
LOCAL = Arm.of("own", 100, 10, trust="local", cohort=20, noise_multiplier=15.0)


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))


def planned(*arms, id="run", name="study"):
    return Run(id, name, tuple(map(PlannedArm.of, arms)))


def epsilons(costs):
    return {(cost.observer, cost.relation): cost.epsilon for cost in costs}


def make(total=20.0, arms=None, relation="zero-out", **options):
    if arms is not None:
        options["order"] = best_order(total, DELTA, relation, planned(*arms).arms)
    return PopulationJournal.make("patients", Total(total, DELTA, relation, **options))


def test_two_runs_compose_and_a_third_is_refused():
    with make(arms=[CENTRAL], total=8.0) as journal:
        journal.debit(planned(CENTRAL, id="a"))
        journal.debit(planned(CENTRAL, id="b"))
        before = journal.head, journal.charged
        with pytest.raises(
            ValueError, match=r"of the total \(epsilon 8, .*nothing was debited"
        ) as e:
            journal.debit(planned(dataclasses.replace(CENTRAL, rounds=400), id="c", name="third"))
        assert "\n" not in str(e.value)
        assert "'third'" in str(e.value)
        assert (journal.head, journal.charged) == before
        # together they cost what two arms of one run cost
        twice = [dataclasses.replace(CENTRAL, name=name) for name in "ab"]
        assert epsilons(composed(journal.runs, DELTA)) == epsilons(guarantee(twice, DELTA, "pld"))
        assert journal.charged == pytest.approx(2 * journal.runs[0].charge)
        assert [run.label for run in journal.runs] == ["study a", "study b"]


EVERY_KIND = {
    "local": LOCAL,
    "filtered": dataclasses.replace(LOCAL, budget=Budget(3.0, DELTA)),
    "norms": NORM,
    "turns": Arm.of("turns", 100, 10, separation=5, noise_multiplier=2.0),
    "rates": calibrate(Arm("coin", 1000, 20, rule="coin", cohort=80, uploads=20), 8.0, DELTA),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_run_is_debited_once(kind):
    """A run that goes on compares its arms with those in the journal: the fault is one that is
    refused because its arms, written and read again, are not equal to themselves."""
    run = planned(EVERY_KIND[kind], id="a")
    with make(200.0, order=2.0) as journal:
        head = journal.debit(run)
        assert journal.debit(run) == head
    with PopulationJournal.find("patients") as journal:
        assert journal.debit(run) == head
        assert len(journal.runs) == 1


OTHER_ARMS = {
    "more rounds, less noise": {"rounds": 10**6, "noise_multiplier": 0.01},
    "more noise": {"noise_multiplier": 2.0},
    "a larger cohort": {"cohort": 200, "uploads": 200},
    "fewer rounds": {"rounds": 49},
    "another name": {"name": "other"},
}


@pytest.mark.parametrize("change", OTHER_ARMS)
def test_an_id_is_not_debited_again_for_other_arms(change):
    """The fault: a run that was debited for little plays much, because its id is in the journal."""
    other = CENTRAL.changed(**OTHER_ARMS[change])
    with make(arms=[CENTRAL], total=8.0) as journal:
        journal.debit(planned(CENTRAL, id="a"))
        before = journal.head, journal.charged
        for arms in ((other,), (CENTRAL, other), ()):
            with pytest.raises(ValueError, match=r"the run study a was debited for other") as no:
                journal.debit(planned(*arms, id="a"))
            assert "\n" not in str(no.value)
        assert (journal.head, journal.charged) == before


def test_nor_by_a_copy_that_is_slower():
    """The fault: the arms are compared before the transaction only. While this run's epsilon is
    computed, another process debits its id for less."""
    with make(order=2.0) as journal, PopulationJournal.find("patients") as faster:

        def meanwhile(*_):
            with mock.patch(cost, return_value=Charged(0.0, "none")):
                faster.debit(planned(LOCAL, id="a"))
            return Charged(0.0, "none")

        cost = "locksfl.privacy.population.epsilon_of"
        with (
            mock.patch(cost, side_effect=meanwhile),
            pytest.raises(ValueError, match="was debited for other"),
        ):
            journal.debit(planned(CENTRAL, id="a"))
        assert [arm.name for run in journal.runs for arm in run.arms] == ["own"]


def test_a_settlement_is_of_the_arms_that_were_debited():
    """The fault: a run that ends early is charged as if its noise had been larger."""
    with make(arms=[CENTRAL], total=8.0) as journal:
        journal.debit(planned(CENTRAL, id="a"))
        whole = journal.charged
        quiet = CENTRAL.changed(rounds=10, noise_multiplier=100.0)
        with pytest.raises(ValueError, match="was debited for other"):
            journal.settle(planned(quiet, id="a"))
        assert journal.charged == whole
        journal.settle(planned(dataclasses.replace(CENTRAL, rounds=10), id="a"))
        assert journal.charged == pytest.approx(whole / 5)


@pytest.mark.parametrize("arms", [[CENTRAL], [NORM], [CENTRAL, NORM]])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_order_of_a_run_gives_the_epsilon_of_all_orders(arms, relation):
    """A total of just what the run costs by RDP over all orders pays for it at one order: nothing
    is lost if the order is the run's own. With the order for Gaussian noise something is."""
    costs = epsilons(guarantee(arms, DELTA, "rdp"))
    epsilon = costs["PUBLIC", relation]
    order = best_order(epsilon, DELTA, relation, planned(*arms).arms)
    total = Total(epsilon * (1 + 1e-9), DELTA, relation, order)
    charge = total.charge(planned(*arms).arms)
    assert charge <= total.limit
    assert total.epsilon_of(charge) == pytest.approx(epsilon, rel=1e-9)
    other = Total(epsilon, DELTA, relation, best_order(epsilon, DELTA, relation))
    assert other.charge(planned(*arms).arms) > other.limit


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_clients_noise_is_charged_as_the_statement_says(relation):
    arms = [LOCAL, LOCAL.changed(name="two", noise_multiplier=30.0)]
    costs = epsilons(guarantee(arms, DELTA, "pld"))
    total = Total(costs["SERVER", relation] * (1 + 1e-9), DELTA, relation)
    charge = total.charge(planned(*arms).arms)
    assert total.observer == "SERVER"
    assert total.epsilon_of(charge) == pytest.approx(costs["SERVER", relation], rel=1e-9)
    assert charge <= total.limit
    assert epsilons(composed([planned(*arms)], DELTA)) == pytest.approx(costs)


def test_a_filter_and_the_credit_of_others_noise_count_as_in_the_statement():
    kept = dataclasses.replace(LOCAL, budget=Budget(1.0, DELTA))
    everybody = Arm.of("full", 100, 10, trust="local", rule="full", noise_multiplier=15.0)
    for arm in (kept, everybody):
        costs = epsilons(guarantee([arm], DELTA, "pld"))
        assert epsilons(composed([planned(arm)], DELTA)) == pytest.approx(costs)
    assert costs["PUBLIC", "zero-out"] < costs["SERVER", "zero-out"]


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_runs_of_both_trusts_share_one_order(relation):
    """A client's own Gaussians cost alpha mu^2 / 2; the server sees raw updates in the other."""
    with make(relation=relation, order=3.0) as journal:
        journal.debit(planned(LOCAL, id="a"))
        mu_squared = client_cost(LOCAL, LOCAL.rounds, relation=relation)
        assert journal.charged == pytest.approx(1.5 * mu_squared)
        alone = epsilons(composed(journal.runs, DELTA))
        assert math.isfinite(alone["SERVER", relation])
        journal.debit(planned(CENTRAL, id="b"))
        both = epsilons(composed(journal.runs, DELTA))
    assert both["SERVER", relation] == math.inf
    central = epsilons(guarantee([CENTRAL], DELTA, "pld"))["PUBLIC", relation]
    most = central + alone["PUBLIC", relation]
    assert max(central, alone["PUBLIC", relation]) < both["PUBLIC", relation] < most


def test_one_mu_takes_no_run_whose_server_sees_updates():
    with make() as journal:
        journal.debit(planned(LOCAL))
        with pytest.raises(ValueError, match=r"one mu, .* expected trust 'local'"):
            journal.debit(planned(CENTRAL, id="b"))
    with pytest.raises(ValueError, match="nobody adds noise"):
        planned_arm(Arm("none", 10, 5, trust="none", cohort=5))


@given(
    epsilon=st.floats(0.5, 40),
    relation=st.sampled_from(["zero-out", "replace"]),
    one_mu=st.booleans(),
    asked=st.lists(
        st.tuples(st.booleans(), st.floats(0.4, 30), st.floats(0.01, 1), st.integers(1, 300)),
        max_size=8,
    ),
)
@settings(max_examples=60)
def test_no_sequence_of_runs_passes_the_total(epsilon, relation, one_mu, asked):
    """And none is turned away that the total pays for."""
    order = None if one_mu else best_order(epsilon, DELTA, relation)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", {VARIABLE: folder}),
        # the epsilon that is noted beside a debit, by an accountant that takes seconds
        mock.patch("locksfl.privacy.population.epsilon_of", return_value=Charged(0.0, "none")),
        PopulationJournal.make("p", Total(epsilon, DELTA, relation, order)) as journal,
    ):
        spent = 0.0
        for number, (central, noise, rate, rounds) in enumerate(asked):
            trust = "central" if central and not one_mu else "local"
            arm = Arm.of("a", 100, rounds, cohort=100 * rate, trust=trust, noise_multiplier=noise)
            run = planned(arm, id=str(number))
            cost = journal.total.charge(run.arms)
            if spent + cost <= journal.total.limit * (1 - 1e-12):
                journal.debit(run)
                spent += cost
            elif spent + cost > journal.total.limit * (1 + 1e-12):
                with pytest.raises(ValueError, match=r"of the total \(epsilon"):
                    journal.debit(run)
            assert journal.charged <= journal.total.limit
            assert journal.charged == pytest.approx(spent)
            assert journal.total.epsilon_of(journal.charged) <= epsilon * (1 + 1e-9)


BOTH = """
import sys
from locksfl.arm import Arm
from locksfl.privacy.population import PlannedArm, PopulationJournal, Run
arm = Arm.of("a", 100, 10, trust="local", cohort=20, noise_multiplier=20.0)
with PopulationJournal.find("patients") as journal:
    run = Run(sys.argv[1], "study", (PlannedArm.of(arm),))
    journal.check(run)  # there is room as long as nobody else is faster
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        journal.debit(run)
        print("debited")
    except ValueError as error:
        print(error)
"""


def test_two_processes_cannot_both_take_the_last_of_it():
    arm = LOCAL.changed(noise_multiplier=20.0)
    mu_squared = client_cost(arm, arm.rounds)
    make(gdp.epsilon_from_mu(math.sqrt(1.5 * mu_squared), DELTA)).close()
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", BOTH, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    assert [one.stdout.readline() for one in racing] == ["ready\n", "ready\n"]
    for one in racing:
        one.stdin.write("\n")
        one.stdin.flush()
    told = sorted(one.communicate()[0] for one in racing)
    assert told[0] == "debited\n"
    assert "of the total (epsilon" in told[1]
    with PopulationJournal.find("patients") as journal:
        assert len(journal.runs) == 1


def test_an_old_copy_or_a_damaged_journal_is_refused(tmp_path):
    with make() as journal:
        path = journal.path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with PopulationJournal.find("patients") as journal:
        journal.debit(planned(LOCAL, id="a"))
    old = tmp_path / "old"
    shutil.copy(path, old)
    shutil.copy(f"{path}.head", f"{old}.head")
    with PopulationJournal.find("patients") as journal:
        noted = journal.debit(planned(LOCAL, id="b"))
    shutil.copy(path, tmp_path / "now")
    shutil.copy(old, path)
    with pytest.raises(ValueError, match="not the ledger whose head was saved, or an old copy"):
        PopulationJournal.find("patients")
    shutil.copy(f"{old}.head", f"{path}.head")  # both restored: a run's folder knows better
    with (
        PopulationJournal.find("patients") as journal,
        pytest.raises(ValueError, match="not the ledger whose head was noted, or an old copy"),
    ):
        journal.check_noted(noted)
    content = (tmp_path / "now").read_bytes()
    assert b'"charge": ' in content
    path.write_bytes(content.replace(b'"charge": 0.', b'"charge": 1.'))
    with pytest.raises(ValueError, match="damaged or was altered"):
        PopulationJournal.find("patients")


def test_a_journal_is_made_once_and_by_hand():
    with pytest.raises(ValueError, match=r"no journal .*patients\.sqlite"):
        PopulationJournal.find("patients")
    make().close()
    with pytest.raises(ValueError, match="already exists"):
        make(total=100.0)
    for wrong in ("", "../x", "a b", "ä", "a" * 101):
        with pytest.raises(ValueError, match="expected up to 100 letters"):
            PopulationJournal.make(wrong, Total(1.0, DELTA))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epsilon": 8.0, "order": 1.5}, r"order = 1.5: nothing is left of the total 8"),
        ({"epsilon": 8.0, "order": 600.0, "relation": "replace"}, r"up to 512, such as 3\.83"),
        ({"epsilon": 0.0}, "total = 0"),
    ],
)
def test_a_total_that_pays_for_nothing_is_refused(options, expected):
    with pytest.raises(ValueError, match=expected):
        Total(delta=DELTA, **options)
    with pytest.raises(ValueError, match="no order has anything left"):
        best_order(1e-4, DELTA)
