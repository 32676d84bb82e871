"""A case of a comparison: clip norm and step from the one grid, without privacy, and the report.

Where uploads follow the data, each pair is first played with a guess of the cohort, and then with
the one that the measured uploads ask for: what is compared are equal uploads, not equal cohorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from locksfl.arm import Arm
from locksfl.grids.bench import unpacked
from locksfl.grids.comparison.cases import Case, Chosen, Comparison
from locksfl.grids.comparison.settings import FIRST_TUNING_SEED
from locksfl.grids.comparison.statistics import Scored
from locksfl.grids.drive import Half, Outcome, Play, Plays, batches
from locksfl.grids.search import Pair, Searched, searched

PASSES = 3  # with which a cohort finds the wanted uploads
STEPS = 16  # to a doubling of a found cohort: noise is calibrated once for cohorts that are close


class Tried(NamedTuple):
    """A pair as it was played last."""

    cohort: float
    uploads: float  # a round, measured
    accuracy: float  # over the tuning seeds


class Finished(NamedTuple):
    """A case with its report."""

    tuning: Searched[Tried] | None  # None: nothing was tuned
    arm: Arm  # with what was chosen
    outcomes: Sequence[Outcome]  # one for each seed

    @property
    def scored(self) -> Scored:
        """The seeds together."""
        reports = [one.reported for one in self.outcomes if one.reported is not None]
        right = np.sum([unpacked(one.right) for one in reports], axis=0)
        return Scored([one.scores[-1] for one in self.outcomes], right, reports[0].answers)


def plays_of(comparison: Comparison, case: Case) -> Plays[Finished]:
    """Tune a case, and report it with what was chosen."""
    axes, tuning, chosen = comparison.axes, None, comparison.untuned(case)
    if grid := comparison.methods[case.method].tuning:
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + grid.seeds)
        tries = partial(_tries, comparison, case, seeds)
        pairs = (grid.clip_norm, grid.reach)
        tuning = yield from searched(pairs, tries, lambda one: (one.accuracy,), grid.widen)
        clip, reach = tuning.best
        cohort = _next_cohort(comparison, case, tuning.tried[tuning.best])
        chosen = Chosen(clip, reach / clip, cohort)
    plays = _plays(comparison, case, chosen, range(axes.seeds), "report")
    outcomes = yield plays
    return Finished(tuning, plays[0].arm, outcomes)


def _plays(
    comparison: Comparison, case: Case, chosen: Chosen, seeds: Sequence[int], half: Half
) -> list[Play]:
    """The case with these numbers, a play for each seed."""
    config = comparison.config(case, chosen)
    scored_on = half if comparison.axes.tuning is not None else None
    (arm,) = config.arms
    return [Play(config, arm, seed, scored_on, half == "report") for seed in seeds]


def _tries(
    comparison: Comparison, case: Case, seeds: range, pairs: list[Pair], best: Tried | None
) -> Plays[list[Tried]]:
    """Play each pair, again with another cohort while uploads that follow the data are not those
    that are wanted."""
    guess = comparison.first_cohort(case) if best is None else best.cohort
    cohorts, tried, missing = dict.fromkeys(pairs, guess), dict[Pair, Tried](), pairs
    follows = comparison.methods[case.method].uploads_follow_data
    for _ in range(PASSES if follows else 1):
        tries = (Chosen(clip, reach / clip, cohorts[clip, reach]) for clip, reach in missing)
        plays = [p for one in tries for p in _plays(comparison, case, one, seeds, "tuning")]
        outcomes = yield plays
        for pair, mine in zip(missing, batches(outcomes, len(seeds)), strict=True):
            uploads = uploads_a_round(case, mine)
            accuracy = float(np.mean([one.scores[-1] for one in mine]))
            tried[pair] = Tried(cohorts[pair], uploads, accuracy)
            cohorts[pair] = _next_cohort(comparison, case, tried[pair])
        missing = [pair for pair in missing if cohorts[pair] != tried[pair].cohort]
        if not missing:
            break
    return [tried[pair] for pair in pairs]


def uploads_a_round(case: Case, outcomes: Sequence[Outcome]) -> float:
    """The mean uploads of the rounds of these plays."""
    return float(np.mean([one.uploads / case.rounds for one in outcomes]))


def _next_cohort(comparison: Comparison, case: Case, tried: Tried) -> float:
    """The cohort with which the wanted uploads would have come out; the same one, if it is as close
    as measuring allows."""
    if not comparison.methods[case.method].uploads_follow_data:
        return tried.cohort
    share = np.clip(tried.uploads / case.uploads, 1 / STEPS, STEPS)
    if abs(math.log2(share)) < 1 / STEPS:
        return tried.cohort
    wanted = 2 ** (round(STEPS * math.log2(tried.cohort / share)) / STEPS)
    return min(float(comparison.configs[case.data].clients), wanted)
