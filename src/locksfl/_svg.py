"""Every chart of the package, as SVG: in a page, in a run folder, in the documentation.

A chart is plain data, and the same data give the same text, in every process and on every machine.
Lines are told apart by dash and marker, without their colours; light and dark are one file, by CSS.
Whoever cannot see a chart is given its title and the ends of every line.

Across, places are shares of the width: a chart in a page is as wide as the page lets it be, while
its letters keep their size. Downwards they are pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from math import ceil, isfinite

from locksfl._charts import (
    MOST_ACROSS,
    MOST_UPWARDS,
    Chart,
    Line,
    fitted_axis,
    y_axis,
)

DASHES = ("", "8 4", "12 3 2 3", "2 3")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6H3.6V3.6H-3.6z",  # square
    "M0-4.8L4.6 3.6H-4.6z",  # triangle
    "M0-5.4L4.4 0L0 5.4L-4.4 0z",  # diamond
    "M-1.7-4.8H1.7V-1.7H4.8V1.7H1.7V4.8H-1.7V1.7H-4.8V-1.7H-1.7z",  # cross
    "M0 4.8L4.6-3.6H-4.6z",  # triangle on its point
    "M0-6L1.4-1.9H5.7L2.3.7L3.5 4.9L0 2.3L-3.5 4.9L-2.3.7L-5.7-1.9H-1.4z",  # star
)
MARKS = 8  # on a line of many points: a marker on each would hide its dashes
MOST_POINTS = 500  # of a line: more cannot be seen
ACROSS = 1000  # units of the width
HEIGHT, FOOT, ROW = 240, 42, 22  # pixels: of the area of a chart, below it, and of a legend's line
SAMPLE = 44  # of a legend's entry, before its words
COLOURS = 6  # in the style sheet
STYLE = resources.files("locksfl").joinpath("_svg.css").read_text("utf-8")


class _Area:
    """A chart that is being written: its axes, and its parts as text. The origin is the upper left
    corner of the area in which its lines are."""

    def __init__(
        self, chart: Chart, keys: Sequence[str], height: int, fit: Sequence[Line] = ()
    ) -> None:
        self.chart, self.keys, self.height = chart, keys, height
        xs = [float(x) for line in chart.lines for x in line.x]
        self.across = fitted_axis(xs, chart.log_x, 0.02)
        self.upwards = y_axis(chart, fit or chart.lines)
        self.x_ticks = self.across.labels(MOST_ACROSS, whole=all(x.is_integer() for x in xs))
        if chart.x_text is not None:
            self.x_ticks = {x: chart.x_text(x) for x in self.x_ticks}
        named = dict[float, str](enumerate(chart.names))
        self.y_ticks = named or self.upwards.labels(MOST_UPWARDS)
        self.left = max(text_width(text) for text in self.y_ticks.values()) + 10
        self.title = chart.title.split("\n") if chart.title else []
        self.top = 12 + 17 * len(self.title) + (18 if chart.y else 0)

    def up(self, y: float) -> float:
        """How many pixels below the upper end a value is."""
        return self.height * (1 - self.upwards.share(y))

    def parts(self) -> Iterator[str]:
        """Everything in it, from the back to the front."""
        yield from self._axes()
        for line in self.chart.lines:
            entry = f'class="{_colour(line)}" data-line="{self.keys.index(line.label)}"'
            name = f"<title>{escape(line.label)}</title>" if line.label else ""
            yield f"<g {entry}>{name}{''.join(self._line(line))}</g>"
        for x, y, text in self.chart.texts:
            yield _text(text, f"{self.across.share(x):.2%}", self.up(y) + 4, "small")

    def _axes(self) -> Iterator[str]:
        for number, text in enumerate(self.title):
            yield _text(text, -self.left, 14 + 17 * number - self.top, "head")
        yield _text(self.chart.y, -self.left, -10, "soft")
        for value, text in self.y_ticks.items():
            y = self.up(value)
            yield _rule(f'x2="100%" y1="{y:.1f}" y2="{y:.1f}"')
            yield _text(text, -7, y + 4, "soft small", "end")
        for value, text in self.x_ticks.items():
            x = f"{self.across.share(value):.2%}"
            yield _rule(f'x1="{x}" x2="{x}" y2="{self.height}"')
            yield _text(text, x, self.height + 17, "soft small", "middle")
        yield _rule(f'y2="{self.height}"', 0.6)
        yield _rule(f'x2="100%" y1="{self.height}" y2="{self.height}"', 0.6)
        yield _text(self.chart.x, "50%", self.height + 35, "soft", "middle")

    def _line(self, line: Line) -> Iterator[str]:
        """Its range, itself, and its markers."""
        points = len(line.x)
        stride = -(-points // MOST_POINTS) or 1
        some = [*range(0, points - 1, stride), points - 1] if points else []
        paths = []
        if len(line.low) and not line.bars:
            edges = [self._path(line, some, edge) for edge in (line.low, line.high)]
            back = self._path(line, some[::-1], line.low).replace("M", "L")
            paths.append(f'<path fill="currentColor" fill-opacity=".15" d="{edges[1]}{back}z"/>')
            paths += [_stroke(edge, line.style, 0.5) for edge in edges]
        paths.append(_stroke(self._path(line, some, line.y), line.style, _width(line)))
        box = f'viewBox="0 0 {ACROSS} {self.height}" preserveAspectRatio="none"'
        size = f'width="100%" height="{self.height}" overflow="visible"'
        yield f"<svg {size} {box}>{''.join(paths)}</svg>"
        if line.bars:
            for x, low, high in zip(line.x, line.low, line.high, strict=True):
                a, b = f"{self.up(low):.1f}", f"{self.up(high):.1f}"
                yield self._at(x, 0, _stroke(f"M-3 {a}H3M0 {a}V{b}M-3 {b}H3", 0, 1))
        step = -(-points // MARKS) or 1
        first = step * (line.style or 0) // 3 % step  # lines on each other keep their own markers
        for number in range(first, points, step):
            if isfinite(line.y[number]) and (marker := _marker(line)):
                yield self._at(line.x[number], self.up(line.y[number]), marker)

    def _at(self, x: float, y: float, inside: str) -> str:
        place = f'x="{self.across.share(x):.2%}" y="{y:.1f}"'
        return f'<svg {place} overflow="visible">{inside}</svg>'

    def _path(self, line: Line, some: Sequence[int], values: Sequence[float]) -> str:
        """A line through some of its points, broken where there is no number."""
        steps, pen = [], "M"
        for number in some:
            if isfinite(values[number]):
                x = ACROSS * self.across.share(line.x[number])
                steps.append(f"{pen}{x:.1f} {self.up(values[number]):.1f}")
            pen = "L" if isfinite(values[number]) else "M"
        return "".join(steps)


def _colour(line: Line) -> str:
    """Its class in the style sheet."""
    if line.style is None:
        return "grey"
    return f"c{(line.style if line.colour is None else line.colour) % COLOURS}"


def _width(line: Line) -> float:
    return 1.6 if line.style is None else 1.2 if line.thin else 2.0


def _stroke(path: str, style: int | None, width: float) -> str:
    dash = "2 4" if style is None else DASHES[style % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path fill="none" stroke="currentColor" stroke-width="{width}"{dashes} d="{path}"/>'


def _marker(line: Line) -> str:
    """Nothing for a limit, or for a thin line."""
    if line.style is None or (line.thin and not line.hollow):
        return ""
    filling = 'class="paper"' if line.hollow else 'fill="currentColor"'
    return f'<path {filling} stroke="currentColor" d="{MARKERS[line.style % len(MARKERS)]}"/>'


def _rule(place: str, opacity: float = 0.2) -> str:
    return f'<line class="grey" stroke="currentColor" stroke-opacity="{opacity}" {place}/>'


def _text(words: str, x: float | str, y: float, look: str, anchor: str = "start") -> str:
    where = f'x="{x}" y="{y:.0f}" text-anchor="{anchor}"'
    return f'<text class="{look}" {where}>{escape(words)}</text>' if words else ""


def text_width(text: str) -> int:
    """About how many pixels a text takes, rather too many than too few."""
    narrow = sum(letter in "iljtfrI.,:;'|!()[] " for letter in text)
    wide = sum(letter.isupper() or letter in "mwMW%=~" for letter in text)
    return ceil(7.6 * len(text) - 3.0 * narrow + 2.2 * wide)


def _first_lines(charts: Sequence[Chart]) -> dict[str, Line]:
    """The entries of a legend: the first line with each label."""
    first: dict[str, Line] = {}
    for chart in charts:
        for line in chart.lines:
            first.setdefault(line.label, line)
    return first


def _legend(lines: dict[str, Line], width: float, more: str = "") -> tuple[str, int]:
    """The entries beside each other, as far as the width goes, and how high they are together."""
    entries, x, y = [], 0, 0
    for number, (label, line) in enumerate(lines.items()):
        if not label:
            continue
        wide = SAMPLE + text_width(label)
        if x and x + wide > width:
            x, y = 0, y + ROW
        where = f'data-line="{number}" transform="translate({x},{y})"'
        touch = f'<path fill="none" pointer-events="all" d="M0-11H{wide}V11H0z"/>'
        marker = f'<g transform="translate(18)">{_marker(line)}</g>'
        sample = f"{_stroke('M0 0H36', line.style, _width(line))}{marker}"
        shown = f'<g class="{_colour(line)}">{sample}</g>{_text(label, SAMPLE, 4, "")}'
        entries.append(f'<g class="key" {where}{more}>{touch}{shown}</g>')
        x += wide + 18
    return "".join(entries), y + ROW if entries else 0


def svg_in_page(chart: Chart, name: str) -> str:
    """A chart as an element of a page, as wide as it may be; `name` is of this element alone. The
    page has STYLE, and a script that hides lines when the entries of the legend are pressed."""
    lines = _first_lines([chart])
    area = _Area(chart, list(lines), HEIGHT)
    legend, high = _legend(lines, 0, ' role="button" tabindex="0" aria-pressed="true"')
    below = f'<g transform="translate({-area.left},{HEIGHT + FOOT + 12})">{legend}</g>'
    margin = f"{area.top}px 12px {FOOT + high + 4}px {area.left}px"
    size = f"width:calc(100% - {area.left + 12}px);height:{HEIGHT}px;margin:{margin}"
    named = f'role="group" aria-labelledby="{name}-title" aria-describedby="{name}-about"'
    head = f'<title id="{name}-title">{escape(chart.described)}</title>'
    about = f'<desc id="{name}-about">{escape(chart.in_words)}</desc>'
    inside = f"{head}{about}{''.join(area.parts())}{below}"
    return f'<svg id="{name}" class="drawing" style="display:block;{size}" {named}>{inside}</svg>'


def svg_file(
    charts: Sequence[Chart],
    title: str = "",
    columns: int = 1,
    width: int = 900,
    height: int = HEIGHT,
    note: str = "",
    same_y: bool = False,
) -> str:
    """Charts beside and below each other, under a title and above one legend, as a file. No row has
    an empty place: charts are as wide as their row lets them be.

    height: of the area of each chart.
    note: small words at the end.
    same_y: whether the charts of a row have one y axis.
    """
    lines = _first_lines(charts)
    heads = title.split("\n") if title else []
    parts = [_text(text, 12, 26 + 19 * number, "head") for number, text in enumerate(heads)]
    y = 12 + 19 * len(heads) + (8 if heads else 0)
    for first in range(0, len(charts), columns):
        beside = charts[first : first + columns]
        every = [line for chart in beside for line in chart.lines]
        row = [_Area(chart, list(lines), height, every if same_y else ()) for chart in beside]
        cell = (width - 12 - 24 * len(row)) / len(row)
        top = max(area.top for area in row)
        for place, area in enumerate(row):
            x = 12 + place * (cell + 24) + area.left
            size = f'width="{cell - area.left:.1f}" height="{height}" overflow="visible"'
            parts.append(f'<svg x="{x:.1f}" y="{y + top}" {size}>{"".join(area.parts())}</svg>')
        y += top + height + FOOT + 8
    legend, high = _legend(lines, width - 24)
    parts.append(f'<g transform="translate(12,{y + 6})">{legend}</g>')
    y += high + 8
    parts.append(_text(note, 12, y + 12, "soft small"))
    words = " ".join(chart.in_words for chart in charts)
    name = title.replace("\n", ". ") or "; ".join(chart.described for chart in charts)
    return svg_document("".join(parts), width, y + (24 if note else 4), name, words)


def svg_document(content: str, width: int, height: int, title: str, about: str = "") -> str:
    """Any drawing as a file on paper of its own, light or dark. `content` is SVG."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f"<title>{escape(title)}</title><desc>{escape(about)}</desc><style>{STYLE}</style>"
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    drawing = 'xmlns="http://www.w3.org/2000/svg" class="drawing" role="img"'
    return f"<svg {drawing} {size}>{head}{paper}{content}</svg>\n"
