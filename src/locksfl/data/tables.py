"""Tables of records, read in batches by pyarrow: every kind of file looks the same from outside.

A batch is a dictionary of columns with one entry per row: Arrow arrays, or a NumPy array where a
cell of an NPZ file is an array itself. Cells of text files remain text until a column is asked for
numbers, so that an id such as 007 is what the file says. Rows are numbered from 1, not counting a
header row. Reading twice gives the same rows, so that a table larger than memory can be counted
first and placed afterwards.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

BATCH = 32768  # rows at a time, ...
CELLS = 1 << 22  # ... and not many more cells than this
BLOCK = 1 << 24  # bytes of a text file that are parsed together; a row is shorter
SEPARATORS = (",", ";", "\t", "|")  # those that are tried
PACKED = (".gz", ".bz2", ".zst", ".lz4")

Cells: TypeAlias = Any  # a column of a batch: an Arrow array, or as above a NumPy one
Batch = dict[str, Cells]
Cell = str | float | bool | bytes | list[Any] | None  # of a row of Python values
Row = dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """Records: their columns, and a function that reads some of them in batches."""

    name: str  # in messages
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Batch]]
    place: Path = Path()  # the folder in which files are that cells name
    about: str = ""  # what a message should say of it, such as its separator
    leaf: bool = False  # LEAF's own columns: user, x, y
    inferred: bool = False  # no header declares its columns: their names come from the records


def open_table(source: Any, separator: str | None = None, encoding: str | None = None) -> Table:
    """The table in a file, in all files of a folder, or in an object of another library.

    Args:
        source: a path, a table of pandas, polars, Arrow or Hugging Face datasets, or a list of
            dictionaries, one per row.
        separator: of a CSV file; without it, the one that fits.
        encoding: of a text file; without it, UTF-8 or what its first bytes say.
    """
    if not isinstance(source, str | Path):
        return _from_object(source)
    path = Path(source)
    try:
        "a".encode(encoding or "utf-8")
    except LookupError as error:
        raise ValueError(f"--encoding: {error}; expected a name such as latin-1") from None
    if not path.is_dir():
        return _open_file(path, separator, encoding)
    files = [p for p in sorted(path.iterdir()) if p.name[0] not in "._" and _kind(p) in KINDS]
    kinds = sorted({_kind(file) for file in files})
    if not files:
        raise ValueError(f"{path}: a folder without data; expected files that end in {ENDINGS}")
    if len(kinds) > 1:
        raise ValueError(f"{path}: files of kind {' and '.join(kinds)}: expected one kind alone")
    parts = [_open_file(file, separator, encoding) for file in files]
    for part in parts:
        if part.columns != parts[0].columns:
            raise ValueError(f"{part.name}: expected the columns of {parts[0].name} beside it")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        return itertools.chain.from_iterable(part.read(wanted) for part in parts)

    about = f"{len(parts)} files{parts[0].about and ', '}{parts[0].about}"
    return replace(parts[0], name=str(path), read=read, place=path, about=about)


def _kind(path: Path) -> str:
    ends = [end.lower() for end in path.suffixes]
    return "".join(ends[-2:-1] if ends and ends[-1] in PACKED else ends[-1:])


def _open_file(path: Path, separator: str | None, encoding: str | None) -> Table:
    if _kind(path) not in KINDS:
        raise ValueError(f"{path}: expected a file that ends in {ENDINGS}, or a folder of them")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    table = KINDS[_kind(path)](path, separator, encoding)
    if not table.columns:
        raise ValueError(f"{path}: empty; expected a header row and data rows")
    if twice := [name for name, count in Counter(table.columns).items() if count > 1]:
        raise ValueError(f"{path}: column {twice[0]!r} appears twice")
    return table


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of a library that reads a file into a refusal of one line."""
    try:
        yield
    except UnicodeError as error:
        raise ValueError(_not_text(path, error)) from None
    except (pa.ArrowException, OSError, EOFError, csv.Error, zipfile.BadZipFile) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "UTF8" in why:
            raise ValueError(_not_text(path, why)) from None
        raise ValueError(f"{path}: damaged or incomplete {kind} file ({why})") from None


def _not_text(path: Path, error: object) -> str:
    return f"{path}: not UTF-8 text, or not in the encoding given; try --encoding latin-1 ({error})"


