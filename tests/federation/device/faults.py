"""A federation in one process whose messages meet faults: the harness of test_guard_faults.py.

A server plays rounds of rule norm with devices that answer through a guard. Under the messages,
faults are drawn: a device is killed before a random line (its memory is lost, its ledger stays), a
message is delayed by some messages, replayed, given out of order, or garbled. `Watch` sees every
draw of noise and every answer that left a device, and holds the books on its own, from SQL:

* no double draw: one draw for each (device, run, round, stage);
* no unpaid release: before each draw the ledger on disk charges for all draws, this one too;
* no client over budget, by what really left: the std of the noise against the asked bound.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.answering import answer
from locksfl.federation.wire import Question

POLICY = Policy(
    epsilon=4.0,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=4.0,
    min_norm_multiplier=8.0,
    max_rounds=10**6,
)
SIZE = 3
KINDS = ("kill", "delay", "garbage", "replay", "reorder")
WATCHED = (
    "device/guard.py",
    "device/ledger.py",
    "device/answering.py",
    "privacy/journal.py",
    "privacy/journal_file.py",
)
ODD = [math.nan, math.inf, -1.0, 0.0, 1e300, "x", None, 3, 0.5, 4.0, 5.0, 400.0, True, "replace"]


class Killed(BaseException):
    """The process is gone: nothing after this line happens."""


@dataclass
class Message:
    """What the server sends to a device."""

    device: int
    stage: str
    run: str
    table: dict[str, Any]
    bound: Any = None
    probability: Any = None


@dataclass
class Watch:
    """Books that are kept outside of the guard."""

    draws: Counter[Any] = field(default_factory=Counter)
    spent: Counter[int] = field(default_factory=Counter)  # mu^2 of all that was drawn, by device
    left: int = 0
    refusals: Counter[Refusal] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def drawn(self, device: int, message: Message, path: Path, std: float) -> None:
        """Called when noise is drawn, before it is returned."""
        key = (device, message.run, message.table["round"], message.stage)
        self.draws[key] += 1
        if self.draws[key] > 1:
            self.violations.append(f"double draw {key}")
        bound = message.table["clip_norm"] if message.stage == "norm" else message.bound
        self.spent[device] += (bound / std) ** 2
        if self.spent[device] > charged(path) * (1 + 1e-9):
            self.violations.append(f"unpaid release {key}")
        if self.spent[device] > POLICY.budget.mu_squared * (1 + 1e-9):
            self.violations.append(f"over budget {key}")


def charged(path: Path) -> float:
    """What the ledger on disk charges, read by another connection and counted apart."""
    total = 0.0
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for kind, text in db.execute("SELECT kind, terms FROM entries"):
        terms = json.loads(text)
        norm = 1 / terms["norm_multiplier"] ** 2 if terms["asks_norms"] else 0.0
        update = 1 / terms["noise_multiplier"] ** 2
        total += {"reserve": norm + update, "commit": 0.0, "refund": -update}[kind]
    db.close()
    return total


class Device:
    """A device: a ledger on disk, and a memory that a kill empties."""

    def __init__(
        self, number: int, path: Path, watch: Watch, guard_type: type[Guard], rng: random.Random
    ):
        self.number = number
        DeviceLedger.create(path).close()
        self.path, self.watch, self.guard_type, self.rng = path, watch, guard_type, rng
        self.kept: dict[Any, dict[str, np.ndarray]] = {}
        self.message: Message | None = None

    def steps(self, std: float, grid: float, size: int) -> np.ndarray:
        """The device is its own source of noise, and reports to the watch."""
        assert self.message is not None
        self.watch.drawn(self.number, self.message, self.path, std)
        return np.full(size, round(self.rng.gauss(0, std) / grid), np.int64)

    def answer(self, message: Message) -> Any:
        """As a transport does: a value, or a code."""
        self.message = message
        try:
            terms = RoundTerms.parse(message.run, message.table)
            with self.guard_type.open(POLICY, self.path, self) as guard:
                question = Question(
                    message.stage,
                    message.table,
                    np.ones(SIZE) if message.stage == "norm" else None,
                    "capped",
                    message.probability,
                    message.bound,
                )
                memory = dict(self.kept.get((terms.run, terms.round), {}))
                released = answer(guard, terms, question, lambda w, t: w + t, memory)
                if message.stage == "norm":
                    self.kept[terms.run, terms.round] = memory
                    return float(released[0])
                return released
        except Refused as refused:
            self.watch.refusals[refused.code] += 1
            return refused.code

    def killed_in(self, message: Message) -> Any:
        """Killed before a random line, or just after the last; what is on disk is what is left."""
        left = [self.rng.randrange(1, 260)]

        def line(_frame: Any, event: str, _value: Any) -> Any:
            left[0] -= event == "line"
            if left[0] == 0:
                raise Killed
            return line

        def call(frame: Any, _event: str, _value: Any) -> Any:
            return line if frame.f_code.co_filename.endswith(WATCHED) else None

        before = sys.gettrace()
        sys.settrace(call)
        try:
            self.answer(message)
        except Killed:
            pass
        finally:
            sys.settrace(before)
        self.kept.clear()


class Federation:
    """The server, its devices and the faulty wire between them."""

    def __init__(self, folder: Path, guard_type: type[Guard], seed: int, faults: int):
        self.rng, self.watch, self.faults_left = random.Random(seed), Watch(), faults
        self.injected: Counter[str] = Counter()
        self.devices = [
            Device(i, folder / f"{i}.db", self.watch, guard_type, self.rng) for i in range(4)
        ]
        self.late: list[Message] = []
        self.sent: list[Message] = []

    def deliver(self, message: Message) -> Any:
        """An answer, or None where it is missing."""
        self.sent.append(message)
        device = self.devices[message.device]
        answer = self._with_fault(device, message)
        if self.late and self.rng.random() < 0.3:  # what was delayed arrives at some time
            late = self.late.pop(self.rng.randrange(len(self.late)))
            self._left(self.devices[late.device].answer(late))
        return answer

    def _with_fault(self, device: Device, message: Message) -> Any:
        if self.faults_left == 0 or self.rng.random() < 0.3:
            return self._left(device.answer(message))
        kind = self.rng.choice(KINDS)
        self.faults_left -= 1
        self.injected[kind] += 1
        if kind == "kill":
            return device.killed_in(message)
        if kind == "delay":
            return self.late.append(message)
        if kind == "reorder":  # something older first, perhaps another device's
            self._left(device.answer(self.rng.choice(self.sent)))
        if kind == "garbage":
            return self._left(device.answer(self._garbled(message)))
        answer = self._left(device.answer(message))
        if kind == "replay":
            for _ in range(self.rng.randrange(1, 4)):
                self._left(device.answer(message))
        return answer

    def _garbled(self, message: Message) -> Message:
        table, bound = dict(message.table), message.bound
        keys = [*table, "bound", "unknown"]
        for key in self.rng.sample(keys, self.rng.randrange(1, 3)):
            value = self.rng.choice([*ODD, message.table["round"] + self.rng.randrange(-2, 3)])
            if key == "bound":
                bound = value
            elif self.rng.random() < 0.2:
                table.pop(key, None)
            else:
                table[key] = value
        stage = self.rng.choice([message.stage, message.stage, "norm", "update"])
        return Message(message.device, stage, message.run, table, bound, message.probability)

    def _left(self, answer: Any) -> Any:
        self.watch.left += not isinstance(answer, Refusal)
        return answer

    def play(self, run: str, rounds: int) -> None:
        """Rounds of rule norm; whoever answers is in."""
        for number in range(1, rounds + 1):
            multiplier = self.rng.choice([4.0, 4.0, 6.0])
            table = RoundTerms(run, number, True, 1.0, multiplier, 8.0).as_dict()
            answers = {i: self.deliver(Message(i, "norm", run, table)) for i in range(4)}
            norms = {i: a for i, a in answers.items() if isinstance(a, float)}
            total = max(sum(norms.values()), 2.0)
            for i, released in norms.items():
                probability = min(1.0, released / total + 0.2)
                if self.rng.random() < probability:
                    self.deliver(Message(i, "update", run, table, 1.7, probability))


def play_with_faults(folder: Path, guard_type: type[Guard], seed: int, faults: int) -> Federation:
    """Runs until all the faults were met, each run a new one to the same devices."""
    federation = Federation(folder, guard_type, seed, faults)
    for run in range(100):
        federation.play(f"run {run}", 20)
        if not federation.faults_left:
            return federation
    raise AssertionError("the faults were never met")
