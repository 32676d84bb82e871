"""Fill in the tables and pictures of docs/results.md from finished comparisons.

python -m scripts.make_results RUNS     # copies RUNS/NAME/table.json to docs/results/ first
python -m scripts.make_results          # from what docs/results has

A block of docs/results.md between `<!-- NAME -->` and `<!-- end -->` is replaced; the rest is text.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._charts import Chart, Line
from locksfl._svg import svg_file
from locksfl._text import markdown_table
from locksfl.privacy.planner import Question
from scripts.check_planner import judged

DOCS = Path(__file__).resolve().parent.parent / "docs"
METHODS = ("uniform", "norm", "coin")
OFF = 0.05
PARAMETERS = {"scattering": 39700, "pixels": 7850}
PUBLISHED = {  # epsilon 3, delta 1e-5: Tramer and Boneh (2021), DPIS (2022), DPSUR (2024)
    "MNIST": ("98.7", "98.62", "98.88"),
    "Fashion-MNIST": ("89.7", "88.82", "89.71"),
    "CIFAR-10": ("69.3", "69.63", "70.83"),
}
Row = dict[str, Any]


def table_of(name: str) -> dict[str, Any]:
    """All that a comparison tells."""
    found: dict[str, Any] = json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))
    return found


def rows_of(name: str) -> list[Row]:
    """The rows of a comparison, each a method in a cell."""
    rows: list[Row] = table_of(name)["rows"]
    return rows


def epsilon_of(row: Row) -> float:
    """JSON has no infinity."""
    return float("inf") if row["epsilon"] is None else float(row["epsilon"])


def shown(row: Row | None) -> str:
    """Accuracy in percent, with half of its 95% interval; ° if it was tuned to an edge; the uploads
    if they are far from those wanted."""
    if row is None:
        return "-"
    text = f"{100 * row['accuracy']:.2f} ± {50 * (row['high'] - row['low']):.2f}"
    edge = "°" if row["edge"] else ""
    off = abs(row["uploads_measured"] / row["uploads"] - 1) > OFF
    return text + edge + (f" ({row['uploads_measured']:.0f} up)" if off else "")


def beside(name: str) -> str:
    """The methods beside each other, a line for every cell; the best in bold."""
    cells: dict[Any, dict[str, Row]] = {}
    for row in rows_of(name):
        cells.setdefault((row["data"], epsilon_of(row), row["uploads"]), {})[row["method"]] = row
    lines = []
    for (data, epsilon, wanted), found in cells.items():
        best = max(row["accuracy"] for row in found.values())
        texts = []
        for method in METHODS:
            row = found.get(method)
            text = shown(row)
            texts.append(f"**{text}**" if row and row["accuracy"] == best else text)
        asked = found.get("coin", {}).get("cohort")
        lines.append(
            [data, sign(epsilon), f"{wanted:g}", *texts, f"{asked:,.0f}" if asked else "-"]
        )
    heads = ("data", "ε", "uploads", *METHODS, "asked by the coin")
    return markdown_table(heads, lines) + "\n" + _progress(name)


def across(name: str, *more: str) -> str:
    """A line for every method, with its accuracy on all data of these comparisons."""
    rows = [row for each in (name, *more) for row in rows_of(each)]
    columns = list(dict.fromkeys((row["data"], epsilon_of(row)) for row in rows))
    found = {(row["data"], epsilon_of(row), row["method"]): row for row in rows}
    lines = [
        [f"`{method}`", *(shown(found.get((*column, method))) for column in columns)]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    heads = ("method", *(f"{data}, ε = {sign(epsilon)}" for data, epsilon in columns))
    return markdown_table(heads, lines) + "\n" + _progress(name)


def _progress(name: str) -> str:
    table = table_of(name)
    missing = table["missing"]
    return f"\n{missing} of {table['cells']} cells are missing.\n" if missing else ""


def sign(epsilon: float) -> str:
    """An epsilon in a table."""
    return "∞" if np.isinf(epsilon) else f"{epsilon:g}"


def differences(name: str) -> str:
    """The differences that the file names beforehand."""
    lines = []
    for one in table_of(name)["differences"]:
        if not one["played"]:
            continue
        verdict = "holds" if one["stands"] else "does not hold"
        margin, low, high = (100 * one[name] for name in ("margin", "low", "high"))
        points = f"{abs(margin):g} point" + ("s" if abs(margin) > 1 else "")
        ahead = f"is more than {points} ahead of" if margin > 0 else "is ahead of"
        if margin < 0:
            ahead = f"is less than {points} behind"
        where, other = (one[name].split(", ") for name in ("better", "than"))
        common = [x for x, y in zip(where, other, strict=True) if x == y]
        mine, theirs = (
            ", ".join(x for x in reversed(named) if x not in common) for named in (where, other)
        )
        lines.append(
            f"* {', '.join(common)}: {mine} {ahead} {theirs}: **{verdict}**, "
            f"{100 * one['mean']:+.2f} ({low:+.2f} to {high:+.2f}), p = {one['p_holm']:.2g}"
        )
    return "\n".join(lines)


def error_of(question: Question, row: Row, uploads: float, share: float) -> float:
    """Noise and sampling error of an arm as it was played, predicted for clients of this r."""
    arm = question.arm(row["method"], row["rounds"], uploads, share)
    if arm.releases_norms:
        arm = dataclasses.replace(
            arm, cohort=row["cohort"], norm_low=min(1.0, uploads / row["cohort"])
        )
    return question.rough_plan(arm, share).expected.error


def pays(names: Iterable[str] = ("frontier", "clients")) -> str:
    """Gain over uniform sampling: what theory predicts beside what was measured."""
    lines = []
    for name in names:
        cells: dict[Any, dict[str, Row]] = {}
        for row in rows_of(name):
            key = (row["data"], epsilon_of(row), row["uploads"], row["rounds"])
            cells.setdefault(key, {})[row["method"]] = row
        for (data, epsilon, wanted, _), found in cells.items():
            if np.isinf(epsilon) or not {"uniform", "coin"} <= set(found):
                continue
            clients = int(data.split()[0].replace(",", ""))
            share = found["coin"]["uploads_measured"] / found["coin"]["cohort"]
            delta = {100: 1e-3, 1000: 1e-5}.get(clients, 1e-6)
            parameters = PARAMETERS[data.split()[-1]]
            question = Question(clients, parameters, epsilon, delta)
            predicted = {
                method: error_of(question, row, wanted, min(1.0, share))
                for method, row in found.items()
            }
            base = found["uniform"]["accuracy"]
            measured = [
                f"{100 * (found[m]['accuracy'] - base):+.2f}" if m in found else "-"
                for m in METHODS[1:]
            ]
            ratios = [f"{predicted[m] / predicted['uniform']:.3f}" for m in METHODS[1:]]
            lines.append([data, sign(epsilon), f"{wanted:g}", f"{share:.2f}", *ratios, *measured])
    heads = (
        "data", "ε", "uploads", "mean r", "predicted error over uniform's: norm", "coin",
        "measured gain, points: norm", "coin",
    )  # fmt: skip
    return markdown_table(heads, lines)


def cohorts() -> str:
    """What it costs to ask more clients than can have a reason not to upload."""
    lines = []
    for row in rows_of("cohorts"):
        noise = f"{row['noise_multiplier']:.2f}"
        asked = f"{row['cohort']:g}"
        lines.append([row["data"], sign(epsilon_of(row)), row["method"], asked, noise, shown(row)])
    return markdown_table(("data", "ε", "method", "asked", "noise", "accuracy"), lines)


def rounds() -> str:
    """Accuracy by the number of rounds in which a total of uploads is spent."""
    cells: dict[Any, dict[int, Row]] = {}
    for row in rows_of("rounds"):
        total = round(row["rounds"] * row["uploads"])
        cells.setdefault((row["data"], total), {})[row["rounds"]] = row
    every = sorted({t for found in cells.values() for t in found})
    lines = []
    for (data, total), found in cells.items():
        best = max(row["accuracy"] for row in found.values())
        texts = [f"{100 * found[t]['accuracy']:.1f}" if t in found else "-" for t in every]
        texts = [
            f"**{x}**" if t in found and found[t]["accuracy"] == best else x
            for t, x in zip(every, texts, strict=True)
        ]
        lines.append([data, f"{total:,}", *texts])
    heads = ("data", "uploads in all", *(f"{t} rounds" for t in every))
    return markdown_table(heads, lines) + "\n" + _progress("rounds")


def planned(name: str) -> str:
    """The planner's rounds beside the best."""
    heads = ("data", "ε", "uploads in all", "planned rounds", "best rounds", "points behind")
    lines = [
        [one["data"], sign(one["epsilon"]), f"{one['total']:,}", str(one["planned"]),
         str(one["best"]), f"{100 * one['behind']:.2f}"]
        for one in judged(rows_of(name))
    ]  # fmt: skip
    return markdown_table(heads, lines)


