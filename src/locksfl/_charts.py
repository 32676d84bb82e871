"""Charts as plain data: lines, axes and their ticks. `_svg` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10

MOST_ACROSS, MOST_UPWARDS = 6, 8  # ticks of an axis


def number_text(value: float) -> str:
    """A number at an axis."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:,.10f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Line:
    """One line. Lines with the same label are one entry of the legend, and are hidden together."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int | None = None  # dash, marker and colour; None: a limit or a baseline, thin and grey
    thin: bool = False
    low: Sequence[float] = ()  # a range around it
    high: Sequence[float] = ()
    bars: bool = False  # the range is a bar at each point; else a band
    hollow: bool = False  # markers
    colour: int | None = None  # if it is not that of the style

    @property
    def in_words(self) -> str:
        """Its ends; a limit or a baseline is named with its value."""
        if self.style is None or not len(self.y):
            return self.label
        ends = (f"{self.y[end]:.6g} at {self.x[end]:.6g}" for end in (0, -1))
        return f"{self.label} from {' to '.join(ends)}"


@dataclass(frozen=True)
class Chart:
    """One area with its axes and its lines."""

    x: str
    y: str
    lines: Sequence[Line]
    least_range: float = 0.0  # of a score, at most 1, that the y axis spans: noise is no event
    from_zero: bool = False
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    x_text: Callable[[float], str] | None = None  # of a number at the x axis
    names: Sequence[str] = ()  # the y axis has these, from above, in place of numbers
    texts: Sequence[tuple[float, float, str]] = ()  # words in the area, at x and y

    @property
    def described(self) -> str:
        """What it shows, in a line."""
        return f"{': '.join(filter(None, (self.title, self.y)))} by {self.x}"

    @property
    def in_words(self) -> str:
        """For who cannot see it: what each line begins and ends with."""
        return f"{self.described}. {'; '.join(line.in_words for line in self.lines if line.label)}."


def level(label: str, value: float, lines: Sequence[Line]) -> Line:
    """A horizontal line as wide as the others."""
    xs = [x for line in lines for x in (line.x[0], line.x[-1])]
    return Line(f"{label} ({value:.4g})", (min(xs), max(xs)), (value, value))


@dataclass(frozen=True)
class Axis:
    """The values from `low` to `high`, as shares of a length."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value stands, from 0 to 1; beyond the ends is at them."""
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        at = (log10(value) if value > 0 else -inf) if self.log else value
        return min(max((at - low) / (high - low), 0.0), 1.0)

    def ticks(self, most: int, whole: bool = False) -> list[float]:
        """Round numbers between its ends, about so many at most; whole ones if need be."""
        if self.log:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            few = ceil(len(decades) / most)
            for factors, by in (((1, 2, 5), 1), ((1,), 1), ((1,), few)):
                every = [factor * 10.0**power for power in decades[::by] for factor in factors]
                inside = [one for one in every if self.low <= one <= self.high]
                if 2 <= len(inside) <= most:
                    return inside
        rough = (self.high - self.low) / most
        power = 10.0 ** floor(log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        step = max(step, 1.0) if whole else step
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]

    def labels(self, most: int, whole: bool = False) -> dict[float, str]:
        """Its ticks as text: with as many decimals each, but on a logarithmic one."""
        ticks = self.ticks(most, whole)
        texts = [number_text(tick) for tick in ticks]
        if not self.log and not any("e" in text for text in texts):
            decimals = max(len(text.partition(".")[2]) for text in texts)
            texts = [f"{tick:,.{decimals}f}" for tick in ticks]
        return dict(zip(ticks, texts, strict=True))


def fitted_axis(values: Sequence[float], log: bool, room: float) -> Axis:
    """One that all values fit on, with room beside them."""
    there = [v for v in values if isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(there), max(there)
    if log:
        factor = max(high / low, 2.0) ** room
        return Axis(low / factor, high * factor, log)
    space = room * (high - low) or 0.5
    return Axis(low - space, high + space)


def score_axis(values: Sequence[float], least: float) -> Axis:
    """It spans at least so much, and not more than a line's width beyond 1."""
    there = [max(v, -1.0) for v in values if isfinite(v)] or [0.0]  # R² has no end below
    low, high = min(there), max(there)
    room = max(0.05 * (high - low), (least - (high - low)) / 2)
    top = max(high, min(high + room, 1.0))  # a line at the top may touch it
    return Axis(min(low - room, top - least), top + 0.01 * (top - low + room))


def y_axis(chart: Chart, lines: Sequence[Line]) -> Axis:
    """The axis on which these lines fit, as the chart wants it."""
    if chart.names:
        return Axis(len(chart.names) - 0.5, -0.5)
    values = [v for line in lines for v in (*line.y, *line.low, *line.high)]
    if chart.least_range:
        return score_axis(values, chart.least_range)
    axis = fitted_axis(values, chart.log_y, 0.05)
    return Axis(min(0.0, min(values, default=0.0)), axis.high) if chart.from_zero else axis
