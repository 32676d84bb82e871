"""What people see of the reproduction: report.md, the figures, and the table on the screen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._charts import Chart, Line
from locksfl._files import write_atomically
from locksfl._svg import svg_file
from locksfl._text import epsilon_text, markdown_table, size_text
from locksfl.experiment.costs import epsilons_by_observer
from locksfl.experiment.report import SECRET, likeness_figure
from locksfl.paper.as_printed import honest_table
from locksfl.paper.reproduce.results import Row, conclusion, table_of
from locksfl.paper.reproduce.runs import Runs
from locksfl.paper.reproduce.settings import (
    EPSILONS,
    HONEST,
    METHODS,
    PRINTED,
    QUICK,
    RECONSTRUCTED,
    SEEDS,
    VERSIONS,
    Panel,
    Scale,
)

HEADS = (
    "ε", "method", "clip, step", "accuracy", "to .8", "uploads", "sent", "ε SERVER", "ε PUBLIC",
)  # fmt: skip
EXPLAINED = {
    PRINTED: "In the paper's own terms: **no guarantee.** Its multipliers 0, 0.5 and 1.32 are "
    "added by each client, the estimator is (1/b) times the sum, and norms are charged nothing. "
    "The ε of the first column is what the paper claims; the last columns are what the releases "
    "cost.",
    HONEST: "Honest: every method at the same total ε against PUBLIC, noise by a trusted server, "
    "norms charged.",
}


def write_report(
    path: Path, scale: Scale, by_panel: Mapping[Panel, Runs], alike: Mapping[str, Any]
) -> tuple[list[Row], list[str]]:
    """Write every file of the report; returns the rows and the conclusion."""
    rows, differences = table_of(by_panel)
    sentences = conclusion(differences, rows)
    for model in scale.models:
        accuracy = accuracy_figure(scale, model, by_panel)
        write_atomically(path / f"figure-{model}.svg", accuracy.encode())
        silent = Panel(HONEST, model, math.inf)
        clips = {row.method: row.clip_norm for row in rows if row.panel == silent}
        likeness = likeness_figure(
            alike[model], clips, f"{model}, epsilon infinity: exact; {SECRET}"
        )
        write_atomically(path / f"likeness-{model}.svg", likeness.encode())
    table = {
        "rows": [row.as_dict() for row in rows],
        "differences": [{**asdict(d), "panel": d.panel.label} for d in differences],
        "conclusion": sentences,
    }
    write_atomically(path / "table.json", (json.dumps(table, indent=2) + "\n").encode())
    write_atomically(path / "report.md", report_text(scale, rows, sentences).encode())
    return rows, sentences


def _command(scale: Scale) -> str:
    """What makes this report again."""
    quick = " --quick" if scale.name == QUICK.name else ""
    seeds = f" --seeds {len(scale.seeds)}" if len(scale.seeds) != len(SEEDS) else ""
    first = f" --seed {scale.seeds[0]}" if scale.seeds[0] else ""
    return f"locks reproduce{quick}{seeds}{first}"


def report_text(scale: Scale, rows: list[Row], sentences: list[str]) -> str:
    """Returns report.md."""
    parts = [
        f"# The paper's experiment, {scale.name}",
        f"Data {scale.data}, 100 clients, 5 local epochs, {scale.rounds} rounds, "
        f"{len(scale.seeds)} seeds ({', '.join(map(str, scale.seeds))}), simulated. "
        f"Made by `{_command(scale)}`; every sentence below is drawn from the numbers.",
        "Not in the paper, and reconstructed:",
        "\n".join(f"* {name}: {what}" for name, what in RECONSTRUCTED.items()),
        "## Conclusion",
        "\n".join(f"* {line}" for line in sentences),
    ]
    for model in scale.models:
        parts += [f"## {model}", f"![accuracy by round](figure-{model}.svg)"]
        for version in VERSIONS:
            mine = [r for r in rows if (r.panel.model, r.panel.version) == (model, version)]
            parts += [EXPLAINED[version], markdown_table(HEADS, map(cells, mine))]
        parts += [
            f"How alike the clients are, without privacy ({SECRET}):",
            f"![norms, dissimilarity, drift, cosine, angle, correlation](likeness-{model}.svg)",
        ]
    readings = []
    for row in honest_table():
        costs = (" / ".join(map(epsilon_text, by.values())) for by in (row.server, row.public))
        numbers = (f"{row.claimed_epsilon:g}", f"{row.noise_multiplier:g}")
        readings.append((*numbers, row.reading, *costs))
    parts += [
        "ε is zero-out/replace at δ = 1e-5; SERVER sees every message, PUBLIC the models. "
        "Accuracy is the mean over the last tenth of the rounds, ± its standard error over seeds; "
        '"to .8" is the rounds to .8 of the better of the two; uploads and bytes of one run.',
        "## What the paper's multipliers cost, by reading",
        markdown_table(("claimed ε", "multiplier", "reading", "ε SERVER", "ε PUBLIC"), readings),
    ]
    return "\n\n".join(parts) + "\n"


def cells(row: Row) -> list[str]:
    """A row for people."""
    error = "" if row.error is None else f"±{row.error:.3f}"
    return [
        "∞" if math.isinf(row.panel.epsilon) else f"{row.panel.epsilon:g}",
        row.method,
        f"{row.clip_norm:g}, {row.step:.3g}",
        f"{row.accuracy:.3f}{error}".replace("0.", "."),
        row.rounds_text,
        f"{row.uploads:,.0f}",
        size_text(row.bytes_up),
        *epsilons_by_observer(row.privacy),
    ]


def accuracy_figure(scale: Scale, model: str, by_panel: Mapping[Panel, Runs]) -> str:
    """Accuracy by round with a band, as SVG: one panel per epsilon, one row per version."""
    charts = []
    for version, epsilon in product(VERSIONS, EPSILONS):
        runs = by_panel[Panel(version, model, epsilon)]
        lines = []
        for number, method in enumerate(METHODS):
            curves = np.array([run.scores for run in runs[method].outcomes])
            low, middle, high = curves.min(axis=0), curves.mean(axis=0), curves.max(axis=0)
            rounds = range(1, len(middle) + 1)
            lines.append(Line(method, rounds, middle, number, low=low, high=high))
        stamp = {
            PRINTED: f"claimed ε = {epsilon:g}, NO GUARANTEE",
            HONEST: f"ε = {epsilon:g} against PUBLIC",
        }[version]
        title = f"{version}: {'ε = ∞' if math.isinf(epsilon) else stamp}"
        charts.append(Chart("round", "accuracy on held-out data", lines, title=title))
    title = (
        f"Uniform against LOCKS, {scale.data}, {model}: mean and range of "
        f"{len(scale.seeds)} seeds (simulated, reconstructed settings)"
    )
    return svg_file(charts, title, columns=3, width=1000, height=190, same_y=True)
