"""Columns of a user's table as numbers: ids, classes, and what the model sees.

Each kind of feature has two halves: `look` checks a batch and returns how many samples each row
makes, `take` returns them. Missing values are collected and reported together with their rows.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl import _validate
from locksfl.data.shakespeare import LENGTH, encode, windows
from locksfl.data.tables import Batch, Table

Rows = NDArray[np.int64]
TOLD = 5  # rows named in a message
MOST_CLASSES = 2**16  # a model has a row of weights for each, and a description a line


class Missing:
    """Rows with values that are missing or not finite, by column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, list[int]] = {}
        self.counts: dict[str, int] = {}

    def add(self, column: str, rows: Any) -> None:
        """Note rows (numbered from 1) of a column."""
        if len(rows):
            known = self.rows.setdefault(column, [])
            known += [int(row) for row in rows[: TOLD - len(known)]]
            self.counts[column] = self.counts.get(column, 0) + len(rows)

    def refuse(self) -> None:
        """Raise one line about everything noted, if anything was."""
        if self.rows:
            told = []
            for column, rows in list(self.rows.items())[:3]:
                count = self.counts[column]
                more = f" ... ({count} in total)" if count > len(rows) else ""
                listed = ", ".join(map(str, rows))
                told.append(f"{column!r} in row{'s' if count > 1 else ''} {listed}{more}")
            rest = f", and {len(self.rows) - 3} more columns" if len(self.rows) > 3 else ""
            raise ValueError(f"{self.path}: missing or not finite: {'; '.join(told)}{rest}")


def is_missing(value: Any) -> bool:
    """None, NaN, or an empty cell."""
    return (
        value is None or (isinstance(value, float) and np.isnan(value)) or str(value).strip() == ""
    )


def client_ids(column: Any, name: str, first: int, missing: Missing | None) -> NDArray[Any]:
    """[rows] ids as whole numbers or text."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuU":
        if missing is not None and column.dtype.kind == "U":
            missing.add(name, first + np.flatnonzero(np.char.strip(column) == ""))
        return column
    cells = list(column)
    if missing is not None:
        missing.add(name, [first + i for i, value in enumerate(cells) if is_missing(value)])
    for i, value in enumerate(cells):
        if isinstance(value, bytes):
            cells[i] = value.decode("utf-8", "replace")
        elif isinstance(value, float | np.floating):
            if not np.isnan(value) and value != int(value):
                raise ValueError(
                    f"column {name!r}: row {first + i} = {value!r}: expected whole numbers or text"
                )
            cells[i] = "" if np.isnan(value) else int(value)
    if all(isinstance(value, int | np.integer) for value in cells):
        with suppress(OverflowError):  # larger ones are texts
            return np.array(cells, np.int64)
    return np.array(["" if value is None else str(value) for value in cells])


class Classes:
    """The label column: whole numbers, or names that are given beforehand."""

    def __init__(self, column: str | None, known: tuple[str, ...] | None) -> None:
        self.column = column
        self.count: int | None = None
        self.index: dict[str, int] | None = None
        self.largest = -1
        if known is not None and len(known) == 1 and known[0].isdigit():
            self.count = int(known[0])
            _validate.count(**{"--classes": self.count})
            _validate.at_most(MOST_CLASSES, **{"--classes": self.count})
        elif known is not None:
            self.index = {name.strip(): i for i, name in enumerate(known)}
            if len(self.index) < len(known) or len(known) < 2:
                raise ValueError(
                    f"--classes {','.join(known)}: expected different names, or a number"
                )

    def look(self, column: Any, first: int, missing: Missing, path: Path) -> None:
        """Check a batch's labels."""
        name = self.column or ""
        absent = [first + i for i, value in enumerate(column) if is_missing(value)]
        missing.add(name, absent)
        if absent:
            return  # the rest of this batch is checked once these are fixed
        if self.index is None and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
            numbers = column
        else:
            numbers = np.array(
                [self._number(value, first + i, path) for i, value in enumerate(column)]
            )
        limit = self.count if self.count is not None else 2**31 - 1
        wrong = np.flatnonzero((numbers < 0) | (numbers >= limit))
        if wrong.size:
            expected = f"0..{limit - 1}" if self.count is not None else "0, 1, 2, ..."
            raise ValueError(
                f"{path}: label {name!r} in row {first + int(wrong[0])} is "
                f"{int(numbers[wrong[0]])}: expected a class in {expected}"
            )
        self.largest = max(self.largest, int(numbers.max()))

    def _number(self, value: Any, row: int, path: Path) -> int:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).strip()
        if self.index is not None:
            if text not in self.index:
                hint = _validate.nearest(text, self.index)
                raise ValueError(
                    f"{path}: label {self.column!r} in row {row} is {text!r}: expected one of "
                    f"{', '.join(self.index)}{hint}"
                )
            return self.index[text]
        try:
            number = float(text)
            if number != int(number):
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError(
                f"{path}: label {self.column!r} in row {row} is {text!r}: expected a whole number, "
                "or name the classes: --classes cat,dog"
            ) from None
        return int(number)

    def take(self, column: Any) -> NDArray[np.int32]:
        """[rows] labels of a batch that was checked."""
        if self.index is None and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
            return column.astype(np.int32)
        return np.array([self._number(value, 0, Path()) for value in column], np.int32)

    def number(self) -> int:
        """The number of classes: as given or, from the data, the largest label + 1."""
        if self.column is None:
            return 80
        if self.index is not None:
            return len(self.index)
        return self.count if self.count is not None else self.largest + 1

    def names(self) -> list[str] | None:
        """The class names, if they were given."""
        return list(self.index) if self.index is not None else None


