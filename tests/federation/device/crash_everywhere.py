"""A program for test_guard.py: a device that is killed before every line, and many at once.

    crash_everywhere.py kill SCENARIO VARIANT FOLDER
    crash_everywhere.py create FOLDER
    crash_everywhere.py race FOLDER

A child process answers one message and is killed (SIGKILL) before the n-th line that it executes in
the guard, the ledger, its witness, the journal or the noise, for n = 1, 2, ... until it lives. It
reports each draw of noise and each answer through a pipe. Then the parent looks at the ledger, puts
the one from before in its place, and asks again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from locksfl.federation.device import DeviceLedger, Guard, Policy, Refused, RoundTerms, Witness

POLICY = Policy(
    epsilon=2.0,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=4.0,
    min_norm_multiplier=8.0,
    max_rounds=10**6,
)
WATCHED = (
    "device/guard.py",
    "device/ledger.py",
    "device/witness.py",
    "round/noise.py",
    "privacy/journal.py",
    "privacy/journal_file.py",
)


def asks(number, run="one"):
    return RoundTerms(run, number, True, 1.0, 4.0, 8.0)


def only(number):
    return RoundTerms("one", number, False, 1.0, 4.0)


class Watched:
    """Noise that says when it is drawn."""

    def __init__(self, pipe):
        self.pipe = pipe

    def steps(self, std, grid, size):
        os.write(self.pipe, b"D")
        return np.zeros(size, np.int64) + round(std / grid)


class PaysAfterwards(Guard):
    """The planted fault: the noise is drawn, and the answer sent, before the debit."""

    def release_norm(self, terms, norm):
        self.check(terms, "norm")
        self._noise.steps(1.0, 1.0, 1)
        os.write(self._noise.pipe, b"S")
        return super().release_norm(terms, norm)

    def release_update(self, terms, contribution, bound):
        self.check(terms, "update")
        self._noise.steps(1.0, 1.0, 1)
        os.write(self._noise.pipe, b"S")
        return super().release_update(terms, contribution, bound)


class NotesAfterwards(Guard):
    """The planted fault: the head is noted when the ledger is closed, after the answer."""

    def __init__(self, policy, ledger, noise):
        super().__init__(policy, ledger, noise)
        self.witness, ledger.witness = ledger.witness, None

    def close(self):
        self.witness.write(self.ledger.head)
        super().close()


# what was there before, the message, and the entry that has to be there before noise is drawn
SCENARIOS = {
    "norm": ([], lambda g: g.release_norm(asks(1), 0.5), (1, "reserve")),
    "update": (
        [lambda g: g.release_norm(asks(1), 0.5)],
        lambda g: g.release_update(asks(1), np.ones(3), 1.0),
        (1, "commit"),
    ),
    "only": ([], lambda g: g.release_update(only(1), np.ones(3), 1.0), (1, "commit")),
    "next": (  # a later round refunds the one before
        [lambda g: g.release_norm(asks(1), 0.5)],
        lambda g: g.release_norm(asks(2), 0.5),
        (2, "reserve"),
    ),
    "end": ([lambda g: g.release_norm(asks(1), 0.5)], lambda g: g.end_round("one", 1), None),
}


def kill_before_line(number):
    """Count lines as they come, and end the process before this one."""
    left = [number]

    def line(_frame, event, _value):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame, _event, _value):
        return line if frame.f_code.co_filename.endswith(WATCHED) else None

    sys.settrace(call)


def child(work):
    """What a forked child reported through its pipe, and whether it was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work(write)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    return told, os.WIFSIGNALED(status)


def witness_of(path):
    return Witness(path, path.with_suffix(".key"))


def copied(base, path, note):
    """The ledger of `base` at another place, and this note of its head."""
    shutil.copyfile(base.ledger, path)
    there = witness_of(path)
    shutil.copyfile(note, there.note)
    return there


def found(witness):
    """The entries that the next start finds; None if it finds something wrong."""
    try:
        with witness.open(whole=True) as ledger:
            return ledger.query("SELECT round, kind FROM entries")
    except ValueError:
        return None


