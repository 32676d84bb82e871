"""Numbers and tables for people."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def epsilon_text(epsilon: float | None, digits: int = 2, infinite: str = "∞") -> str:
    """An epsilon with so many digits, with none from 100 on, rounded up: what is printed holds.
    None is an infinite one."""
    if epsilon is None or math.isinf(epsilon):
        return infinite
    last = Decimal(1).scaleb(-digits if epsilon < 100 else 0)
    return str(Decimal(epsilon).quantize(last, ROUND_CEILING))


def size_text(count: float) -> str:
    """A number of bytes, with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


@contextmanager
def python_names() -> Iterator[None]:
    """Refusals for who called a function: its arguments, not the options of a command."""
    try:
        yield
    except ValueError as error:
        named = re.compile(r"(?<![^\s(])--[a-z-]+")
        message = named.sub(lambda option: option[0][2:].replace("-", "_"), str(error))
        raise ValueError(message) from None


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(
    heads: Iterable[str], rows: Iterable[Iterable[Any]], left: int = 0, **options: Any
) -> Table:
    """A table for a terminal.

    Args:
        heads: the headings.
        rows: the cells, row by row.
        left: how many columns are aligned to the left, besides those without a heading; the
            others are aligned to the right.
        options: of rich's Table.

    Returns:
        rich's table, for a console to print.
    """
    from rich.table import Table

    table = Table(title_justify="left", **options)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if head and number >= left else "left")
    for row in rows:
        table.add_row(*row)
    return table
