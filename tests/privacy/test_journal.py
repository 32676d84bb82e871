"""The one journal: one fold for every home, work that does not grow, a kept head, old versions."""

from __future__ import annotations

import copy
import json
import math
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checks import charged_arm, client_cost, filter_of
from locksfl.arm import Arm
from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.view import ledger_view
from locksfl.federation.server.ledger import ServerLedger
from locksfl.methods.events import Filtered, terms_from_json
from locksfl.privacy import Budget, calibrate, guarantee, old
from locksfl.privacy import journal_file as home
from locksfl.privacy.budget import charges, mu_squared
from locksfl.privacy.guarantees import promised
from locksfl.privacy.journal import COLUMNS, Books, Entry, Header, checksum
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import account_ledger, read_run
from locksfl.privacy.terms import LedgerArm
from small_runs import copied, finished, lines, quick, run_experiment

OLD = Path(__file__).parent.parent / "old"
BUDGET = Budget(3.0, 1e-5)
TERMS = charged_arm("local", "norm", 6, 20, 4.0, 3.0, 0.0, 0.9, 4.0, 8.0, budget=BUDGET)
PRIVACY = {"delta": 1e-5, "relation": "zero-out", "accountant": "pld"}
HEADER = Header.of("one", [(TERMS, None)], **PRIVACY)
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
    books, kept = Books(HEADER), filter_of(TERMS, BUDGET)
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
        counts = each.arms[0]
        np.testing.assert_array_equal(counts.norms, kept.norms)
        np.testing.assert_array_equal(counts.uploads, kept.uploads)
        np.testing.assert_array_equal(counts.shares, books.counts("locks").shares)
        assert counts.rounds == 12
    assert found[2].head == books.head


def test_one_rule_says_what_a_budget_pays_for():
    """The table of whole numbers is the rule's: no entry can be raised, none is too large."""
    releases = TERMS.messages()
    table = BUDGET.most_uploads(*releases, TERMS.rounds)
    for norms, most in enumerate(table):
        for uploads in range(TERMS.rounds + 1):
            mine = charges(releases, norms, uploads)
            assert BUDGET.pays(mine) == (uploads <= most)
            whole = client_cost(TERMS, uploads, norms)
            assert mu_squared(mine, "zero-out") == pytest.approx(whole, rel=1e-15)
    assert (
        Budget(0.7, 1e-5).most_uploads(*releases, TERMS.rounds)[-1] == -1
    )  # norms alone would pass it
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
    forge(head)
    with pytest.raises(ValueError, match="saved totals do not match"):
        ledger_view(path, POLICY)


def forge(head):
    """Saved totals without any upload, with a checksum that fits."""
    table = json.loads(head.read_text())
    meta = {k: v for k, v in table["ledger"].items() if k != "checksum"}
    arrays = {
        name: home._dense(values, COLUMNS[name.rpartition("_")[2]])
        for name, values in table["arrays"].items()
        if not name.endswith("_uploads")
    }
    lists = {name: home._sparse(column) for name, column in arrays.items()}
    table |= {"ledger": {**meta, "checksum": checksum(meta, arrays)}, "arrays": lists}
    head.write_text(json.dumps(table))


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
    db.execute("UPDATE meta SET value = replace(value, '\"version\": 3', '\"version\": 4')")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="a ledger of version 4; expected version 3, 2 or 1"):
        DeviceLedger.open(path)


def test_a_run_of_version_1_opens():
    account = account_ledger(read_run(OLD / "run"))
    summary = json.loads((OLD / "run" / "summary.json").read_text())
    (arm,), (mine,) = summary["arms"], account.arms
    assert (account.experiment, mine.rounds_played) == (summary["experiment"], 3)
    for key, costs in (("guarantee", arm["privacy"]), ("spent_so_far", arm["spent_so_far"])):
        for cost in costs:
            here = getattr(mine, key)[cost["observer"].lower()].relations[cost["relation"]]
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
    assert Journal.read(path).written["version"] == 2


