"""Clip norm and step of a case: the best of the one grid, without privacy, and said so.

The grid is over the clip norm C and the reach C x step, the farthest that a first step can go: the
noise of a step grows with the reach, whatever the clip norm. Where the best lies at an end of an
axis, the grid is widened there, for this case only, by the ratio of the last two values.

Where uploads follow the data, each pair is first played with a guess of the cohort, and then with
the one that the measured uploads ask for: what is compared are equal uploads, not equal cohorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from locksfl._tables import Record
from locksfl.experiment.comparison.bench import Bench, Chosen, uploads_a_round
from locksfl.experiment.comparison.grid import Case

PASSES = 3  # with which a cohort finds the wanted uploads
STEPS = 16  # to a doubling of a found cohort: noise is calibrated once for cohorts that are close

Pair = tuple[float, float]  # clip norm, reach


class Tried(NamedTuple):
    """A pair as it was played last."""

    clip_norm: float
    reach: float
    cohort: float
    uploads: float  # a round, measured
    accuracy: list[float]  # of each tuning seed

    @property
    def score(self) -> float:
        """What the best is the largest of."""
        return float(np.mean(self.accuracy))


def tune(bench: Bench, case: Case) -> Record:
    """Try the grid of a case, and widen it where its edge is best. Returns what was tried and what
    was chosen."""
    grid = bench.comparison.tuning(case.method)
    if grid is None:
        raise AssertionError("a comparison without tuning")
    axes = [list(grid.clip_norm), list(grid.reach)]
    guess = bench.comparison.first_cohort(case)
    tried = dict(zip(grid.pairs, _play(bench, case, grid.pairs, guess), strict=True))
    widened = 0
    best = _best(tried)
    while widened < grid.widen and edges(best, axes):
        for axis in edges(best, axes):
            widen(axes[axis], best[axis])
        new = [(c, r) for c in axes[0] for r in axes[1] if (c, r) not in tried]
        tried |= zip(new, _play(bench, case, new, tried[best].cohort), strict=True)
        widened += 1
        best = _best(tried)
    one = tried[best]
    names = ("clip_norm", "reach")
    return {
        "tried": [found._asdict() for found in tried.values()],
        "widened": widened,
        "edge": [names[axis] for axis in edges(best, axes)],
        "chosen": {
            "clip_norm": one.clip_norm,
            "step": one.reach / one.clip_norm,
            "cohort": _next_cohort(bench, case, one),
        },
    }


def _best(tried: dict[Pair, Tried]) -> Pair:
    return max(tried, key=lambda pair: tried[pair].score)  # the first of equals


def edges(best: Pair, axes: Sequence[Sequence[float]]) -> list[int]:
    """The axes at an end of which the best lies; an axis of one value has no ends."""
    return [i for i, axis in enumerate(axes) if len(axis) > 1 and best[i] in (axis[0], axis[-1])]


def widen(axis: list[float], end: float) -> None:
    """One more value beyond this end."""
    if end == axis[0]:
        axis.insert(0, axis[0] * axis[0] / axis[1])
    else:
        axis.append(axis[-1] * axis[-1] / axis[-2])


def _play(bench: Bench, case: Case, pairs: Sequence[Pair], guess: float) -> list[Tried]:
    """Play each pair, again with another cohort while uploads that follow the data are not those
    that are wanted."""
    follows = bench.comparison.methods[case.method].uploads_follow_data
    cohorts = dict.fromkeys(pairs, guess)
    found: dict[Pair, Tried] = {}
    missing = list(pairs)
    for _ in range(PASSES if follows else 1):
        tries = [Chosen(clip, reach / clip, cohorts[clip, reach]) for clip, reach in missing]
        for pair, runs in zip(missing, bench.tuning_runs(case, tries), strict=True):
            outcomes = [run.outcome() for run in runs]
            uploads = float(np.mean([uploads_a_round(runs[0].arm, one) for one in outcomes]))
            accuracy = [one["accuracy"][-1] for one in outcomes]
            found[pair] = Tried(*pair, runs[0].arm.cohort, uploads, accuracy)
            cohorts[pair] = _next_cohort(bench, case, found[pair])
        missing = [pair for pair in missing if cohorts[pair] != found[pair].cohort]
        if not missing:
            break
    return [found[pair] for pair in pairs]


def _next_cohort(bench: Bench, case: Case, tried: Tried) -> float:
    """The cohort with which the wanted uploads would have come out; the same one, if it is as close
    as measuring allows."""
    if not bench.comparison.methods[case.method].uploads_follow_data:
        return tried.cohort
    share = np.clip(tried.uploads / case.uploads, 1 / STEPS, STEPS)
    if abs(math.log2(share)) < 1 / STEPS:
        return tried.cohort
    wanted = 2 ** (round(STEPS * math.log2(tried.cohort / share)) / STEPS)
    return min(float(bench.comparison.configs[case.data].clients), wanted)
