"""Numbers for people."""

from __future__ import annotations

import math


def epsilon_text(epsilon: float | None, digits: int = 2, infinite: str = "∞") -> str:
    """An epsilon with so many digits, with none from 100 on; None is an infinite one."""
    if epsilon is None or math.isinf(epsilon):
        return infinite
    return f"{epsilon:.{digits}f}" if epsilon < 100 else f"{epsilon:.0f}"


def size_text(count: float) -> str:
    """A number of bytes, with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
