"""Where two answers differ, by path, and what of that is on purpose: differs.json.

differs.json is one table: a pattern of paths (`*` for anything) and the reason, a line each. Paths
begin with arms/NUMBER, folders/NAME or plays/NAME.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

LISTED = Path(__file__).parent / "differs.json"


def differences(before: Any, now: Any, at: str, exact: bool = False) -> Iterator[str]:
    """The paths of all that differs. Types count. Floats are equal up to 1e-9 of them, and epsilons
    up to 1e-4, for another processor's Fourier transforms move the bound under replace by 7e-6 of
    it; `exact`: to the bit, on the same machine."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key in before and key in now:
                yield from differences(before[key], now[key], f"{at}/{key}", exact)
            else:
                yield f"{at}/{key}"
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{at}/{i}", exact)
    elif isinstance(before, float) and isinstance(now, float):
        rel = 0.0 if exact else 1e-4 if "/epsilons/" in at else 1e-9
        if not math.isclose(before, now, rel_tol=rel, abs_tol=0.0):
            yield at
    elif type(before) is not type(now) or before != now:
        yield at


def unexplained(paths: list[str]) -> list[str]:
    """Those that differ and should not."""
    reasons: dict[str, str] = json.loads(LISTED.read_text("utf-8"))
    return [path for path in paths if not any(fnmatchcase(path, known) for known in reasons)]
