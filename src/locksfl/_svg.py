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
from math import ceil, inf, isfinite

from locksfl._charts import (
    MOST_ACROSS,
    MOST_UPWARDS,
    Chart,
    Line,
    fitted_axis,
    y_axis,
)

LIGHT = ("#1f5fa8", "#d8475d", "#1f8038", "#a67c00", "#1487ad", "#9b2f73")  # on white: 3 to 1
DARK = ("#7fb4ee", "#ff8a98", "#63c77a", "#e0c050", "#6ad0ee", "#e08abf")
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
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif"


def _colours(names: Sequence[str], ink: str, soft: str, paper: str) -> str:
    rules = [f".drawing .c{number}{{color:{name}}}" for number, name in enumerate(names)]
    rules += [f".drawing .grey{{color:{soft}}}", f".drawing text{{fill:{ink}}}"]
    return "".join([*rules, f".drawing .soft{{fill:{soft}}}", f".drawing .paper{{fill:{paper}}}"])


STYLE = (
    f".drawing{{font:13px {FONT};overflow:visible}}"
    ".drawing .small{font-size:12px}.drawing .head{font-weight:600}"
    ".drawing path{vector-effect:non-scaling-stroke}"
    ".drawing .key[role]{cursor:pointer}.drawing [aria-pressed=false]{opacity:.35}"
    + _colours(LIGHT, "#1b1f24", "#59616b", "#ffffff")
    + "@media screen and (prefers-color-scheme:dark){"
    + _colours(DARK, "#e4e7eb", "#a2aab4", "#14171b")
    + "}"
)


