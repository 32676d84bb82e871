"""A device whose owner has withdrawn consent: nothing is released, wherever it was interrupted."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.federation.device import Guard, Policy, Refusal, RoundTerms, Witness, consent
from locksfl.federation.device.answering import Device
from locksfl.federation.device.ledger import DeviceLedger
from locksfl.federation.wire import Question

POLICY = Policy(1.0, 4.0, 100, 8.0, 1e-5, min_norm_multiplier=8.0)


class Counted:
    """Noise that counts its draws; `then` is called before one."""

    draws = 0

    def then(self):
        """Nothing, unless a test says so."""

    def steps(self, _std, _grid, size):
        self.then()
        self.draws += 1
        return np.zeros(size, np.int64)


@pytest.fixture
def witness(tmp_path):
    made = Witness(tmp_path / "ledger.sqlite", tmp_path / "a.key")
    made.create()
    return made


def asked(device, number, stage, kept):
    terms = RoundTerms("one", number, True, 1.0, 4.0, 8.0).as_dict()
    given = (np.zeros(3, np.float32),) if stage == "norm" else (None, "capped", 1.0, 1.0)
    return device("one", Question(stage, terms, *given), kept)


def state(witness):
    """The ledger's head, and the note's."""
    with witness.open() as ledger:
        return ledger.head, witness.note.read_text()


def test_after_the_note_nothing_is_released_and_the_ledger_stays(witness):
    """Between the stages, for other rounds, for an end, and after a restart."""
    noise, kept = Counted(), {}
    device = Device(lambda w, _: np.ones(3), POLICY, witness, noise)
    assert asked(device, 1, "norm", kept).released is not None
    before = state(witness)
    consent.withdraw(witness.key)
    again = Device(device.update, POLICY, Witness(witness.ledger, witness.key), noise)
    for one in (device, again):
        for number, stage in ((1, "update"), (2, "norm"), (1, "end"), (1, "norm")):
            answer = asked(one, number, stage, dict(kept))
            assert (answer.released, answer.refusal) == (None, Refusal.LEDGER)
    assert (noise.draws, state(witness)) == (1, before)

    consent.note_of(witness.key).unlink()  # by its owner: the same ledger goes on
    assert asked(device, 1, "update", kept).released is not None
    with witness.open() as ledger:
        assert ledger.rounds() == 1


def test_nobody_trains_for_nothing_after_it(witness):
    trained = []
    device = Device(lambda w, _: trained.append(w), POLICY, witness)
    consent.withdraw(witness.key)
    assert asked(device, 1, "norm", {}).refusal == Refusal.LEDGER
    assert trained == []


@pytest.mark.parametrize("moment", ["entering", "noting", "drawing"])
def test_at_whatever_moment_it_is_withdrawn(witness, monkeypatch, moment):
    """Once the entry is noted the release is paid for, and may be on its way; not before."""
    noise, enter, write = Counted(), DeviceLedger.enter, Witness.write

    def leaving_when(this):
        if moment == this:
            consent.withdraw(witness.key)

    def entering(ledger, *entry):
        leaving_when("entering")
        enter(ledger, *entry)

    def noting(self, head):
        if not head.startswith("0 "):
            leaving_when("noting")
        write(self, head)

    monkeypatch.setattr(DeviceLedger, "enter", entering)
    monkeypatch.setattr(Witness, "write", noting)
    noise.then = lambda: leaving_when("drawing")
    device = Device(lambda w, _: np.ones(3), POLICY, witness, noise)
    answer = asked(device, 1, "norm", {})
    assert (answer.released is None) == (moment != "drawing")
    assert noise.draws == (moment == "drawing")
    with witness.open() as ledger:
        assert ledger.rounds() == 1  # paid, whether or not it was sent
    assert asked(device, 2, "norm", {}).refusal == Refusal.LEDGER


def test_a_note_is_whole_or_not_there_and_once_is_enough(tmp_path, monkeypatch):
    """Killed before the note has its name, and before its folder is synced."""
    key, cut = tmp_path / "a.key", OSError("cut")

    def fails(*_):
        raise cut

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="cut"):
        consent.withdraw(key)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    synced = []
    monkeypatch.setattr(consent, "sync_folder", fails)
    with pytest.raises(OSError, match="cut"):
        consent.withdraw(key)
    assert consent.withdrawn(key)
    first = consent.note_of(key).read_text()
    monkeypatch.setattr(consent, "sync_folder", synced.append)
    consent.withdraw(key)
    assert synced == [tmp_path]
    assert consent.note_of(key).read_text() == first


def test_its_owner_can_still_read_the_ledger(witness):
    with Guard(POLICY, witness.open()) as guard:
        guard.release_norm(RoundTerms("one", 1, True, 1.0, 4.0, 8.0), 0.5)
    consent.withdraw(witness.key)
    with Witness(witness.ledger, witness.key).open(whole=True) as ledger:
        assert ledger.rounds() == 1
