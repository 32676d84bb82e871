"""The noise of a device: a rounded Gaussian on a public grid, sampled exactly.

A float Gaussian added to a float leaves traces of the value in the last digits, from which the
noise can be undone (Mironov 2012, "On significance of the least significant bits"). Here

    grid g     the power of two with std/g in [2^20, 2^21): a function of std alone, hence public
    value x    truncated to the grid, so that no coordinate and no norm grows
    release    x + g k,   k = round(N(0, std^2) / g), one for each coordinate

Since x is on the grid, x + g k = g round((x + N(0, std^2)) / g): the Gaussian mechanism, rounded.
Rounding is post-processing, so the release is exactly as private as the Gaussian mechanism, mu-GDP
with mu = sensitivity/std, and there is no difference to charge. Every release is a multiple of g,
whatever x was: its last digits reveal nothing. Sums are integers (int64) until the end, so that the
float32 that is sent is a function of the released integer.

k is sampled by inversion from bits of the operating system. |N| is the point with tail probability
V, uniform in (0, 1/2): V = Q(|N|), Q(y) = erfc(y / sqrt 2) / 2. A sign and 63 bits are drawn;
`ndtri` inverts them in float64, and its result is used only if everything within its error rounds
to the same integer. Otherwise (about once in 200,000 draws) V is compared with Q at the borders
between integers, with as many digits as it takes, and with more bits of V if those do not decide.

What is assumed: the operating system's entropy; that scipy's `ndtri` is within 1e-12 (1 + |x|) of
the true value (within 4e-16 (1 + |x|) wherever it was checked); that mpmath's `erfc`, computed with
40 digits more than needed, is correct in the digits that are needed.
What is not claimed: anything about how long a draw takes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import special

Steps = npt.NDArray[np.int64]
Entropy = Callable[[int], bytes]

GRID_BITS = 20
MARGIN = 1e-12  # on |x|, times 1 + |x|: thousands of times the error of ndtri
LARGEST_MILLS = 1.2534  # Q(y) / density(y) is largest at 0: sqrt(pi / 2)
LARGEST = 2**53  # integers up to here are exact floats
BLOCK = 2**16  # draws at once: a model of any size takes little memory beside its own


class NoiseSource(Protocol):
    """The source of noise: `SYSTEM` on a device; a test passes its own."""

    def steps(self, std: float, grid: float, size: int) -> Steps:
        """`size` independent draws of round(N(0, std^2) / grid)."""


class SystemNoise:
    """The exact sampler. `entropy` returns random bytes, the operating system's except in tests."""

    def __init__(self, entropy: Entropy = os.urandom) -> None:
        self._entropy = entropy

    def steps(self, std: float, grid: float, size: int) -> Steps:
        """`size` independent draws of round(N(0, std^2) / grid), exactly."""
        spread = std / grid
        words = np.frombuffer(self._entropy(8 * size), np.uint64)
        negative = (words & np.uint64(1)).astype(bool)
        known = words >> np.uint64(1)  # V lies in [known, known + 1] / 2^64
        with np.errstate(divide="ignore", invalid="ignore"):  # known = 0 is not sure either
            point = -special.ndtri(known * 2.0**-64)
            # as V moves by 2^-64, |N| moves by at most 2^-64 / density <= Mills / known
            error = spread * (MARGIN * (1 + point) + LARGEST_MILLS / known)
            near = np.rint(spread * point)
            sure = np.abs(spread * point - near) + error < 0.5
        steps = np.where(sure, near, 0.0).astype(np.int64)
        for i in np.flatnonzero(~sure):
            steps[i] = _Exact(int(known[i]), spread, self._entropy).step()
        return np.where(negative, -steps, steps)


SYSTEM = SystemNoise()


class _Exact:
    """One draw without floats: V = (known + fraction) / 2^bits, with more bits on request."""

    def __init__(self, known: int, spread: float, entropy: Entropy) -> None:
        self.known, self.bits, self.spread, self.entropy = known, 64, spread, entropy

    def step(self) -> int:
        """The k with (k - 1/2) / spread <= |N| < (k + 1/2) / spread, by bisection."""
        low, high = -1, 1  # |N| is beyond border `low`, not beyond border `high`
        while self._beyond(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._beyond(middle) else (low, middle)
        return high

    def _beyond(self, border: int) -> bool:
        """Whether |N| > (border + 1/2) / spread, that is V < Q of it."""
        import mpmath  # rarely needed, and it takes a while

        while True:
            with mpmath.workdps(self.bits + 40):  # one digit per bit is plenty, and 40 to spare
                y = (mpmath.mpf(border) + 0.5) / mpmath.mpf(self.spread)
                tail = mpmath.ldexp(mpmath.erfc(y / mpmath.sqrt(2)) / 2, self.bits)
                slack = tail * mpmath.mpf(10) ** -self.bits
                if tail - slack > self.known + 1:
                    return True
                if tail + slack < self.known:
                    return False
            self.known = (self.known << 64) | int.from_bytes(self.entropy(8), "big")
            self.bits += 64


def grid_for(std: float) -> float:
    """The public grid: the power of two g with std / g in [2^20, 2^21)."""
    _, exponent = math.frexp(std)
    return math.ldexp(1.0, exponent - 1 - GRID_BITS)


def gaussian_std(multiplier: float, bound: float) -> float:
    """multiplier * bound, rounded up: never less noise than is charged for."""
    return math.nextafter(multiplier * bound, math.inf)


def add_noise(
    values: npt.NDArray[np.float64],
    std: float,
    noise: NoiseSource,
    kind: type[np.float32] | type[np.float64] = np.float64,
) -> npt.NDArray[Any]:
    """The values, truncated to the grid, with noise: multiples of the grid, each an exact float64,
    rounded to `kind`."""
    grid, size = grid_for(std), values.size
    largest = max(np.max(values, initial=0.0), -np.min(values, initial=0.0))
    if not largest / grid < LARGEST / 2:  # also for NaN
        raise ValueError("the values are too large for the grid of their noise")
    noised = np.empty(size, kind)
    for start in range(0, size, BLOCK):
        some = values[start : start + BLOCK]
        kept = np.trunc(some / grid).astype(np.int64)  # dividing by a power of two is exact
        noised[start : start + BLOCK] = (kept + noise.steps(std, grid, some.size)) * grid
    return noised
