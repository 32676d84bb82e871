"""Which differences stand: paired over seeds, the error of the held-out records included, Holm.

A difference of two methods has two sources of chance. Seeds: coins, noise and first weights, seen
in the spread of the paired differences. Held-out records: the methods answer the same ones, so that
only records on which they disagree count. Both variances are added, although the spread over seeds
already has a little of the second: the interval is rather too wide than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Scored(NamedTuple):
    """How a method did on the held-out records."""

    accuracy: Sequence[float]  # with each seed
    right: np.ndarray[Any, np.dtype[np.int64]]  # right answers on each record, over all seeds
    answers: int  # that a model gives


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the mean (Student); None for one value."""
    if len(values) < 2:
        return None
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    wide = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * spread
    middle = float(np.mean(values))
    return middle - wide, middle + wide


@dataclass(frozen=True)
class Difference:
    """The accuracy of one case minus that of another, and what chance would make of it."""

    mean: float | None  # None: it was not played yet
    low: float | None  # of the interval; None for one seed
    high: float | None
    p: float  # two-sided, that it is the margin
    seeds: int | None


UNPLAYED = Difference(None, None, None, 1.0, None)


def paired(better: Scored, than: Scored, margin: float = 0.0) -> Difference:
    """The difference of two methods on the same seeds and held-out records.

        variance = s^2 / S + N v / L^2

    s^2 is the variance of the S paired differences, v that of the records' own differences (the
    right answers on a record, averaged over seeds), N the records and L the answers. Degrees of
    freedom are those of Welch and Satterthwaite.
    """
    apart = np.subtract(better.accuracy, than.accuracy)
    seeds, mean = len(apart), float(np.mean(apart))
    if seeds < 2:
        return Difference(mean, None, None, 1.0, seeds)
    records = (better.right - than.right) / seeds
    number, answers = len(records), better.answers
    over_seeds = float(np.var(apart, ddof=1)) / seeds
    over_records = number * float(np.var(records, ddof=1)) / answers**2
    variance = over_seeds + over_records
    if variance == 0:  # the same answers throughout
        return Difference(mean, mean, mean, float(mean <= margin), seeds)
    freedom = variance**2 / (over_seeds**2 / (seeds - 1) + over_records**2 / (number - 1))
    error = math.sqrt(variance)
    wide = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(mean - margin) / error, freedom))
    return Difference(mean, mean - wide, mean + wide, p, seeds)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): all that are below a level hold together,
    wrong in any one of them with at most that probability."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = largest
    return corrected
