"""Two commits of this project on the workloads, in turns: is the new one slower?

    python -m benchmarks.commits OLD [NEW] [--pairs 30] [--workloads W1-MLP W2]

NEW is the working tree unless it is given. Each plays with its own copy of `benchmarks.ours`, by
rule uniform, by rule norm, and by rule uniform without a seed. A pair is a block of each, one right
after the other, the first one first in every other pair, so that a machine that slows down slows
down both; while one plays the other is stopped. Prints the median of the pairs' ratios, new over
old, with the range that holds the middle 80% of them. Exit code 1: a median is above 1.05.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.compare import describe
from benchmarks.contenders import CORES
from benchmarks.peer import Peer, PeerError
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[1]
BLOCK_SECONDS = 1.0  # one round at least
SLOWER = 1.05
SECRET = """# who was asked is not logged, so rounds count as they come
import sys, time
from benchmarks import ours, peer
from locksfl.round.randomness import Randomness

class Secret(ours.Program):
    def run(self, rounds):
        played = []
        while len(played) < rounds:
            began = time.perf_counter()
            block = next(self.blocks)
            seconds = (time.perf_counter() - began) / len(block.rounds)
            played += [] if block.compile_seconds else [seconds] * len(block.rounds)
        return played

Randomness.seeded = classmethod(lambda cls, seed: cls.from_system())
peer.serve(lambda workload: Secret(*sys.argv[2:], workload))
"""
WAYS = {
    "uniform": (["-m", "benchmarks.ours"], "uniform"),
    "norm": (["-m", "benchmarks.ours"], "norm"),
    "no seed": (["-c", SECRET], "uniform"),
}


@contextmanager
def checked_out(old: str, new: str | None) -> Iterator[dict[str, Path]]:
    """Folders with the code of two commits; without a second one, the working tree."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = {"old": Path(folder) / "old", "new": Path(folder) / "new" if new else ROOT}
        for name, commit in (("old", old), ("new", new)):
            if commit:
                command = [*git, "add", "--detach", str(places[name]), commit]
                subprocess.run(command, check=True, capture_output=True)
                remove = [*git, "remove", "--force", str(places[name])]
                stack.callback(subprocess.run, remove, check=False)
        yield places


def start(source: Path, workload: str, way: str) -> Peer:
    """The code of this folder on a workload, loaded and warmed up."""
    begin, rule = WAYS[way]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}",
    }
    command = [sys.executable, *begin, workload, rule, "full"]
    return Peer(command, environment=environment, folder=source)


def ratios(places: dict[str, Path], workload: str, way: str, pairs: int) -> list[float]:
    """Seconds a round of the new code over those of the old, pair by pair."""
    with ExitStack() as stack:
        both = {k: stack.enter_context(start(place, workload, way)) for k, place in places.items()}
        found = []
        for number in range(pairs):
            order = sorted(both, reverse=bool(number % 2))
            seconds = {name: statistics.median(both[name].run(BLOCK_SECONDS)) for name in order}
            found.append(seconds["new"] / seconds["old"])
        return found


def main() -> int:
    """Print a line for each workload and way to play it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    asked = parser.parse_args()
    slower = False
    try:
        with checked_out(asked.old, asked.new) as places:
            for workload in asked.workloads:
                for way in WAYS:
                    found = describe(ratios(places, workload, way, asked.pairs))
                    slower |= found["median"] > SLOWER
                    most = f"{found['low']:.3f} to {found['high']:.3f}"
                    print(f"{workload}, {way}: {found['median']:.3f} ({most})", flush=True)
    except PeerError as error:
        print(f"benchmarks.commits: {error}", file=sys.stderr)
        return 2
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
