"""Tables of records, read in batches: CSV, NPZ and Parquet look the same from outside.

A batch is a dictionary of columns, each an array (or list) with one entry per row. Rows are
numbered from 1, not counting the header row of a CSV file. Reading twice gives the same rows, so
that a table larger than memory can be counted first and placed afterwards.
"""

from __future__ import annotations

import csv
import itertools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32768  # rows at a time

Batch = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A file of records: its columns, and a function that reads some of them in batches."""

    path: Path
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Batch]]


def open_table(path: Path) -> Table:
    """The table in a .csv, .npz or .parquet file."""
    kinds = {".csv": _csv, ".npz": _npz, ".parquet": _parquet, ".pq": _parquet}
    kind = path.suffix.lower()
    if kind not in kinds:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(kinds)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return kinds[kind](path)


def _csv(path: Path) -> Table:
    def rows() -> Iterator[list[str]]:
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield from csv.reader(file, strict=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from None
        except csv.Error as error:
            raise ValueError(f"{path}: damaged or incomplete CSV file ({error})") from None

    columns = next(rows(), [])
    _distinct(path, columns)

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        places = [columns.index(name) for name in wanted]
        lines = (line for line in itertools.islice(rows(), 1, None) if line)
        number = 0
        while batch := list(itertools.islice(lines, BATCH)):
            for line in batch:
                number += 1
                if len(line) != len(columns):
                    raise ValueError(
                        f"{path}: row {number} has {len(line)} cells, expected {len(columns)}"
                    )
            yield {
                name: [line[i] for line in batch] for name, i in zip(wanted, places, strict=True)
            }

    return Table(path, tuple(columns), read)


def _npz(path: Path) -> Table:
    def opened() -> Any:
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: damaged or incomplete NPZ file ({error})") from None

    def array(name: str) -> Any:
        try:
            return opened()[name]
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: array {name!r} cannot be read ({error})") from None

    archive = opened()
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path}: expected an NPZ file of named arrays")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        arrays = {name: array(name) for name in wanted}
        lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"{path}: expected one row per sample in each array, got {told}")
        for start in range(0, max(lengths.values(), default=0), BATCH):
            yield {name: a[start : start + BATCH] for name, a in arrays.items()}

    return Table(path, tuple(archive.files), read)


def _parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(
            f"{path}: Parquet needs pyarrow: pip install 'locks-fl[parquet]'"
        ) from None

    def opened() -> Any:
        try:
            return parquet.ParquetFile(path, page_checksum_verification=True)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{path}: damaged or incomplete Parquet file ({_first_line(error)})"
            ) from None

    with opened() as file:
        columns = list(file.schema_arrow.names)
    _distinct(path, columns)

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        # one row group at a time: asked for all, pyarrow keeps everything it has read in memory
        with opened() as file:
            try:
                for group in range(file.num_row_groups):
                    batches = file.iter_batches(
                        BATCH, row_groups=[group], columns=list(wanted), use_threads=False
                    )
                    for batch in batches:
                        yield {name: _arrow_column(batch.column(name)) for name in wanted}
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(
                    f"{path}: damaged or incomplete Parquet file ({_first_line(error)})"
                ) from None

    return Table(path, tuple(columns), read)


def _arrow_column(column: Any) -> Any:
    """Numbers as an array, anything else (text, bytes, lists, missing values) as a list."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    plain = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if plain and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _distinct(path: Path, columns: list[str]) -> None:
    if not columns:
        raise ValueError(f"{path}: empty; expected a header row and data rows")
    for name in columns:
        if columns.count(name) > 1:
            raise ValueError(f"{path}: column {name!r} appears twice")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
