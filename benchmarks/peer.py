"""The peer as seen from this project's environment: standard library only.

    with Peer("W2", processes=2) as peer:   # starts, loads, warms up; then idle
        block = peer.run(5)                 # {"median_s": ..., "seconds": [...], ...}
        peer.check("mean.npy", clients=[0, 1, 2])

Between commands its processes wait on stdin and use no processor time, so that a driver can
alternate blocks of ours and of the peer's in one run. From a shell:

    python -m benchmarks.peer W2 --rounds 5 --blocks 3 --processes 2 --check mean.npy
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = HERE / ".venv-pfl" / "bin" / "python"
CHECK_CLIENTS = tuple(range(0, 100, 3))  # these ids exist in every workload


class PeerError(RuntimeError):
    """The peer could not be started, died or did not answer in time."""


class Peer:
    """pfl-research in `processes` processes of one thread each, on commands from here."""

    def __init__(
        self,
        workload: str,
        processes: int = 2,
        python: Path | str = PYTHON,
        timeout_s: float = 600.0,
    ) -> None:
        if not Path(python).exists():
            raise PeerError(f"no {python}: make it as benchmarks/README.md says")
        self.workload, self.processes, self.timeout_s = workload, processes, timeout_s
        # A file, not a pipe: nobody reads it unless the peer fails, and a full pipe would block.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        address = f"127.0.0.1:{_free_port()}"
        self._workers = [
            subprocess.Popen(
                [str(python), "-m", "benchmarks.peer_pfl", workload],
                cwd=HERE.parent,
                env=_environment(rank, processes, address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            self.versions = self._answers()
        except BaseException:
            self.close()
            raise

    def run(self, rounds: int) -> dict[str, Any]:
        """Run rounds from the initial weights: their seconds, and what all processes used together.

        `cpu_s` is processor seconds a round: where it is far below `median_s * processes`, the
        machine was busy with something else. The warm-up rounds are not among these rounds.
        """
        return self._command("run", rounds)

    def check(
        self,
        out: Path | str,
        clients: Sequence[int],
        weights: Path | str | None = None,
        clip_norm: float | None = None,
    ) -> dict[str, Any]:
        """Write the mean clipped update of `clients`, without noise, to `out` (.npy, flat layout).

        It starts from the flat vector in the file `weights`, or from `data.initial_weights()`, and
        clips to `clip_norm`, or to the workload's, which at the initial weights clips every client:
        a check of both branches needs another one. The answer's `clipped` is the fraction.
        """
        source = None if weights is None else str(Path(weights).resolve())
        return self._command("check", str(Path(out).resolve()), list(clients), source, clip_norm)

    def close(self) -> None:
        """End the processes: by asking, and after ten seconds by force."""
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

    def _command(self, *command: Any) -> dict[str, Any]:
        line = json.dumps(command) + "\n"
        for worker in self._workers:
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except OSError as error:
                raise self._failure(f"cannot send {command[0]!r}") from error
        return self._answers()

    def _answers(self) -> dict[str, Any]:
        """One answer from each process: the first one's, with what all have used added up."""
        deadline = time.monotonic() + self.timeout_s
        found: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers):
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(found) < self.processes:
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    raise self._failure(f"no answer in {self.timeout_s:g} s")
                for key, _ in events:
                    line = self._workers[key.data].stdout.readline()  # type: ignore[union-attr]
                    if not line:
                        raise self._failure(f"process {key.data} died")
                    found[key.data] = json.loads(line)
                    selector.unregister(key.fileobj)
        used = {"peak_rss_mb", "cpu_s"} & found[0].keys()
        return found[0] | {name: sum(one[name] for one in found.values()) for name in sorted(used)}

    def _failure(self, reason: str) -> PeerError:
        """The error to raise; the processes are stopped first, so that none waits for another."""
        for worker in self._workers:
            worker.kill()
        self._stderr.seek(0)
        tail = "".join(self._stderr.readlines()[-20:])
        return PeerError(f"pfl on {self.workload}: {reason}\n{tail}")


def _environment(rank: int, processes: int, address: str) -> dict[str, str]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PFL_PYTORCH_DEVICE": "cpu",
    }
    environment.pop("PYTHONPATH", None)  # this project's packages are not the peer's
    if processes > 1:  # pfl's own way to say who is in the group; torch.distributed with gloo
        environment |= {
            "PFL_WORKER_RANK": str(rank),
            "PFL_WORKER_ADDRESSES": ",".join([address] * processes),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(processes),
        }
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """The peer alone: a JSON line a block."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer", description=main.__doc__)
    parser.add_argument("workload", choices=["W1-MLP", "W2"])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds a block")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--check", metavar="OUT.npy", help="also write the mean clipped update")
    given = parser.parse_args(arguments)
    try:
        with Peer(given.workload, given.processes) as peer:
            for _ in range(given.blocks):
                block = peer.run(given.rounds)
                print(json.dumps({"workload": given.workload, **block}), flush=True)
            if given.check:
                print(json.dumps(peer.check(given.check, CHECK_CLIENTS)))
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
