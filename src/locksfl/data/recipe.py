"""A recipe: how the columns of a table become features, declared before the import.

    features = ["age", "city"]      these columns in this order, in place of all others
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl import _validate
from locksfl._tables import Positive, build_table
from locksfl.data.column_recipe import PUBLIC, Column
from locksfl.data.columns import as_numbers, as_text
from locksfl.data.origin import RELEASED, Cell
from locksfl.data.tables import Batch, Table

EVERY = "*"
LEAST_STD = 1e-3  # of a released one, as a share of half the range
PER_COLUMN = 3  # numbers that a client adds to a release for each column, none beyond 1


@dataclass(frozen=True)
class Release:
    """Who pays for released statistics, and how much."""

    population: str  # whose journal is charged
    epsilon: Positive  # what it costs


@dataclass(frozen=True)
class Recipe:
    """What is done to the columns of a table; without a table of its own a column is a number."""

    columns: dict[str, Column] = field(default_factory=dict)
    features: list[str] | None = None  # these columns, in this order; None: all others
    public: str | None = None  # the file of a public table
    release: Release | None = None  # who pays for released statistics

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
                    stored = json.loads((path / "header.json").read_text("utf-8"))["recipe"] or {}
                    given = {"columns": stored.get("columns", {})}
                    if stored.get("kind") == "numbers":  # its columns, in its order
                        given["features"] = stored["order"]
                else:
                    given = tomllib.loads(path.read_text("utf-8"))
            except (OSError, ValueError, KeyError) as error:
                why = str(getattr(error, "strerror", None) or error).splitlines()[0]
                raise ValueError(f"--recipe {path}: {why}") from None
        recipe: Recipe = build_table(cls, given, "")
        if recipe.public is not None:  # beside the recipe
            recipe = replace(recipe, public=str(place / recipe.public))
        columns: dict[str, Column] = {
            name: build_table(Column, table, f"columns.{name}")
            for name, table in recipe.columns.items()
        }
        recipe = replace(recipe, columns=columns)
        recipe._check()
        return recipe

    def _check(self) -> None:
        for name, column in self.columns.items():
            column.check(f"columns.{name}")
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
        own = {name: self.columns.get(name, self.columns.get(EVERY)) for name in names}
        return replace(self, columns={n: c for n, c in own.items() if c is not None})

    def with_public(self, opened: Callable[[Path], Table]) -> Recipe:
        """Fill in what comes from the public table."""
        wanted = {n: c for n, c in self.columns.items() if PUBLIC in (c.scale, c.categories)}
        if not wanted or self.public is None:
            return self
        table = opened(Path(self.public))
        known = set(table.columns)
        if absent := [name for name in wanted if name not in known]:
            raise ValueError(f"{table.name}: no column {absent[0]!r}, which the recipe needs")
        cells: dict[str, list[Any]] = {name: [] for name in wanted}
        for batch in table.read(list(wanted)):
            for name, column in wanted.items():
                if column.categories == PUBLIC:
                    cells[name] += as_text(batch[name], name).drop_null().unique().to_pylist()
                else:
                    cells[name].append(column.cut(as_numbers(batch[name], name, 1)))
        source = f"from the public {Path(self.public).name}"
        filled = {n: c.with_statistics(n, cells[n], source) for n, c in wanted.items()}
        for name, column in filled.items():
            column.check(f"columns.{name}")
        return replace(self, columns={**self.columns, **filled})

    @property
    def released(self) -> list[str]:
        """The columns whose mean and standard deviation are to be released."""
        return [name for name, column in self.columns.items() if column.scale == RELEASED]

    @property
    def sensitivity(self) -> float:
        """The most that one client can add to the sums of `facts`, as a Euclidean length."""
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

    def with_released(self, sums: NDArray[np.float64], noise: float, paid: Release) -> Recipe:
        """Fill in what was released: sums over clients of their mean `facts`, with noise of this
        standard deviation. A spread that the noise would hide is taken to be as large as it can
        hide: too small a one would blow the column up."""
        source = f"released with epsilon {paid.epsilon:g}, charged to {paid.population!r}"
        filled = {}
        for name, (count, total, squares) in zip(self.released, sums.reshape(-1, 3), strict=True):
            column = self.columns[name]
            low, high = column.low or 0.0, column.high or 0.0
            half = (high - low) / 2
            centre = float(np.clip(total / max(count, 1.0), -1, 1))
            hidden = min(1.0, 2 * noise / max(count, 1.0))
            variance = squares / max(count, 1.0) - centre**2
            spread = math.sqrt(max(variance, hidden, LEAST_STD**2))
            filled[name] = replace(
                column,
                scale=None,
                mean=low + half * (1 + centre),
                std=half * min(spread, 1.0),
                source=source + ("; its noise hides a smaller std" if variance < hidden else ""),
            )
        return replace(self, columns={**self.columns, **filled})

    def names(self, columns: Iterable[str]) -> list[str]:
        """The features that these columns make."""
        plain = Column()
        return [f for name in columns for f in self.columns.get(name, plain).names(name)]

    def stored(self) -> dict[str, dict[str, Cell]]:
        """The settings of each column that differ from none; `read` takes them."""
        return {
            name: {k: v for k, v in asdict(column).items() if v is not None and v is not False}
            for name, column in self.columns.items()
        }
