"""An experiment over several seeds: each arm's mean accuracy, and how far it is from the first arm.

python scripts/over_seeds.py [FILE.toml] [--seeds 10] [--rounds 100] [--set KEY=VALUE]...
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import numpy as np

from locksfl.cli.main import example_config
from locksfl.experiment.comparison.runner import grid, play_grid
from locksfl.experiment.config import Config, parse_config, read_config
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.run import open_task
from locksfl.simulate.simulator import Simulator


def accuracies(config: Config, seeds: int, rounds: int) -> dict[str, np.ndarray]:
    """For each arm, the accuracy after `rounds` rounds with each seed. Noise is calibrated for
    all the rounds of the experiment, so that stopping to look changes nothing."""
    train = config.train
    if rounds < train.rounds:  # before iterates are averaged
        train = replace(train, average_last=0)
    arms = [replace(arm, rounds=min(rounds, arm.rounds)) for arm in plan_arms(config)]
    config = replace(config, train=replace(train, evaluate_every=rounds))
    lines = play_grid(Simulator(*open_task(config)), config, grid(arms, range(seeds)))
    return {
        arm.name: np.array([line["arms"][arm.name]["accuracy"][-1] for line in lines])
        for arm in arms
    }


def describe(found: dict[str, np.ndarray]) -> str:
    """One line per arm: mean with its standard error, and the difference to the first arm."""
    first = next(iter(found.values()))
    lines = []
    for name, values in found.items():
        error = values.std(ddof=1) / np.sqrt(values.size)
        apart = values.mean() - first.mean()
        spread = np.hypot(error, first.std(ddof=1) / np.sqrt(first.size))
        beside = "" if values is first else f"   {apart:+.4f} +- {spread:.4f} to the first"
        lines.append(f"{name:<20} {values.mean():.4f} +- {error:.4f}{beside}")
    return "\n".join(lines)


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    options = parser.parse_args()
    try:
        if options.file is None:
            config = parse_config(example_config(), options.changes)
        else:
            config = read_config(options.file, options.changes)
    except ValueError as error:
        parser.error(str(error))
    rounds = options.rounds or config.train.rounds
    if not 1 <= rounds <= config.train.rounds or options.seeds < 2:
        parser.error(f"expected --seeds >= 2 and --rounds from 1 to {config.train.rounds}")
    print(f"{config.name}: accuracy after {rounds} rounds, {options.seeds} seeds, mean +- s.e.")
    print(describe(accuracies(config, options.seeds, rounds)))


if __name__ == "__main__":
    main()
