"""The ledger: durable, whole or refused, and every epsilon comes out of it alone."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import charged_arm, client_cost
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.federation.server.ledger import ServerLedger
from locksfl.privacy import Budget, epsilon_from_mu
from locksfl.privacy.journal import Entry, Header, experiment_id
from locksfl.privacy.ledger import account_ledger, read_run
from small_runs import QUICK, copied, finished, play, quick, run_experiment, summary

LOCAL = charged_arm("local", "norm", 3, 8, 2.0, 2.0, 0.0, 1.0, 4.0, 8.0)
BUDGET = Budget(2.0, 1e-5)  # three whole rounds of the eight


def new(path, terms=LOCAL, budget=BUDGET, experiment="one"):
    arms = [(dataclasses.replace(terms, budget=budget), None)]
    rest = {"delta": 1e-5, "relation": "zero-out", "accountant": "pld"}
    return ServerLedger.create(path, Header.of(experiment, arms, **rest))


def filled(path):
    """Rounds 1 to 3 of client 0: committed, refunded, never resolved."""
    with new(path) as ledger:
        for t in (1, 2, 3):
            assert ledger.reserve("locks", t, 0).size
        ledger.resolve(Entry("locks", 1, "commit", np.array([0]), 4))
        ledger.resolve(Entry("locks", 2, "refund", np.array([0])))
    return path


def test_an_unresolved_reservation_counts_as_spent(tmp_path):
    with ServerLedger.open_for(filled(tmp_path / "l.db"), "one") as ledger:
        counts = ledger.books.arms[0]
        assert counts.norms.tolist() == [3, 0, 0]
        assert counts.uploads.tolist() == [2, 0, 0]
        assert counts.shares.tolist() == [1.25, 0, 0]  # 1/4, and 1 for the unresolved one
        account = account_ledger(ledger.books).arms[0]
    spent = account.spent_so_far
    mu = math.sqrt(3 / 8**2 + 2 / 4**2)
    assert spent["server"].epsilon == pytest.approx(epsilon_from_mu(mu, 1e-5), rel=1e-9)
    credited = math.sqrt(3 / 8**2 + 1.25 * 4 / 4**2)
    assert spent["public"].relations["replace"] == pytest.approx(
        epsilon_from_mu(credited, 1e-5), rel=1e-9
    )
    for observer in ("server", "public"):  # spending less is no better a guarantee
        assert account.guarantee[observer].epsilon == pytest.approx(2.0, rel=1e-9)


def test_it_is_on_disk_before_reserve_returns(tmp_path):
    """A process that dies without a word right after `reserve` has spent it."""
    path = tmp_path / "l.db"
    new(path).close()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from locksfl.federation.server.ledger import ServerLedger\n"
        "ledger = ServerLedger.open_for(Path(sys.argv[1]), 'one')\n"
        "assert ledger.reserve('locks', 1, 2).size\n"
        "level = ledger.query('PRAGMA synchronous')[0]\n"
        "mode = ledger.query('PRAGMA journal_mode')[0]\n"
        "print(level, mode, flush=True); os._exit(9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (9, "(2,) ('wal',)")
    with ServerLedger.open_for(path, "one") as ledger:
        assert ledger.books.arms[0].uploads.tolist() == [0, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["commit", "refund", "crash"]))))
@settings(max_examples=25)
def test_no_client_passes_its_budget(tmp_path_factory, steps):
    """Whatever is asked, resolved or left open; and who is refused could not have paid."""
    path = tmp_path_factory.mktemp("ledger") / "l.db"
    one = client_cost(LOCAL, 1)
    with new(path) as ledger:
        for t in range(1, 9):
            for client, then in dict(steps).items():
                before = ledger.books.arms[0].mu_squared("SERVER", "zero-out")[client]
                if not ledger.reserve("locks", t, client).size:
                    assert before + one > BUDGET.mu_squared
                    continue
                assert before + one <= BUDGET.mu_squared * (1 + 1e-12)
                if then != "crash":
                    ledger.resolve(Entry("locks", t, then, np.array([client])))
        spent = ledger.books.arms[0].mu_squared("SERVER", "zero-out")
    assert spent.max() <= BUDGET.mu_squared * (1 + 1e-12)


def test_what_makes_no_sense_is_refused_and_nothing_is_written(tmp_path):
    path = filled(tmp_path / "l.db")
    with ServerLedger.open_for(path, "one") as ledger:
        before = ledger.head

        def resolve(number, kind, uploaders=1):
            ledger.resolve(Entry("locks", number, kind, np.array([0]), uploaders))

        for call, told in (
            (lambda: ledger.reserve("locks", 1, 0), "already reserved"),
            (lambda: ledger.reserve("locks", 9, 0), "expected 1 to 8"),
            (lambda: ledger.reserve("locks", 1, 3), "expected a number below 3"),
            (lambda: ledger.reserve("other", 1, 0), "expected one of locks"),
            (lambda: ledger.reserve_round("locks", 4), "nothing that this method records"),
            (lambda: resolve(1, "refund"), "already resolved"),
            (lambda: resolve(2, "commit"), "already resolved"),
            (lambda: resolve(4, "refund"), "never reserved"),
            (lambda: resolve(3, "commit", 0), "expected a whole number >= 1"),
        ):
            with pytest.raises(ValueError, match=told):
                call()
        assert ledger.head == before
    with pytest.raises(ValueError, match="already exists"):
        new(path)
    with pytest.raises(ValueError, match="less than the cost of one round"):
        new(tmp_path / "small.db", budget=Budget(0.01, 1e-5))
    assert not (tmp_path / "small.db").exists()


def test_central_rounds_are_charged_to_every_client_empty_or_not(tmp_path):
    terms = charged_arm("central", "uniform", 50, 4, 10.0, 10.0, noise_multiplier=1.5)
    with new(tmp_path / "c.db", terms, None) as ledger:
        for t in (1, 2):
            ledger.reserve_round("locks", t)
        with pytest.raises(ValueError, match="already reserved"):
            ledger.reserve_round("locks", 2)
        account = account_ledger(ledger.books).arms[0]
    assert account.rounds_played == 2
    assert account.spent_so_far["server"].epsilon is None
    so_far, whole = (c["public"].epsilon for c in (account.spent_so_far, account.guarantee))
    assert 0 < so_far < whole


def test_another_experiments_ledger_is_refused(tmp_path):
    path = filled(tmp_path / "l.db")
    with pytest.raises(ValueError, match="another experiment"):
        ServerLedger.open_for(path, "two")
    base = {"name": "a", "data": {"clients": 3, "dir": "/here"}}
    elsewhere = {"name": "a", "data": {"clients": 3, "dir": "/there"}}
    assert experiment_id(base) == experiment_id(elsewhere)
    assert experiment_id(base) != experiment_id({**base, "name": "b"})


TAMPER = {
    "altered": "UPDATE entries SET kind = 'refund' WHERE number = 4",
    "removed": "DELETE FROM entries WHERE number = 3",
    "cut at the end": "DELETE FROM entries WHERE number = 5",
    "inserted": "INSERT INTO entries VALUES (6, 'locks', 3, 'refund', x'00000000', 1, '', 0, 'x')",
    "another budget": "UPDATE meta SET value = replace(value, '2.0', '9.0') WHERE key = 'header'",
    "another head": "UPDATE meta SET value = '4 x' WHERE key = 'head'",
    "no settings": "DELETE FROM meta WHERE key = 'header'",
}


@pytest.mark.parametrize("how", TAMPER)
def test_a_tampered_ledger_is_refused(tmp_path, how):
    path = filled(tmp_path / "l.db")
    with sqlite3.connect(path) as db:
        db.execute(TAMPER[how])
    db.close()
    with pytest.raises(ValueError, match="damaged or was altered"):
        ServerLedger.open_for(path, "one")


@pytest.mark.parametrize("keep", [0, 10, 1000, 6000])
def test_a_truncated_ledger_is_refused(tmp_path, keep):
    path = filled(tmp_path / "l.db")
    assert path.stat().st_size > 6000
    os.truncate(path, keep)
    with pytest.raises(ValueError, match=r"damaged|truncated"):
        ServerLedger.open_for(path, "one")
    assert path.stat().st_size == keep  # nothing was written over it


def test_an_old_copy_is_seen_by_a_noted_head(tmp_path):
    path, copy = filled(tmp_path / "l.db"), tmp_path / "old.db"
    shutil.copyfile(path, copy)
    with ServerLedger.open_for(path, "one") as ledger:
        ledger.reserve("locks", 4, 1)
        noted = ledger.head
    ServerLedger.open_for(path, "one", noted).close()
    ServerLedger.open_for(copy, "one").close()  # by itself it is sound
    with pytest.raises(ValueError, match="an old copy"):
        ServerLedger.open_for(copy, "one", noted)


@pytest.mark.parametrize("trust", ["central", "local", "none"])
def test_every_epsilon_of_a_run_comes_out_of_its_ledger(trust):
    told, ledger = summary(finished(trust)), account_ledger(read_run(finished(trust)))
    pairs = [(a["privacy"], a["spent_so_far"]) for a in told["arms"]]
    pairs.append((told["all_arms_composed"], told["all_arms_spent_so_far"]))
    accounts = [*ledger.arms, ledger.all_arms_composed]
    for (promised, spent), mine in zip(pairs, accounts, strict=True):
        for key, costs in (("guarantee", promised), ("spent_so_far", spent)):
            for cost in costs:
                here = getattr(mine, key)[cost["observer"].lower()]
                assert here.relations[cost["relation"]] == cost["epsilon"]
                assert (here.delta, here.accountant) == (cost["delta"], cost["accountant"])


def test_only_the_ledger_is_read(tmp_path):
    run = finished("local")
    shutil.copyfile(run / "checkpoint.npz", tmp_path / "checkpoint.npz")
    assert account_ledger(read_run(tmp_path)) == account_ledger(read_run(run))


def damage(run, change):
    folder = RunFolder(run)
    meta, arrays, _ = folder.load_checkpoint()
    change(meta, arrays)
    folder.save_checkpoint(meta, arrays)


CHANGES = {
    "fewer uploads": lambda meta, arrays: arrays["ledger_locks_uploads"].fill(0),
    "less noise": lambda meta, arrays: meta["ledger"]["header"]["arms"][0]["terms"].update(
        noise_multiplier=9.0
    ),
    "no ledger": lambda meta, arrays: meta.update(ledger=None),
    "no norms": lambda meta, arrays: arrays.pop("ledger_locks_norms"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_altered_checkpoint_is_refused(change):
    run = copied(quick())
    assert read_run(run).arms[0].uploads.sum() > 0
    damage(run, CHANGES[change])
    with pytest.raises(ValueError, match=r"altered|no ledger"):
        read_run(run)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    run = copied(quick())
    path = run / "checkpoint.npz"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ValueError, match="damaged"):
        read_run(run)
    with pytest.raises(ValueError, match="not a run folder"):
        read_run(tmp_path)


def test_a_run_does_not_continue_on_another_experiments_ledger():
    run = copied(quick())
    (run / "summary.json").unlink()
    config = run / "config.toml"
    config.write_text(
        config.read_text().replace("noise_multiplier = 0.1", "noise_multiplier = 0.2")
    )
    folder = RunFolder(run)
    with pytest.raises(ValueError, match="another experiment"):
        run_experiment(folder.config, folder, resume=True)


def test_shares_are_one_over_the_uploaders():
    run = finished("local")
    counts = read_run(run).arms[1]
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    mine = [line["public"]["counts"] for line in lines if line["arm"] == "locks"]
    rounds = sum(counts["uploads"] > 0 for counts in mine)
    assert counts.shares.sum() == pytest.approx(rounds)
    assert np.all(counts.shares <= counts.uploads)


def test_empty_cohorts_are_charged():
    """Nobody drawn, nobody uploads: every client pays for the round all the same."""
    run = play(parse_config(QUICK, ("arm.locks.cohort=0.2", "arm.locks.uploads=0.1"), 3))
    ledger = read_run(run)
    assert ledger.arms[0].uploads.sum() < 4  # of the four rounds most were empty
    account = account_ledger(ledger).arms[0]
    assert account.rounds_played == 4
    assert account.spent_so_far == account.guarantee
    assert account.guarantee["public"].epsilon > 0
