"""From a raw table to the records of a model, made as those that it was trained on were.

A model's file says how: which columns, in which order, and the recipe with its statistics. All of
it is public: statistics are given, from a public table, or released (`data.recipe`), and the
columns were declared, by the owner or by the header of the table. Names that were found in private
records, as in JSON, are nobody's to show: such an import says nothing, and its model takes arrays
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl.data.columns import Missing
from locksfl.data.features import Features, Images, LabelledText, Numbers
from locksfl.data.recipe import Recipe
from locksfl.data.tables import Table, open_table


def told(features: Features, declared: bool) -> dict[str, Any] | None:
    """How features are made of a table, as a header stores it; `records` reads it."""
    found: dict[str, Any] = {}
    if isinstance(features, Numbers):
        found = {"kind": "numbers", "columns": features.recipe.as_dict()}
    elif isinstance(features, LabelledText):
        found = {"kind": "text"}
    elif isinstance(features, Images):
        found = {"kind": "images", "shape": features.shape, "dtype": np.dtype(features.dtype).name}
    if found and declared:
        return {**found, "order": list(features.columns)}
    return {"columns": found["columns"]} if found.get("columns") else None


def is_table(given: Any) -> bool:
    """Whether something is a table with named columns rather than an array of numbers."""
    listed = isinstance(given, list) and bool(given) and isinstance(given[0], dict)
    named = hasattr(given, "column_names") or hasattr(given, "columns")
    return isinstance(given, str | Path) or listed or named


def records(source: Any, recipe: Mapping[str, Any] | None) -> NDArray[Any]:
    """The records of a raw table, as the import with this recipe stored them.

    Args:
        source: what `open_table` takes.
        recipe: of a header, or of a model's file.
    """
    if recipe is None or "order" not in recipe:
        raise ValueError(
            "a table: the model does not say how to encode one (published, trained on arrays or on "
            "text without a label, or by an import that did not name its columns: features=[...]); "
            "expected an array of encoded records"
        )
    table = open_table(source)
    features = _features(table, recipe)
    known = set(table.columns)
    if absent := [name for name in features.columns if name not in known]:
        raise ValueError(f"{table.name}: no column {absent[0]!r}, which the model was trained on")
    missing, rows = Missing(table.name), 0
    for batch in table.read(features.columns):
        rows += len(features.look(batch, rows + 1, missing))
    missing.refuse()
    made = [features.take(batch)[1] for batch in table.read(features.columns)]
    return np.concatenate([np.zeros((0, *features.shape), features.dtype), *made])


def _features(table: Table, recipe: Mapping[str, Any]) -> Features:
    columns = tuple(recipe["order"])
    if recipe["kind"] == "numbers":
        return Numbers(columns, Recipe.read({"columns": recipe["columns"]}))
    if recipe["kind"] == "text":
        return LabelledText(columns)
    images = Images(columns, table)
    images.expect(tuple(recipe["shape"]), np.dtype(recipe["dtype"]))
    return images
