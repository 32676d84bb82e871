"""What people see of a comparison, or of a part of it: report.md, table.json and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

import numpy as np

from locksfl._charts import Chart, Line
from locksfl._files import write_atomically
from locksfl._svg import svg_file
from locksfl._tables import Record
from locksfl._text import markdown_table, size_text
from locksfl.experiment.comparison.folder import REPORT, TUNING, Folder, Part
from locksfl.experiment.comparison.grid import QUICK, Case
from locksfl.experiment.comparison.settings import FIRST_TUNING_SEED, figure_file
from locksfl.experiment.comparison.statistics import CONFIDENCE, holm, interval, paired
from locksfl.experiment.costs import epsilons_by_observer

LEVEL = 1 - CONFIDENCE
UNEQUAL = 0.05  # of the wanted uploads: more is not equal
HEADS = (
    "data", "ε", "rounds", "wanted", "uploads", "method", "accuracy", "clip, step", "cohort",
    "noise", "up", "down", "tried", "ε SERVER", "ε PUBLIC",
)  # fmt: skip
KEPT = (  # of a report's line
    "clip_norm", "step", "cohort", "noise_multiplier", "norm_multiplier", "bytes_up", "bytes_down",
    "privacy",
)  # fmt: skip


def rows_of(folder: Folder) -> list[Record]:
    """One row for every case that has a report."""
    return [
        _row(case, line, folder.line(TUNING, case))
        for case in folder.cases
        if (line := folder.line(REPORT, case)) is not None
    ]


def _row(case: Case, line: Record, tuning: Record | None) -> Record:
    accuracy = interval(line["accuracy"])
    return {
        **case.key,
        "uploads_measured": float(np.mean(line["uploads_measured"])),
        "accuracy": float(np.mean(line["accuracy"])),
        "low": accuracy and accuracy[0],
        "high": accuracy and accuracy[1],
        "seeds": len(line["accuracy"]),
        **{name: line[name] for name in KEPT},
        "tried": len(tuning["tried"]) if tuning else 0,
        "widened": tuning["widened"] if tuning else 0,
        "edge": tuning["edge"] if tuning else [],
    }


def differences_of(folder: Folder) -> list[Record]:
    """Every difference that the file names, whether it was played yet or not."""
    found: list[Record] = []
    for named in folder.comparison.axes.difference:
        cases = folder.comparison.find(named)
        better, than = (folder.line(REPORT, case) for case in cases)
        told = {"better": cases[0].label, "than": cases[1].label, "margin": named.margin}
        if better is None or than is None:
            found.append({**told, "played": False, "p": 1.0})
            continue
        found.append({**told, "played": True, **asdict(paired(better, than, named.margin))})
    corrected = holm([one["p"] for one in found])
    for one, p in zip(found, corrected, strict=True):
        one["p_holm"] = p
        one["stands"] = one["played"] and p < LEVEL and one["mean"] > one["margin"]
    return found


def write_report(folder: Folder) -> Record:
    """Write every file of the report, of what there is so far. Returns what table.json holds."""
    rows, differences = rows_of(folder), differences_of(folder)
    table = {
        "name": folder.comparison.name,
        "quick": folder.comparison.quick,
        "part": str(folder.part),
        "cells": len(folder.cases),
        "missing": len(folder.missing),
        "rows": rows,
        "differences": differences,
        "failures": [{**case.key, "error": said} for case, said in folder.failures.items()],
    }
    labels = list(dict.fromkeys(row["data"] for row in rows))
    figures = {one: figure_file(one) if len(labels) > 1 else "figure" for one in labels}
    for label, name in figures.items():
        mine = [row for row in rows if row["data"] == label]
        drawing = figure(mine, _title(folder, label))
        write_atomically(folder.path / f"{name}.svg", drawing.encode())
    write_atomically(folder.path / "table.json", (json.dumps(table, indent=2) + "\n").encode())
    text = report_text(folder, table, list(figures.values()))
    write_atomically(folder.path / "report.md", text.encode())
    return table


def _title(folder: Folder, label: str) -> str:
    seeds = folder.comparison.axes.seeds
    partial = f" · PARTIAL: {_so_far(folder)}" if folder.missing else ""
    quick = " · quick" if folder.comparison.quick else ""
    name = ", ".join(filter(None, (folder.comparison.name, label)))
    return f"{name}: mean and 95% interval of {seeds} seeds, simulated{quick}{partial}"


def _so_far(folder: Folder) -> str:
    return f"{len(folder.cases) - len(folder.missing)} of {len(folder.cases)} cells"


def report_text(folder: Folder, table: Record, figures: Sequence[str]) -> str:
    """Returns report.md."""
    comparison, part = folder.comparison, folder.part
    parts = [f"# Comparison: {comparison.name}"]
    if folder.missing:
        parts.append(f"**Partial: {_so_far(folder)}.** The same command goes on.")
    if part != Part():
        parts.append(f"**Part {part}** of the comparison; `locks compare --merge` joins all parts.")
    if comparison.quick:
        parts.append(f"**Quick**, a smaller comparison than the file's: {QUICK}.")
    parts += [
        f"Every method at the same total ε (norms charged){_uploads_text(folder, table['rows'])}; "
        f"{comparison.axes.seeds} seeds, simulated. Accuracy is on held-out records, ± half of the "
        f"{CONFIDENCE:.0%} interval over seeds. Uploads are a round's: wanted, and as they came "
        "out. Bytes are those of a whole run, up and down. ε is zero-out/replace; SERVER sees "
        "every message, PUBLIC the models.",
        _tuning_text(folder),
        *(f"![accuracy against uploads and bytes]({name}.svg)" for name in figures),
        markdown_table(HEADS, map(cells, table["rows"])),
    ]
    if table["differences"]:
        parts += ["## Differences named beforehand", _differences_text(table["differences"])]
    if table["failures"]:
        failed = (f"* {case.label}: {said}" for case, said in folder.failures.items())
        parts += ["## Failed, and tried again by the same command", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def _uploads_text(folder: Folder, rows: Sequence[Record]) -> str:
    """Whether all uploaded as often as was wanted and, if not, which methods differ."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        wanted, came = row["uploads"], row["uploads_measured"]
        chance = 4 * math.sqrt(wanted / (row["rounds"] * row["seeds"]))  # four standard errors
        if folder.comparison.methods[row["method"]].rule.everyone:
            found.setdefault((row["method"], "all clients"), []).append(came)
        elif abs(came - wanted) > max(UNEQUAL * wanted, chance):
            found.setdefault((row["method"], f"{wanted:g} wanted"), []).append(came)
    each = []
    for (name, why), came in found.items():
        ends = dict.fromkeys(f"{end:.1f}" for end in (min(came), max(came)))
        each.append(f"{name} {' to '.join(ends)} ({why})")
    apart = f"; apart from {', '.join(each)}" if each else ""
    return f" and the same expected uploads{apart}"


