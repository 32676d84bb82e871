"""A device's ledger cannot be refilled: no new one by accident, and no old copy of the same one."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from locksfl.federation.device import Guard, Policy, Refusal, Refused, RoundTerms, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.wire import Question
from locksfl.privacy.journal import COLUMNS, checksum

POLICY = Policy(
    epsilon=4.0,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=4.0,
    min_norm_multiplier=8.0,
    max_rounds=10**6,
)
OLD = Path(__file__).parents[2] / "old"


class Counted:
    """Noise that counts its draws."""

    draws = 0

    def steps(self, _std, _grid, size):
        self.draws += 1
        return np.zeros(size, np.int64)


class Client:
    """A running client: a process in which the device is made once. `again` is its next start."""

    def __init__(self, folder, new=False):
        self.folder, self.witness, self.noise = folder, witness_in(folder), Counted()
        if new:
            self.witness.create()
        self.device = Device(lambda w, t: np.ones(3), POLICY, self.witness, self.noise)

    def asked(self, number):
        """Whether a round was answered; the only other answer is LEDGER, and nothing is drawn."""
        terms = RoundTerms("one", number, False, 1.0, 4.0).as_dict()
        question = Question("update", terms, np.zeros(3, np.float32), "capped", 1.0, 1.0)
        before = self.noise.draws
        answer = self.device("one", question, {})
        if answer.refusal is None:
            assert self.noise.draws == before + 1
            return True
        assert answer.refusal == Refusal.LEDGER
        assert self.noise.draws == before
        return False

    def again(self):
        return Client(self.folder)


def witness_in(folder):
    (folder / "keys").mkdir(exist_ok=True)
    (folder / "ledger").mkdir(exist_ok=True)
    return Witness(folder / "ledger" / "l.sqlite", folder / "keys" / "me.key")


def one_line(caplog):
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.exc_info is None
    caplog.clear()
    return record.getMessage()


def restore(backup, folder):
    """As an old backup comes back: contents and times."""
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def played(tmp_path):
    """A client that answered a round, a backup of its ledger's folder, and another round."""
    client = Client(tmp_path, new=True)
    assert client.asked(1)
    shutil.copytree(tmp_path / "ledger", tmp_path / "backup")
    shutil.copytree(tmp_path / "keys", tmp_path / "backup-keys")
    assert client.asked(2)
    return client


def test_a_missing_ledger_is_not_made_by_a_message(tmp_path, caplog):
    client = Client(tmp_path)
    assert not client.asked(1)
    assert "no such ledger; expected --new-ledger at the first start" in one_line(caplog)
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_second_new_ledger_is_refused(tmp_path):
    witness = witness_in(tmp_path)
    witness.create()
    with pytest.raises(ValueError, match=r"--new-ledger: .*l\.sqlite already exists; expected no"):
        witness.create()
    assert witness.note.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("running", [True, False], ids=["running", "next start"])
def test_an_old_copy_is_refused(tmp_path, caplog, running):
    client = played(tmp_path)
    restore(tmp_path / "backup", tmp_path / "ledger")
    client = client if running else client.again()
    assert not client.asked(3)
    assert "or an old copy of it" in one_line(caplog)
    with pytest.raises(ValueError, match="or an old copy of it"):
        client.again().witness.open(whole=True)


def test_an_old_copy_of_everything_is_refused_by_a_running_client(tmp_path, caplog):
    """Its memory needs no file. (After a restart nobody could tell: docs/accounting.md.)"""
    client = played(tmp_path)
    restore(tmp_path / "backup", tmp_path / "ledger")
    restore(tmp_path / "backup-keys", tmp_path / "keys")
    assert not client.asked(3)
    assert "not the ledger whose head was last seen, or an old copy" in one_line(caplog)