def test_a_federations_ledger_of_version_1_opens(tmp_path):
    path = tmp_path / "l.db"
    shutil.copyfile(OLD / "ledger.sqlite", path)
    read = Journal.read(path)
    before = path.read_bytes()
    with ServerLedger.open_for(path, "e" * 64) as ledger:
        for books in (read, ledger.books):
            (arm,) = books.arms
            assert arm.rounds == 2
            assert arm.norms.tolist() == [1, 1, 1, 0]
            assert arm.uploads.tolist() == [1, 1, 0, 0]
            assert arm.shares.tolist() == [1, 1, 0, 0]
        assert ledger.reserved("locks", 2).tolist() == [1]
        with pytest.raises(ValueError, match="already reserved"):
            ledger.reserve("locks", 2, [1])
        ledger.resolve(Entry("locks", 2, "refund", np.array([1])))
    assert path.read_bytes() != before  # only `open` rewrites it
    assert Journal.read(path).arms[0].uploads.tolist() == [1, 0, 0, 0]


def test_the_accounts_of_a_finished_run_need_no_journal_file():
    assert not (finished("local") / "ledger.sqlite").exists()


def test_a_noted_head_makes_an_open_verify_everything(tmp_path):
    """The saved totals lie beside the file; a head noted elsewhere reveals forged ones."""
    path = tmp_path / "l.db"
    with DeviceLedger.create(path) as ledger, ledger.transaction():
        for number in range(1, 6):
            ledger.enter(asks(number), "reserve")
            ledger.enter(asks(number), "commit")
    noted = ledger_head(path)
    forge(path.with_name("l.db.head"))
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
    noisier = TERMS.changed(noise_multiplier=40.0)
    assert not early.covers(Books(Header.of("one", [(noisier, None)], **PRIVACY)))


# --- What a header and an entry say ---------------------------------------------------------------

