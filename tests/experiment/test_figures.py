"""Figures can be told apart in black and white, and pictures of the documentation load fast."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from browser import browser, open_page, picture
from locksfl._charts import Chart, Line
from locksfl._svg import svg_file
from locksfl.arm import Noise
from locksfl.grids.comparison import document as comparison
from locksfl.grids.drive import Outcome
from locksfl.paper.reproduce import document as reproduction
from locksfl.paper.reproduce.runs import MethodRuns
from locksfl.paper.reproduce.settings import FULL, METHODS, Tuned, panels

DOCS = Path(__file__).parents[2] / "docs"
BLACK = "</style><style>.drawing * { color: black !important; fill-opacity: 1 !important }"
KEYS = """
return [...document.querySelectorAll(".key")].map(one => {
  const box = one.getBoundingClientRect();
  return [one.textContent, box.left, box.top, 42, box.height];
});
"""


@pytest.fixture(scope="module")
def driver():
    with browser() as one:
        yield one


@pytest.fixture
def ink(driver, tmp_path):
    """Where each entry of a legend leaves ink, whatever its colour: its dashes and its marker."""

    def look(drawing):
        path = tmp_path / "figure.svg"
        path.write_text(drawing.replace("</style>", f"{BLACK}</style>"), "utf-8")
        open_page(driver, path)
        found = {}
        for label, *box in driver.execute_script(KEYS):
            found[label] = np.asarray(picture(driver, box, 2).convert("L")) < 128
            assert found[label].any()
        return found

    return look


def alike(found):
    """Pairs of labels whose lines a reader of a black and white print would confuse."""
    return [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(found.items(), 2)
        if (one ^ other).sum() < 15  # pixels
    ]


def test_arms_differ_in_dashes_or_marker_and_not_in_colour_alone(ink):
    many = [Line(str(style), range(50), range(50), style) for style in range(28)]
    found = ink(svg_file([Chart("x", "y", many)]))
    assert len(found) == 28
    assert not alike(found)
    planted = [many[0], Line("planted", range(50), range(50), 0, colour=1)]
    assert alike(ink(svg_file([Chart("x", "y", planted)]))) == [("0", "planted")]


def test_every_line_of_a_comparison_is_told_apart(ink):
    """13 methods, and one method with five numbers of rounds."""
    for name, expected in (("rules", 13), ("rounds", 5)):
        table = json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))
        rows = msgspec.convert(table["rows"], list[comparison.TableRow])
        found = ink(comparison.figure([row for row in rows if row.data == rows[0].data], name))
        assert len(found) == expected
        assert not alike(found)


def test_every_line_of_the_reproduction_is_told_apart(ink):
    run = MethodRuns(Tuned(1.0, 1.0), [Outcome(Noise(), (0.1, 0.5, 0.7), 0.7, 1.0, 1, 1, 1)])
    runs = {panel: dict.fromkeys(METHODS, run) for panel in panels(FULL)}
    found = ink(reproduction.accuracy_figure(FULL, "mlp", runs))
    assert len(found) == len(METHODS)
    assert not alike(found)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_file_is_painted_on_its_own_paper(driver, tmp_path, dark):
    """The fault: black letters on a dark page, where a picture has no ground of its own."""
    path = tmp_path / "figure.svg"
    path.write_text(svg_file([Chart("x", "y", [Line("a", (0, 1), (0, 1), 0)])]), "utf-8")
    open_page(driver, path, 900, dark)
    shot = np.asarray(picture(driver, (0, 0, 900, 300)).convert("L")).astype(int)
    paper = shot[0, 0]
    assert paper < 60 if dark else paper > 200
    assert (abs(shot - paper) > 100).sum() > 1000


PICTURES = sorted(
    path
    for path in (*DOCS.rglob("*.svg"), *DOCS.rglob("*.png"))
    if not path.name.startswith("report-")
)


@pytest.mark.parametrize("file", PICTURES, ids=lambda path: path.name)
def test_pictures_of_the_pages_are_small_and_fit_a_page(file):
    assert file.stat().st_size < 200_000
    if file.suffix == ".svg":
        (width,) = re.findall(r'<svg [^>]*viewBox="0 0 (\d+) \d+"', file.read_text("utf-8"))[:1]
        assert 700 <= int(width) <= 1100
    else:
        assert 800 <= Image.open(file).width <= 1800
