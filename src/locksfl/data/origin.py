"""Where the features of a population came from: a recipe on a table, public features of records."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Cell = float | bool | str | list[str]  # a setting of a column in a recipe
RELEASED = "released"


class Encoding(msgspec.Struct, frozen=True, eq=False, omit_defaults=True):
    """Public features that stand in place of the records (`models.public_features`)."""

    name: str  # "scattering" or "encoder"
    file: str | None  # of an encoder: its weights, or a function "package.module:name"
    shape: tuple[int, ...]  # of a record before
    scale: float  # what a stored record is multiplied by
    weights: Any = None  # W and b of such a file: arrays, which no header has


class Preparation(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How features were made of a table, with all statistics: later records are made alike.

    Everything here is public: statistics are given, from a public table, or released. `order` is
    missing where the names of the columns were found in private records, as in JSON: then nobody
    may see them, and no other table can be prepared.
    """

    kind: Literal["numbers", "text", "images"] | None = None  # None: only the recipe is known
    columns: dict[str, dict[str, Cell]] | None = None  # of numbers: the recipe of each column
    shape: tuple[int, ...] | None = None  # of an image
    dtype: str | None = None  # of an image
    order: list[str] | None = None  # the columns, in the order in which the model takes them

    @property
    def released(self) -> list[str]:
        """How statistics in it were released and charged, if any were."""
        sources = (str(column.get("source", "")) for column in (self.columns or {}).values())
        return sorted({source for source in sources if source.startswith(RELEASED)})

    def lines(self) -> list[str]:
        """The columns in words."""
        return [
            f"  {name}: " + ", ".join(f"{k} {_word(v)}" for k, v in column.items())
            for name, column in (self.columns or {}).items()
        ]


def _word(value: Cell) -> str:
    if isinstance(value, list):
        return "/".join(value[:8]) + (f"/... ({len(value)})" if len(value) > 8 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)