def test_forged_totals_do_not_refill_a_running_client(tmp_path):
    """Saved beside the ledger, with a checksum that fits: memory knows better."""
    client = played(tmp_path)
    saved = tmp_path / "ledger" / "l.sqlite.head"
    table = json.loads(saved.read_text())
    for name, values in table["arrays"].items():
        table["arrays"][name] = [0 for _ in values]
    arrays = {n: np.array(v, COLUMNS[n.rpartition("_")[2]]) for n, v in table["arrays"].items()}
    body = {k: v for k, v in table["ledger"].items() if k != "checksum"}
    table["ledger"]["checksum"] = checksum(body, arrays)
    saved.write_text(json.dumps(table))
    spent = [sum(ledger.charges().values()) for ledger in opened(client)]
    assert spent == [2]


def opened(client):
    with client.witness.open() as ledger:
        yield ledger


@pytest.mark.parametrize("running", [True, False], ids=["running", "next start"])
def test_a_deleted_ledger_is_refused_and_not_made_anew(tmp_path, caplog, running):
    client = played(tmp_path)
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").mkdir()
    client = client if running else client.again()
    assert not client.asked(3)
    assert "notes 4 entries of it; expected the ledger itself" in one_line(caplog)
    with pytest.raises(ValueError, match=r"--new-ledger: this node already has a ledger, of which"):
        client.witness.create()
    assert list((tmp_path / "ledger").iterdir()) == []


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_ledger_that_goes_while_a_client_trains_is_refused(tmp_path, caplog, how):
    """It was there when the question came: what is entered now would be lost with it."""
    client = played(tmp_path)

    def training(_weights, number):
        if number == 3:
            for file in (tmp_path / "ledger").iterdir():
                file.unlink()
            if how == "replaced":
                restore(tmp_path / "backup", tmp_path / "ledger")
        return np.ones(3)

    object.__setattr__(client.device, "update", training)
    assert not client.asked(3)
    assert caplog.messages == ["update refused: LEDGER"]
    caplog.clear()
    for one in (client, client.again()):
        assert not one.asked(4)
        told = one_line(caplog)
        assert ("no such ledger, but" if how == "deleted" else "or an old copy of it") in told


def test_another_devices_ledger_is_refused(tmp_path, caplog):
    client = played(tmp_path)
    (tmp_path / "other").mkdir()
    other = played(tmp_path / "other")
    assert other.asked(3)
    restore(tmp_path / "other" / "ledger", tmp_path / "ledger")
    assert not client.again().asked(3)
    assert "not the ledger whose head is noted in" in one_line(caplog)


def test_without_its_note_a_ledger_has_to_be_accepted_by_a_person(tmp_path, caplog):
    client = played(tmp_path)
    client.witness.note.unlink()
    for one in (client, client.again()):
        assert not one.asked(3)
        assert one_line(caplog).endswith(f"--policy FILE --key {client.witness.key} --accept")
    client.witness.accept()
    after = client.again()
    assert after.asked(3)
    assert [ledger.rounds() for ledger in opened(after)] == [3]  # what was spent stays spent
    note = client.witness.note.read_text()
    client.witness.accept()  # nothing is changed by a second time
    assert client.witness.note.read_text() == note
    restore(tmp_path / "backup", tmp_path / "ledger")
    with pytest.raises(ValueError, match=r"--accept: .* another ledger, or of a later copy"):
        client.witness.accept()


@pytest.mark.parametrize("text", ["", "7", "x" * 80, "\0"])
def test_a_damaged_note_is_refused(tmp_path, caplog, text):
    client = played(tmp_path)
    client.witness.note.write_text(text)
    assert not client.asked(3)
    assert "damaged; expected the number and hash" in one_line(caplog)


