"""How the harness and a contender talk: JSON lines. Standard library only, for every environment.

The harness holds a `Peer`: a contender on one workload, in processes of its own. A contender calls
`serve` with a function that makes its `Program`. Commands, each answered with one line:

    ["run", 5]                       play 5 rounds, or some more: {"seconds": [...], ...}
    ["check", {workload}, "m.npy"]   write the mean update of a workload of `workloads.checks`
    ["gemm"], ["device"]             how fast the device multiplies matrices; its name (ours only)
    ["quit"]

Between commands the processes are stopped (SIGSTOP), so that nobody polls in another's time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
WARM_UP_SECONDS = 2.0


class Program(Protocol):
    """A contender set up on one workload."""

    def run(self, rounds: int) -> Sequence[float]:
        """Play that many rounds, or some more: the seconds of each."""

    def mean_update(self) -> Any:
        """The flat mean clipped update of all clients from the initial weights, without noise."""


def serve(build: Callable[[Any], Program], **extra: Callable[[], dict[str, Any]]) -> None:
    """Set up the workload named on the command line, say so, answer until stdin closes."""
    import numpy as np

    from benchmarks.workloads import SCALING, WORKLOADS, Workload

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers

    def answer(**fields: Any) -> None:
        print(json.dumps({**fields, "peak_mb": peak_memory_mb()}), file=answers, flush=True)

    def run(rounds: int) -> dict[str, Any]:
        return {"seconds": list(program.run(rounds))}

    def check(fields: dict[str, Any], out: str) -> dict[str, Any]:
        mean = build(Workload(**fields)).mean_update()
        if int(os.environ.get("RANK", 0)) == 0:
            np.save(out, mean)
        return {}

    program = build((WORKLOADS | SCALING)[sys.argv[1]])
    answer()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "quit":
            break
        answer(**{"run": run, "check": check, **extra}[command](*arguments))


def forget_peak() -> None:
    """Count peak memory from now on: what making the data took is nobody's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """The most memory that this process has held (resident set size)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


class PeerError(RuntimeError):
    """A contender could not be started, died or did not answer in time."""


class Peer:
    """A contender at work on one workload, on commands from here; idle between them."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int = 1,
        environment: dict[str, str] | None = None,
        watch_tree: bool = False,
        timeout_s: float = 300.0,
        folder: Path = HERE.parent,
    ) -> None:
        self.command, self.timeout_s = command, timeout_s
        # A file, not a pipe: nobody reads it unless the peer fails, and a full pipe would block.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        port = _free_port()
        self._workers = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={
                    **(os.environ if environment is None else environment),
                    **_group(rank, processes, port),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
            for rank in range(processes)
        ]
        self._watch = watch_tree or processes > 1
        self._warm = False
        self._tree_mb = self._peak_mb = 0.0
        try:
            self._answers()
            ready, self.pace = time.monotonic(), 1.0
            while time.monotonic() < ready + WARM_UP_SECONDS:
                self.run(0.0)
            self._warm = True
        except BaseException:
            self.close()
            raise

    @property
    def memory(self) -> dict[str, Any]:
        """Peak memory: of one process the resident set size; of several the proportional set sizes
        (a page shared by k processes is 1/k in each) added up, read until the warm-up ended."""
        kind, peak = ("PSS", self._tree_mb) if self._watch else ("RSS", self._peak_mb)
        return {"memory_mb": round(peak), "memory_kind": kind}

    def run(self, seconds: float) -> list[float]:
        """Play rounds for about so long, one at least: the seconds of each."""
        rounds = max(1, round(seconds / self.pace))  # said to all processes, who must agree
        played: list[float] = self.ask("run", rounds)["seconds"]
        self.pace = statistics.median(played)
        return played

    def ask(self, *command: Any) -> dict[str, Any]:
        """Wake the processes, send a command, and stop them when they have answered."""
        self._signal(signal.SIGCONT)
        line = json.dumps(command) + "\n"
        for worker in self._workers:
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except OSError as error:
                raise self._failure(f"cannot send {command[0]!r}") from error
        found = self._answers()
        self._signal(signal.SIGSTOP)
        return found

    def check(self, workload: Any, out: Path) -> None:
        """Write the mean update of a workload of `workloads.checks`."""
        self.ask("check", dataclasses.asdict(workload), str(out))

    def close(self) -> None:
        """End the processes: by asking, and after ten seconds by force."""
        self._signal(signal.SIGCONT)
        for worker in self._workers:
            assert worker.stdin is not None
            with contextlib.suppress(OSError):  # it died before: nothing left to ask
                worker.stdin.write('["quit"]\n')
                worker.stdin.flush()
            with contextlib.suppress(OSError):
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(number)

    def _answers(self) -> dict[str, Any]:
        """One answer from each process: the first one's."""
        deadline = time.monotonic() + self.timeout_s
        found: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers):
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(found) < len(self._workers):
                if self._watch and not self._warm:  # only then: reading it takes processor time
                    pids = [worker.pid for worker in self._workers]
                    self._tree_mb = max(self._tree_mb, proportional_mb(pids))
                events = selector.select(self.timeout_s if self._warm else 0.25)
                if not events and time.monotonic() > deadline:
                    raise self._failure(f"no answer in {self.timeout_s:g} s")
                for key, _ in events:
                    line = self._workers[key.data].stdout.readline()  # type: ignore[union-attr]
                    if not line:
                        raise self._failure(f"process {key.data} died")
                    found[key.data] = json.loads(line)
                    selector.unregister(key.fileobj)
        self._peak_mb = max(self._peak_mb, *(one["peak_mb"] for one in found.values()))
        return found[0]

    def _failure(self, reason: str) -> PeerError:
        """The error to raise; the processes are stopped first, so that none waits for another."""
        for worker in self._workers:
            worker.kill()
        self._stderr.seek(0)
        tail = "".join(self._stderr.readlines()[-20:])
        return PeerError(f"{' '.join(self.command[-3:])}: {reason}\n{tail}")


def proportional_mb(roots: Sequence[int]) -> float:
    """Proportional set size of these processes and all that they started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    total = 0
    for pid in parents:
        ancestor = pid
        while ancestor and ancestor not in roots:
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
    return total / 1024


def _group(rank: int, processes: int, port: int) -> dict[str, str]:
    """Who is who among the processes, in the names of torch.distributed and of pfl."""
    names = {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if processes > 1:
        names |= {
            "PFL_WORKER_RANK": str(rank),
            "PFL_WORKER_ADDRESSES": ",".join([f"127.0.0.1:{port}"] * processes),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(processes),
        }
    return names


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
