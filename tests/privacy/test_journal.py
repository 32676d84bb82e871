"""The one journal: one fold for every home, work that does not grow, a kept head, old versions."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checks import charged_arm
from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.view import ledger_view
from locksfl.federation.server.ledger import ServerLedger
from locksfl.privacy import Budget
from locksfl.privacy import journal_file as home
from locksfl.privacy.budget import Filter, charges, mu_squared
from locksfl.privacy.journal import COLUMNS, Books, Entry, checksum, header
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import account_ledger, read_run
from small_runs import copied, finished, lines, quick, run_experiment

OLD = Path(__file__).parent.parent / "old"
BUDGET = Budget(3.0, 1e-5)
TERMS = charged_arm("local", "norm", 6, 20, 4.0, 3.0, 0.0, 0.9, 4.0, 8.0, budget=BUDGET)
HEADER = header("one", [(TERMS, None)], delta=1e-5, relation="zero-out", accountant="pld")
POLICY = Policy(
    epsilon=2e3,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=4.0,
    min_norm_multiplier=8.0,
    max_rounds=10**6,
)


def asks(number, run="one"):
    return RoundTerms(run, number, True, 1.0, 4.0, 8.0)


def cohorts(rounds=12, seed=0):
    """Cohort, who uploaded, and whose update is in the sum."""
    rng = np.random.default_rng(seed)
    for t in range(1, rounds + 1):
        cohort = np.flatnonzero(rng.random(6) < 0.6).astype(np.int32)
        uploaded = rng.random(cohort.size) < 0.5
        yield t, cohort, uploaded, uploaded & (rng.random(cohort.size) < 0.7)


def test_every_home_comes_to_the_same_counts(tmp_path):
    """The same rounds through a checkpoint's books, a server's file and the simulator's filter:
    the same who can pay, the same counts, and the record survives being packed."""
    books, kept = Books(HEADER), Filter(TERMS, BUDGET)
    with ServerLedger.create(tmp_path / "l.db", HEADER) as ledger:
        for t, cohort, uploaded, received in cohorts():
            asked = kept.ask(cohort)
            there = np.isin(cohort, asked)
            np.testing.assert_array_equal(ledger.reserve("locks", t, cohort), asked)
            ledger.settle("locks", t, asked, uploaded[there], received[there])
            books.enter_round("locks", t, asked, uploaded[there], received[there])
            kept.enter(asked, uploaded[there])
            assert ledger.exhausted("locks") == kept.exhausted
        assert 0 < kept.exhausted < 6
        found = [ledger.books, books, Books.unpack(*books.pack(), tmp_path)]
    found += [Journal.read(tmp_path / "l.db")]
    for each in found:
        counts = each.arms[0].counts
        np.testing.assert_array_equal(counts.norms, kept.norms)
        np.testing.assert_array_equal(counts.uploads, kept.uploads)
        np.testing.assert_array_equal(counts.shares, books.counts("locks").shares)
        assert counts.rounds == 12
    assert found[2].head == books.head


def test_one_rule_says_what_a_budget_pays_for():
    """The table of whole numbers is the rule's: no entry can be raised, none is too large."""
    table, releases = BUDGET.most_uploads(TERMS), TERMS.releases()
    for norms, most in enumerate(table):
        for uploads in range(TERMS.rounds + 1):
            mine = charges(releases, norms, uploads)
            assert BUDGET.pays(mine) == (uploads <= most)
            whole = TERMS.client_releases(uploads, norms).mu_squared()
            assert mu_squared(mine, "zero-out") == whole
    assert Budget(0.7, 1e-5).most_uploads(TERMS)[-1] == -1  # norms alone would pass it
    assert max(table) > 0


def test_a_resumed_simulation_has_the_chain_of_one_that_was_never_stopped():
    run = copied(quick())
    whole = json.loads(bytes(np.load(run / "checkpoint.npz")["meta"]))["ledger"]
    assert int(whole["head"].split()[0]) >= len(lines(run))  # an entry for each round, or more
    from locksfl.experiment.folder import RunFolder

    other = RunFolder.create(run.with_name(run.name + "-again"), RunFolder(run).config)
    seen = []

    def stop(record):
        seen.append(record)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(other.config, other, on_round=stop)
    run_experiment(other.config, other, resume=True)
    again = json.loads(bytes(np.load(other.path / "checkpoint.npz")["meta"]))["ledger"]
    assert again == whole


