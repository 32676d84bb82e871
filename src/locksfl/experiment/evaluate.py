"""A finished run's models on the records that no client owns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.table import Table

from locksfl._arrays import flat_weights, unpack_arrays
from locksfl._text import table_of
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import open_task
from locksfl.models.build import scores_of
from locksfl.round.client import cross_entropy


def evaluate_run(run: Path) -> list[dict[str, Any]]:
    """Accuracy, loss and accuracy by class for each arm's model."""
    folder = RunFolder.open(run)
    folder.summary()  # refuses a run that is not finished
    population, model = open_task(folder.config)
    labels = jnp.asarray(population.test_labels)
    results = []
    for arm in folder.config.arms():
        weights = jnp.asarray(flat_weights(*unpack_arrays(folder.path / f"model-{arm.name}.npz")))
        if weights.shape != (model.size,):
            raise ValueError(
                f"model-{arm.name}.npz: {weights.size} weights, expected the model's {model.size}"
            )
        scores = scores_of(model, weights, population.test_features, population.scale)
        right = np.asarray(jnp.argmax(scores, axis=-1) == labels)
        losses = cross_entropy(scores, labels)
        if labels.ndim == 2:  # a record with no labelled position has no loss
            losses = losses[jnp.any(labels >= 0, axis=-1)]
        results.append(
            {
                "name": arm.name,
                "accuracy": float(right[population.test_labels >= 0].mean()),
                "loss": float(losses.mean()),
                "accuracy_by_class": _by_class(right, population.test_labels, population.classes),
            }
        )
    return results


def _by_class(right: np.ndarray, labels: np.ndarray, classes: int) -> list[float | None]:
    """The share of right answers where a class is right; None for a class that is nowhere."""
    answers = [right[labels == c] for c in range(classes)]
    return [float(these.mean()) if these.size else None for these in answers]


def evaluation_table(results: list[dict[str, Any]]) -> Table:
    """For people: one column per arm, so that it fits a terminal however many classes there are."""
    heads = ("", *(result["name"] for result in results))
    rows = ([n, *(f"{result[n]:.4f}" for result in results)] for n in ("accuracy", "loss"))
    table = table_of(heads, rows)
    table.add_section()
    for c in range(len(results[0]["accuracy_by_class"])):
        shares = (result["accuracy_by_class"][c] for result in results)
        table.add_row(f"class {c}", *("-" if share is None else f"{share:.3f}" for share in shares))
    return table
