"""Figures of a page, by Bokeh: lines that answer to the pointer, and hide at a click on the legend.

A chart is plain data until `figures_json` draws it. What it draws is the same in every process:
Bokeh numbers its models anew in each, so they are numbered once more here, in the order in which
they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

GREY = "#7d838b"  # readable on white and on black, as the colours are
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
DASHES = ("solid", [9, 4], [2, 3], [9, 3, 2, 3], [14, 4], [5, 2, 1, 2, 1, 2])
MOST_POINTS = 500  # of a line: more cannot be seen
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
HEIGHT, LEGEND_ROW = 300, 23  # pixels
Side = Literal["left", "right", "above", "below"]  # where a tip stands
SIDES: tuple[Side, ...] = get_args(Side)
FEW = 4  # points that need marks to be seen


@dataclass(frozen=True)
class Line:
    """One line. Its style is its colour and its dash, so that it can be told in black and white."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int | None = None  # None: a limit or a baseline, thin and grey
    thin: bool = False
    low: Sequence[float] = ()  # a range around it
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """One figure: its axes and its lines."""

    x: str
    y: str
    lines: Sequence[Line]
    least_range: float = 0.0  # that the y axis spans: noise is not drawn as an event
    from_zero: bool = False

    @property
    def described(self) -> str:
        """For who cannot see it."""
        return f"{self.y} by {self.x}: {', '.join(line.label for line in self.lines)}"


def level(label: str, value: float, lines: Sequence[Line]) -> Line:
    """A horizontal line as wide as the others."""
    xs = [x for line in lines for x in (line.x[0], line.x[-1])]
    return Line(f"{label} ({value:.4g})", (min(xs), max(xs)), (value, value))


def figures_json(charts: dict[str, Chart]) -> dict[str, Any]:
    """All charts of a page as one document for BokehJS, and the place of each: {"doc", "roots"}."""
    from bokeh.document import Document

    document = Document(title="")
    places = {}
    with document.models.freeze():  # they are counted once, at the end
        for place, chart in charts.items():
            figure = _figure(chart)
            document.add_root(figure)
            places[figure.id] = place
    numbers: dict[str, str] = {}
    told = _numbered(document.to_json(deferred=False), numbers)
    return {"doc": told, "roots": {numbers[root]: place for root, place in places.items()}}


@cache
def bokeh_script() -> str:
    """BokehJS, the part that draws figures."""
    import bokeh
    from bokeh.util.paths import bokehjs_path

    script: str = (bokehjs_path() / "js" / "bokeh.min.js").read_text("utf-8")
    if "</script" in script or "<!--" in script:
        raise AssertionError(f"BokehJS {bokeh.__version__} cannot stand in a page")
    return script


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    """A document with the ids of its models replaced by their numbers."""
    if isinstance(value, list):
        return [_numbered(one, numbers) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: numbers.setdefault(one, f"m{len(numbers)}")
        if name == "id" and isinstance(one, str)
        else _numbered(one, numbers)
        for name, one in value.items()
    }


def _figure(chart: Chart) -> Any:
    from bokeh.models.annotations import Legend, LegendItem
    from bokeh.plotting import figure

    plot = figure(
        height=HEIGHT + LEGEND_ROW * len(chart.lines),
        sizing_mode="stretch_width",
        tools=[],
        toolbar_location=None,
        y_range=_y_range(chart),
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        min_border_right=12,
    )
    items = [
        LegendItem(label={"value": _short(line.label)}, renderers=_draw(plot, line))
        for line in chart.lines
    ]
    _answer(plot, chart, items)
    legend = Legend(
        items=items,
        click_policy="hide",
        orientation="vertical",
        location="top_left",
        background_fill_alpha=0,
        border_line_alpha=0,
        label_text_color=GREY,
        label_text_font=FONT,
        label_text_font_size="13px",
        label_standoff=8,
        glyph_width=36,
        margin=2,
        spacing=1,
        inactive_fill_alpha=0,
    )
    legend.update(padding=4)
    plot.add_layout(legend, "below")
    for axis, label in ((plot.xaxis[0], chart.x), (plot.yaxis[0], chart.y)):
        axis.update(
            axis_label=label,
            axis_label_text_color=GREY,
            axis_label_text_font=FONT,
            axis_label_text_font_size="13px",
            axis_label_text_font_style="normal",
            major_label_text_color=GREY,
            major_label_text_font=FONT,
            major_label_text_font_size="12px",
            axis_line_color=GREY,
            axis_line_alpha=0.6,
            major_tick_line_color=GREY,
            minor_tick_line_alpha=0,
        )
    for grid in plot.grid:
        grid.update(grid_line_color=GREY, grid_line_alpha=0.22)
    return plot


def _answer(plot: Any, chart: Chart, items: Sequence[Any]) -> None:
    """Tell the values below the pointer. A few lines all answer, each to a side of its own; of many
    only the one that is touched."""
    from bokeh.models import HoverTool

    tips = [("line", "$name"), (chart.x, "@x{0,0.[000]}"), (chart.y, "@y{0,0.[0000]}")]
    pairs = zip(items, chart.lines, strict=True)
    shown = [item.renderers[0] for item, line in pairs if line.style is not None]
    if len(shown) > len(SIDES):
        plot.add_tools(HoverTool(renderers=shown, tooltips=tips))
        return
    for renderer, side in zip(shown, SIDES, strict=False):
        plot.add_tools(
            HoverTool(renderers=[renderer], tooltips=tips, mode="vline", attachment=side)
        )


def _draw(plot: Any, line: Line) -> list[Any]:
    """The line, then what belongs to it. Glyphs are added one by one: `plot.line` would make three
    more for selections, which nobody can make here."""
    from bokeh.models import ColumnDataSource, glyphs

    grey = line.style is None
    colour = GREY if line.style is None else COLOURS[line.style % len(COLOURS)]
    dash: Any = [2, 4] if line.style is None else DASHES[line.style % len(DASHES)]
    stride = -(-len(line.x) // MOST_POINTS)

    def some(values: Sequence[float]) -> list[float]:
        """Every so many, and the last."""
        return [float(one) for one in [*values[:-1:stride], values[-1]]]

    source = ColumnDataSource({"x": some(line.x), "y": some(line.y)})
    width = 1.3 if grey or line.thin else 2.4
    look = glyphs.Line(x="x", y="y", line_color=colour, line_dash=dash, line_width=width)
    drawn = [plot.add_glyph(source, look, name=line.label)]
    if len(line.x) < FEW and not grey:
        marks = glyphs.Scatter(x="x", y="y", size=7, line_color=colour, fill_color=colour)
        drawn.append(plot.add_glyph(source, marks))
    if line.low:
        band = ColumnDataSource({"x": some(line.x), "low": some(line.low), "high": some(line.high)})
        area = glyphs.VArea(x="x", y1="low", y2="high", fill_color=colour, fill_alpha=0.15)
        drawn.append(plot.add_glyph(band, area))
    return drawn


def _y_range(chart: Chart) -> Any:
    from bokeh.models import Range1d

    values = [v for line in chart.lines for v in (*line.y, *line.low, *line.high)] or [0.0, 1.0]
    low, high = min(values), max(values)
    low = (
        min(0.0, low) if chart.from_zero else max(low, -1.0) if high > -1.0 else low
    )  # R² has no end
    room = max(0.05 * (high - low), (chart.least_range - (high - low)) / 2) or 0.5
    return Range1d(start=low if chart.from_zero else low - room, end=high + room)


def _short(label: str) -> str:
    return label if len(label) <= 40 else f"{label[:39]}…"
