"""What a model sees of a row of a user's table: numbers, images or text.

Each kind has two halves: `look` checks a batch and returns how many samples each row makes, `take`
returns them.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from locksfl.data import ngrams
from locksfl.data.column_recipe import Column
from locksfl.data.columns import Missing, absent, as_text
from locksfl.data.recipe import Recipe
from locksfl.data.shakespeare import LENGTH, windows
from locksfl.data.tables import Batch, Table

LARGEST = float(np.finfo(np.float32).max)

Counts = NDArray[np.int64]
Samples = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int32] | None]


class Features(ABC):
    """What the model sees of a row."""

    kind: str = "table"
    dtype: Any = np.float32
    scale = 1.0

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.shape: tuple[int, ...] = ()

    @abstractmethod
    def look(self, batch: Batch, first: int, missing: Missing) -> Counts:
        """Check a batch. Returns [rows] how many samples each row makes."""

    @abstractmethod
    def take(self, batch: Batch) -> Samples:
        """(row, features, next characters if these are the labels) of each sample."""


class Numbers(Features):
    """Columns of numbers, or what a recipe makes numbers of, joined as float32."""

    def __init__(self, columns: tuple[str, ...], recipe: Recipe) -> None:
        super().__init__(columns)
        self.recipe = recipe
        self.names = recipe.names(columns)
        self.shape = (len(self.names),)

    def look(self, batch: Batch, first: int, missing: Missing) -> Counts:
        """Check that every value is a number that float32 can hold, or that its absence was
        foreseen."""
        values = self._matrix(batch, first)
        finite = np.isfinite(values)
        for place in np.flatnonzero(~finite.all(axis=0)):
            missing.add(self.names[place], first + np.flatnonzero(~finite[:, place]))
        large = finite & (np.abs(values) > LARGEST)
        if large.any():
            row, place = np.unravel_index(int(large.argmax()), large.shape)
            raise ValueError(
                f"column {self.names[place]!r} in row {first + int(row)} is "
                f"{values[row, place]:g}: expected at most {LARGEST:.2g} in size (float32)"
            )
        return np.ones(len(values), np.int64)

    def take(self, batch: Batch) -> Samples:
        """One sample per row."""
        values = self._matrix(batch, 1).astype(np.float32)
        return np.arange(len(values)), values, None

    def _matrix(self, batch: Batch, first: int) -> NDArray[np.float64]:
        if not self.recipe.columns and (whole := _all_at_once([batch[c] for c in self.columns])):
            return whole[0]
        plain = Column()
        made = [
            self.recipe.columns.get(name, plain).features(batch[name], name, first)
            for name in self.columns
        ]
        return np.concatenate(made, axis=1)


def _all_at_once(columns: list[Any]) -> list[NDArray[np.float64]]:
    """[rows, columns] by one call for all columns; nothing if one of them needs a closer look."""
    try:
        batch = pa.RecordBatch.from_arrays(columns, [str(i) for i in range(len(columns))])
        wanted = pa.schema([(name, pa.float64()) for name in batch.schema.names])
        numbers = batch.cast(wanted, safe=False)
        return [numbers.to_tensor(null_to_nan=True, row_major=True).to_numpy()]
    except (pa.ArrowException, TypeError):
        return []


class Images(Features):
    """One column of arrays, all of one shape; uint8 is pixels (scaled by 1/255)."""

    known = False  # shape and type: those of the first row

    def __init__(self, columns: tuple[str, ...], table: Table) -> None:
        super().__init__(columns)
        self.place = table.place

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Rows of numbers are a table, whatever file they came in."""
        return "image" if len(self.shape) > 1 else "table"

    def look(self, batch: Batch, first: int, missing: Missing) -> Counts:
        """Check that no image is missing and that all have the shape of the first."""
        (name,) = self.columns
        column = batch[name]
        if (whole := self._whole(column)) is not None:
            if len(whole):
                self._same(whole[0], first)
            if whole.dtype.kind == "f":
                broken = ~np.isfinite(whole.reshape(len(whole), -1)).all(axis=1)
                missing.add(name, first + np.flatnonzero(broken))
            return np.ones(len(whole), np.int64)
        for i, cell in enumerate(column.to_pylist()):
            if cell is None or cell == "":
                missing.add(name, [first + i])
                continue
            image = self._pixels(cell, first + i)
            self._same(image, first + i)
            if image.dtype == np.float32 and not np.isfinite(image).all():
                missing.add(name, [first + i])
        return np.ones(len(column), np.int64)

    def expect(self, shape: tuple[int, ...], dtype: Any) -> None:
        """Images of this shape and type, uint8 or float32."""
        self.shape, self.dtype, self.known = shape, dtype, True
        self.scale = 1 / 255 if dtype == np.uint8 else 1.0

    def _same(self, image: NDArray[Any], row: int) -> None:
        """Take shape and type from the first image, and check that the others have the same."""
        if not self.known:
            self.expect(image.shape, image.dtype)
        if image.shape != self.shape or image.dtype != self.dtype:
            raise ValueError(
                f"image {self.columns[0]!r} in row {row} is {image.dtype} of shape {image.shape}: "
                f"expected {self.dtype} of shape {self.shape} like the others"
            )

    def _whole(self, column: Any) -> NDArray[Any] | None:
        """A column that is already one array of numbers, as uint8 or float32."""
        if not isinstance(column, np.ndarray):
            floats = pa.types.is_list(column.type) and pa.types.is_floating(column.type.value_type)
            lengths = pc.list_value_length(column).unique() if floats else []
            if len(lengths) != 1 or column.null_count or column.flatten().null_count:
                return None
            column = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        if column.dtype.kind not in "iufb":
            raise ValueError(f"image {self.columns[0]!r}: expected numbers, got {column.dtype}")
        with np.errstate(over="ignore"):  # infinity is refused with its row
            return column if column.dtype == np.uint8 else column.astype(np.float32)

    def _pixels(self, cell: Any, row: int) -> NDArray[Any]:
        if isinstance(cell, dict):  # Hugging Face's {"bytes": ..., "path": ...}
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, bytes | str):
            from PIL import Image

            source = io.BytesIO(cell) if isinstance(cell, bytes) else self.place / cell
            try:
                with Image.open(source) as image:
                    mode = image.mode if image.mode in ("L", "RGB") else "RGB"
                    return np.asarray(image.convert(mode))
            except OSError as error:
                why = "expected PNG or JPEG" if isinstance(cell, bytes) else error
                raise ValueError(f"image in row {row}: {why}") from None
        try:
            pixels = np.asarray(cell)
        except ValueError:
            pixels = np.zeros(0, object)
        if pixels.dtype.kind not in "iufb" or not pixels.ndim:
            raise ValueError(f"image in row {row}: expected numbers of one shape")
        if pixels.dtype.kind == "i":  # how Parquet and JSON return uint8
            if pixels.size and not 0 <= pixels.min() <= pixels.max() <= 255:
                raise ValueError(f"image in row {row}: expected pixels in 0..255")
            return pixels.astype(np.uint8)
        with np.errstate(over="ignore"):
            return pixels.astype(np.float32)

    def take(self, batch: Batch) -> Samples:
        """One sample per row."""
        column = batch[self.columns[0]]
        if (images := self._whole(column)) is None:
            images = np.stack([self._pixels(cell, 0) for cell in column.to_pylist()])
        return np.arange(len(images)), images, None


