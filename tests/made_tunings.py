"""A small experiment over people whose step is far too small, and public people like them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from locksfl.data.importing import Request, import_table
from small_runs import new_path

CLASSES, PEOPLE = 3, 60
DELTA, EPSILON, COHORT, ROUNDS = 1e-3, 20.0, 30, 6


@functools.cache
def people(seed: int, public_test: bool = True) -> Path:
    """The folder of an import: people with four records each, and a test file, public or not."""
    place = new_path().parent
    tables = []
    for count, more in ((PEOPLE, seed), (50, seed + 1000)):
        rng = np.random.default_rng(more)
        rows = ["who,a,b,c,d,y"]
        for who in range(count):
            for label in rng.integers(0, CLASSES, 4):
                near = 2 * np.eye(4)[label] + rng.normal(size=4)
                rows.append(f"p{count}-{who},{','.join(f'{value:.4f}' for value in near)},{label}")
        tables.append(place / f"{count}.csv")
        tables[-1].write_text("\n".join(rows))
    request = Request("who", "y", test_public=public_test)
    return import_table(tables[0], place / "people", request, tables[1])


def text(data: Path, *, step: float = 0.02, population: str | None = "folk") -> str:
    """The experiment."""
    named = f'population = "{population}"' if population else ""
    return f"""
name = "small"
[data]
name = "{data}"
[model]
name = "mlp"
hidden = [8]
[train]
rounds = {ROUNDS}
optimizer = {{ step = {step}, schedule = "constant" }}
[privacy]
epsilon = {EPSILON}
delta = {DELTA}
accountant = "rdp"
{named}
[[arm]]
name = "uniform"
cohort = {COHORT}
"""
