"""The parts that a page is made of. The template knows how each of them looks, and escapes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from locksfl._charts import Chart


@dataclass(frozen=True)
class Text:
    """A paragraph; `**` marks what is bold."""

    text: str


@dataclass(frozen=True)
class Listing:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Cells; columns from `left` on are numbers, and stand to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

    chart: Chart
    caption: str


@dataclass(frozen=True)
class Code:
    """Words for a machine."""

    text: str


Block = Text | Listing | Table | Figure | Code


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Number:
    """What stands in large type at the top: against whom, the epsilon, and what it is."""

    against: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Summary:
    """The box at the top, of one run."""

    heading: str
    numbers: Sequence[Number]
    facts: Sequence[tuple[str, str]]
    note: str


def pieces(text: str) -> list[tuple[bool, str]]:
    """A text in parts, each bold or not."""
    parts = re.split(r"\*\*(.+?)\*\*", text)
    return [(bool(number % 2), part) for number, part in enumerate(parts) if part]


def decimal_text(value: float | None) -> str:
    """A score or an error; nothing is a dash."""
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def number_text(value: Any) -> str:
    """A number for a table; nothing is a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