class Features(ABC):
    """What the model sees of a row."""

    kind: str = "table"
    dtype: Any = np.float32
    scale = 1.0

    def __init__(self, columns: tuple[str, ...], path: Path) -> None:
        self.columns, self.path = columns, path
        self.shape: tuple[int, ...] = ()

    @abstractmethod
    def look(self, batch: Batch, first: int, missing: Missing) -> NDArray[np.int64]:
        """Check a batch. Returns [rows] how many samples each row makes."""

    @abstractmethod
    def take(self, batch: Batch) -> tuple[Rows, NDArray[Any], NDArray[np.int32]]:
        """(row, features, next characters) of each sample."""


class Numbers(Features):
    """Columns of numbers, joined as float32."""

    def look(self, batch: Batch, first: int, missing: Missing) -> NDArray[np.int64]:
        """Check that all values are numbers and none is missing."""
        for name in self.columns:
            column = batch[name]
            if isinstance(column, np.ndarray) and column.dtype.kind in "iufb":
                values = column
            else:
                values = self._parse(name, column, first)
            if values.ndim != 1:
                raise ValueError(
                    f"{self.path}: column {name!r} holds arrays of shape {values.shape[1:]}; "
                    "expected one number per row, or this column alone as --image"
                )
            finite = np.isfinite(values.astype(np.float64))
            missing.add(name, first + np.flatnonzero(~finite))
        self.shape = (len(self.columns),)
        return np.ones(len(batch[self.columns[0]]), np.int64)

    def _parse(self, name: str, column: Any, first: int) -> NDArray[np.float64]:
        values = np.full(len(column), np.nan)
        for i, cell in enumerate(column):
            if not is_missing(cell):
                try:
                    values[i] = float(cell)
                except (TypeError, ValueError):
                    shown = str(cell)[:40]
                    raise ValueError(
                        f"{self.path}: column {name!r} in row {first + i} is {shown!r}: expected "
                        "a number (choose the columns with --features, or --text, --image)"
                    ) from None
        return values

    def take(self, batch: Batch) -> tuple[Rows, NDArray[Any], NDArray[np.int32]]:
        """One sample per row."""
        columns = [np.asarray(batch[name], np.float64) for name in self.columns]
        values = np.stack(columns, axis=1).astype(np.float32)
        return np.arange(len(values)), values, np.zeros(0, np.int32)


