"""A comparison on made-up clients, and runs that come from a formula instead of training."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from checks import ragged
from locksfl.grids import bench
from locksfl.models.build import softmax
from locksfl.simulate.simulator import RoundLog
from locksfl.simulate.sweep import Played

TEXT = """
name = "made"
[data]
clients = 24
[train]
rounds = 4
[privacy]
trust = "central"
accountant = "rdp"
delta = 1e-3
[compare]
epsilons = [8.0, inf]
uploads = [4, 8]
seeds = 3
[compare.tuning]
clip_norm = [0.5, 1.0, 2.0]
reach = [0.3, 1.0]
seeds = 2
widen = 2
[[compare.method]]
name = "uniform"
[[compare.method]]
name = "norm"
rule = "norm"
cohort_per_upload = 2
floor = 0.0
[[compare.method]]
name = "coin"
rule = "coin"
cohort_per_upload = 2
[[compare.difference]]
better = "coin"
than = "uniform"
epsilon = 8.0
uploads = 4
than_uploads = 8
margin = -0.1
"""
SILENT = TEXT.replace("[8.0, inf]", "[inf]").replace("epsilon = 8.0", "epsilon = inf")
SHARE = 0.4  # of the members of a cohort whose uploads follow the data
BEST = (1.0, 1.0)  # clip norm and reach with the highest made-up accuracy


def small(monkeypatch: Any) -> None:
    """Comparisons are of 24 small clients."""
    people = ragged(np.tile([1, 2, 3, 9, 14, 30], 4))
    monkeypatch.setattr(bench, "open_task", lambda config: (people, softmax(6, 3)))


def accuracy(arm: Any, seed: int, best: tuple[float, float]) -> float:
    off = np.log([arm.clip_norm / best[0], arm.clip_norm * arm.step / best[1]])
    return float(0.9 - 0.01 * off @ off + 0.001 * np.sin(seed))


def made_up(monkeypatch: Any, best: tuple[float, float] = BEST) -> list[tuple[Any, Any, int]]:
    """Nothing is trained. Returns the list of what was asked for: simulator, arm, seed."""
    small(monkeypatch)
    asked: list[tuple[Any, Any, int]] = []

    def play(simulator: Any, settings: Any, *_: Any, **options: Any) -> list[Played]:
        assert options["brief"]
        played = []
        for arm, randomness in settings:
            seed = randomness.entropy
            asked.append((simulator, arm, seed))
            rule = arm.parts[0]
            uploads = SHARE * arm.cohort if rule.asks and not rule.released else arm.uploads
            sums = [round(uploads * t) for t in range(arm.rounds + 1)]  # whole numbers
            counts = [(round(arm.cohort), b - a) for a, b in pairwise(sums)]
            rounds = [RoundLog(0, 1.0, 1.0, 1.0, None, None, counts=each) for each in counts]
            rounds[-1] = replace(rounds[-1], accuracy=accuracy(arm, seed, best), loss=1.0)
            played.append(Played(rounds, np.full(21, float(seed), np.float32)))
        return played

    monkeypatch.setattr(bench, "play_sweep", play)
    return asked