def _tuning_text(folder: Folder) -> str:
    grid = folder.comparison.axes.tuning
    if grid is None:
        return "Nothing was tuned here: clip norm and step are the file's."
    seeds = ", ".join(str(FIRST_TUNING_SEED + i) for i in range(grid.seeds))
    return (
        f"Tuned **without privacy**: clip norm and reach (clip norm x step) of every method and "
        f"cell, from {len(grid.pairs)} settings each, with other seeds ({seeds}) on the half of "
        f"the held-out records that no report uses. Where the edge of a grid was best, it was "
        f'widened there, at most {grid.widen} x; "edge" marks a choice that is at the edge still. '
        "Where uploads follow the data, the cohort was found in the same runs. No ε covers these "
        "choices."
    )


def cells(row: Record) -> list[str]:
    """A row for people."""
    wide = "" if row["low"] is None else f" ± {_wide(row):.2f}"
    edge = f" (edge: {', '.join(row['edge'])})" if row["edge"] else ""
    noise = "-" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.3g}"
    if row["norm_multiplier"] is not None:
        noise += f", norms {row['norm_multiplier']:.3g}"
    return [
        row["data"] or "-",
        "∞" if row["epsilon"] is None else f"{row['epsilon']:g}",
        str(row["rounds"]),
        f"{row['uploads']:g}",
        f"{row['uploads_measured']:.1f}",
        row["method"],
        f"{100 * row['accuracy']:.2f}{wide}",
        f"{row['clip_norm']:.3g}, {row['step']:.3g}",
        f"{row['cohort']:.4g}",
        noise,
        size_text(row["bytes_up"]),
        size_text(row["bytes_down"]),
        f"{row['tried'] or '-'}{edge}",
        *epsilons_by_observer(row["privacy"]),
    ]


