"""Many small tests of one property, and one verdict with a stated rate of false alarms.

Each test gives a deviation that is standard normal when the property holds. The largest of all is
compared with the quantile that sound code passes with a probability below FALSE_ALARM, over all of
them together.

Dependence is looked for in bounded functions of the values (`views`): their order, their size
without the sign, and a sawtooth. A shared radius or a shared bit shows in the last two although the
values are uncorrelated. That the functions are bounded makes sums of a few hundred products normal
far into the tails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 1e-6
FEW = 64  # products in a sum that is compared with a normal


class Evidence:
    """The deviations found so far: the largest of them, and how many there are."""

    def __init__(self) -> None:
        self._worst, self._told, self._count = 0.0, "nothing to test", 0

    def add(self, name: str, deviations: Any) -> None:
        """Some deviations; one that is not a number is as bad as can be."""
        each = np.abs(np.ravel(np.asarray(deviations, np.float64)))
        if not each.size:
            return
        self._count += each.size
        worst = float(np.max(np.where(np.isnan(each), np.inf, each)))
        if worst > self._worst or self._count == each.size:
            self._worst, self._told = worst, name

    def add_p(self, name: str, two_sided: Any) -> None:
        """Some p-values, as deviations."""
        p = np.clip(np.asarray(two_sided, np.float64), 1e-300, 1.0)
        self.add(name, stats.norm.isf(p / 2))

    def fail(self, name: str) -> None:
        """Something that can never happen did."""
        self.add(name, np.inf)

    def verdict(self) -> tuple[bool, str]:
        """Whether the property holds, and the largest deviation."""
        limit = float(stats.norm.isf(FALSE_ALARM / 2 / max(1, self._count)))
        if not self._count or np.isinf(self._worst):
            return np.isfinite(self._worst), self._told
        worst = f"{self._worst:.1f}" if self._worst < 1000 else f"{self._worst:.0e}"
        return self._worst <= limit, f"{self._told}: {worst} deviations, at most {limit:.1f}"


def views(values: Floats, normal: bool = True) -> list[Floats]:
    """Three bounded functions of values, each with mean 0 and variance 1 over all of them.

    Args:
        values: of one distribution, normal if `normal`, of whatever scale.
        normal: else every value counts as it is, and there is one view.
    """
    if not normal:
        return [_standard(values)]
    share = special.ndtr(_standard(values).astype(np.float32))  # enough for a view, and quick
    return [_standard(v) for v in (share, np.abs(2 * share - 1), (4 * share) % 1.0)]


def _standard(values: Floats) -> Floats:
    spread = np.std(values)
    return np.asarray((values - np.mean(values)) / (spread if spread > 0 else 1.0), values.dtype)


def mean_square(values: Floats, axis: int | None = None) -> Floats:
    """Deviations of the mean of squares of standard normals from 1 (Wilson and Hilferty 1931)."""
    ratio = np.asarray(np.mean(np.square(values), axis=axis), np.float64)
    return chi_square(ratio, np.size(values) // max(1, ratio.size))


def chi_square(ratio: Any, freedom: float) -> Floats:
    """Deviations of a chi-square over its degrees of freedom."""
    spread = 2 / (9 * freedom)
    return np.asarray((np.cbrt(ratio) - (1 - spread)) / np.sqrt(spread), np.float64)


def lagged(rows: Floats, other: Floats | None = None) -> Floats:
    """Deviations of the mean product of entries that are 1, 2, ... apart in a row, over all rows;
    with `other` of an entry and one of the other's row, at any distance."""
    count, length = rows.shape
    ahead = fft.rfft(rows.astype(np.float32, copy=False), 2 * length, axis=1)
    behind = ahead if other is None else fft.rfft(other.astype(np.float32, copy=False), 2 * length, axis=1)
    summed = fft.irfft(np.sum(ahead * np.conj(behind), axis=0), 2 * length).astype(np.float64)
    lags = np.arange(1 if other is None else 0, length)
    after = summed[lags] / np.sqrt(count * (length - lags))
    before = summed[-lags[1:]] / np.sqrt(count * (length - lags[1:]))
    enough = count * (length - lags) >= FEW
    if other is None:
        return np.asarray(after[enough], np.float64)
    return np.concatenate([after[enough], before[enough[1:]]])


def products(first: Floats, second: Floats) -> Floats:
    """Deviations of the mean product of each column of one with each column of the other."""
    return np.asarray(first.T @ second / np.sqrt(len(first)), np.float64)
