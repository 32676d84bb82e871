"""A ledger that was lost and restored from a backup: its history is back, its budget is spent until
the device's owner opens a new one; and a repeated update says so."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from locksfl.federation.device import Guard, Policy, Refusal, Refused, RoundTerms, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.files import DeviceFiles, Spent
from locksfl.federation.device.view import view_of
from locksfl.federation.server.rounds import NOTHING_RELEASED
from locksfl.federation.wire import Question

POLICY = Policy(1.0, 4.0, 100, 8.0, 1e-5, min_norm_multiplier=8.0)


def plain(number):
    return RoundTerms("one", number, False, 1.0, 4.0)


def release(witness, number):
    with Guard(POLICY, witness.open()) as guard:
        guard.release_update(plain(number), np.zeros(3), 1.0)


@pytest.fixture
def witness(tmp_path):
    """A ledger of three rounds, a backup of the first, and then the ledger is lost."""
    made = Witness(tmp_path / "ledger.sqlite", tmp_path / "a.key")
    made.create()
    release(made, 1)
    shutil.copy2(made.ledger, tmp_path / "backup")
    release(made, 2)
    release(made, 3)
    shutil.copy2(made.ledger, tmp_path / "latest")
    for beside in tmp_path.glob("ledger.sqlite*"):
        if not beside.name.endswith(".head"):  # this one is left over
            beside.unlink()
    return Witness(made.ledger, made.key)


def test_a_restored_ledger_releases_nothing_until_its_owner_says_so(witness, tmp_path):
    assert witness.restore(tmp_path / "backup")
    with Guard(POLICY, witness.open(whole=True)) as guard:
        for number in (2, 9):
            with pytest.raises(Refused) as caught:
                guard.release_update(plain(number), np.zeros(3), 1.0)
            assert caught.value.code is Refusal.BUDGET
        guard.end_round("one", 50)  # harmless, and the mark stays
        view = view_of(guard.ledger, POLICY)
    assert (view["rounds"], view["exhausted"], view["restored"]) == (1, True, True)
    assert "counts as spent until the device's owner opens a new one" in view["message"]
    again = Witness(witness.ledger, witness.key)  # another process
    again.open_budget()
    release(again, 4)
    with pytest.raises(ValueError, match="expected it after --restore only"):
        again.open_budget()
    with again.open(whole=True) as ledger:
        assert (ledger.rounds(), ledger.restored) == (2, False)


def test_an_empty_backup_is_no_way_to_a_new_ledger(tmp_path):
    """Restored and lost again: its note has no entries, and yet the node had a ledger."""
    made = Witness(tmp_path / "ledger.sqlite", tmp_path / "a.key")
    made.create()
    shutil.copy2(made.ledger, tmp_path / "empty")
    release(made, 1)
    made.ledger.unlink()
    witness = Witness(made.ledger, made.key)
    assert witness.restore(tmp_path / "empty")
    made.ledger.unlink()
    with pytest.raises(ValueError, match="this node already has a ledger"):
        Witness(made.ledger, made.key).create()


def test_an_open_round_of_a_restored_ledger_gets_no_update(tmp_path):
    """The mark outlives entries: a refund is entered, noted, and nothing is released after it."""
    asks = RoundTerms("two", 1, True, 1.0, 4.0, 8.0)
    other = Witness(tmp_path / "other.sqlite", tmp_path / "b.key")
    other.create()
    with Guard(POLICY, other.open()) as guard:
        guard.release_norm(asks, 0.5)
    shutil.copy2(other.ledger, tmp_path / "open round")
    with Guard(POLICY, other.open()) as guard:
        guard.release_update(asks, np.zeros(3), 1.0)
    other.ledger.unlink()
    other = Witness(other.ledger, other.key)
    assert other.restore(tmp_path / "open round")
    for _ in range(2):
        with Guard(POLICY, other.open()) as guard, pytest.raises(Refused):
            guard.release_update(asks, np.zeros(3), 1.0)  # it was sent already: a second draw
        with Guard(POLICY, other.open()) as guard:
            guard.end_round("two", 1)


def test_the_latest_copy_is_no_loss(witness, tmp_path):
    assert not witness.restore(tmp_path / "latest")
    release(witness, 4)


def test_without_a_note_nothing_is_known(witness, tmp_path):
    witness.note.unlink()
    assert witness.restore(tmp_path / "latest")
    with pytest.raises(Refused):
        release(witness, 4)


def test_restoring_twice_keeps_the_mark(witness, tmp_path):
    """Interrupted after the note, or lost again: a copy that the note calls restored stays so."""
    for _ in range(2):
        assert witness.restore(tmp_path / "backup")
        witness.ledger.unlink()
        witness.ledger.with_name("ledger.sqlite.head").unlink(missing_ok=True)


@pytest.mark.parametrize("what", ["there", "altered", "missing"])
def test_what_is_not_restored(witness, tmp_path, what):
    note, backup = witness.note.read_text(), tmp_path / "backup"
    if what == "there":
        shutil.copy2(backup, witness.ledger)
    elif what == "altered":
        backup.write_bytes(
            backup.read_bytes().replace(b'"noise_multiplier": 4', b'"noise_multiplier": 9')
        )
    else:
        backup.unlink()
    with pytest.raises(ValueError, match=r"already exists|damaged|no such"):
        witness.restore(backup)
    assert witness.note.read_text() == note
    assert witness.ledger.exists() == (what == "there")


def test_a_client_with_a_restored_ledger_is_done(witness, tmp_path):
    (tmp_path / "policy.toml").write_text(
        "epsilon = 8.0\ndelta = 1e-5\nmax_clip_norm = 1.0\nmin_noise_multiplier = 4.0\n"
        "max_rounds = 100\n"
    )
    witness.restore(tmp_path / "backup")
    files = DeviceFiles(
        tmp_path / "policy.toml", witness.ledger, witness.key, update="nowhere:update"
    )
    with pytest.raises(Spent, match="restored from an older copy"):
        files.begin(new_ledger=False)


def test_a_repeated_update_says_repeated_and_a_lost_one_lost(tmp_path):
    """Rule norm: the memory of stage 1 is gone in both cases. Only LOST means that nothing was
    sent, and only then is the server's charge taken back."""
    witness = Witness(tmp_path / "l.sqlite", tmp_path / "k.key")
    witness.create()
    device = Device(lambda w, _: w, POLICY, witness)
    terms = RoundTerms("one", 1, True, 1.0, 4.0, 8.0)
    first = Question("norm", terms.as_dict(), np.ones(3, np.float32))
    second = Question("update", terms.as_dict(), None, "capped", 1.0, 1.0)
    kept: dict[str, np.ndarray] = {}
    assert device("one", first, kept).released is not None
    assert device("one", second, {}).refusal == Refusal.LOST
    assert device("one", second, kept).released is not None
    for memory in (kept, {}):
        assert device("one", second, memory).refusal == Refusal.REPEATED
    never = replace(second, terms=RoundTerms("one", 2, True, 1.0, 4.0, 8.0).as_dict())
    assert device("one", never, {}).refusal == Refusal.ORDER
    assert Refusal.LOST in NOTHING_RELEASED
    assert Refusal.REPEATED not in NOTHING_RELEASED
