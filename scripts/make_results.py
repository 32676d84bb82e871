"""The tables and the picture of docs/results.md, and all tables of its appendix.

python -m scripts.make_results RUNS     # copies RUNS/NAME/table.json to docs/results/ first
python -m scripts.make_results          # from what docs/results has
python -m scripts.make_results --show   # prints the appendix, which the site has as a page

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
from typing import Any, NamedTuple

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


def short() -> str:
    """The three methods at epsilon 8 and the fewest uploads, on every data set."""
    lines = []
    for name in ("frontier", "clients", "natural"):
        rows = [row for row in rows_of(name) if row["epsilon"] == 8]
        for data in dict.fromkeys(row["data"] for row in rows):
            fewest = min(row["uploads"] for row in rows if row["data"] == data)
            cell = {r["method"]: r for r in rows if (r["data"], r["uploads"]) == (data, fewest)}
            best = max(row["accuracy"] for row in cell.values())
            texts = (
                f"**{100 * one['accuracy']:.2f}**" if one["accuracy"] == best
                else f"{100 * one['accuracy']:.2f}"
                for one in (cell[method] for method in METHODS)
            )  # fmt: skip
            interval = max(50 * (row["high"] - row["low"]) for row in cell.values())
            lines.append([data, f"{fewest:g}", *texts, f"{interval:.2f}"])
    return markdown_table(("clients, features", "uploads", *METHODS, "±, at most"), lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "short": short,
}


class Table(NamedTuple):
    """A table of the appendix.

    Attributes:
        title: its heading.
        about: what was played, and what to know when reading it.
        file: the comparison, as a file of experiments/results.
        time: how long that takes, on one H200 if nothing else is named.
        made: makes the table.
    """

    title: str
    about: str
    file: str
    time: str
    made: Callable[[], str]


APPENDIX = (
    Table(
        "Many clients: 60,000 with one digit each",
        "MNIST, scattering features (39,700 parameters) or pixels (7,850), 200 rounds, delta 1e-6, "
        "5 seeds. `norm` asks 10 clients for each upload, a guess that was not tuned. At ε = 2 and "
        "with many uploads the planner would ask 3 to 5, so its losses there are partly ours.",
        "frontier", "4.8 minutes", lambda: beside("frontier") + "\n" + differences("frontier"),
    ),
    Table(
        "Fewer, larger clients: 100, 1,000 and 10,000 with two classes each",
        "The same digits; 100 rounds (200 for 10,000 clients), delta 1e-3, 1e-5 and 1e-6, 5 seeds. "
        "`norm` asks three clients for each upload here.",
        "clients", "5.4 minutes", lambda: beside("clients") + "\n" + differences("clients"),
    ),
    Table(
        "How many clients `norm` should ask",
        "The number after \"norm\" is how many clients are asked for one upload.",
        "cohorts", "5 minutes on 2 CPU cores", cohorts,
    ),
    Table(
        "Theory beside measurement",
        "r is the mean clipped norm over the clip norm, as measured in the coin's runs: this tests "
        "the formula, and forecasts nothing. The predicted error is that of `locks plan`, noise "
        "and sampling together, for each method with the cohort that it was played with, over that "
        "of uniform sampling; below 1 it should pay. It takes one clip norm for all methods, while "
        "each was tuned for itself, so it tells the direction, not the points.",
        "frontier", "", pays,
    ),
    Table(
        "Other images",
        "Fashion-MNIST with labels dealt by Dirichlet(.3), and MNIST by writer, scattering "
        "features, 100 rounds, delta 1e-5 and 1e-4, 5 seeds.",
        "natural", "4.2 minutes", lambda: beside("natural"),
    ),
    Table(
        "Text",
        "Shakespeare by role: the next character, a small recurrent network, an epoch on 16 lines, "
        "40 rounds, delta 1e-4, 3 seeds. Only the clip norm was tuned, not the reach, which is too "
        "short for the larger epsilons: less noise should not be worse, as it is here. (Uniform "
        "sampling reached 34.7% without privacy with a reach of 9.)",
        "shakespeare", "40 minutes on 2 busy CPU cores", lambda: beside("shakespeare"),
    ),
    Table(
        "Every rule for a trusted server",
        "Epsilon 8, softmax on pixels (MNIST) or scattering features, 100 rounds (200 with 60,000 "
        "clients), 5 seeds; 60, 30, 50, 20 and 50 uploads are wanted. A rule that asks for a score "
        "first asks 3 clients for each wanted upload with 60,000 clients, and 1.5 elsewhere. That "
        "1.5 was chosen after a first play with 3, in which `norm` and others did worse; the runs "
        "of `uniform` and `coin` are those of the first play. `dpis` scores everybody. The last "
        "column is text (rules-shakespeare.toml, 5 minutes): 40 rounds, 3 seeds, every rule with "
        "the clip norm and step to which uniform sampling was tuned.",
        "rules", "about 7 minutes", lambda: across("rules", "rules-shakespeare"),
    ),
    Table(
        "Every rule where clients add the noise",
        "Epsilon 20 (the only one played), 60,000 clients, 3,000 uploads of 6,000 asked, 10 "
        "rounds, delta 1e-6, 5 seeds. Rules that compare all members are private here, as they "
        "compare released values.",
        "rules-local", "1.4 minutes", lambda: across("rules-local"),
    ),
    Table(
        "Every rule without noise",
        "With the rules that need every member's raw value; 3 clients are asked for each upload. "
        "Rules that had not changed since an earlier play were not played again.",
        "rules-no-privacy", "about 4 minutes", lambda: across("rules-no-privacy"),
    ),
    Table(
        "Ways to train",
        "1,000 clients with two classes each, softmax on pixels, 50 uploads, 100 rounds, delta "
        "1e-5, 5 seeds. Local work: 2 epochs of batches of 10; proximal 1; an anchor in every "
        "tenth round, differences clipped to half of the norm.",
        "training", "7.8 minutes", lambda: beside("training"),
    ),
    Table(
        "Turns and correlated noise",
        "The same model; 50 of 1,000 or 500 of 10,000 clients a round (delta 1e-5, 1e-6).",
        "turns", "1.4 minutes", lambda: across("turns"),
    ),
    Table(
        "Few large rounds or many small ones",
        "A total of uploads, spent in T rounds; 1,000 clients (539 writers), epsilon 8, delta "
        "1e-5, softmax on pixels, contributions of one length, 5 seeds.",
        "rounds", "2.2 minutes", rounds,
    ),
    Table(
        "The planner's rounds beside the best of these",
        "Between the numbers of rounds that were played, accuracy is interpolated (30 and 60 "
        "rounds are). The criterion and its constant were chosen on these lines, among others.",
        "rounds", "", lambda: planned("rounds"),
    ),
    Table(
        "The planner's rounds in twelve cells that had no say",
        "The embedded digits, fixed before they were played; 10 seeds. The criterion before, "
        "A / T + sqrt(v / T), was up to 3.15 points behind, and .91 on average.",
        "rounds-digits", "13 minutes on two busy cores", lambda: planned("rounds-digits"),
    ),
    Table(
        "Everybody in every round",
        "MNIST, two classes a client, a trusted server, 5 seeds. The rounds were picked from two "
        "or three numbers in earlier runs, by their reported accuracy. For 10,000 clients the best "
        "step is at the edge of the grid.",
        "two-classes", "3.9 minutes", two_classes,
    ),
    Table(
        "One record a client, beside published tables",
        "Epsilon 3, delta 1e-5, scattering features, a linear model, 3 seeds.",
        "records", "3.4 minutes", records,
    ),
)  # fmt: skip


def appendix() -> str:
    """All tables, as the site shows them."""
    parts = []
    for table in APPENDIX:
        command = f"`locks compare experiments/results/{table.file}.toml`"
        played = f" {command}, {table.time}." if table.time else ""
        parts.append(f"## {table.title}\n\n{table.about}{played}\n\n{table.made().strip()}\n")
    return "\n".join(parts)


def filled(text: str) -> str:
    """The text with every block made anew."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{BLOCKS[found[1]]().strip()}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def main() -> None:
    """Copy, draw, fill in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path)
    parser.add_argument("--show", action="store_true", help="print the appendix, change nothing")
    asked = parser.parse_args()
    if asked.show:
        print(appendix())
        return
    runs = asked.runs
    for folder in sorted(runs.iterdir()) if runs else []:
        if (folder / "table.json").exists():
            text = (folder / "table.json").read_text("utf-8")
            (DOCS / "results" / f"{folder.name}.json").write_text(text, "utf-8")
    (DOCS / "frontier.svg").write_text(frontier(), "utf-8")
    page = DOCS / "results.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
