"""Checks on what a user typed: one line that names the setting, its value and what is expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any


def positive(**settings: float) -> None:
    """Refuse values that are not numbers above zero, or that float32 cannot calculate with."""
    for name, value in settings.items():
        _number(name, value)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value!r}: expected a number > 0")
        if not 1e-30 <= value <= 1e30:
            raise ValueError(f"{name} = {value!r}: expected a number from 1e-30 to 1e30")


def non_negative(**settings: float) -> None:
    """Refuse values that are not numbers, zero or above, or whose square would be infinite."""
    for name, value in settings.items():
        _number(name, value)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value!r}: expected a number >= 0")
        if value > 1e30:
            raise ValueError(f"{name} = {value!r}: expected a number from 0 to 1e30")


def rate(**settings: float) -> None:
    """Refuse values outside (0, 1]."""
    for name, value in settings.items():
        _number(name, value)
        if not 0 < value <= 1:
            raise ValueError(f"{name} = {value!r}: expected a rate in (0, 1]")


def probability(**settings: float) -> None:
    """Refuse values outside the open interval (0, 1)."""
    for name, value in settings.items():
        _number(name, value)
        if not 0 < value < 1:
            raise ValueError(f"{name} = {value!r}: expected a number in (0, 1)")


def count(**settings: int) -> None:
    """Refuse values that are not whole numbers above zero."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} = {value!r}: expected a whole number >= 1")


def one_of(choices: Iterable[str], **settings: str) -> None:
    """Refuse a word that is not among the choices, and offer the nearest one."""
    known = list(choices)
    for name, value in settings.items():
        if value not in known:
            raise ValueError(
                f"{name} = {value!r}: expected one of {', '.join(known)}{nearest(value, known)}"
            )


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


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} = {value!r}: expected a number")