def two_classes() -> str:
    """Everybody in every round."""
    lines = [
        [f"{r['cohort']:,.0f}", f"{r['epsilon']:g}", r["data"].split("delta ")[1].split(",")[0],
         str(r["rounds"]), shown(r)]
        for r in rows_of("two-classes")
    ]  # fmt: skip
    heads = ("clients", "ε", "delta", "rounds", "accuracy")
    return markdown_table(heads, lines) + "\n" + _progress("two-classes")


def records() -> str:
    """Clients of one record."""
    lines = [
        [r["data"], f"{r['uploads']:,.0f}", str(r["rounds"]), shown(r), *PUBLISHED[r["data"]]]
        for r in rows_of("records")
    ]
    heads = ("data", "uploads a round", "rounds", "ours", "Tramer and Boneh", "DPIS", "DPSUR")
    return markdown_table(heads, lines) + "\n" + _progress("records")


def frontier() -> str:
    """Accuracy against uploads at 60,000 clients, as SVG: a chart for each kind of features and
    epsilon."""
    rows = rows_of("frontier")
    labels = list(dict.fromkeys(row["data"] for row in rows))
    epsilons = sorted({epsilon_of(row) for row in rows})
    charts = []
    for label, epsilon in itertools.product(labels, epsilons):
        lines = []
        for number, method in enumerate(METHODS):
            where = (label, epsilon, method)
            mine = [r for r in rows if (r["data"], epsilon_of(r), r["method"]) == where]
            mine.sort(key=lambda row: float(row["uploads_measured"]))
            values = ([100 * row[name] for row in mine] for name in ("accuracy", "low", "high"))
            means, low, high = values
            uploads = [row["uploads_measured"] for row in mine]
            lines.append(Line(method, uploads, means, number, low=low, high=high, bars=True))
        title = f"{label.split(', ')[-1]}, ε = {sign(epsilon)}"
        chart = Chart("uploads a round", "accuracy, %", lines, title=title, log_x=True)
        charts.append(chart)
    return svg_file(charts, columns=len(epsilons), width=1000, height=200, same_y=True)