def _differences_text(found: Sequence[Record]) -> str:
    lines = [
        f"Named in the file: {len(found)}. Paired over seeds, the error of the held-out records "
        f"included, with {CONFIDENCE:.0%} intervals; a difference stands if its p, corrected by "
        f"Holm for that number, is below {LEVEL:.2g}.\n"
    ]
    for one in found:
        ahead = f" by more than {100 * one['margin']:+.4g} points" if one["margin"] else ""
        told = f"* {one['better']}, above {one['than']}{ahead}: "
        if not one["played"]:
            lines.append(f"{told}not played yet.")
            continue
        numbers = f"{100 * one['mean']:+.2f} points"
        if one["low"] is not None:
            numbers += f" ({100 * one['low']:+.2f} to {100 * one['high']:+.2f})"
        verdict = "**stands**" if one["stands"] else "does not stand"
        lines.append(f"{told}{verdict}: {numbers}, corrected p = {one['p_holm']:.2g}.")
    return "\n".join(lines)


def figure(rows: Sequence[Record], title: str) -> str:
    """Accuracy against uploads and against bytes, as SVG: a line of panels for every epsilon."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by_rounds = list(dict.fromkeys(row["rounds"] for row in rows))
    one = len(by_rounds) == 1
    charts = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        uploads, sent = [], []
        for style, (method, rounds) in enumerate(product(methods, by_rounds)):
            where = (epsilon, method, rounds)
            mine = [r for r in rows if (r["epsilon"], r["method"], r["rounds"]) == where]
            colour = methods.index(method)
            name = method if one else f"{method}, {rounds} rounds"
            times = 1 if one else rounds
            came = [r["uploads_measured"] * times for r in mine]
            bytes_sent = [r["bytes_up"] + r["bytes_down"] for r in mine]
            uploads.append(_line(name, came, mine, style, colour))
            sent.append(_line(name, bytes_sent, mine, style, colour))
        of = "uploads a round, measured" if one else "uploads in all, measured"
        named = f"ε = {'∞' if epsilon is None else f'{epsilon:g}'}"
        charts += [
            Chart(of, "accuracy, %", uploads, title=named, log_x=True),
            Chart("sent in all, up and down", "accuracy, %", sent, log_x=True, x_text=size_text),
        ]
    return svg_file(charts, title, columns=2, height=200)


def _line(label: str, x: Sequence[float], rows: Sequence[Record], style: int, colour: int) -> Line:
    """Means with their intervals, in the order of x."""
    points = sorted(zip(x, [(100 * row["accuracy"], _wide(row)) for row in rows], strict=True))
    at, means = [x for x, _ in points], [mean for _, (mean, _) in points]
    low = [mean - half for _, (mean, half) in points]
    high = [mean + half for _, (mean, half) in points]
    return Line(label, at, means, style, low=low, high=high, bars=True, colour=colour)


def _wide(row: Record) -> float:
    return 0.0 if row["low"] is None else 100 * (row["high"] - row["low"]) / 2
