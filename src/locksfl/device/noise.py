"""The noise of a device (rounded Gaussian on a public grid, sampled exactly)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]


class Noise(Protocol):
    """Where noise comes from. `SYSTEM` on a device; a test gives its own."""

    def steps(self, std: float, grid: float, size: int) -> Steps:
        """`size` independent draws of round(N(0, std^2) / grid)."""


class SystemNoise:
    """From the operating system's entropy."""

    def steps(self, std: float, grid: float, size: int) -> Steps:
        raise NotImplementedError


SYSTEM = SystemNoise()
