"""One way to make a figure: its size, lines, bands, grid and files.

Whole files appear atomically, and the same run gives the same files, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

from locksfl._files import write_atomically

COLOURS = ("#004488", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
DASHES = ("-", (0, (4, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "X", "v", "*")
MARKS = 8  # on a line of many points: a marker on each would hide its dashes


def look(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of an arm. In black and white the last two tell 28 arms apart."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "ms": 5,
    }


def plotting() -> Any:
    """Returns matplotlib.pyplot without a screen, set so that the same run gives the same file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "locks", "font.size": 9, "svg.fonttype": "none"})
    return pyplot


def draw_line(axes: Any, x: Any, y: Any, number: int, **line: Any) -> None:
    """The line of an arm. `line` are options of matplotlib's plot: label, lw, mfc."""
    step = -(-len(x) // MARKS) or 1
    first = number * step // 3 % step  # lines that lie on each other keep their own markers
    axes.plot(x, y, **(look(number) | {"lw": 1.6, "markevery": (first, step)} | line))


def draw_band(
    axes: Any, x: Any, low: Any, middle: Any, high: Any, number: int, **line: Any
) -> None:
    """The line of an arm with a range around it, whose edges have the arm's dashes."""
    style = look(number)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
    for edge in (low, high):
        axes.plot(x, edge, color=style["color"], ls=style["ls"], lw=0.5, alpha=0.6)
    draw_line(axes, x, middle, number, **line)


def show_range(axes: Any, scores: Iterable[float], least: float) -> None:
    """Let the y axis span at least this much, not beyond 1: noise is not drawn as an event."""
    there = [score for score in scores if isfinite(score)] or [0.0]
    low, high = min(there), max(there)
    room = max(0.05 * (high - low), (least - (high - low)) / 2)
    top = max(high, min(high + room, 1.0))  # a line at the top end may touch it
    axes.set_ylim(min(low - room, top - least), top + 0.01 * (top - low + room))


def legend_below(figure: Any, *axes: Any, **options: Any) -> None:
    """One legend for all panels, below them, where it crosses no line."""
    found: dict[str, Any] = {}
    for one in axes or figure.axes:
        handles, labels = one.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2, "frameon": False}
        place["handlelength"] = 3.5  # two periods of the longest dashes
        figure.legend(found.values(), found.keys(), **(place | options))


def save_figure(figure: Any, path: Path, *, only_png: bool = False, **layout: Any) -> None:
    """Add grids, remove frames, fit the panels and write the files, without a date in them.

    path: PATH.png and PATH.svg are written, or with `only_png` PATH itself, as a PNG.
    layout: options of matplotlib's tight_layout.
    """
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(**layout)
    for kind in ("png",) if only_png else ("png", "svg"):
        buffer = BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=130, metadata=metadata, bbox_inches="tight")
        file = path if only_png else path.with_name(f"{path.name}.{kind}")
        write_atomically(file, buffer.getvalue())
    plotting().close(figure)