class Work:
    """Counts what SQLite does, in steps of its virtual machine, and links of the chain."""

    def __init__(self, monkeypatch):
        self.steps = self.links = 0
        connect, link = sqlite3.connect, Entry.link

        def counted(*args, **kwargs):
            db = connect(*args, **kwargs)
            db.set_progress_handler(self._step, 1)
            return db

        def linked(entry, number, before):
            self.links += 1
            return link(entry, number, before)

        monkeypatch.setattr(home.sqlite3, "connect", counted)
        monkeypatch.setattr(Entry, "link", linked)

    def _step(self):
        self.steps += 1
        return 0

    def of(self, action):
        self.steps = self.links = 0
        action()
        return self.steps, self.links


def message(path, number, run="one"):
    """A process for each message, as a stock SuperNode starts them: open, answer, close."""

    def answer():
        with Guard.open(POLICY, path) as guard:
            guard.release_norm(asks(number, run), 0.5)
        with Guard.open(POLICY, path) as guard:
            guard.release_update(asks(number, run), np.ones(3), 1.0)

    return answer


@pytest.mark.parametrize("of", ["rounds of one run", "runs of one round"])
def test_the_ten_thousandth_message_costs_as_much_as_the_tenth(tmp_path, monkeypatch, of):
    work = Work(monkeypatch)
    path = tmp_path / "l.db"
    DeviceLedger.create(path).close()

    def at(i):
        return (i, "one") if of == "rounds of one run" else (1, f"run {i}")

    for i in range(1, 10):
        message(path, *at(i))()
    tenth = work.of(message(path, *at(10)))
    with DeviceLedger.open(path) as ledger, ledger.transaction():
        for i in range(11, 10_000):
            terms = asks(*at(i))
            ledger.enter(terms, "reserve")
            ledger.enter(terms, "commit")
    later = work.of(message(path, *at(10_000)))
    assert later[1] == tenth[1] < 10
    assert later[0] <= 1.05 * tenth[0] < 3000
    everything = work.of(lambda: DeviceLedger.open(path, whole=True).close())
    assert everything[1] == 20_000  # and so much does a person's question cost: this can fail
    assert everything[0] > 50 * later[0]
    assert ledger_view(path, POLICY)["rounds"] == 10_000


def played(path, rounds=3):
    DeviceLedger.create(path).close()
    with Guard.open(POLICY, path) as guard:
        for number in range(1, rounds + 1):
            guard.release_norm(asks(number), 0.5)
            guard.release_update(asks(number), np.ones(3), 1.0)
    return path


def test_an_older_file_is_refused_by_the_head_that_was_kept(tmp_path):
    path = played(tmp_path / "l.db")
    shutil.copy2(path, tmp_path / "backup")
    with Guard.open(POLICY, path) as guard:
        guard.release_norm(asks(4), 0.5)
    shutil.copy2(tmp_path / "backup", path)
    for whole in (False, True):
        with pytest.raises(
            ValueError, match=r"l\.db: not the ledger whose head was saved, or an old"
        ):
            DeviceLedger.open(path, whole=whole)


def test_another_file_is_refused_by_the_head_that_was_kept(tmp_path):
    path, other = played(tmp_path / "l.db", 2), played(tmp_path / "other.db", 5)
    shutil.copy2(other, path)
    with pytest.raises(ValueError, match="not the ledger whose head was saved"):
        DeviceLedger.open(path)


