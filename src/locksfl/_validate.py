"""Checks on what a user typed: one line that names the setting, its value and what is expected.

Settings are passed by name. A check can also stand beside a dataclass field: `locksfl._tables`.

>>> positive(clip_norm=-1)
Traceback (most recent call last):
ValueError: clip_norm = -1: expected a number > 0
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")  # the values of settings that are checked together


def positive(**settings: float) -> None:
    """Refuse values that are not numbers above zero, or that float32 cannot calculate with."""
    _numbers(settings, lambda value: 0 < value < math.inf, "a number > 0")
    _numbers(settings, lambda value: 1e-30 <= value <= 1e30, "a number from 1e-30 to 1e30")


def non_negative(**settings: float) -> None:
    """Refuse values that are not numbers, zero or above, or whose square would be infinite."""
    _numbers(settings, lambda value: 0 <= value < math.inf, "a number >= 0")
    _numbers(settings, lambda value: value <= 1e30, "a number from 0 to 1e30")


def rate(**settings: float) -> None:
    """Refuse values outside (0, 1]."""
    _numbers(settings, lambda value: 0 < value <= 1, "a rate in (0, 1]")


def probability(**settings: float) -> None:
    """Refuse values outside the open interval (0, 1)."""
    _numbers(settings, lambda value: 0 < value < 1, "a number in (0, 1)")


def count(**settings: int) -> None:
    """Refuse values that are not whole numbers above zero, or that a float cannot count to."""
    refuse_unless(
        settings, lambda value: _is(Integral, value) and value >= 1, "a whole number >= 1"
    )
    at_most(10**15, **settings)


def at_most(limit: int, **settings: int) -> None:
    """Refuse larger values."""
    refuse_unless(settings, lambda value: value <= limit, f"at most {limit}")


def whole(**settings: int) -> None:
    """Refuse values that are not whole numbers, zero or above."""
    refuse_unless(
        settings, lambda value: _is(Integral, value) and value >= 0, "a whole number >= 0"
    )


def in_order(**settings: float | None) -> None:
    """Refuse a second setting that is below the first; None sets no limit."""
    (lower, least), (name, value) = settings.items()
    if least is not None and value is not None and value < least:
        raise ValueError(f"{name} = {value!r}: expected at least {lower} = {least!r}")


def one_of(choices: Iterable[str], **settings: str) -> None:
    """Refuse a word that is not among the choices, and offer the nearest one."""
    known = list(choices)
    for name, value in settings.items():
        if value not in known:  # only then is it worth looking for the nearest
            hint = f"one of {', '.join(known)}{nearest(value, known)}"
            raise ValueError(f"{name} = {value!r}: expected {hint}")


def nearest(word: Any, known: Iterable[str]) -> str:
    """A question that offers the closest known name, or nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def naming(**settings: str) -> Iterator[None]:
    """Give a refusal the name that a user typed: data.clients for a function's `clients`."""
    try:
        yield
    except ValueError as error:
        word, _, rest = str(error).partition(" ")
        if word not in settings:
            raise
        raise ValueError(f"{settings[word]} {rest}") from None


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _numbers(settings: Mapping[str, T], allowed: Callable[[T], bool], expected: str) -> None:
    refuse_unless(settings, lambda value: _is(Real, value), "a number")
    refuse_unless(settings, allowed, expected)


def refuse_unless(settings: Mapping[str, T], allowed: Callable[[T], bool], expected: str) -> None:
    """Refuse settings with a value that is not allowed; `expected` ends the message."""
    for name, value in settings.items():
        if not allowed(value):
            raise ValueError(f"{name} = {value!r}: expected {expected}")