class Images(Features):
    """One column of arrays, all of one shape; uint8 is pixels (scaled by 1/255)."""

    known = False  # shape and type: those of the first row

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Rows of numbers are a table, whatever file they came in."""
        return "image" if len(self.shape) > 1 else "table"

    def look(self, batch: Batch, first: int, missing: Missing) -> NDArray[np.int64]:
        """Check that no image is missing and that all have the shape of the first."""
        (name,) = self.columns
        if (whole := self._whole(batch[name])) is not None:
            if len(whole):
                self._same(whole[0], name, first)
            if whole.dtype.kind == "f":
                broken = ~np.isfinite(whole.reshape(len(whole), -1)).all(axis=1)
                missing.add(name, first + np.flatnonzero(broken))
            return np.ones(len(whole), np.int64)
        for i, cell in enumerate(batch[name]):
            if not isinstance(cell, np.ndarray | list | dict) and is_missing(cell):
                missing.add(name, [first + i])
                continue
            image = self._pixels(cell, first + i)
            self._same(image, name, first + i)
            if image.dtype == np.float32 and not np.isfinite(image).all():
                missing.add(name, [first + i])
        return np.ones(len(batch[name]), np.int64)

    def _same(self, image: NDArray[Any], name: str, row: int) -> None:
        """Take shape and type from the first image, and check that the others have the same."""
        if not self.known:
            self.shape, self.dtype, self.known = image.shape, image.dtype, True
            self.scale = 1 / 255 if image.dtype == np.uint8 else 1.0
        if image.shape != self.shape or image.dtype != self.dtype:
            raise ValueError(
                f"{self.path}: image {name!r} in row {row} is {image.dtype} of shape "
                f"{image.shape}: expected {self.dtype} of shape {self.shape} like the first"
            )

    def _whole(self, column: Any) -> NDArray[Any] | None:
        """A column that is already one array of numbers, as uint8 or float32."""
        if isinstance(column, np.ndarray) and column.dtype.kind in "iufb" and column.ndim > 1:
            return column if column.dtype == np.uint8 else column.astype(np.float32)
        return None

    def _pixels(self, cell: Any, row: int) -> NDArray[Any]:
        if isinstance(cell, dict):  # Hugging Face's {"bytes": ..., "path": ...}
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, bytes | str):
            from PIL import Image

            source = io.BytesIO(cell) if isinstance(cell, bytes) else self.path.parent / cell
            try:
                with Image.open(source) as image:
                    mode = image.mode if image.mode in ("L", "RGB") else "RGB"
                    return np.asarray(image.convert(mode))
            except OSError as error:
                raise ValueError(f"{self.path}: image in row {row}: {error}") from None
        try:
            pixels = np.asarray(cell)
        except ValueError:
            pixels = np.zeros(0, object)
        if pixels.dtype.kind not in "iufb":
            raise ValueError(f"{self.path}: image in row {row}: expected numbers of one shape")
        if pixels.dtype.kind == "i" and isinstance(cell, list):  # how Parquet returns uint8
            if pixels.size and not 0 <= pixels.min() <= pixels.max() <= 255:
                raise ValueError(f"{self.path}: image in row {row}: expected pixels in 0..255")
            return pixels.astype(np.uint8)
        with np.errstate(over="ignore"):  # what overflows is refused as not finite
            return pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)

    def take(self, batch: Batch) -> tuple[Rows, NDArray[Any], NDArray[np.int32]]:
        """One sample per row."""
        if (whole := self._whole(batch[self.columns[0]])) is not None:
            return np.arange(len(whole)), whole, np.zeros(0, np.int32)
        images = np.stack([self._pixels(cell, 0) for cell in batch[self.columns[0]]])
        return np.arange(len(images)), images, np.zeros(0, np.int32)


class Text(Features):
    """One column of text as character numbers (the 80 of locksfl.data.shakespeare), 80 per sample.

    With a label: the first 80 characters of a row. Without: windows and their next characters.
    """

    kind = "text"
    dtype: Any = np.uint8

    def __init__(self, columns: tuple[str, ...], path: Path, labelled: bool) -> None:
        super().__init__(columns, path)
        self.labelled, self.shape = labelled, (LENGTH,)

    def look(self, batch: Batch, first: int, missing: Missing) -> NDArray[np.int64]:
        """Check for missing texts; a row of n characters makes ceil((n - 1) / 80) windows."""
        column = batch[self.columns[0]]
        if self.labelled:
            missing.add(
                self.columns[0], [first + i for i, cell in enumerate(column) if is_missing(cell)]
            )
            return np.ones(len(column), np.int64)
        nothing = [first + i for i, cell in enumerate(column) if cell is None]
        missing.add(self.columns[0], nothing)
        lengths = np.array([0 if cell is None else len(str(cell)) for cell in column])
        return -(-np.maximum(lengths - 1, 0) // LENGTH)

    def take(self, batch: Batch) -> tuple[Rows, NDArray[Any], NDArray[np.int32]]:
        """One sample per row, or the windows of each row."""
        texts = [str(cell) for cell in batch[self.columns[0]]]
        if self.labelled:
            values = np.zeros((len(texts), LENGTH), np.uint8)
            for i, text in enumerate(texts):
                codes = encode(text[:LENGTH])
                values[i, : len(codes)] = codes
            return np.arange(len(texts)), values, np.zeros(0, np.int32)
        pairs = [windows(text) for text in texts]
        rows = np.repeat(np.arange(len(pairs)), [len(features) for features, _ in pairs])
        features = np.concatenate([features for features, _ in pairs])
        return rows, features, np.concatenate([labels for _, labels in pairs])


def features_of(
    table: Table,
    features: tuple[str, ...] | None,
    text: str | None,
    image: str | None,
    taken: tuple[str, ...],
    labelled: bool = True,
) -> Features:
    """The kind of features that was requested; by default, every other column as numbers."""
    if text is not None:
        return Text((text,), table.path, labelled)
    if image is not None:
        return Images((image,), table.path)
    rest = features or tuple(name for name in table.columns if name not in taken)
    if not rest:
        raise ValueError(f"{table.path}: no feature columns besides {', '.join(taken)}")
    if features and (bad := [name for name in features if name in taken]):
        raise ValueError(f"--features {bad[0]}: it is the client column or the label column")
    if len(rest) == 1 and table.path.suffix.lower() == ".npz":
        return Images(rest, table.path)
    return Numbers(rest, table.path)