def kill(scenario, variant, folder):
    before, message, needed = SCENARIOS[scenario]
    types = {"sound": Guard, "pays-afterwards": PaysAfterwards, "notes-afterwards": NotesAfterwards}
    guard_type = types[variant]
    base = witness_of(folder / "base.db")
    base.create()
    with Guard(POLICY, base.open(), Watched(os.open(os.devnull, os.O_WRONLY))) as guard:
        for step in before:
            step(guard)
    violations, kills = [], 0
    while True:
        path = folder / f"{kills}.db"
        copied(base, path, base.note)

        def answer(pipe, path=path, number=kills + 1):
            kill_before_line(number)
            with guard_type(POLICY, witness_of(path).open(), Watched(pipe)) as guard:
                message(guard)
                os.write(pipe, b"S")

        def again(pipe, path=path):
            with guard_type(POLICY, witness_of(path).open(), Watched(pipe)) as guard:
                try:
                    message(guard)
                    os.write(pipe, b"A")
                except Refused:
                    os.write(pipe, b"R")

        told, killed = child(answer)
        after = found(witness_of(path))
        if after is None:
            return {"kills": kills, "violations": [[kills, "the device is locked out"]]}
        if b"D" in told:
            old = copied(base, folder / f"{kills}.old.db", witness_of(path).note)
            if found(old) is not None:
                violations.append([kills, "noise was drawn and an old copy is accepted"])
        if len(after) != len(set(after)):
            violations.append([kills, "an entry is there twice"])
        if needed is not None:
            if told and needed not in after:
                violations.append([kills, "noise was drawn and is not paid"])
            replay, _ = child(again)
            if (told + replay).count(b"D") > 1:
                violations.append([kills, "noise was drawn twice"])
            if needed not in after and b"A" not in replay:
                violations.append([kills, "nothing was paid and yet it is refused"])
        elif (1, "commit") in after:
            violations.append([kills, "a refund became a release"])
        if violations or not killed:
            return {"kills": kills, "violations": violations}
        kills += 1


def create(folder):
    """Killed while the first ledger is made: it can be made, if need be after a half-made one is
    removed, and nothing but the first attempt's empty ledger is ever there."""
    violations, kills = [], 0
    while True:
        (folder / str(kills)).mkdir()
        witness = witness_of(folder / str(kills) / "l.db")

        def made(_pipe, witness=witness, number=kills + 1):
            kill_before_line(number)
            witness.create()

        _, killed = child(made)
        if found(witness) is None:
            witness.ledger.unlink(missing_ok=True)
            witness.create()
        if found(witness) != []:
            violations.append(kills)
        if violations or not killed:
            return {"kills": kills, "violations": violations}
        kills += 1


def norm(terms):
    return lambda guard: guard.release_norm(terms, 0.5)


def update_or_refund(number):
    if number % 2:
        return lambda guard: guard.end_round("one", 1)
    return lambda guard: guard.release_update(asks(1), np.ones(3), 1.0)


def race(folder):
    """Eight processes wait for the same moment: how many are answered?"""
    told = {}
    codes = set()
    for name, messages in (
        ("different rounds", [norm(asks(1, run=str(i))) for i in range(8)]),
        ("the same round", [norm(asks(1))] * 8),
        ("update or refund", [update_or_refund(i) for i in range(8)]),
    ):
        path = folder / f"{name}.db"
        witness_of(path).create()
        if name == "update or refund":
            with Guard(POLICY, witness_of(path).open()) as guard:
                guard.release_norm(asks(1), 0.5)
        start_read, start_write = os.pipe()
        read, write = os.pipe()
        children = []
        for message in messages:
            pid = os.fork()
            if pid == 0:
                os.close(start_write)
                noise = Watched(os.open(os.devnull, os.O_WRONLY))
                with Guard(POLICY, witness_of(path).open(), noise) as guard:
                    os.read(start_read, 1)  # until the parent closes it
                    try:
                        message(guard)
                        os.write(write, b"\0")
                    except Refused as refused:
                        os.write(write, bytes([int(refused.code)]))
                os._exit(0)
            children.append(pid)
        os.close(start_read)
        os.close(start_write)
        os.close(write)
        for pid in children:
            os.waitpid(pid, 0)
        with os.fdopen(read, "rb") as pipe:
            answers = pipe.read()
        assert len(answers) == 8
        with DeviceLedger.open(path) as ledger:
            assert witness_of(path).note.read_text().strip() == ledger.head
        told[name] = (
            answers.count(0) if name != "update or refund" else len(found(witness_of(path)))
        )
        codes |= set(answers) - {0}
    return {**told, "codes": sorted(codes)}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "kill":
        scenario, variant, folder = words
        print(json.dumps(kill(scenario, variant, Path(folder))))
    elif what == "create":
        print(json.dumps(create(Path(words[0]))))
    else:
        print(json.dumps(race(Path(words[0]))))