def test_a_ledger_ahead_of_its_note_is_accepted(tmp_path, monkeypatch):
    """Between the entry and the note the disk is full: nothing is released, and nobody locked out.
    What was entered stays charged."""
    client = played(tmp_path)
    before = client.witness.note.read_text()

    def full(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("locksfl.federation.device.witness.write_atomically", full)
        assert not client.asked(3)
    assert client.witness.note.read_text() == before
    again = client.again()
    assert again.asked(4)
    assert [ledger.rounds() for ledger in opened(again)] == [4]
    assert client.asked(5)  # the memory of a process is extended too


def test_the_note_is_written_before_noise_is_drawn(tmp_path):
    client = Client(tmp_path, new=True)
    noted = []

    class Watching(Counted):
        def steps(self, std, grid, size):
            noted.append(client.witness.note.read_text().split()[0])
            return super().steps(std, grid, size)

    client.noise = Watching()
    object.__setattr__(client.device, "noise", client.noise)
    assert client.asked(1)
    assert client.asked(2)
    assert noted == ["2", "4"]  # reserved and committed


def test_an_interrupted_creation_can_be_repeated(tmp_path, monkeypatch):
    witness = witness_in(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("locksfl.federation.device.witness.DeviceLedger.create", killed)
        with pytest.raises(KeyboardInterrupt):
            witness.create()
    assert witness.note.exists()
    witness.create()
    assert Client(tmp_path).asked(1)


def test_a_ledger_of_version_1_is_accepted_once_and_keeps_what_was_spent(tmp_path):
    witness = witness_in(tmp_path)
    shutil.copyfile(OLD / "device.sqlite", witness.ledger)
    with pytest.raises(ValueError, match="missing; it notes the last entry"):
        witness.open()
    assert witness.ledger.read_bytes() == (OLD / "device.sqlite").read_bytes()
    witness.accept()
    with Guard(POLICY, witness.open(), Counted()) as guard:
        assert guard.ledger.rounds() == 1
        with pytest.raises(Refused) as caught:
            guard.release_norm(RoundTerms("run-1", 1, True, 1.0, 4.0, 8.0), 0.5)
        assert caught.value.code is Refusal.REPEATED
        guard.release_norm(RoundTerms("run-1", 2, True, 1.0, 4.0, 8.0), 0.5)
    shutil.copyfile(OLD / "device.sqlite", witness.ledger)
    (tmp_path / "ledger" / "l.sqlite.head").unlink()
    with pytest.raises(ValueError, match="or an old copy of it"):
        witness_in(tmp_path).open()


def test_a_note_is_never_overtaken_by_an_older_one(tmp_path, monkeypatch):
    """While one process notes a head, no other can enter and note a later one; and what is noted is
    the ledger's head, whoever entered last."""
    witness_in(tmp_path).create()
    first, second = witness_in(tmp_path).open(), witness_in(tmp_path).open()
    second.query("PRAGMA busy_timeout = 0")
    write = Witness.write

    def enter(ledger, run):
        with ledger.transaction():
            ledger.enter(RoundTerms(run, 1, False, 1.0, 4.0), "reserve")

    def overtaken(self, head):
        if self is first.witness:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                enter(second, "later")
        write(self, head)

    monkeypatch.setattr(Witness, "write", overtaken)
    for number, ledger in enumerate((first, second, first), 1):
        enter(ledger, str(number))
        assert witness_in(tmp_path).note.read_text().strip() == ledger.head
    first.close()
    second.close()


def test_of_two_copies_in_use_at_once_only_the_first_releases(tmp_path):
    """Both were the latest when they were opened, and training takes minutes."""
    client = Client(tmp_path, new=True)
    assert client.asked(1)
    shutil.copytree(tmp_path / "ledger", tmp_path / "copy")
    copy = Witness(tmp_path / "copy" / "l.sqlite", client.witness.key)
    terms, noise = RoundTerms("one", 2, False, 1.0, 4.0), Counted()
    first, second = (Guard(POLICY, one.open(), noise) for one in (client.witness, copy))
    with first, second:
        first.release_update(terms, np.ones(3), 1.0)
        with pytest.raises(Refused):
            second.release_update(terms, np.ones(3), 1.0)
    assert noise.draws == 1
    assert client.again().asked(3)
