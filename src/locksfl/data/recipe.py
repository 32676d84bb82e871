"""A recipe: how the columns of a table become features, declared before the import.

    public = "census.csv"           a public table; `scale` and `categories` may come from it
    [release]                       statistics of the clients' own records: noised and charged
    population = "clinic"           the journal that pays
    epsilon = 0.2
    [columns.age]                   "*" stands for every column that has no table of its own
    missing = "flag"                one column more, 1 where the value is missing; or a value
    mean = 40.0                     (x - mean) / std, or low and high: (x - low) / (high - low) of
    std = 15.0                      values cut to that range, or scale = "public", "released"
    [columns.city]
    categories = ["Oslo", "Rome"]   a column of 0 and 1 for each; or "public"
    other = true                    and one for any other value, which is refused otherwise
    [columns.joined]
    date = ["year", "weekday"]      any of PARTS; format = "%d.%m.%Y" unless ISO 8601

Statistics of private records are themselves private. So what a recipe needs is given in it, comes
from a public table, or is released with noise (`Release`) and charged; anything else is refused. A
recipe with all its statistics filled in is a recipe as well: it prepares later records alike.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from locksfl import _validate
from locksfl._tables import Positive, build_table
from locksfl.data.columns import as_numbers, as_text
from locksfl.data.tables import Batch, Table

Matrix = NDArray[np.float64]

FLAG, PUBLIC, RELEASED = "flag", "public", "released"
EVERY = "*"
MOST_CATEGORIES = 1000  # from a public table
LEAST_STD = 1e-3  # of a released one, as a share of half the range
PER_COLUMN = 3  # numbers that a client adds to a release for each column, none beyond 1


def _part(function: Callable[[Any], Any], low: float, high: float) -> Callable[[Any], Matrix]:
    return lambda times: (_floats(function(times)) - low) / (high - low)


def _floats(values: Any) -> Matrix:
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False))


PARTS: dict[str, Callable[[Any], Matrix]] = {  # of a date, each near 0..1
    "time": lambda times: (_floats(times.cast(pa.int64())) / 86400 - 10957) / 3652.5,
    "year": _part(pc.year, 2000, 2010),
    "month": _part(pc.month, 1, 12),
    "day": _part(pc.day, 1, 31),
    "weekday": _part(pc.day_of_week, 0, 6),
    "hour": _part(pc.hour, 0, 23),
}


@dataclass(frozen=True)
class Column:
    """What is done to one column."""

    missing: float | str | None = None
    mean: float | None = None
    std: Positive | None = None
    low: float | None = None
    high: float | None = None
    scale: str | None = None
    categories: list[str] | str | None = None
    other: bool = False
    date: list[str] | None = None
    format: str | None = None
    source: str | None = None  # of its statistics, once they are filled in

    def check(self, where: str) -> None:
        """Refuse what the fields make impossible together."""
        numeric = [n for n in ("mean", "low", "scale") if getattr(self, n) is not None]
        kinds = [n for n in ("categories", "date") if getattr(self, n) is not None] + numeric[:1]
        if len(kinds) > 1:
            raise ValueError(f"{where}: {kinds[0]} and {kinds[1]}: expected only one of them")
        for one, other in (("mean", "std"), ("low", "high")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{where}: expected {one} and {other} together")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"{where}.high = {self.high!r}: expected more than low = {self.low!r}")
        for name, value in (("scale", self.scale), ("categories", self.categories)):
            if isinstance(value, str) and value not in (PUBLIC, RELEASED):
                raise ValueError(
                    f"{where}.{name} = {value!r}: statistics of clients' records are private; "
                    f"expected them given, or 'public' (from a public table)"
                    + (", or 'released' (noised and charged)" if name == "scale" else "")
                )
        if self.categories == RELEASED:
            raise ValueError(
                f"{where}.categories = 'released': noise on counts does not hide that a category "
                "exists which one client alone has; expected a list, or 'public'"
            )
        if self.scale == RELEASED and self.low is None:
            raise ValueError(
                f"{where}.scale = 'released': expected low and high too: without a range one "
                "client could move the mean without limit"
            )
        if self.other and self.categories is None:
            raise ValueError(f"{where}.other: only with categories")
        if self.format is not None and self.date is None:
            raise ValueError(f"{where}.format: only with date")
        for part in self.date or ():
            _validate.one_of(PARTS, **{f"{where}.date": part})
        if isinstance(self.categories, list) and (
            not self.categories or len(set(self.categories)) < len(self.categories)
        ):
            raise ValueError(f"{where}.categories: expected at least one, all different")
        self._check_missing(where)

    def _check_missing(self, where: str) -> None:
        if self.missing is None or self.missing == FLAG:
            return
        number = isinstance(self.missing, float)
        if isinstance(self.categories, list) and self.missing not in self.categories:
            raise ValueError(
                f"{where}.missing = {self.missing!r}: expected 'flag', or one of its categories"
            )
        if self.date is not None or (number and self.categories is not None):
            raise ValueError(f"{where}.missing = {self.missing!r}: expected 'flag'")
        if self.categories is None and not number:
            raise ValueError(
                f"{where}.missing = {self.missing!r}: expected 'flag' or a number; a mean or "
                "median of clients' records would be private"
            )

    def names(self, name: str) -> list[str]:
        """The features that it makes."""
        made = [name]
        if isinstance(self.categories, list):
            made = [f"{name}={value}" for value in self.categories]
            made += [f"{name}=other"] * self.other
        elif self.date is not None:
            made = [f"{name}.{part}" for part in self.date]
        return made + [f"{name}=missing"] * (self.missing == FLAG)

    def features(self, column: Any, name: str, first: int) -> Matrix:
        """[rows, features]; NaN where a value is missing and nothing is declared for it."""
        if isinstance(self.categories, list):
            made, missing = self._one_hot(as_text(column, name), name, first)
        elif self.date is not None:
            made, missing = self._date(column, name, first)
        else:
            made, missing = self._number(as_numbers(column, name, first))
        flagged = self.missing == FLAG
        made = np.where(missing[:, None], 0.0 if flagged else np.nan, made)
        return np.column_stack([made, missing]) if flagged else made

    def _number(self, values: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
        if isinstance(self.missing, float):
            values = np.where(np.isnan(values), self.missing, values)
        missing, values = np.isnan(values), self.cut(values)
        if self.mean is not None and self.std is not None:
            values = (values - self.mean) / self.std
        elif self.low is not None and self.high is not None:
            values = (values - self.low) / (self.high - self.low)
        return values[:, None], missing

    def cut(self, values: Matrix) -> Matrix:
        """The values, cut to the range if there is one."""
        return values if self.low is None else np.clip(values, self.low, self.high)

    def statistics(self, name: str, cells: list[Any]) -> dict[str, Any]:
        """What a public table says: batches of numbers, or words."""
        if self.categories == PUBLIC:
            known = sorted(set(cells))
            if not 0 < len(known) <= MOST_CATEGORIES:
                raise ValueError(
                    f"columns.{name}.categories = 'public': {len(known)} categories there; "
                    f"expected 1 to {MOST_CATEGORIES}"
                )
            return {"categories": known}
        values = np.concatenate([np.zeros(0), *cells])
        values = values[np.isfinite(values)]
        if not len(values):
            raise ValueError(f"columns.{name}.scale = 'public': no numbers there")
        return {"scale": None, "mean": float(values.mean()), "std": float(values.std()) or 1.0}

    def _one_hot(self, text: Any, name: str, first: int) -> tuple[Matrix, NDArray[np.bool_]]:
        known = list(self.categories or ())
        if isinstance(self.missing, str) and self.missing != FLAG:
            text = pc.fill_null(text, self.missing)
        missing = text.is_null().to_numpy(zero_copy_only=False)
        found = pc.fill_null(pc.index_in(text, value_set=pa.array(known)), len(known))
        places = found.to_numpy(zero_copy_only=False)
        strange = (places == len(known)) & ~missing
        if strange.any() and not self.other:
            row = int(strange.argmax())
            cell = text[row].as_py()
            raise ValueError(
                f"column {name!r} in row {first + row} is {cell[:40]!r}: expected one of its "
                f"categories{_validate.nearest(cell, known)}, or other = true in the recipe"
            )
        return np.eye(len(known) + 1)[places][:, : len(known) + self.other], missing

    def _date(self, column: Any, name: str, first: int) -> tuple[Matrix, NDArray[np.bool_]]:
        if pa.types.is_temporal(column.type):
            times, text = column.cast(pa.timestamp("s"), safe=False), column
        else:
            text = as_text(column, name)
            times = _parsed(text, self.format)
        wrong = pc.and_(times.is_null(), pc.invert(text.is_null()))
        if pc.any(wrong).as_py():
            row = int(np.argmax(wrong.to_numpy(zero_copy_only=False)))
            raise ValueError(
                f"column {name!r} in row {first + row} is {str(text[row])[:40]!r}: expected a date "
                f"like {self.format or '2024-12-31 23:59:59'} (columns.{name}.format)"
            )
        missing = times.is_null().to_numpy(zero_copy_only=False)
        return np.column_stack([PARTS[part](times) for part in self.date or ()]), missing


def _parsed(text: Any, form: str | None) -> Any:
    """Times of one zone; nothing where a text is no date."""
    for kind in (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        if form is None:
            try:
                return text.cast(kind).cast(pa.timestamp("s"), safe=False)
            except pa.ArrowException:
                continue
    return pc.strptime(text, format=form or "%Y-%m-%d", unit="s", error_is_null=True)


@dataclass(frozen=True)
class Release:
    """Who pays for released statistics, and how much."""

    population: str
    epsilon: Positive


@dataclass(frozen=True)
class Recipe:
    """What is done to the columns of a table; without a table of its own a column is a number."""

    columns: dict[str, Any] = field(default_factory=dict)
    public: str | None = None
    release: Release | None = None

    @classmethod
    def read(cls, given: Any) -> Recipe:
        """A recipe from a TOML file, an imported folder, its table in Python, or nothing."""
        if given is None or isinstance(given, Recipe):
            return given or cls()
        place = Path()
        if isinstance(given, str | Path):
            path = Path(given)
            place = path.parent
            try:
                if path.is_dir():
                    given = json.loads((path / "header.json").read_text("utf-8"))["recipe"] or {}
                else:
                    given = tomllib.loads(path.read_text("utf-8"))
            except (OSError, ValueError, KeyError) as error:
                told = str(getattr(error, "strerror", None) or error).splitlines()[0]
                raise ValueError(f"--recipe {path}: {told}") from None
        found = build_table(cls, given, "")
        if found.public is not None:  # beside the recipe
            found = replace(found, public=str(place / found.public))
        columns = {
            name: build_table(Column, table, f"columns.{name}")
            for name, table in found.columns.items()
        }
        for name, column in columns.items():
            column.check(f"columns.{name}")
        recipe = replace(found, columns=columns)
        recipe._check_sources()
        return recipe

    def _check_sources(self) -> None:
        for name, column in self.columns.items():
            if PUBLIC in (column.scale, column.categories) and self.public is None:
                raise ValueError(f"columns.{name}: 'public' needs a table: public = \"FILE\"")
            if column.scale == RELEASED and self.release is None:
                raise ValueError(
                    f"columns.{name}.scale = 'released': expected [release] with population and "
                    "epsilon: what is released is charged to the population's journal"
                )

    def over(self, names: Sequence[str]) -> Recipe:
        """The recipe with a table for each of these columns that has one of its own, or "*"."""
        known = {EVERY, *names}
        for name in self.columns:
            if name not in known:
                raise ValueError(
                    f"columns.{name}: no such feature column{_validate.nearest(name, names)}"
                )
        every = self.columns.get(EVERY)
        found = {name: self.columns.get(name, every) for name in names}
        return replace(self, columns={n: c for n, c in found.items() if c is not None})

    def with_public(self, opened: Callable[[Path], Table]) -> Recipe:
        """Fill in what comes from the public table."""
        wanted = {n: c for n, c in self.columns.items() if PUBLIC in (c.scale, c.categories)}
        if not wanted or self.public is None:
            return self
        table = opened(Path(self.public))
        for name in wanted:
            if name not in table.columns:
                raise ValueError(f"{table.name}: no column {name!r}, which the recipe needs")
        cells: dict[str, list[Any]] = {name: [] for name in wanted}
        for batch in table.read(list(wanted)):
            for name, column in wanted.items():
                if column.categories == PUBLIC:
                    cells[name] += as_text(batch[name], name).drop_null().unique().to_pylist()
                else:
                    cells[name].append(column.cut(as_numbers(batch[name], name, 1)))
        source = f"from the public {Path(self.public).name}"
        filled = {
            name: replace(column, **column.statistics(name, cells[name]), source=source)
            for name, column in wanted.items()
        }
        for name, column in filled.items():
            column.check(f"columns.{name}")
        return replace(self, columns={**self.columns, **filled})

    @property
    def released(self) -> list[str]:
        """The columns whose mean and standard deviation are to be released."""
        return [name for name, column in self.columns.items() if column.scale == RELEASED]

    @property
    def sensitivity(self) -> float:
        """The most that one client can add to `client_sums`, as a Euclidean length."""
        return math.sqrt(PER_COLUMN * len(self.released))

    def facts(self, batch: Batch, first: int) -> NDArray[np.float64]:
        """[rows, 3 columns] of each released column: whether there is a value, the value as
        (x - middle) / half of its range, in -1..1, and its square. Averaged over the rows of a
        client, each of these is at most 1 in size."""
        parts = []
        for name in self.released:
            values, _ = self.columns[name]._number(as_numbers(batch[name], name, first))
            there = np.isfinite(values)
            centred = np.where(there, 2 * values - 1, 0.0)
            parts += [there, centred, centred**2]
        return np.column_stack(parts)

    def with_released(self, sums: NDArray[np.float64]) -> Recipe:
        """Fill in what was released: sums over clients of their mean `facts`, with noise."""
        filled = {}
        for name, (count, total, squares) in zip(self.released, sums.reshape(-1, 3), strict=True):
            column = self.columns[name]
            half = (column.high - column.low) / 2
            centre = float(np.clip(total / max(count, 1.0), -1, 1))
            spread = math.sqrt(max(squares / max(count, 1.0) - centre**2, LEAST_STD**2))
            told = f"released with epsilon {self._release.epsilon:g}, charged to "
            filled[name] = replace(
                column,
                scale=None,
                mean=column.low + half * (1 + centre),
                std=half * min(spread, 1.0),
                source=told + repr(self._release.population),
            )
        return replace(self, columns={**self.columns, **filled})

    @property
    def _release(self) -> Release:
        assert self.release is not None  # checked when the recipe was read
        return self.release

    def names(self, columns: Iterable[str]) -> list[str]:
        """The features that these columns make."""
        plain = Column()
        return [f for name in columns for f in self.columns.get(name, plain).names(name)]

    def as_dict(self) -> dict[str, Any] | None:
        """Plain values for a header; `read` takes them."""
        columns = {
            name: {k: v for k, v in asdict(column).items() if v is not None and v is not False}
            for name, column in self.columns.items()
        }
        return {"columns": columns} if columns else None


def lines(recipe: Mapping[str, Any]) -> list[str]:
    """A recipe, as a header stores it, in words."""
    return [
        f"  {name}: " + ", ".join(f"{k} {_word(v)}" for k, v in column.items())
        for name, column in recipe["columns"].items()
    ]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(value[:8]) + (f"/... ({len(value)})" if len(value) > 8 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)
