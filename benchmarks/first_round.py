"""How long `locks run` takes from the start of the process to its first round, on the digits of the
package: with an empty compilation cache, and with the one that the first try left behind."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = "from locksfl.cli.main import main; main()"
TRIES = 2
LIMIT_S = 120.0


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Median seconds, cold and warm, over some tries of both."""
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for number in range(TRIES):
        with tempfile.TemporaryDirectory() as cache:
            for kind, values in seconds.items():
                say(f"first round: {kind}, try {number + 1} of {TRIES}")
                values.append(_first_round(Path(cache)))
    return {kind: {"median": statistics.median(v), "all": v} for kind, v in seconds.items()}


def _first_round(cache: Path) -> float:
    """Start the program, wait for the first line of its rounds, end it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        environment = {**os.environ, "LOCKS_CACHE": str(cache)}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        command = [sys.executable, "-c", PROGRAM, "run", "--seed", "0", "--out", str(out), "--json"]
        began = time.perf_counter()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            try:
                while not _has_line(out / "rounds.jsonl"):
                    late = time.perf_counter() > began + LIMIT_S
                    if late or process.poll() is not None:
                        raise RuntimeError("locks run ended, or took too long, without a round")
                    time.sleep(0.005)
                return time.perf_counter() - began
            finally:
                process.kill()


def _has_line(path: Path) -> bool:
    return path.exists() and b"\n" in path.read_bytes()
