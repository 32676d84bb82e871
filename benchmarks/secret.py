"""What exact noise costs: runs without a seed beside the same runs with one.

    .venv/bin/python -m benchmarks.secret

Blocks of rounds of both, in turn, in one process: seconds a round, their medians, and the ratio.
The last line is the whole command on the embedded digits, started anew each time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from locksfl.arm import Arm
from locksfl.data.datasets import open_population
from locksfl.models.build import Model, mlp, softmax
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

CLIENTS, BLOCKS, PAIRS = 100, 7, 3
GRADIENT, EPOCHS = LocalWork(), LocalWork("epochs", epochs=1, batch=20, step=0.05)


def seconds_a_round(simulator: Simulator, arm: Arm, work: LocalWork) -> tuple[float, float]:
    """Medians with a seed and without one, over blocks that are played in turn."""
    server = Server(rounds=arm.rounds)
    sources = (Randomness.seeded(0), Randomness.from_system())
    plays = [simulator.play(arm, work, server, source) for source in sources]
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(BLOCKS + 2):
        for play, times in zip(plays, found, strict=True):
            began = time.perf_counter()
            block = next(play)
            took = time.perf_counter() - began - block.compile_seconds
            if number > 1:  # the first blocks are short
                times.append(took / len(block.rounds))
    return statistics.median(found[0]), statistics.median(found[1])


def command_seconds(*options: str) -> float:
    """`locks run` on the embedded digits, once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [Path(sys.executable).with_name("locks"), "run", "--out", f"{folder}/run"]
        began = time.perf_counter()
        subprocess.run([*command, *options], check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    population = open_population(
        "mnist-embedded", CLIENTS, "shards", {"classes": 2}, 0, None, min_samples=1
    )
    models: dict[str, tuple[Model, LocalWork]] = {
        "softmax, one gradient": (softmax(784, 10), GRADIENT),
        "mlp 1260, one gradient": (mlp(784, 10, (1260,)), GRADIENT),
        "mlp 1260, an epoch": (mlp(784, 10, (1260,)), EPOCHS),
    }
    print(f"{'a round, cohort 20 of 100':40}{'seeded':>9}{'secret':>9}{'ratio':>7}")
    for name, (model, work) in models.items():
        simulator = Simulator(population, model)
        for rule, cohort in (("uniform", 20.0), ("norm", 30.0)):
            arm = Arm.of(
                *(rule, CLIENTS, 100_000, rule),
                cohort=cohort,
                uploads=20.0,
                noise_multiplier=1.0,
                norm_multiplier=8.0,
            )
            seeded, secret = seconds_a_round(simulator, arm, work)
            told = f"{name}, {rule}, {model.size:,}"
            print(f"{told:40}{seeded:9.4f}{secret:9.4f}{secret / seeded:7.2f}", flush=True)
    for _ in range(2):  # the second time with compiled programs at hand
        command_seconds("--seed", "0")
        command_seconds()
    times = [(command_seconds("--seed", "0"), command_seconds()) for _ in range(PAIRS)]
    seeded, secret = (statistics.median(column) for column in zip(*times, strict=True))
    told = "locks run (make run), seconds in all"
    print(f"{told:40}{seeded:9.1f}{secret:9.1f}{secret / seeded:7.2f}")


if __name__ == "__main__":
    main()