class LabelledText(Features):
    """One column of text with a label, by a fixed public encoder: `data.ngrams`."""

    kind = "text"
    dtype: Any = np.float16

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__(columns)
        self.shape = (ngrams.SIZE,)

    def look(self, batch: Batch, first: int, missing: Missing) -> Counts:
        """Check for missing texts."""
        (name,) = self.columns
        text = as_text(batch[name], name)
        missing.add(name, first + absent(text))
        return np.ones(len(text), np.int64)

    def take(self, batch: Batch) -> Samples:
        """One sample per row."""
        (name,) = self.columns
        values = ngrams.encode(as_text(batch[name], name).to_pylist())
        return np.arange(len(values)), values, None


class Characters(Features):
    """One column of text as windows of 80 characters (the 80 of locksfl.data.shakespeare), labelled
    with the next character at each position."""

    kind = "text"
    dtype: Any = np.uint8

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__(columns)
        self.shape = (LENGTH,)

    def look(self, batch: Batch, first: int, missing: Missing) -> Counts:
        """Check for missing texts; a row of n characters makes ceil((n - 1) / 80) windows."""
        texts = self._texts(batch)
        missing.add(self.columns[0], [first + i for i, text in enumerate(texts) if text is None])
        lengths = np.array([len(text or "") for text in texts])
        return -(-np.maximum(lengths - 1, 0) // LENGTH)

    def take(self, batch: Batch) -> Samples:
        """The windows of each row."""
        pairs = [windows(text or "") for text in self._texts(batch)]
        rows = np.repeat(np.arange(len(pairs)), [len(features) for features, _ in pairs])
        features = np.concatenate([features for features, _ in pairs])
        return rows, features, np.concatenate([labels for _, labels in pairs])

    def _texts(self, batch: Batch) -> list[str | None]:
        column = batch[self.columns[0]]
        as_text(column, self.columns[0])  # refused if it is no text
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts


def features_of(
    table: Table,
    features: tuple[str, ...] | None,
    text: str | None,
    image: str | None,
    taken: tuple[str, ...],
    labelled: bool,
    recipe: Recipe,
) -> Features:
    """The kind of features that was requested; by default, every other column as numbers or, if
    there is only one and it holds arrays, that one."""
    if text is not None or image is not None:
        if recipe.columns:
            raise ValueError("--recipe: only with columns of numbers; not with --text or --image")
        if image is not None:
            return Images((image,), table)
        return LabelledText((text or "",)) if labelled else Characters((text or "",))
    # a column without a name is the number of the row, as pandas writes it
    rest = features or tuple(name for name in table.columns if name and name not in taken)
    if not rest:
        raise ValueError(f"no feature columns besides {', '.join(taken)}")
    if features and (bad := [name for name in features if name in taken]):
        raise ValueError(f"--features {bad[0]}: it is the client column or the label column")
    if len(rest) == 1 and not recipe.columns and _holds_arrays(table, rest[0]):
        return Images(rest, table)
    return Numbers(rest, recipe.over(rest))


def _holds_arrays(table: Table, name: str) -> bool:
    column = next(table.read([name]), {}).get(name)
    if column is None or isinstance(column, np.ndarray):
        return column is not None
    return bool(pa.types.is_nested(column.type) or pa.types.is_binary(column.type))
