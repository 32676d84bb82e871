"""Grids whose plays come from a formula, and an executor that is as untidy as can be."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from locksfl.arm import Noise
from locksfl.experiment.config import parse_config
from locksfl.grids.drive import Case, Outcome, Play, Plays, batches
from locksfl.grids.executors import Serial
from locksfl.grids.search import Pair, Searched, searched

CONFIG = parse_config(
    '[data]\nclients = 24\n[privacy]\ntrust = "none"\n[[arm]]\nname = "a"\ncohort = 4\n'
)
BEST = (7.0, 0.2)  # clip norm and reach


class Killed(BaseException):
    """The process is gone."""


def outcome(play: Play) -> Outcome:
    """Accuracy falls with the distance to the best, and no two plays have the same."""
    arm = play.arm
    off = (arm.clip_norm / BEST[0], arm.clip_norm * arm.step / BEST[1])
    jitter = int(hashlib.sha256(play.name.encode()).hexdigest()[:4], 16) / 1e7
    score = jitter - sum(abs(math.log(value)) for value in off)
    # a whole number where a float is meant: it is written as 3 and read as 3.0
    return Outcome(Noise(), (score,), score, None, 3, 0.5, 2)


def formula(plays: Sequence[Play]) -> list[Outcome]:
    """Plays without training."""
    return [outcome(play) for play in plays]


def dies(plays: Sequence[Play]) -> list[Outcome]:
    """The process dies of one of them."""
    if any((play.arm.name, play.seed) == ("case 1", 1001) for play in plays):
        os._exit(1)
    return formula(plays)


def tuned(name: str) -> Plays[tuple[Searched[float], list[float]]]:
    """Clip norm and step are tuned with two seeds, the grid is widened, and the best reported."""
    arm = replace(CONFIG.arms[0], name=name)

    def plays(pair: Pair, seeds: Sequence[int]) -> list[Play]:
        mine = replace(arm, clip_norm=pair[0], step=pair[1] / pair[0])
        return [Play(CONFIG, mine, seed) for seed in seeds]

    def tries(pairs: list[Pair], _: float | None) -> Plays[list[float]]:
        outcomes = yield [play for pair in pairs for play in plays(pair, (1000, 1001))]
        return [sum(one.scores[-1] for one in mine) for mine in batches(outcomes, 2)]

    search = yield from searched([[0.3, 1.0, 3.0], [0.1, 0.3]], tries, lambda s: (s,), 2)
    outcomes = yield plays(search.best, range(3))
    return search, [one.scores[-1] for one in outcomes]


CASES = {number: Case(f"case {number}", partial(tuned, f"case {number}")) for number in range(3)}


class Untidy:
    """Plays in any order, fails at some cells, and is killed after so many rows."""

    def __init__(self, seed: int = 0, rows: float = math.inf, fails: Any = ()) -> None:
        self.random, self.rows, self.fails = random.Random(seed), rows, set(fails)
        self.cases = (None, 1, 2)[seed % 3]
        self.asked: list[tuple[int, int]] = []

    def run(self, cells: Any) -> Any:
        """What comes of the cells."""
        cells = self.random.sample(cells, len(cells))
        for cell in cells:
            if self.rows == 0:
                raise Killed
            self.rows -= 1
            self.asked.append(cell[:2])
            yield from Serial(self._play(cell[:2])).run([cell])

    def _play(self, place: tuple[int, int]) -> Any:
        def work(plays: Sequence[Play]) -> list[Outcome]:
            if place in self.fails:
                raise RuntimeError(f"{place}: out of memory")
            return formula(plays)

        return work
