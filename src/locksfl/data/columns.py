"""Columns of a user's table as text, numbers and owners.

Missing values are collected and reported together with their rows.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

SHOWN = 5  # rows named in a message
# what programs write into a column of numbers where there is none
ABSENT = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "?")


class Missing:
    """Rows with values that are missing or not finite, by column."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.rows: dict[str, list[int]] = {}
        self.counts: dict[str, int] = {}

    def add(self, column: str, rows: Any) -> None:
        """Note rows (numbered from 1) of a column."""
        if len(rows):
            known = self.rows.setdefault(column, [])
            known += [int(row) for row in rows[: SHOWN - len(known)]]
            self.counts[column] = self.counts.get(column, 0) + len(rows)

    def refuse(self) -> None:
        """Raise one line about everything noted, if anything was."""
        if self.rows:
            gaps = []
            for column, rows in list(self.rows.items())[:3]:
                count = self.counts[column]
                more = f" ... ({count} in total)" if count > len(rows) else ""
                listed = ", ".join(map(str, rows))
                gaps.append(f"{column!r} in row{'s' if count > 1 else ''} {listed}{more}")
            rest = f", and {len(self.rows) - 3} more columns" if len(self.rows) > 3 else ""
            raise ValueError(
                f"{self.table}: missing or not finite: {'; '.join(gaps)}{rest} (a --recipe can "
                "say what stands for a missing feature)"
            )


def as_text(column: Any, name: str) -> Any:
    """[rows] Arrow text without space around it; missing where nothing else is left."""
    if isinstance(column, np.ndarray):
        raise ValueError(
            f"column {name!r} holds arrays of shape {column.shape[1:]}: expected one value per row"
        )
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    try:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    except pa.ArrowException:
        raise ValueError(f"column {name!r} holds {column.type}: expected numbers or text") from None
    return pc.if_else(pc.equal(text, ""), None, text)


def absent(column: Any) -> NDArray[np.int64]:
    """The places of missing values."""
    return np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))


def as_numbers(column: Any, name: str, first: int) -> NDArray[np.float64]:
    """[rows] numbers, NaN where a value is missing. `first` is the number of the first row."""
    if isinstance(column, np.ndarray):
        raise ValueError(
            f"column {name!r} holds arrays of shape {column.shape[1:]}; expected one number per "
            "row, or this column alone as --image"
        )
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        text = as_text(column, name)
        column = pc.if_else(pc.is_in(text, value_set=pa.array(ABSENT)), None, text)
    try:
        numbers = column.cast(pa.float64(), safe=False)
    except pa.ArrowException:
        place, cell = not_a_number(column)
        raise ValueError(
            f"column {name!r} in row {first + place} is {cell!r}: expected a number (declare "
            "categories or dates in a --recipe, or choose the columns with --features"
            + ("; a decimal comma is none)" if "," in cell else ")")
        ) from None
    return numbers.to_numpy(zero_copy_only=False)


def not_a_number(column: Any) -> tuple[int, str]:
    """The place of the first cell that is none, and the cell."""
    for place, cell in enumerate(column.to_pylist()):
        try:
            float(cell if cell is not None else 0)
        except (TypeError, ValueError):
            return place, str(cell)[:40]
    return 0, str(column[0].as_py())[:40]


def owners(column: Any, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct ids of a batch, as text, and which of them [rows] is whose; -1: missing."""
    if not isinstance(column, np.ndarray) and pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
        there = values[~np.isnan(values)]
        if ((there != np.floor(there)) | (np.abs(there) >= 2.0**53)).any():
            raise ValueError(f"column {name!r}: expected whole numbers below 2^53, or text, as ids")
        # as whole numbers are written, so that nobody is two clients
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    ids = as_text(column, name).dictionary_encode()
    places = pc.fill_null(ids.indices.cast(pa.int64()), -1)
    return ids.dictionary.to_pylist(), places.to_numpy(zero_copy_only=False)


def in_order(ids: Any) -> list[str]:
    """Ids sorted, as numbers if all of them are whole: the same from every kind of file."""
    listed = list(ids)
    whole = all(re.fullmatch("-?[0-9]{1,18}", name) for name in listed)
    return sorted(listed, key=lambda name: (int(name) if whole else 0, name))
