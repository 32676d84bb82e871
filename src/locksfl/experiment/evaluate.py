"""A finished run's models on the records that no client owns."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
from rich.table import Table

from locksfl._arrays import flat_weights, unpack_arrays
from locksfl._tables import Record
from locksfl._text import table_of
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.metrics import QUANTILES, held_out_metrics
from locksfl.experiment.run import open_task

EACH = {"accuracy_by_class": "class", "r2_by_target": "R² of target", "f1_by_tag": "F1 of tag"}
ENDS = {0.0: "the lowest", 0.5: "half below", 1.0: "the highest"}
MOST_SHOWN = 12  # classes of a confusion matrix that fits a terminal
NAMES = {"r2": "R²", "auc": "AUC", "mae": "MAE", "rmse": "RMSE", "f1": "F1"}


def evaluate_run(run: Path) -> list[Record]:
    """Every metric of each arm's model and, of a simulation, the spread over clients."""
    folder = RunFolder.open(run)
    folder.run()  # refuses one that is not finished
    population, model = open_task(folder.config)
    results = []
    for arm in folder.config.arms:
        weights = jnp.asarray(flat_weights(*unpack_arrays(folder.path / f"model-{arm.name}.npz")))
        if weights.shape != (model.size,):
            raise ValueError(
                f"model-{arm.name}.npz: {weights.size} weights, expected the model's {model.size}"
            )
        metrics = held_out_metrics(model, weights, population)
        results.append({"name": arm.name, **metrics, "by_client": _by_client(folder, arm.name)})
    return results


def _by_client(folder: RunFolder, arm: str) -> Record | None:
    """What a simulation noted of its clients: a secret of whoever has the run folder."""
    if not (folder.path / "diagnostics.jsonl").is_file():
        return None
    lines = [line for line in folder.lines("diagnostics.jsonl") if line.get("arm") == arm]
    return lines[-1].get("by_client") if lines else None


def evaluation_tables(results: list[Record]) -> list[Table]:
    """For people: one column per arm, so that it fits a terminal however many classes there are;
    then who was taken for whom."""
    heads = ("", *(result["name"] for result in results))
    plain = [name for name in results[0] if any(isinstance(r[name], float) for r in results)]
    table = table_of(heads, ([_words(n), *(_number(r[n]) for r in results)] for n in plain))
    for name, what in EACH.items():
        table.add_section()
        for i in range(len(results[0].get(name) or ())):
            table.add_row(f"{what} {i}", *(_number(r[name][i], 3) for r in results))
    if results[0]["by_client"]:
        table.add_section()
        spread = [r["by_client"] for r in results]
        table.add_row("clients (secret)", *(str(one["clients"]) for one in spread))
        for q in QUANTILES:
            word = ENDS.get(q, f"{q:.0%} below")
            table.add_row(f"  {word}", *(_number(one[str(q)], 3) for one in spread))
    fit = (r for r in results if 1 < len(r.get("confusion") or ()) <= MOST_SHOWN)
    return [table, *map(_confusion, fit)]


def _confusion(result: Record) -> Table:
    heads = ("class", *(f"as {c}" for c in range(len(result["confusion"]))))
    rows = ([str(c), *map(str, row)] for c, row in enumerate(result["confusion"]))
    return table_of(heads, rows, left=1, title=f"{result['name']}: answers by class", padding=0)


def _words(name: str) -> str:
    return " ".join(NAMES.get(word, word) for word in name.split("_"))


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.5g}"
