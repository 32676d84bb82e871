"""What a recipe does to one column: numbers, one-hot categories, parts of dates, missing values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from locksfl import _validate
from locksfl._tables import Positive
from locksfl.data.columns import as_numbers, as_text
from locksfl.data.origin import RELEASED

Matrix = NDArray[np.float64]

FLAG, PUBLIC = "flag", "public"
MOST_CATEGORIES = 1000  # from a public table


def _part(function: Callable[[Any], Any], low: float, high: float) -> Callable[[Any], Matrix]:
    return lambda times: (_floats(function(times)) - low) / (high - low)


def _floats(values: Any) -> Matrix:
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


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

    missing: float | str | None = None  # what stands for a missing value, or "flag"
    mean: float | None = None  # with std: (x - mean) / std
    std: Positive | None = None  # see mean
    low: float | None = None  # with high: values are cut to this range
    high: float | None = None  # see low
    scale: str | None = None  # "public" or "released": where mean and std come from
    categories: list[str] | str | None = None  # one feature for each, or "public"
    other: bool = False  # one feature more, for any other category
    date: list[str] | None = None  # the parts of a date that become features: PARTS
    format: str | None = None  # of a date; None: ISO 8601
    source: str | None = None  # of its statistics, once they are filled in

    def check(self, where: str) -> None:
        """Refuse what the fields make impossible together."""
        given = [name for name, value in vars(self).items() if value is not None]
        for some in (("categories", "date", "mean"), ("categories", "date", "low"),
                     ("categories", "date", "scale"), ("mean", "scale")):  # fmt: skip
            both = [name for name in some if name in given]
            if len(both) > 1:
                raise ValueError(f"{where}: {both[0]} and {both[1]}: expected only one of them")
        for one, other in (("mean", "std"), ("low", "high")):
            if (one in given) != (other in given):
                raise ValueError(f"{where}: expected {one} and {other} together")
        for name in ("mean", "low", "high", "missing"):
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{where}.{name} = {value!r}: expected a finite number")
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
            with np.errstate(over="ignore"):  # infinity is refused with its row
                values = (values - self.mean) / self.std
        elif self.low is not None and self.high is not None:
            values = (values - self.low) / (self.high - self.low)
        return values[:, None], missing

    def cut(self, values: Matrix) -> Matrix:
        """The values, cut to the range if there is one."""
        return values if self.low is None else np.clip(values, self.low, self.high)

    def with_statistics(self, name: str, cells: list[Any], source: str) -> Column:
        """The column with the statistics of these cells of a public table, which are batches of
        numbers, or words."""
        if self.categories == PUBLIC:
            known = sorted(set(cells))
            if not 0 < len(known) <= MOST_CATEGORIES:
                raise ValueError(
                    f"columns.{name}.categories = 'public': {len(known)} categories there; "
                    f"expected 1 to {MOST_CATEGORIES}"
                )
            return replace(self, categories=known, source=source)
        values = np.concatenate([np.zeros(0), *cells])
        values = values[np.isfinite(values)]
        if not len(values):
            raise ValueError(f"columns.{name}.scale = 'public': no numbers there")
        mean, std = float(values.mean()), float(values.std()) or 1.0
        return replace(self, scale=None, mean=mean, std=std, source=source)

    def _one_hot(self, text: Any, name: str, first: int) -> tuple[Matrix, NDArray[np.bool_]]:
        known = list(self.categories or ())
        if isinstance(self.missing, str) and self.missing != FLAG:
            text = pc.fill_null(text, self.missing)
        missing = text.is_null().to_numpy(zero_copy_only=False)
        places = pc.fill_null(pc.index_in(text, value_set=pa.array(known)), len(known))
        places = places.to_numpy(zero_copy_only=False)
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
