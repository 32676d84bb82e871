"""What people see of a comparison, or of a part of it: report.md, table.json and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec
import numpy as np

from locksfl._charts import Chart, Line
from locksfl._files import write_atomically
from locksfl._svg import svg_file
from locksfl._text import markdown_table, size_text
from locksfl.experiment.costs import epsilons_by_observer
from locksfl.experiment.record import Cost
from locksfl.grids.comparison.cases import QUICK, Case
from locksfl.grids.comparison.folder import Folder
from locksfl.grids.comparison.settings import FIRST_TUNING_SEED, figure_file
from locksfl.grids.comparison.statistics import CONFIDENCE, UNPLAYED, holm, interval, paired
from locksfl.grids.comparison.tuning import Finished, uploads_a_round

LEVEL = 1 - CONFIDENCE
UNEQUAL = 0.05  # of the wanted uploads: more is not equal
HEADS = (
    "data", "ε", "rounds", "wanted", "uploads", "method", "accuracy", "clip, step", "cohort",
    "noise", "up", "down", "tried", "ε SERVER", "ε PUBLIC",
)  # fmt: skip


class TableRow(msgspec.Struct, frozen=True):
    """A case that has its report, in table.json."""

    data: str
    epsilon: float | None  # None: no noise
    rounds: int
    uploads: float  # wanted a round
    method: str
    uploads_measured: float
    accuracy: float
    low: float | None  # of the interval; None: one seed
    high: float | None
    seeds: int
    clip_norm: float
    step: float
    cohort: float
    noise_multiplier: float | None
    norm_multiplier: float | None
    bytes_up: float  # of a run
    bytes_down: float
    privacy: tuple[Cost, ...]
    tried: int  # pairs of clip norm and reach
    widened: int
    edge: list[str]  # of the grid, at which the best lies

    @property
    def error(self) -> float:
        """Half of the interval, in points."""
        return 0.0 if self.low is None or self.high is None else 100 * (self.high - self.low) / 2


class Judged(msgspec.Struct, frozen=True):
    """A difference that the file names, in table.json; None: it was not played yet."""

    better: str
    than: str
    margin: float
    played: bool
    mean: float | None
    low: float | None
    high: float | None
    p: float
    seeds: int | None
    p_holm: float
    stands: bool


class Failure(msgspec.Struct, frozen=True):
    """A case that failed when it was last played, in table.json."""

    data: str
    epsilon: float | None
    rounds: int
    uploads: float
    method: str
    error: str


class Table(msgspec.Struct, frozen=True):
    """All that a comparison tells: table.json."""

    name: str
    quick: bool
    cells: int
    missing: int
    rows: list[TableRow]
    differences: list[Judged]
    failures: list[Failure]


Cases = Mapping[Case, Finished]


def _row(case: Case, finished: Finished) -> TableRow:
    outcomes, tuning, accuracy = finished.outcomes, finished.tuning, finished.scored.accuracy
    arm, (low, high) = finished.arm, interval(accuracy) or (None, None)
    first = outcomes[0]
    return TableRow(
        *case.place,
        uploads_measured=uploads_a_round(case, outcomes),
        accuracy=float(np.mean(accuracy)),
        low=low,
        high=high,
        seeds=len(accuracy),
        clip_norm=arm.clip_norm,
        step=arm.step,
        cohort=arm.cohort,
        noise_multiplier=first.noise.noise_multiplier,
        norm_multiplier=first.noise.norm_multiplier,
        bytes_up=float(np.mean([one.bytes_up for one in outcomes])),
        bytes_down=float(np.mean([one.bytes_down for one in outcomes])),
        privacy=first.reported.privacy if first.reported else (),
        tried=len(tuning.tried) if tuning else 0,
        widened=tuning.widened if tuning else 0,
        edge=tuning.edge if tuning else [],
    )


def differences_of(folder: Folder, finished: Cases) -> list[Judged]:
    """Every difference that the file names, whether it was played yet or not."""
    named = folder.comparison.axes.difference
    pairs = [folder.comparison.find(one) for one in named]
    apart = [
        paired(finished[better].scored, finished[than].scored, one.margin)
        if better in finished and than in finished
        else UNPLAYED
        for one, (better, than) in zip(named, pairs, strict=True)
    ]
    judged = []
    corrected = holm([each.p for each in apart])
    for one, (better, than), each, p in zip(named, pairs, apart, corrected, strict=True):
        stands = each.mean is not None and p < LEVEL and each.mean > one.margin
        head = (better.label, than.label, one.margin, each is not UNPLAYED)
        judged.append(Judged(*head, **vars(each), p_holm=p, stands=stands))
    return judged


def write_report(folder: Folder) -> Table:
    """Write every file of the report, of what there is so far. Returns what table.json holds."""
    finished = folder.finished()
    cases = folder.comparison.cases
    rows = [_row(case, finished[case]) for case in cases if case in finished]
    table = Table(
        folder.comparison.name,
        folder.comparison.quick,
        len(cases),
        len(cases) - len(rows),
        rows,
        differences_of(folder, finished),
        [Failure(*case.place, error) for case, error in folder.failures.items()],
    )
    labels = list(dict.fromkeys(row.data for row in rows))
    figures = {one: figure_file(one) if len(labels) > 1 else "figure" for one in labels}
    for label, name in figures.items():
        mine = [row for row in rows if row.data == label]
        drawing = figure(mine, _title(folder, table, label))
        write_atomically(folder.path / f"{name}.svg", drawing.encode())
    content = json.dumps(msgspec.to_builtins(table), indent=2) + "\n"
    write_atomically(folder.path / "table.json", content.encode())
    text = report_text(folder, table, list(figures.values()))
    write_atomically(folder.path / "report.md", text.encode())
    return table


def _title(folder: Folder, table: Table, label: str) -> str:
    seeds = folder.comparison.axes.seeds
    partial = f" · PARTIAL: {_so_far(table)}" if table.missing else ""
    quick = " · quick" if folder.comparison.quick else ""
    name = ", ".join(filter(None, (folder.comparison.name, label)))
    return f"{name}: mean and 95% interval of {seeds} seeds, simulated{quick}{partial}"


def _so_far(table: Table) -> str:
    return f"{table.cells - table.missing} of {table.cells} cells"


def report_text(folder: Folder, table: Table, figures: Sequence[str]) -> str:
    """Returns report.md."""
    comparison = folder.comparison
    parts = [f"# Comparison: {comparison.name}"]
    if table.missing:
        parts.append(f"**Partial: {_so_far(table)}.** The same command goes on.")
    if comparison.quick:
        parts.append(f"**Quick**, a smaller comparison than the file's: {QUICK}.")
    parts += [
        f"Every method at the same total ε (norms charged){_uploads_text(folder, table.rows)}; "
        f"{comparison.axes.seeds} seeds, simulated. Accuracy is on held-out records, ± half of the "
        f"{CONFIDENCE:.0%} interval over seeds. Uploads are a round's: wanted, and as they came "
        "out. Bytes are those of a whole run, up and down. ε is zero-out/replace; SERVER sees "
        "every message, PUBLIC the models.",
        _tuning_text(folder),
        *(f"![accuracy against uploads and bytes]({name}.svg)" for name in figures),
        markdown_table(HEADS, map(cells, table.rows)),
    ]
    if table.differences:
        parts += ["## Differences named beforehand", _differences_text(table.differences)]
    if table.failures:
        failed = (f"* {case.label}: {error}" for case, error in folder.failures.items())
        parts += ["## Failed, and tried again by the same command", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def _uploads_text(folder: Folder, rows: Sequence[TableRow]) -> str:
    """Whether all uploaded as often as was wanted and, if not, which methods differ."""
    unequal: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        wanted, measured = row.uploads, row.uploads_measured
        chance = 4 * math.sqrt(wanted / (row.rounds * row.seeds))  # four standard errors
        if folder.comparison.methods[row.method].rule.everyone:
            unequal.setdefault((row.method, "all clients"), []).append(measured)
        elif abs(measured - wanted) > max(UNEQUAL * wanted, chance):
            unequal.setdefault((row.method, f"{wanted:g} wanted"), []).append(measured)
    each = []
    for (name, why), every in unequal.items():
        ends = dict.fromkeys(f"{end:.1f}" for end in (min(every), max(every)))
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
        f"cell, from {grid.pairs} settings each, with other seeds ({seeds}) on the half of "
        f"the held-out records that no report uses. Where the edge of a grid was best, it was "
        f'widened there, at most {grid.widen} x; "edge" marks a choice that is at the edge still. '
        "Where uploads follow the data, the cohort was found in the same runs. No ε covers these "
        "choices."
    )


def cells(row: TableRow) -> list[str]:
    """A row for people."""
    wide = "" if row.low is None else f" ± {row.error:.2f}"
    edge = f" (edge: {', '.join(row.edge)})" if row.edge else ""
    noise = "-" if row.noise_multiplier is None else f"{row.noise_multiplier:.3g}"
    if row.norm_multiplier is not None:
        noise += f", norms {row.norm_multiplier:.3g}"
    return [
        row.data or "-",
        "∞" if row.epsilon is None else f"{row.epsilon:g}",
        str(row.rounds),
        f"{row.uploads:g}",
        f"{row.uploads_measured:.1f}",
        row.method,
        f"{100 * row.accuracy:.2f}{wide}",
        f"{row.clip_norm:.3g}, {row.step:.3g}",
        f"{row.cohort:.4g}",
        noise,
        size_text(row.bytes_up),
        size_text(row.bytes_down),
        f"{row.tried or '-'}{edge}",
        *epsilons_by_observer(row.privacy),
    ]


def _differences_text(judged: Sequence[Judged]) -> str:
    lines = [
        f"Named in the file: {len(judged)}. Paired over seeds, the error of the held-out records "
        f"included, with {CONFIDENCE:.0%} intervals; a difference stands if its p, corrected by "
        f"Holm for that number, is below {LEVEL:.2g}.\n"
    ]
    for one in judged:
        ahead = f" by more than {100 * one.margin:+.4g} points" if one.margin else ""
        named = f"* {one.better}, above {one.than}{ahead}: "
        if one.mean is None:
            lines.append(f"{named}not played yet.")
            continue
        numbers = f"{100 * one.mean:+.2f} points"
        if one.low is not None and one.high is not None:
            numbers += f" ({100 * one.low:+.2f} to {100 * one.high:+.2f})"
        verdict = "**stands**" if one.stands else "does not stand"
        lines.append(f"{named}{verdict}: {numbers}, corrected p = {one.p_holm:.2g}.")
    return "\n".join(lines)


def figure(rows: Sequence[TableRow], title: str) -> str:
    """Accuracy against uploads and against bytes, as SVG: a line of panels for every epsilon."""
    methods = list(dict.fromkeys(row.method for row in rows))
    by_rounds = list(dict.fromkeys(row.rounds for row in rows))
    one = len(by_rounds) == 1
    charts = []
    for epsilon in dict.fromkeys(row.epsilon for row in rows):
        uploads, sent = [], []
        for style, (method, rounds) in enumerate(product(methods, by_rounds)):
            where = (epsilon, method, rounds)
            mine = [r for r in rows if (r.epsilon, r.method, r.rounds) == where]
            name = method if one else f"{method}, {rounds} rounds"
            times = 1 if one else rounds
            look = (name, mine, style, methods.index(method))
            uploads.append(_line([r.uploads_measured * times for r in mine], *look))
            sent.append(_line([r.bytes_up + r.bytes_down for r in mine], *look))
        of = "uploads a round, measured" if one else "uploads in all, measured"
        named = f"ε = {'∞' if epsilon is None else f'{epsilon:g}'}"
        charts += [
            Chart(of, "accuracy, %", uploads, title=named, log_x=True),
            Chart("sent in all, up and down", "accuracy, %", sent, log_x=True, x_text=size_text),
        ]
    return svg_file(charts, title, columns=2, height=200)


def _line(
    x: Sequence[float], label: str, rows: Sequence[TableRow], style: int, colour: int
) -> Line:
    """Means with their intervals, in the order of x."""
    points = sorted(zip(x, [(100 * row.accuracy, row.error) for row in rows], strict=True))
    at, means = [x for x, _ in points], [mean for _, (mean, _) in points]
    low = [mean - half for _, (mean, half) in points]
    high = [mean + half for _, (mean, half) in points]
    return Line(label, at, means, style, low=low, high=high, bars=True, colour=colour)