class _Area:
    """A chart that is being written: its axes, and its parts as text."""

    def __init__(
        self, chart: Chart, keys: dict[str, int], height: int, fit: Sequence[Line] = ()
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

    def place(self, x: float) -> float:
        return self.across.share(x)

    def up(self, y: float) -> float:
        return self.height * (1 - self.upwards.share(y))

    def parts(self) -> Iterator[str]:
        """Everything in it, from the back to the front. The origin is its upper left corner."""
        yield from self._axes()
        for line in self.chart.lines:
            inside = "".join(self._line(line))
            key = self.keys[line.label]
            name = f"<title>{escape(line.label)}</title>" if line.label else ""
            yield f'<g class="{_colour(line)}" data-line="{key}">{name}{inside}</g>'
        for x, y, text in self.chart.texts:
            at = f'x="{self.place(x):.2%}" y="{self.up(y) + 4:.1f}"'
            yield f'<text class="small" {at}>{escape(text)}</text>'

    def _axes(self) -> Iterator[str]:
        chart, height = self.chart, self.height
        for number, text in enumerate(self.title):
            at = f'x="{-self.left}" y="{14 + 17 * number - self.top}"'
            yield f'<text class="head" {at}>{escape(text)}</text>'
        if chart.y:
            yield f'<text class="soft" x="{-self.left}" y="-10">{escape(chart.y)}</text>'
        rule = 'class="grey" stroke="currentColor" stroke-opacity='
        for value, text in self.y_ticks.items():
            y = f"{self.up(value):.1f}"
            yield f'<line {rule}".2" x2="100%" y1="{y}" y2="{y}"/>'
            where = f'x="-7" y="{self.up(value) + 4:.1f}" text-anchor="end"'
            yield f'<text class="soft small" {where}>{escape(text)}</text>'
        for value, text in self.x_ticks.items():
            x = f"{self.place(value):.2%}"
            yield f'<line {rule}".2" x1="{x}" x2="{x}" y2="{height}"/>'
            where = f'x="{x}" y="{height + 17}" text-anchor="middle"'
            yield f'<text class="soft small" {where}>{escape(text)}</text>'
        yield f'<path class="grey" stroke="currentColor" stroke-opacity=".6" d="M0 0V{height}"/>'
        yield f'<line {rule}".6" x2="100%" y1="{height}" y2="{height}"/>'
        where = f'x="50%" y="{height + 35}" text-anchor="middle"'
        yield f'<text class="soft" {where}>{escape(chart.x)}</text>'

    def _line(self, line: Line) -> Iterator[str]:
        """Its range, itself, and its markers."""
        stride = -(-len(line.x) // MOST_POINTS) or 1
        some = sorted({*range(0, len(line.x), stride), *([len(line.x) - 1] if line.x else [])})
        paths = []
        if len(line.low) and not line.bars:
            edges = [self._path(line, some, edge) for edge in (line.low, line.high)]
            back = self._path(line, some[::-1], line.low).replace("M", "L")
            paths.append(f'<path fill="currentColor" fill-opacity=".15" d="{edges[1]}{back}z"/>')
            paths += [_stroke(edge, line.style, 0.5) for edge in edges]
        width = _width(line)
        paths.append(_stroke(self._path(line, some, line.y), line.style, width))
        box = f'viewBox="0 0 {ACROSS} {self.height}" preserveAspectRatio="none"'
        size = f'width="100%" height="{self.height}" overflow="visible"'
        yield f"<svg {size} {box}>{''.join(paths)}</svg>"
        if line.bars:
            for x, low, high in zip(line.x, line.low, line.high, strict=True):
                a, b = f"{self.up(low):.1f}", f"{self.up(high):.1f}"
                bar = f'<path fill="none" stroke="currentColor" d="M-3 {a}H3M0 {a}V{b}M-3 {b}H3"/>'
                yield f'<svg x="{self.place(x):.2%}" overflow="visible">{bar}</svg>'
        if _has_markers(line):
            mark = _marker(line)
            for number in _marked(len(line.x), line.style or 0):
                if isfinite(line.y[number]):
                    x, y = self.place(line.x[number]), self.up(line.y[number])
                    yield f'<svg x="{x:.2%}" y="{y:.1f}" overflow="visible">{mark}</svg>'

    def _path(self, line: Line, some: Sequence[int], values: Sequence[float]) -> str:
        """A line through some of its points, broken where there is no number."""
        steps, pen = [], "M"
        for number in some:
            if isfinite(values[number]):
                x = ACROSS * self.place(line.x[number])
                steps.append(f"{pen}{x:.1f} {self.up(values[number]):.1f}")
            pen = "L" if isfinite(values[number]) else "M"
        return "".join(steps)


def _marked(points: int, style: int) -> range:
    """Which points have a marker: lines that lie on each other keep their own."""
    step = -(-points // MARKS) or 1
    return range(step * style // 3 % step, points, step)


def _colour(line: Line) -> str:
    """Its class in the style sheet."""
    if line.style is None:
        return "grey"
    return f"c{(line.style if line.colour is None else line.colour) % len(LIGHT)}"


def _has_markers(line: Line) -> bool:
    return line.style is not None and (line.hollow or not line.thin)


def _width(line: Line) -> float:
    return 1.6 if line.style is None else 1.2 if line.thin else 2.0


def _stroke(path: str, style: int | None, width: float) -> str:
    dash = "2 4" if style is None else DASHES[style % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path fill="none" stroke="currentColor" stroke-width="{width}"{dashes} d="{path}"/>'


def _marker(line: Line) -> str:
    shape = MARKERS[(line.style or 0) % len(MARKERS)]
    filling = 'class="paper"' if line.hollow else 'fill="currentColor"'
    return f'<path {filling} stroke="currentColor" d="{shape}"/>'


def text_width(text: str) -> int:
    """About how many pixels a text takes, rather too many than too few."""
    narrow = sum(letter in "iljtfrI.,:;'|!()[] " for letter in text)
    wide = sum(letter.isupper() or letter in "mwMW%=~" for letter in text)
    return ceil(7.6 * len(text) - 3.0 * narrow + 2.2 * wide)


def _keys(charts: Sequence[Chart]) -> dict[str, Line]:
    """The entries of a legend: the first line with each label."""
    first: dict[str, Line] = {}
    for chart in charts:
        for line in chart.lines:
            first.setdefault(line.label, line)
    return first


def _legend(lines: dict[str, Line], width: float, more: str = "") -> tuple[list[str], int]:
    """The entries beside each other, as far as the width goes, and how high they are together."""
    entries, x, y = [], 0, 0
    for number, (label, line) in enumerate(lines.items()):
        if not label:
            continue
        needed = SAMPLE + text_width(label) + 18
        if x and x + needed > width:
            x, y = 0, y + ROW
        sample = _stroke("M0 0H36", line.style, _width(line))
        if _has_markers(line):
            sample += f'<g transform="translate(18)">{_marker(line)}</g>'
        name = f'<text x="{SAMPLE}" y="4">{escape(label)}</text>'
        touch = f'<path fill="none" pointer-events="all" d="M0-11H{needed - 18}V11H0z"/>'
        where = f'data-line="{number}" transform="translate({x},{y})"'
        sampled = f'<g class="{_colour(line)}">{sample}</g>'
        entries.append(f'<g class="key" {where}{more}>{touch}{sampled}{name}</g>')
        x += needed
    return entries, y + ROW if entries else 0


def _about(charts: Sequence[Chart]) -> str:
    """For who cannot see them: what each line begins and ends with."""
    said = []
    for chart in charts:
        ends = [
            line.label
            if line.style is None or not len(line.y)
            else f"{line.label} from {line.y[0]:.6g} at {line.x[0]:.6g} "
            f"to {line.y[-1]:.6g} at {line.x[-1]:.6g}"
            for line in chart.lines
            if line.label
        ]
        said.append(f"{chart.described}. {'; '.join(ends)}.")
    return escape(" ".join(said))


def svg_in_page(chart: Chart, name: str) -> str:
    """A chart as an element of a page, as wide as it may be; `name` is of this element alone. The
    page has STYLE, and a script that hides lines when the entries of the legend are pressed."""
    lines = _keys([chart])
    area = _Area(chart, {label: number for number, label in enumerate(lines)}, HEIGHT)
    button = ' role="button" tabindex="0" aria-pressed="true"'
    entries, high = [], 0
    for number, (label, line) in enumerate(lines.items()):  # one below the other
        (entry,), row = _legend({label: line}, inf, button)
        at = f'<svg x="{-area.left}" y="{HEIGHT + FOOT + 12 + high}" overflow="visible">'
        entries.append(at + entry.replace('data-line="0"', f'data-line="{number}"', 1) + "</svg>")
        high += row
    below = FOOT + high + 4
    margin = f"margin:{area.top}px 12px {below}px {area.left}px"
    size = f"display:block;width:calc(100% - {area.left + 12}px);height:{HEIGHT}px;{margin}"
    named = f'role="group" aria-labelledby="{name}-title" aria-describedby="{name}-about"'
    head = f'<title id="{name}-title">{escape(chart.described)}</title>'
    about = f'<desc id="{name}-about">{_about([chart])}</desc>'
    inside = "".join([*area.parts(), *entries])
    return f'<svg id="{name}" class="drawing" style="{size}" {named}>{head}{about}{inside}</svg>'


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
    lines = _keys(charts)
    keys = {label: number for number, label in enumerate(lines)}
    parts, y = [], 12
    for text in title.split("\n") if title else ():
        parts.append(f'<text class="head" x="12" y="{y + 14}">{escape(text)}</text>')
        y += 19
    y += 8 if title else 0
    for first in range(0, len(charts), columns):
        beside = charts[first : first + columns]
        every = [line for chart in beside for line in chart.lines]
        row = [_Area(chart, keys, height, every if same_y else ()) for chart in beside]
        cell = (width - 12 - 24 * len(row)) / len(row)
        top = max(area.top for area in row)
        for place, area in enumerate(row):
            x = 12 + place * (cell + 24) + area.left
            size = f'width="{cell - area.left:.1f}" height="{height}" overflow="visible"'
            parts.append(f'<svg x="{x:.1f}" y="{y + top}" {size}>{"".join(area.parts())}</svg>')
        y += top + height + FOOT + 8
    entries, high = _legend(lines, width - 24)
    parts.append(f'<g transform="translate(12,{y + 6})">{"".join(entries)}</g>')
    y += high + 8
    if note:
        parts.append(f'<text class="soft small" x="12" y="{y + 12}">{escape(note)}</text>')
        y += 20
    about = title or "; ".join(chart.described for chart in charts)
    return svg_document("".join(parts), width, y + 4, about, _about(charts))


def svg_document(content: str, width: int, height: int, title: str, about: str = "") -> str:
    """Any drawing as a file on paper of its own, light or dark. `content` and `about` are SVG."""
    name = escape(title.replace("\n", ". "))
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f"<title>{name}</title><desc>{about}</desc><style>{STYLE}</style>"
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    drawing = 'xmlns="http://www.w3.org/2000/svg" class="drawing" role="img"'
    return f"<svg {drawing} {size}>{head}{paper}{content}</svg>\n"
