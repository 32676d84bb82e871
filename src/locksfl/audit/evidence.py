"""Many small tests of one property, and one verdict with a stated rate of false alarms.

Each test gives deviations that are standard normal when the property holds. The largest is compared
with a quantile that sound code passes with a probability below FALSE_ALARM, over all tests of the
property together.

Dependence is looked for in bounded functions of the values (`views`): their order, their size
without the sign, and a sawtooth. A shared radius or a shared bit shows in the last two although the
values are uncorrelated. That the functions are bounded makes sums of a few hundred products normal
far into the tails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import fft, special, stats

from locksfl._arrays import Floats

FALSE_ALARM = 1e-6
FEW = 64  # products in a sum that is compared with a normal


class Evidence:
    """The deviations so far, by the name of the test: the largest, and how many there are.

    The tests share FALSE_ALARM equally, so that one with many deviations takes nothing from one
    with few.
    """

    def __init__(self) -> None:
        self._worst: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def add(self, name: str, deviations: Any) -> None:
        """Some deviations; one that is not a number is as bad as can be."""
        each = np.abs(np.ravel(np.asarray(deviations, np.float64)))
        if each.size:
            worst = float(np.max(np.where(np.isnan(each), np.inf, each)))
            self._worst[name] = max(worst, self._worst.get(name, 0.0))
            self._count[name] = self._count.get(name, 0) + each.size

    def add_p(self, name: str, two_sided: Any) -> None:
        """Some p-values, as deviations."""
        p = np.clip(np.asarray(two_sided, np.float64), 1e-300, 1.0)
        self.add(name, stats.norm.isf(p / 2))

    def fail(self, name: str) -> None:
        """Something that can never happen did."""
        self.add(name, np.inf)

    def verdict(self) -> tuple[bool, str]:
        """Whether the property holds, and the test that comes closest to its limit."""
        if not self._worst:
            return True, "nothing to test"
        share = FALSE_ALARM / len(self._worst)
        limits = {name: stats.norm.isf(share / 2 / n) for name, n in self._count.items()}
        name = max(self._worst, key=lambda name: self._worst[name] / limits[name])
        worst, limit = self._worst[name], limits[name]
        if np.isinf(worst):
            return False, name
        size = f"{worst:.1f}" if worst < 1000 else f"{worst:.0e}"
        return bool(worst <= limit), f"{name}: {size} deviations, at most {limit:.1f}"


def views(values: Floats) -> list[Floats]:
    """Three bounded functions of normal values of whatever scale, each with mean 0 and variance 1
    over all of them."""
    share = special.ndtr(standard(values).astype(np.float32))  # enough for a view, and quick
    return [standard(view) for view in _bounded(share)]


def fixed_views(values: Floats) -> list[Floats]:
    """The same of values that are standard normal, without a look at the others: values that are
    all equal show."""
    return [np.sqrt(12) * (view - 0.5) for view in _bounded(special.ndtr(values))]


def _bounded(share: Floats) -> tuple[Floats, ...]:
    return share, np.abs(2 * share - 1), (4 * share) % 1.0


def standard(values: Floats) -> Floats:
    """The values with mean 0 and variance 1."""
    spread = np.std(values)
    return (values - np.mean(values)) / (spread if spread > 0 else 1.0)


def mean_square(values: Floats, axis: int | None = None) -> Floats:
    """Deviations of the mean of squares of standard normals from 1 (Wilson and Hilferty 1931)."""
    ratio = np.mean(np.square(values), axis=axis)
    return chi_square(ratio, np.size(values) // max(1, ratio.size))


def chi_square(ratio: Any, freedom: float) -> Floats:
    """Deviations of a chi-square over its degrees of freedom."""
    spread = 2 / (9 * freedom)
    return (np.cbrt(ratio) - (1 - spread)) / np.sqrt(spread)


def lagged(rows: Floats, other: Floats | None = None) -> Floats:
    """Deviations of the mean product of entries that are 1, 2, ... apart in a row, over all rows;
    with `other` of an entry and one of the other's row, at any distance."""
    if other is not None:
        both = min(rows.shape[1], other.shape[1])
        rows, other = rows[:, :both], other[:, :both]
    count, length = rows.shape

    def spectra(values: Floats) -> Any:
        return fft.rfft(values.astype(np.float32, copy=False), 2 * length, axis=1)

    ahead = spectra(rows)
    behind = ahead if other is None else spectra(other)
    summed = fft.irfft(np.sum(ahead * np.conj(behind), axis=0), 2 * length).astype(np.float64)
    lags = np.arange(1 if other is None else 0, length)
    after = summed[lags] / np.sqrt(count * (length - lags))
    before = summed[-lags[1:]] / np.sqrt(count * (length - lags[1:]))
    enough = count * (length - lags) >= FEW
    if other is None:
        return after[enough]
    return np.concatenate([after[enough], before[enough[1:]]])


def products(first: Floats, second: Floats) -> Floats:
    """Deviations of the mean product of each column of one with each column of the other."""
    return first.T @ second / np.sqrt(len(first))
