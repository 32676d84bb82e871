"""Faults for a federation of real processes, when they come, and what shows that nothing leaks."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from loopback import PATIENCE, Loopback, kill, processes_with

NODES, SECONDS = 4, 3.0  # a stage's deadline
STEADY, THRIFTY = 0, 3  # a node that is never killed, and one whose policy allows few rounds
KINDS = {"kill": 20, "nap": 10, "sleep": 14}  # faults of clients, and how many of each
# faults of the server; "asleep": a device sleeps meanwhile, and wakes up with an old question
RESUMES = ("server", "server", "server", "server asleep", "server asleep", "superlink")
# when a fault comes: right after a device has paid, before it has sent what it paid for (it sends
# ANSWER_SECONDS after the question came), or at any time
MOMENTS = ("reserve", "commit", None)
ANSWER_SECONDS = 0.2
MOMENT_SECONDS = 10.0  # for which a fault waits for its moment; then it comes anyway

# a handle is closed when its question is answered. A device that is looked at just then has four
# more than at rest: its ledger (SQLite's file, log and index), and a file that is being replaced
HANDLES = 4
# a server keeps every line of rounds.jsonl for its summary (it was seen to gain 7 KiB a round);
# the rest is for the medians' noise: 15 in a life of LONG rounds whose memory varies by 500 KiB
KIB_PER_ROUND = 40.0
LONG = 90  # rounds of a life that is judged: shorter ones are all warm-up


class Fault(NamedTuple):
    """Once so many rounds have been played: at that moment of a node, or after the delay."""

    round: int
    kind: str
    node: int
    delay: float
    moment: str | None


def plan(seed: int, rounds: int, thrifty_rounds: int) -> list[Fault]:
    """The same faults for the same seed. Servers die in the first half, so that the last of them
    lives long enough to be judged; so does STEADY. THRIFTY is left alone when it may have spent all
    that it has: once killed it would not start again, and the server would wait for it."""
    rng = random.Random(seed)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
    when = rng.sample(range(5, rounds - 10), len(kinds))
    kinds += RESUMES
    when += rng.sample(range(10, rounds // 2), len(RESUMES))
    faults = []
    for at, kind in zip(when, kinds, strict=True):
        who = [n for n in range(NODES) if kind != "kill" or n != STEADY]
        if at >= thrifty_rounds - 10:
            who.remove(THRIFTY)
        fault = Fault(at, kind, rng.choice(who), rng.uniform(0.0, 1.5), rng.choice(MOMENTS))
        faults.append(fault)
    return sorted(faults, key=lambda fault: fault.round)


def newest(ledger: Path) -> tuple[int, str]:
    """The number and kind of a device's last entry, as its owner may read it at any time."""
    with closing(sqlite3.connect(ledger, timeout=30)) as db:
        row = db.execute("SELECT number, kind FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    return row or (0, "")


class Sample(NamedTuple):
    """A process after a round."""

    round: int
    memory: int  # KiB
    handles: int


def sample(pid: int, number: int) -> Sample | None:
    """As of now; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        handles = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return Sample(number, int(found[0]), handles) if found else None


def growth(samples: Sequence[Sample]) -> tuple[int, float]:
    """What a life gains after its first third, which is warm-up: handles, from the most of the
    second third to the most of the last, and KiB per round.

    A leak grows all the time. An allocator takes or returns some MiB at once, and then nothing for
    long. So memory is compared over four parts of a life, by their medians: of the three steps
    between them the middle one counts, which no single jump moves."""
    third, part = len(samples) // 3, len(samples) // 6
    before, last = samples[third : 2 * third], samples[2 * third :]
    handles = max(s.handles for s in last) - max(s.handles for s in before)
    parts = [samples[third + i * part : third + (i + 1) * part] for i in range(4)]
    middles = [(median(s.round for s in p), median(s.memory for s in p)) for p in parts]
    return handles, median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(middles))


def leaks(lives: dict[str, list[Sample]]) -> list[str]:
    """The long lives that are not flat."""
    told = []
    for who, samples in lives.items():
        if len(samples) >= LONG:
            handles, memory = growth(samples)
            if handles > HANDLES or memory > KIB_PER_ROUND:
                told.append(f"{who}: {handles} handles and {memory:.1f} KiB per round more")
    return told


@dataclass
class Soak:
    """A federation, the faults that are still to come, and what was seen."""

    loop: Loopback
    faults: list[Fault]
    done: Counter[str] = field(default_factory=Counter)
    lives: dict[str, list[Sample]] = field(default_factory=dict)
    _clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _asleep: dict[int, int] = field(default_factory=dict)  # node to the round that wakes it
    _dead: dict[int, int] = field(default_factory=dict)  # node to the round that starts it again
    _names: dict[int, str] = field(default_factory=dict)  # of processes

    def play(self) -> None:
        """Until the server has finished the run; every other end of a process is ours."""
        self._server("--seconds", str(SECONDS))
        self._clients = [self.loop.light_client(node) for node in range(NODES)]
        for node in range(NODES):
            self._name(self._clients[node].pid, f"client {node}")
        before, since = -1, time.monotonic()
        while (code := self.server.poll()) is None:
            played = self.played()
            if played != before:
                self._look(played)
                before, since = played, time.monotonic()
            self._mend(played)
            if self.faults and self.faults[0].round <= played and self._up(self.faults[0].node):
                fault = self.faults.pop(0)
                self._do(fault)
                self.done[fault.kind] += 1
                since = time.monotonic()
            assert time.monotonic() < since + PATIENCE, self._told("no round any more")
            for node, process in enumerate(self._clients):
                assert node in self._dead or process.poll() is None, self._told(f"client {node}")
            time.sleep(0.05)
        assert code == 0, self._told("the server")
        assert not self.faults, self.faults
        self._mend(10**9)

    def played(self) -> int:
        """Rounds that are in rounds.jsonl, from the last whole line."""
        path = self.loop.run / "rounds.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return int(json.loads(lines[-1])["round"]) if lines else 0

    def _do(self, fault: Fault) -> None:
        process = self._clients[fault.node]
        self._await(fault)
        if fault.kind == "kill":
            kill(process)
            self._dead[fault.node] = self.played() + int(fault.delay)
            return
        if fault.kind in ("nap", "sleep", "server asleep"):
            os.kill(process.pid, signal.SIGSTOP)
        if fault.kind == "nap":  # shorter than the deadline
            time.sleep(SECONDS / 4)
            os.kill(process.pid, signal.SIGCONT)
            return
        if fault.kind != "sleep" and self.server.poll() is None:
            self._restart_server(fault.kind)
        if fault.kind in ("sleep", "server asleep"):  # rounds go on without it
            self._asleep[fault.node] = self.played() + 2

    def _await(self, fault: Fault) -> None:
        if fault.moment is None:
            time.sleep(fault.delay)
            return
        ledger = self.loop.devices[fault.node].ledger
        (before, _), ends = newest(ledger), time.monotonic() + MOMENT_SECONDS
        while time.monotonic() < ends and self.server.poll() is None:
            number, kind = newest(ledger)
            if number > before and kind == fault.moment:
                return
            time.sleep(0.01)

    def _restart_server(self, kind: str) -> None:
        if kind == "superlink":
            self.loop.until("a SuperLink", lambda: self.loop.superlink() is not None)
            link = self.loop.superlink()
            assert link is not None
            os.kill(link, signal.SIGKILL)
            assert self.server.wait(PATIENCE) == 2, self._told("the server")
        else:
            kill(self.server)
        flower = str(self.loop.run / "flower")
        self.loop.until("the SuperLink's end", lambda: not processes_with(flower))
        self._server("--seconds", str(SECONDS), "--wait", "5", "--resume")

    def _server(self, *options: str) -> None:
        self.server = self.loop.server(*options)
        self._name(self.server.pid, "server")

    def _mend(self, played: int) -> None:
        for node in [node for node, at in self._asleep.items() if at <= played]:
            del self._asleep[node]
            os.kill(self._clients[node].pid, signal.SIGCONT)
        for node in [node for node, at in self._dead.items() if at <= played]:
            del self._dead[node]
            self._clients[node] = self.loop.light_client(node)
            self._name(self._clients[node].pid, f"client {node}")

    def _up(self, node: int) -> bool:
        return node not in self._asleep and node not in self._dead

    def _name(self, pid: int, who: str) -> None:
        born = sum(name.startswith(f"{who}, life ") for name in self.lives) + 1
        self._names[pid] = f"{who}, life {born}"
        self.lives[self._names[pid]] = []

    def _look(self, played: int) -> None:
        link = self.loop.superlink()
        if link is not None and link not in self._names:
            self._name(link, "SuperLink")
        for pid, who in list(self._names.items()):
            if (found := sample(pid, played)) is None:
                del self._names[pid]
            else:
                self.lives[who].append(found)

    def _told(self, what: str) -> str:
        logs = {p.name: p.read_text("utf-8", "replace")[-1500:] for p in self._logs()}
        return f"{what}; played: {self.played()}, {dict(self.done)}; {json.dumps(logs, indent=1)}"

    def _logs(self) -> list[Path]:
        return sorted(self.loop.folder.glob("*.log"))
