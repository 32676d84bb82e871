"""A sweep of 12 library runs (3 seeds x 4 epsilons) at two commits, in turns.

    python -m benchmarks.sweep_library OLD [NEW] [--tries 2]

Each commit is checked out into a folder of its own; every try is a fresh process, with no
compilation cache on disk, and the two take turns, so that a machine that slows down slows down
both. NEW is the working tree unless it is given. The accuracies must be the same, or the command
fails: the time is compared for the same results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.commits import checked_out

SWEEP = """
import json, time
import numpy as np
import locksfl
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 2000)
x = (np.eye(3, 8)[y] + rng.normal(0, 0.5, (2000, 8))).astype(np.float32)
user = rng.integers(0, 50, 2000)
people = locksfl.Population.from_arrays(x[200:], y[200:], user[200:], x[:200], y[:200], classes=3)
began, before, seconds, found = time.perf_counter(), time.process_time(), [], []
for epsilon in (2.0, 4.0, 8.0, 16.0):
    for seed in range(3):
        start = time.perf_counter()
        result = locksfl.train(
            people, rule="norm", cohort=20, uploads=10, rounds=30, epsilon=epsilon, seed=seed
        )
        seconds.append(time.perf_counter() - start)
        found.append(result.accuracy)
print(json.dumps({
    "wall": time.perf_counter() - began, "cpu": time.process_time() - before,
    "each": seconds, "accuracies": found,
}))
"""


def play(source: Path) -> dict[str, object]:
    """The sweep with the package in this folder."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment = {**kept, "PYTHONPATH": str(source / "src"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SWEEP]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print each try, then the ratio of the medians, by wall clock and by processor time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--tries", type=int, default=2)
    asked = parser.parse_args()
    tries: dict[str, list[dict[str, object]]] = {"old": [], "new": []}
    with checked_out(asked.old, asked.new) as places:
        for _ in range(asked.tries):
            for name, place in places.items():
                tries[name].append(play(place))
                last = tries[name][-1]
                each = " ".join(f"{s:.2f}" for s in last["each"])
                print(f"{name} {last['wall']:.1f} s, processor {last['cpu']:.1f} s: {each}")
    for kind in ("wall", "cpu"):
        old, new = (statistics.median(t[kind] for t in tries[name]) for name in ("old", "new"))
        print(f"{kind}: {old:.1f} s -> {new:.1f} s, {new / old:.3f} of the old one")
    if len({json.dumps(t["accuracies"]) for every in tries.values() for t in every}) > 1:
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
