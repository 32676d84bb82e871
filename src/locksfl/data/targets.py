"""The label columns of a user's table: classes, or the numbers and tags of another task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from locksfl import _validate
from locksfl.data.columns import Missing, absent, as_numbers, as_text, not_a_number
from locksfl.data.population import MOST_CLASSES
from locksfl.data.tables import Batch
from locksfl.data.task import CLASSES, Task

MOST_COUNTED = 2**16  # classes, unless their number is given


class Classes:
    """The label column: whole numbers, or names that are given beforehand."""

    dtype: Any = np.int32
    shape: tuple[int, ...] = ()

    def __init__(self, column: str, known: tuple[str, ...] | None) -> None:
        self.column = column
        self.given: int | None = None
        self.names: list[str] | None = None
        self.largest = -1
        if known is not None and len(known) == 1 and known[0].isdigit():
            self.given = int(known[0])
            _validate.count(**{"--classes": self.given})
            if self.given > MOST_CLASSES:
                raise ValueError(f"--classes {self.given}: expected at most {MOST_CLASSES}")
        elif known is not None:
            self.names = [name.strip() for name in known]
            if len(set(self.names)) < len(known) or len(known) < 2:
                raise ValueError(
                    f"--classes {','.join(known)}: expected different names, or a number"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column,)

    def look(self, batch: Batch, first: int, missing: Missing) -> None:
        """Check a batch's labels."""
        text = as_text(batch[self.column], self.column)
        missing.add(self.column, first + absent(text))
        if not text.null_count:  # otherwise the batch is checked once these are fixed
            self.largest = max(self.largest, int(self.take(batch, first).max()))

    def take(self, batch: Batch, first: int = 1) -> NDArray[np.int32]:
        """[rows] the labels of a batch."""
        text = as_text(batch[self.column], self.column)
        return self._named(text, first) if self.names else self._numbered(text, first)

    def _named(self, text: Any, first: int) -> NDArray[np.int32]:
        names = self.names or []
        places = pc.index_in(text, value_set=pa.array(names))
        if places.null_count:
            place = int(absent(places)[0])
            cell = text[place].as_py()
            raise ValueError(
                f"label {self.column!r} in row {first + place} is {cell!r}: expected one of "
                f"{', '.join(names)}{_validate.nearest(cell, names)}"
            )
        return np.asarray(places.to_numpy(zero_copy_only=False), np.int32)

    def _numbered(self, text: Any, first: int) -> NDArray[np.int32]:
        try:
            numbers = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
        except pa.ArrowException:
            wrong = np.array([not_a_number(text)[0]])
        if wrong.size:
            raise ValueError(
                f"label {self.column!r} in row {first + wrong[0]} is {text[wrong[0]].as_py()!r}: "
                "expected a whole number, or name the classes: --classes cat,dog"
            )
        limit = MOST_COUNTED if self.given is None else self.given
        wrong = np.flatnonzero((numbers < 0) | (numbers >= limit))
        if wrong.size:
            expected = f"0..{limit - 1}"
            if self.given is None:
                expected = f"0, 1, 2, ... below {limit} (number them anew, or give --classes)"
            raise ValueError(
                f"label {self.column!r} in row {first + wrong[0]} is {numbers[wrong[0]]:.0f}: "
                f"expected a class in {expected}"
            )
        return numbers.astype(np.int32)

    @property
    def count(self) -> int:
        """The number of classes: as given or, from the data, the largest label + 1."""
        if self.names is not None:
            return len(self.names)
        return self.given if self.given is not None else self.largest + 1

    @property
    def public(self) -> bool:
        """Whether the number of classes was given, not counted in the records."""
        return self.names is not None or self.given is not None


class Targets:
    """Numbers or tags: a column for each, or one column of arrays."""

    names: list[str] | None = None
    public = True  # how many there are

    def __init__(self, columns: tuple[str, ...], task: Task) -> None:
        self.columns, self.task = columns, task
        self.dtype: Any = np.float32 if task.kind == "numbers" else np.int32
        self.shape: tuple[int, ...] = ()
        if len(columns) > 1:
            self.names = list(columns)

    @property
    def count(self) -> int:
        """How many a sample has."""
        return self.shape[0]

    def look(self, batch: Batch, first: int, missing: Missing) -> None:
        """Check a batch's labels."""
        values = self._matrix(batch, first)
        gaps = np.isnan(values)
        missing.add(", ".join(self.columns), first + np.flatnonzero(gaps.any(axis=1)))
        if self.shape not in ((), values.shape[1:]):
            raise ValueError(f"label: {values.shape[1]} in row {first}, expected {self.count}")
        self.shape = values.shape[1:]
        if gaps.any():
            return
        try:
            self.task.checked("label", values)
        except ValueError:
            for row, one in enumerate(values):  # for a message that names the row
                self.task.checked(f"label in row {first + row} ", one[None])
            raise

    def take(self, batch: Batch, first: int = 1) -> NDArray[Any]:
        """[rows, labels]"""
        return self.task.checked("label", self._matrix(batch, first))

    def _matrix(self, batch: Batch, first: int) -> NDArray[np.float64]:
        made = []
        for name in self.columns:
            column = batch[name]
            if not isinstance(column, np.ndarray) and pa.types.is_nested(column.type):
                try:
                    column = np.array(column.to_pylist(), np.float64)
                except (TypeError, ValueError):
                    raise ValueError(
                        f"label {name!r}: expected as many numbers in every row"
                    ) from None
            if not isinstance(column, np.ndarray):
                column = as_numbers(column, name, first)
            if column.ndim > 2 or column.dtype.kind not in "iufb":
                raise ValueError(
                    f"label {name!r}: expected a number, or a row of them, got {column.dtype} of "
                    f"shape {column.shape[1:]}"
                )
            made.append(column.reshape(len(column), -1).astype(np.float64))
        return np.concatenate(made, axis=1)


def targets_of(
    columns: tuple[str, ...], known: tuple[str, ...] | None, task: Task
) -> Classes | Targets:
    """What the label columns are to be read as."""
    if task == CLASSES:
        if len(columns) > 1:
            raise ValueError(
                f"--label {','.join(columns)}: expected one column of classes; several are for "
                "--numbers LOW,HIGH or --tags (task= in Python)"
            )
        return Classes(columns[0], known)
    if known is not None:
        raise ValueError(f"--classes {','.join(known)}: {task.kind} have none")
    return Targets(columns, task)