def _csv(path: Path, separator: str | None, encoding: str | None) -> Table:
    from pyarrow import csv as arrow_csv

    with _reading(path, "CSV"):
        encoding = encoding or _encoding(path)
        sample = _sample(path, encoding)
        if separator is None:
            separator = "\t" if _kind(path) == ".tsv" else _separator(sample)
        elif len(separator) != 1:
            raise ValueError(f"--separator {separator!r}: expected one character")
        columns = next(csv.reader(sample, delimiter=separator), [])

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        ragged: list[Any] = []
        last = columns[-1]  # read too: it shows a quote that is never closed
        options = {
            "read_options": arrow_csv.ReadOptions(
                use_threads=False, block_size=BLOCK, encoding=encoding
            ),
            "parse_options": arrow_csv.ParseOptions(
                delimiter=separator,
                newlines_in_values=True,
                invalid_row_handler=lambda row: ragged.append(row) or "error",  # type: ignore[func-returns-value]
            ),
            "convert_options": arrow_csv.ConvertOptions(
                include_columns=list(dict.fromkeys([*wanted, last])),
                column_types=dict.fromkeys([*wanted, last], pa.string()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        }
        end = None
        with _reading(path, "CSV"), pa.input_stream(path, compression="detect") as stream:
            try:
                for batch in arrow_csv.open_csv(stream, **options):
                    yield from _pieces(batch.select(wanted))
                    end = batch.column(last)[-1].as_py() if batch.num_rows else end
            except pa.ArrowInvalid as error:
                if ragged:
                    raise ValueError(
                        f"{path}: row {ragged[0].number - 1} has {ragged[0].actual_columns} cells, "
                        f"expected {len(columns)}"
                    ) from None
                if "Empty CSV" not in str(error):
                    raise
        if end and end[-1] in "\r\n":
            raise ValueError(f"{path}: damaged or incomplete CSV file (a quote is never closed)")

    about = f"separator {separator!r}" if separator != "," else ""
    return Table(str(path), tuple(columns), read, path.parent, about)


def _encoding(path: Path) -> str:
    with pa.input_stream(path, compression="detect") as stream:
        first = stream.read(2)
    return "utf-16" if first in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def _sample(path: Path, encoding: str) -> list[str]:
    """The first lines of a file."""
    with pa.input_stream(path, compression="detect") as stream:
        data, whole = stream.read(BLOCK), not stream.read(1)
    text = codecs.getincrementaldecoder(encoding)().decode(data, whole).removeprefix("\ufeff")
    return list(itertools.islice(io.StringIO(text, newline=""), 100))


def _separator(lines: list[str]) -> str:
    """The one that makes most cells of the header, and preferably as many of every line."""

    def fit(separator: str) -> tuple[bool, int]:
        try:
            cells = [len(row) for row in csv.reader(lines, delimiter=separator) if row] or [0]
        except csv.Error:  # such as a cell as long as a line
            cells = [0]
        return cells[0] > 1 and set(cells[:-1]) <= {cells[0]}, cells[0]  # the last may be cut off

    return max(SEPARATORS, key=fit)


def _json_lines(path: Path, _: str | None, encoding: str | None) -> Table:
    def rows() -> Iterator[Row]:
        with _reading(path, "JSON"), pa.input_stream(path, compression="detect") as stream:
            lines = io.TextIOWrapper(io.BufferedReader(stream), encoding or _encoding(path))
            for number, line in enumerate((line for line in lines if line.strip()), 1):
                try:
                    row = json.loads(line.removeprefix("\ufeff"))
                except ValueError as error:
                    raise ValueError(f"{path}: row {number} is not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise ValueError(f"{path}: row {number}: expected an object, one per line")
                yield row

    return _rows_table(path, rows)


def _rows_table(path: Path, rows: Callable[[], Iterable[Row]]) -> Table:
    columns: dict[str, None] = {}
    for row in itertools.islice(rows(), 1000):  # a column may be missing in the first rows
        columns |= dict.fromkeys(row)

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        left = iter(rows())
        while batch := list(itertools.islice(left, _rows_at_once(len(wanted)))):
            yield {name: _column([row.get(name) for row in batch]) for name in wanted}

    return Table(str(path), tuple(columns), read, path.parent, inferred=True)


def _json(path: Path, _: str | None, encoding: str | None) -> Table:
    """LEAF's users and their data, or a list of records."""
    with _reading(path, "JSON"), pa.input_stream(path, compression="detect") as stream:
        try:
            content = json.loads(stream.read().decode(encoding or "utf-8-sig"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: damaged or incomplete JSON file ({error})") from None
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return _rows_table(path, lambda: content)
    try:
        owned = [(user, content["user_data"][user]) for user in content["users"]]
        if any(len(data["x"]) != len(data["y"]) for _, data in owned):
            raise ValueError(f"{path}: expected as many x as y of each user")
    except (KeyError, TypeError):
        raise ValueError(
            f"{path}: expected LEAF's users and user_data (with x and y of each user), or a list "
            "of records; one record per line is .jsonl"
        ) from None

    def rows() -> Iterator[Row]:
        for user, data in owned:
            for x, y in zip(data["x"], data["y"], strict=True):
                yield {"user": user, "x": x, "y": y}

    table = _rows_table(path, rows)
    columns = ("user", "x", "y")
    return replace(table, columns=columns, about="LEAF's JSON", leaf=True, inferred=False)


def _npz(path: Path, *_: str | None) -> Table:
    @contextmanager
    def opened() -> Iterator[Any]:
        with _reading(path, "NPZ"):
            try:
                archive = np.load(path, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("expected named arrays")
                with archive:
                    yield archive
            except ValueError as error:  # an array of Python objects, for example
                raise OSError(error) from None

    with opened() as archive:
        columns = tuple(archive.files)

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        with opened() as archive:
            arrays = {name: archive[name] for name in wanted}
        lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"{path}: expected one row per sample in each array, got {each}")
        rows = _rows_at_once(len(wanted))
        for start in range(0, max(lengths.values(), default=0), rows):
            parts = {name: a[start : start + rows] for name, a in arrays.items()}
            with _reading(path, "NPZ"):
                yield {name: pa.array(a) if a.ndim == 1 else a for name, a in parts.items()}

    return Table(str(path), columns, read, path.parent)


def _parquet(path: Path, *_: str | None) -> Table:
    from pyarrow import parquet

    def opened() -> Any:
        with _reading(path, "Parquet"):
            return parquet.ParquetFile(path, page_checksum_verification=True)

    with opened() as file:
        columns = tuple(file.schema_arrow.names)

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        # one row group at a time: asked for all, pyarrow keeps everything it has read in memory
        with opened() as file, _reading(path, "Parquet"):
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    _rows_at_once(len(wanted)),
                    row_groups=[group],
                    columns=list(wanted),
                    use_threads=False,
                ):
                    yield from _pieces(batch.select(wanted))

    return Table(str(path), columns, read, path.parent)


def _from_object(given: Any) -> Table:
    """A table of another library, by the Arrow PyCapsule interface; no library is imported."""
    if hasattr(given, "with_format") and hasattr(given, "column_names"):  # Hugging Face datasets
        given = given.with_format("arrow")[:]
    if isinstance(given, list) and given and all(isinstance(row, dict) for row in given):
        return _rows_table(Path("the table"), lambda: given)
    if not hasattr(given, "__arrow_c_stream__"):
        raise ValueError(
            f"a table of type {type(given).__name__}: expected a path, a table of pandas, polars, "
            "Arrow or Hugging Face datasets, or a list of dictionaries"
        )
    try:
        table = pa.table(given)
    except (pa.ArrowException, TypeError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"a table of type {type(given).__name__}: {why}") from None
    # pandas numbers its rows in a column of their own, which is nobody's feature
    columns = tuple(name for name in table.column_names if not name.startswith("__index_level_"))
    if len(set(columns)) < len(columns) or not columns:
        raise ValueError("the table: expected columns, each with a name of its own")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        for batch in table.select(list(wanted)).combine_chunks().to_batches():
            yield from _pieces(batch)

    return Table("the table", columns, read)


def _pieces(batch: Any) -> Iterator[Batch]:
    rows = _rows_at_once(batch.num_columns)
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield {n: _plain(c) for n, c in zip(part.schema.names, part.columns, strict=True)}


def _plain(column: Any) -> Any:
    """Text as one type, and no dictionaries."""
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary).take(column.indices)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    return column


def _column(values: list[Any]) -> Any:
    """Python values as an array; those of several types as text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if v is None else _text(v) for v in values], pa.string())


def _text(value: Any) -> str:
    """A value as text; a float that is whole as the whole number, as it would be without others."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def _rows_at_once(columns: int) -> int:
    return max(1, min(BATCH, CELLS // max(1, columns)))


KINDS: dict[str, Callable[..., Table]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".pq": _parquet,
    ".npz": _npz,
}
ENDINGS = f"{', '.join(KINDS)} (text may be packed: {', '.join(PACKED)})"
