"""From a raw table to the records of a model, made as those that it was trained on were.

A model's file says how (`data.origin.Preparation`): which columns, in which order, and the recipe
with its statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl.data.columns import Missing
from locksfl.data.origin import Preparation
from locksfl.data.recipe import Recipe
from locksfl.data.table_features import Characters, Features, Images, LabelledText, Numbers
from locksfl.data.tables import open_table


def preparation(features: Features, declared: bool) -> Preparation | None:
    """How features are made of a table; without the names of its columns unless these were
    declared."""
    order = list(features.columns) if declared else None
    if isinstance(features, Numbers):
        columns = features.recipe.stored()
        if declared:
            return Preparation("numbers", columns, order=order)
        return Preparation(columns=columns) if columns else None
    if not declared or isinstance(features, Characters):
        return None
    if isinstance(features, Images):
        dtype = np.dtype(features.dtype).name
        return Preparation("images", shape=features.shape, dtype=dtype, order=order)
    return Preparation("text", order=order)


def is_table(given: Any) -> bool:
    """Whether something is a table with named columns rather than an array of numbers."""
    listed = isinstance(given, list) and bool(given) and isinstance(given[0], dict)
    named = hasattr(given, "column_names") or hasattr(given, "columns")
    return isinstance(given, str | Path) or listed or named


def records(source: Any, recipe: Preparation | None) -> NDArray[Any]:
    """The records of a raw table, made as those of the import that this recipe describes.

    Args:
        source: what `open_table` takes.
        recipe: of a header, or of a model's file.
    """
    if recipe is None or recipe.order is None:
        raise ValueError(
            "a table: the model does not say how to encode one (published, trained on arrays or on "
            "text without a label, or by an import that did not name its columns: features=[...]); "
            "expected an array of encoded records"
        )
    table, columns = open_table(source), tuple(recipe.order)
    features: Features
    if recipe.kind == "numbers":
        features = Numbers(columns, Recipe.read({"columns": recipe.columns or {}}))
    elif recipe.kind == "text":
        features = LabelledText(columns)
    else:
        features = images = Images(columns, table)
        images.expect(recipe.shape or (), np.dtype(recipe.dtype))
    known = set(table.columns)
    if absent := [name for name in columns if name not in known]:
        raise ValueError(f"{table.name}: no column {absent[0]!r}, which the model was trained on")
    missing, rows = Missing(table.name), 0
    for batch in table.read(columns):
        rows += len(features.look(batch, rows + 1, missing))
    missing.refuse()
    made = [features.take(batch)[1] for batch in table.read(columns)]
    return np.concatenate([np.zeros((0, *features.shape), features.dtype), *made])