CENTRAL = {"clients": 100, "rounds": 9}
ARMS = {
    "sampled": Arm.of("a", **CENTRAL, cohort=20, noise_multiplier=1.0),
    "norms": Arm.of("a", **CENTRAL, rule="norm", cohort=20, uploads=9, noise_multiplier=1.0,
                 norm_multiplier=4.0),
    "bits": Arm.of("a", **CENTRAL, cohort=20, uploads=9, noise_multiplier=1.0, clip_quantile=0.5,
                clip_multiplier=3.0),
    "rungs": calibrate(Arm.of("a", **CENTRAL, rule="coin", cohort=20, uploads=5), 8.0, 1e-5),
    "turns": Arm.of("a", **CENTRAL, separation=5, noise_multiplier=2.0),
    "messages": Arm.of("a", **CENTRAL, rule="full", trust="local", noise_multiplier=9.0),
    "a budget": TERMS,
    "nothing": Arm.of("a", **CENTRAL, cohort=20, trust="none"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ARMS)
def test_a_header_gives_every_epsilon_without_its_arms(kind):
    """As JSON and back; nothing of a method's own is in it."""
    arm = ARMS[kind]
    of = {"delta": 1e-5, "relation": "zero-out", "accountant": "rdp"}
    written = json.loads(json.dumps(Header.of("one", [(arm, None)], **of).as_dict()))
    books = Books.begun(written)
    (counts,) = books.arms
    assert counts.arm == LedgerArm.of(arm)
    assert not {"rule", "estimator", "cohort", "clip_norm"} & written["arms"][0].keys()
    assert promised([counts.arm.terms], 1e-5, "rdp") == guarantee([arm], 1e-5, "rdp")


def test_an_unknown_kind_in_a_header_is_refused_by_name():
    written = Header.of("one", [(TERMS, None)], **PRIVACY).as_dict()
    written["arms"][0]["terms"]["SERVER"][0]["mechanism"] = "laplace"
    with pytest.raises(ValueError, match="laplace"):
        Books.begun(written)


def in_arm(**changed):
    """A change of the one arm of a header; None takes the field away."""
    return lambda table: (
        table["arms"][0].update(changed)
        or [table["arms"][0].pop(name) for name, value in changed.items() if value is None]
    )


LESS = {
    "PUBLIC sees nothing": lambda t: t["arms"][0]["terms"].update(PUBLIC=[]),
    "nobody says what PUBLIC sees": lambda t: t["arms"][0]["terms"].pop("PUBLIC"),
    "terms that are no table": in_arm(terms=[]),
    "norms that nobody counts": in_arm(asks_norms=False),
    "norms left out": in_arm(asks_norms=None),
    "credit left out": in_arm(credited=None),
    "credit by a word": in_arm(credited="no"),
    "no rounds": in_arm(rounds=0),
    "as many clients as true": in_arm(clients=True),
    "two arms under one name": lambda t: t["arms"].append(t["arms"][0]),
    "an unknown field": in_arm(more=1),
    "no arms": lambda t: t.pop("arms"),
}


@pytest.mark.parametrize("fault", LESS)
def test_a_header_that_says_less_than_is_released_is_refused(fault):
    written = Header.of("one", [(TERMS, None)], **PRIVACY).as_dict()
    Books.begun(copy.deepcopy(written))
    LESS[fault](written)
    with pytest.raises(ValueError, match=r"expected|otherwise|not a header|two arms"):
        Books.begun(written)


OF_2 = {
    "noise without end": {"noise_multiplier": math.inf},
    "noise below zero": {"noise_multiplier": -4.0},
    "noise that is no number": {"noise_multiplier": math.nan},
    "noise left out": {"noise_multiplier": None},
    "nobody": {"clients": 0},
    "no rounds": {"rounds": 0},
}


@pytest.mark.parametrize("fault", OF_2)
@pytest.mark.parametrize("clip_quantile", [None, 0.5])
def test_a_header_of_format_2_with_odd_numbers_is_refused(fault, clip_quantile):
    """With bits, two multipliers become one, whose sign and infinity nobody would see."""
    arm = {
        "clients": 10, "rounds": 3, "rule": "uniform", "estimator": "capped", "trust": "central",
        "cohort": 5.0, "uploads": 5.0, "noise_multiplier": 1.0, "norm_multiplier": 0.0,
        "clip_quantile": clip_quantile, "clip_multiplier": 3.0,
        "stated": {"largest_probability": 1.0, "releases_norms": False, "credited": False},
    }  # fmt: skip

    def begun(terms):
        one = {"name": "a", "terms": terms, "budget": None, "claimed_epsilon": None}
        return Books.begun({"version": 2, "experiment": "one", **PRIVACY, "arms": [one]})

    begun(arm)
    with pytest.raises(ValueError, match=r"expected|not a header"):
        begun(arm | OF_2[fault])


def test_the_budget_of_a_header_of_format_2_has_a_known_relation():
    with pytest.raises(ValueError, match="budget_relation = 'swap'"):
        Filtered(4.0, 3.0, 1e-5, "swap")


def test_a_devices_entry_says_what_the_server_was_given(tmp_path):
    with DeviceLedger.open(played(tmp_path / "l.db", 1)) as ledger:
        first, _ = ledger.entries()
        said = terms_from_json(json.loads(first.terms)["terms"])
    assert [event for event, _ in said["SERVER"]] == list(asks(1).releases())


def test_a_client_that_spent_nothing_takes_no_room(tmp_path):
    many = replace(TERMS, clients=10**6)
    who, uploaded = np.array([3, 700_000]), np.array([True, False])
    header = Header.of("one", [(many, None)], **PRIVACY)
    with ServerLedger.create(tmp_path / "l.db", header) as ledger:
        ledger.reserve("locks", 1, who)
        ledger.settle("locks", 1, who, uploaded, uploaded)
    assert (tmp_path / "l.db").stat().st_size < 50_000
    assert (tmp_path / "l.db.head").stat().st_size < 2_000
    with ServerLedger.open(tmp_path / "l.db") as ledger:
        (counts,) = ledger.books.arms
        assert np.flatnonzero(counts.norms).tolist() == [3, 700_000]
        assert counts.uploads.sum() == counts.uploads[3] == counts.shares[3] == 1


# --- Upgrades -------------------------------------------------------------------------------------


def of_format_2(ledger, terms, kind):
    """Enter what a program of format 2 entered: the terms, and not what they release."""
    parts = {name: value for name, value in terms.as_dict().items() if name != "round"}
    text = json.dumps(parts, sort_keys=True)
    who = np.zeros(1, np.int32)
    ledger.append(Entry(terms.run, terms.round, kind, who, 1, text, 1_700_000_000))


@pytest.fixture
def old_device(tmp_path):
    """A device's ledger of format 2: rounds 1 (sent) and 2 (open), and its heads, all noted."""
    path, heads = tmp_path / "l.db", []
    with DeviceLedger.create(path) as ledger, ledger.transaction():
        for number, kind in ((1, "reserve"), (1, "commit"), (2, "reserve")):
            of_format_2(ledger, asks(number), kind)
            heads.append(ledger.head)
    return path, heads


@pytest.mark.parametrize("then", ["sent", "refunded", "neither"])
def test_a_round_that_began_in_format_2_ends_in_it(old_device, then):
    """The terms are the same, whatever else their entries say; and nothing is charged twice."""
    path, heads = old_device
    with Guard.open(POLICY, path) as guard:
        before = mu_squared(guard.ledger.charges(), "zero-out")
        assert before == 2 / 8**2 + 2 / 4**2
        if then == "sent":
            changed = RoundTerms("one", 2, True, 1.0, 5.0, 8.0)
            with pytest.raises(Refused) as caught:
                guard.release_update(changed, np.ones(3), 1.0)
            assert caught.value.code is Refusal.TERMS
            guard.release_update(asks(2), np.ones(3), 1.0)
        guard.release_norm(asks(3), 0.5) if then == "neither" else guard.end_round("one", 2)
        after = mu_squared(guard.ledger.charges(), "zero-out")
    assert after - before == {"sent": 0, "refunded": -1 / 4**2, "neither": 1 / 8**2}[then]
    (row,) = ledger_view(path, POLICY)["runs"]
    assert (row["updates"], row["open"]) == {
        "sent": (2, 0), "refunded": (1, 0), "neither": (1, 1)
    }[then]  # fmt: skip
    for head in heads:
        DeviceLedger.open(path, head).close()


def test_an_old_copy_of_a_ledger_of_format_2_is_refused(old_device, tmp_path):
    path, _ = old_device
    shutil.copyfile(path, tmp_path / "copy.db")
    with Guard.open(POLICY, path) as guard:
        guard.release_norm(asks(3), 0.5)
    shutil.copyfile(tmp_path / "copy.db", path)
    with pytest.raises(ValueError, match="not the ledger whose head was saved, or an old copy"):
        DeviceLedger.open(path)


FAULTS = {
    **{f"loses entry {lost}": lambda i, e, lost=lost: i != lost for lost in range(5)},
    "forgets what is open": lambda i, e: e[1:3] != (2, "reserve"),
    **{f"drops client {who}": lambda i, e, who=who: e[3][0] != who for who in range(3)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_upgrade_of_version_1_that_charges_less_is_seen(tmp_path, monkeypatch, fault):
    """Planted in the one reader of such files: it is refused, or `charges` differ."""
    path, real = tmp_path / "l.db", old.journal

    def planted(*given):
        header, entries = real(*given)
        return header, [e for i, e in enumerate(entries) if FAULTS[fault](i, e)]

    def charges():
        (tally,) = Journal.read(path).tallies.values()
        return [tally.rounds, *(column.tolist() for column in tally.columns.values())]

    shutil.copyfile(OLD / "ledger.sqlite", path)
    sound = charges()
    monkeypatch.setattr(old, "journal", planted)
    try:
        ServerLedger.open_for(path, "e" * 64).close()
    except ValueError:
        return
    monkeypatch.undo()
    assert charges() != sound