@pytest.mark.parametrize("how", ["missing", "garbage", "cut"])
def test_without_a_whole_kept_head_everything_is_verified_once(tmp_path, monkeypatch, how):
    path, work = played(tmp_path / "l.db"), Work(monkeypatch)
    head = tmp_path / "l.db.head"
    text = head.read_text()
    if how == "missing":
        head.unlink()
    else:
        head.write_text("{}" if how == "garbage" else text[: len(text) // 2])
    assert work.of(lambda: DeviceLedger.open(path).close())[1] == 6
    assert work.of(lambda: DeviceLedger.open(path).close())[1] == 0
    assert head.stat().st_mode & 0o777 == 0o600


def test_after_a_kill_only_what_came_after_the_kept_head_is_verified(tmp_path, monkeypatch):
    path = played(tmp_path / "l.db")
    code = (  # nothing is closed: the entry is in the write-ahead log
        "import os, sys; from pathlib import Path\n"
        "from locksfl.federation.device import DeviceLedger, RoundTerms\n"
        "ledger = DeviceLedger.open(Path(sys.argv[1]))\n"
        "with ledger.transaction():\n"
        "    ledger.enter(RoundTerms('one', 4, True, 1.0, 4.0, 8.0), 'reserve')\n"
        "os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == 9
    work = Work(monkeypatch)
    assert work.of(lambda: refuse_again(path))[1] == 1


def refuse_again(path):
    with Guard.open(POLICY, path) as guard, pytest.raises(Refused) as caught:
        guard.release_norm(asks(4), 0.5)
    assert caught.value.code is Refusal.REPEATED


def test_totals_that_were_altered_are_found_by_who_asks_for_everything(tmp_path):
    """With their checksum made to fit: the chain is the truth."""
    path, head = played(tmp_path / "l.db"), tmp_path / "l.db.head"
    table = json.loads(head.read_text())
    arrays = {k: np.array(v, np.int32) for k, v in table["arrays"].items() if "shares" not in k}
    shares = {k: np.array(v) for k, v in table["arrays"].items() if "shares" in k}
    books = Books.unpack(table["ledger"], {**arrays, **shares}, path)
    for tally in books.tallies.values():
        tally.uploads[:] = 0
    meta, changed = books.pack()
    table |= {"ledger": meta, "arrays": {k: v.tolist() for k, v in changed.items()}}
    head.write_text(json.dumps(table))
    with pytest.raises(ValueError, match="saved totals do not match"):
        ledger_view(path, POLICY)


def test_an_interrupted_fold_leaves_no_wrong_totals(tmp_path, monkeypatch):
    """Ctrl-C before the commit: nothing is written, and the books are made anew."""
    path = played(tmp_path / "l.db")
    link, calls = Entry.link, []

    def interrupted(entry, number, before):
        calls.append(number)
        if len(calls) == 2:  # the second is the fold's
            raise KeyboardInterrupt
        return link(entry, number, before)

    def reserve(ledger):
        with ledger.transaction():
            ledger.enter(asks(4), "reserve")

    with DeviceLedger.open(path) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(Entry, "link", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reserve(ledger)
        assert ledger.rounds() == 3
        reserve(ledger)
        assert ledger.rounds() == 4
    with DeviceLedger.open(path, whole=True) as ledger:
        assert (ledger.rounds(), [t.uploads for t in ledger.tallies()]) == (4, [4])


def test_a_newer_version_is_refused_by_name(tmp_path):
    path = tmp_path / "l.db"
    DeviceLedger.create(path).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = replace(value, '\"version\": 2', '\"version\": 3')")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="a ledger of version 3; expected version 2 or 1"):
        DeviceLedger.open(path)


def test_a_run_of_version_1_opens():
    told = account_ledger(read_run(OLD / "run"))
    summary = json.loads((OLD / "run" / "summary.json").read_text())
    (arm,), (mine,) = summary["arms"], told["arms"]
    assert (told["experiment"], mine["rounds_played"]) == (summary["experiment"], 3)
    for key, costs in (("guarantee", arm["privacy"]), ("spent_so_far", arm["spent_so_far"])):
        for cost in costs:
            here = mine[key][cost["observer"].lower()]["relations"][cost["relation"]]
            assert here == pytest.approx(cost["epsilon"], rel=1e-12)


def altered(path, sql):
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()


def test_a_devices_ledger_of_version_1_keeps_what_was_spent(tmp_path):
    """Verified by its own rule, rewritten in place, and the round that was paid stays paid."""
    path, policy = tmp_path / "l.db", POLICY
    shutil.copyfile(OLD / "device.sqlite", path)
    shutil.copyfile(OLD / "device.sqlite", tmp_path / "altered.db")
    altered(tmp_path / "altered.db", "UPDATE entries SET kind = 'refund' WHERE number = 2")
    with pytest.raises(ValueError, match="damaged or was altered"):
        DeviceLedger.open(tmp_path / "altered.db")
    with Guard.open(policy, path) as guard:
        assert mu_squared(guard.ledger.charges(), "zero-out") == 1 / 8**2 + 1 / 4**2
        with pytest.raises(Refused) as caught:
            guard.release_update(asks(1, "run-1"), np.ones(3), 1.0)
        assert caught.value.code is Refusal.REPEATED
        guard.release_norm(asks(2, "run-1"), 0.5)
    view = ledger_view(path, policy)
    rows = [(r["run"], r["rounds"], r["updates"], r["latest"] > 1e9) for r in view["runs"]]
    assert rows == [("run-1", 2, 1, True)]
    assert Journal.read(path).header["version"] == 2


def test_a_federations_ledger_of_version_1_opens(tmp_path):
    path = tmp_path / "l.db"
    shutil.copyfile(OLD / "ledger.sqlite", path)
    read = Journal.read(path)
    before = path.read_bytes()
    with ServerLedger.open_for(path, "e" * 64) as ledger:
        for books in (read, ledger.books):
            (arm,) = books.arms
            assert arm.counts.rounds == 2
            assert arm.counts.norms.tolist() == [1, 1, 1, 0]
            assert arm.counts.uploads.tolist() == [1, 1, 0, 0]
            assert arm.counts.shares.tolist() == [1, 1, 0, 0]
        assert ledger.reserved("locks", 2).tolist() == [1]
        with pytest.raises(ValueError, match="already reserved"):
            ledger.reserve("locks", 2, [1])
        ledger.refund("locks", 2, [1])
    assert path.read_bytes() != before  # only `open` rewrites it
    assert Journal.read(path).arms[0].counts.uploads.tolist() == [1, 0, 0, 0]


def test_the_accounts_of_a_finished_run_need_no_journal_file():
    assert not (finished("local") / "ledger.sqlite").exists()


def test_a_noted_head_makes_an_open_verify_everything(tmp_path):
    """The saved totals lie beside the file; a head noted elsewhere reveals forged ones."""
    path = tmp_path / "l.db"
    with DeviceLedger.create(path) as ledger, ledger.transaction():
        for number in range(1, 6):
            ledger.enter(asks(number), "reserve")
            ledger.enter(asks(number), "commit")
    noted, kept = ledger_head(path), path.with_name("l.db.head")
    table = json.loads(kept.read_text())
    meta = {k: v for k, v in table["ledger"].items() if k != "checksum"}
    for name, values in table["arrays"].items():
        table["arrays"][name] = [0 for _ in values]
    arrays = {n: np.array(v, COLUMNS[n.rpartition("_")[2]]) for n, v in table["arrays"].items()}
    table["ledger"]["checksum"] = checksum(meta, arrays)
    kept.write_text(json.dumps(table))
    with pytest.raises(ValueError, match="damaged or was altered"):
        DeviceLedger.open(path, noted)
    with pytest.raises(ValueError, match="damaged or was altered"):
        DeviceLedger.open(path, whole=True)


def ledger_head(path):
    with DeviceLedger.open(path) as ledger:
        return ledger.head


def test_books_cover_what_they_have_seen_and_no_more():
    early, late = Books(HEADER), Books(HEADER)
    for books in (early, late):
        books.enter_round("locks", 1, np.array([0, 2]), np.array([True, False]))
    late.enter_round("locks", 2, np.array([1]), np.array([True]))
    assert late.covers(early)
    assert not early.covers(late)
    assert early.covers(Books(HEADER))
