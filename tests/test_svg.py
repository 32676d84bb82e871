"""Charts as SVG: lines go where their values are, ticks are round, names are words."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from locksfl._charts import Axis, Chart, Line, level, number_text, score_axis
from locksfl._svg import COLOURS, MARKS, MOST_POINTS, STYLE, svg_file, svg_in_page

SVG = "{http://www.w3.org/2000/svg}"


def groups(text):
    """The lines of a drawing, by the number of their entry in the legend; keys apart."""
    found = {}
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        if group.get("data-line") and group.get("class") != "key":
            found.setdefault(group.get("data-line"), []).append(group)
    return found


def points(path):
    """The places that a path goes through."""
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def curve(group):
    """The last path of a line: itself, after its band."""
    stretched = next(one for one in group.iter(f"{SVG}svg") if one.get("viewBox"))
    return stretched.findall(f"{SVG}path")[-1].get("d")


def test_a_line_goes_through_its_values():
    """The fault: an axis that is upside down, or a line that is drawn on another one's axis."""
    chart = Chart("x", "y", [Line("one", (0, 5, 10), (0.0, 1.0, 0.5), 0)])
    (group,) = groups(svg_file([chart]))["0"]
    (x0, y0), (x1, y1), (x2, y2) = points(curve(group))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 < y2 < y0
    assert y0 - y2 == pytest.approx(y2 - y1, abs=0.2)
    assert len(list(group.iter(f"{SVG}svg"))) == 1 + 3  # the curve, and a marker on each point


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors():
    chart = Chart("x", "y", [Line("one", (1, 10, 100), (1e-3, 1, 1e3), 0)], log_x=True, log_y=True)
    (x0, y0), (x1, y1), (x2, y2) = points(curve(groups(svg_file([chart]))["0"][0]))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_a_line_is_broken_where_there_is_no_number():
    chart = Chart("x", "y", [Line("one", range(5), (1, 2, math.nan, math.inf, 3), 0)])
    path = curve(groups(svg_file([chart]))["0"][0])
    assert re.sub(r"[^ML]", "", path) == "MLM"
    assert "nan" not in svg_file([chart]).partition("</desc>")[2]


def test_a_long_line_is_thinned_and_keeps_its_ends():
    chart = Chart("x", "y", [Line("long", range(10_001), range(10_001), 0)])
    text = svg_file([chart])
    path = curve(groups(text)["0"][0])
    assert len(points(path)) <= MOST_POINTS + 1
    assert "to 10000 at 10000" in text
    assert points(path)[-1][1] < 20 < 220 < points(path)[0][1]
    assert text.count('overflow="visible"') <= 2 + MARKS
    assert len(text) < 20_000


def test_lines_with_one_label_are_one_entry_and_the_same_number():
    panels = [Chart("x", "y", [Line("a", (0, 1), (0, 1), 0), Line("b", (0, 1), (1, 0), 1)])] * 2
    text = svg_file(panels, columns=2)
    assert {key: len(found) for key, found in groups(text).items()} == {"0": 2, "1": 2}
    assert text.count('class="key"') == 2
    page = svg_in_page(panels[0], "one")
    assert re.findall(r'class="key" data-line="(\d)".*?aria-pressed="(\w+)"', page) == [
        ("0", "true"), ("1", "true"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["<script>hit()</script>", '"><b>', "a & b", "</title>"])
def test_names_are_words(name):
    chart = Chart(name, name, [Line(name, (0, 1), (0, 1), 0)], title=name, texts=[(0, 0, name)])
    for text in (svg_file([chart], name, note=name), svg_in_page(chart, "one")):
        root = ElementTree.fromstring(text)
        assert not list(root.iter("script")) + list(root.iter(f"{SVG}script"))
        assert sum((one.text or "") == name for one in root.iter()) >= 4


def test_the_same_data_give_the_same_text():
    lines = [Line("a", (0, 1), (0, 1), 0), Line("b", (0, 1), (1, 0), 1, low=(0, 0), high=(1, 1))]
    one, other = (svg_file([Chart("x", "y", [*lines, level("c", 0.5, lines)])]) for _ in range(2))
    assert one == other
    moved = [lines[0], Line("b", (0, 1), (1, 0.01), 1, low=(0, 0), high=(1, 1))]
    assert svg_file([Chart("x", "y", moved)]) != one


@pytest.mark.parametrize("values", [[0.901, 0.903, 0.87], [0.999, 1.0], [0.1, 0.9], [0.5]])
def test_noise_is_not_drawn_as_an_event(values):
    """The axis shows all values, spans a tenth at least, and hardly goes beyond 1."""
    axis = score_axis(values, 0.1)
    assert axis.low <= min(values) <= max(values) <= axis.high
    spread = max(values) - min(values)
    assert 0.1 <= axis.high - axis.low <= max(0.12, 1.2 * spread)
    assert axis.high < 1.02


def test_a_first_round_far_below_the_rest_does_not_flatten_it():
    """R² has no end below: what is under -1 is drawn at the lower end."""
    axis = score_axis([-50.0, 0.3, 0.6], 0.1)
    assert -1.2 < axis.low <= -1
    assert axis.share(-50.0) == 0


def test_lines_differ_by_colour_as_well():
    many = [Line(str(style), (0, 1), (0, 1), style) for style in range(COLOURS)]
    found = groups(svg_file([Chart("x", "y", many)])).values()
    classes = {group.get("class") for (group,) in found}
    assert classes == {f"c{number}" for number in range(COLOURS)}
    for scheme in STYLE.split("@media"):  # light, then dark
        shown = dict(re.findall(r"\.(c\d) \{ color: (#\w{6})", scheme))
        assert shown.keys() == classes
        assert len(set(shown.values())) == COLOURS


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("most", [6, 8])
def test_ticks_are_few_and_round_and_inside(log, most):
    for power in range(-9, 10):
        for ratio in (1.05, 1.7, 3, 12, 150, 4e4, 3e9, 1e15):
            axis = Axis(1.3 * 10.0**power, 1.3 * 10.0**power * ratio, log)
            ticks = axis.ticks(most)
            assert 2 <= len(ticks) <= most + 1
            near = 1e-6 * (axis.high - axis.low)
            assert all(axis.low - near <= tick <= axis.high + near for tick in ticks)
            texts = list(axis.labels(most).values())
            assert len(set(texts)) == len(texts)
            assert max(map(len, texts)) <= 12
    assert Axis(0.5, 4.5).ticks(6, whole=True) == [1, 2, 3, 4]
    assert Axis(0.04, 0.16).labels(4) == {0.05: "0.05", 0.1: "0.10", 0.15: "0.15"}
    assert Axis(0.09, 11, log=True).labels(4) == {0.1: "0.1", 1: "1", 10: "10"}
    assert [number_text(v) for v in (0, 12000, 1e-6, 2.5e9, 0.25)] == [
        "0", "12,000", "1e-6", "2.5e9", "0.25",
    ]  # fmt: skip


def test_a_chart_without_lines_or_values_is_drawn():
    for lines in ([], [Line("none", (), (), 0)], [Line("one", (1,), (math.nan,), 0)]):
        for log in (False, True):
            ElementTree.fromstring(svg_file([Chart("x", "y", lines, log_x=log, log_y=log)]))