BLOCKS: dict[str, Callable[[], str]] = {
    "frontier": lambda: beside("frontier"),
    "frontier-differences": lambda: differences("frontier"),
    "clients": lambda: beside("clients"),
    "clients-differences": lambda: differences("clients"),
    "natural": lambda: beside("natural"),
    "shakespeare": lambda: beside("shakespeare"),
    "rules": lambda: across("rules", "rules-shakespeare"),
    "rules-local": lambda: across("rules-local"),
    "rules-no-privacy": lambda: across("rules-no-privacy"),
    "training": lambda: beside("training"),
    "turns": lambda: across("turns"),
    "pays": pays,
    "cohorts": cohorts,
    "planned": lambda: planned("rounds"),
    "planned-digits": lambda: planned("rounds-digits"),
    "rounds": rounds,
    "two-classes": two_classes,
    "records": records,
}


def filled(text: str) -> str:
    """The text with every block made anew."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{BLOCKS[found[1]]().strip()}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def main() -> None:
    """Copy, draw, fill in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path)
    runs = parser.parse_args().runs
    for folder in sorted(runs.iterdir()) if runs else []:
        if (folder / "table.json").exists():
            text = (folder / "table.json").read_text("utf-8")
            (DOCS / "results" / f"{folder.name}.json").write_text(text, "utf-8")
    (DOCS / "frontier.svg").write_text(frontier(), "utf-8")
    page = DOCS / "results.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
