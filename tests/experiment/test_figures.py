"""Figures can be told apart in black and white, and pages load fast."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from locksfl.arm import Noise
from locksfl.experiment import report
from locksfl.experiment.figures import COLOURS, draw_band, draw_line, look, plotting
from locksfl.grids.comparison import document as comparison
from locksfl.grids.drive import Outcome
from locksfl.paper.reproduce import document as reproduction
from locksfl.paper.reproduce.runs import MethodRuns
from locksfl.paper.reproduce.settings import FULL, METHODS, Tuned, panels

DOCS = Path(__file__).parents[2] / "docs"


def ink(handle):
    """Where a line of a legend leaves ink: its dashes and its marker, whatever its colour."""
    figure = plotting().figure(figsize=(0.8, 0.2), dpi=150)
    alone = plotting().Line2D([0, 0.5, 1], [0.5] * 3)
    alone.update_from(getattr(handle, "lines", (handle,))[0])  # of error bars: the line itself
    alone.set(transform=figure.transFigure, clip_on=False, markevery=(1, 2))
    alone.set(color="black", alpha=1, lw=1.6, ms=5)
    figure.add_artist(alone)
    figure.canvas.draw()
    grey = np.asarray(figure.canvas.buffer_rgba())[..., 0]
    plotting().close(figure)
    assert grey.min() < 128
    return grey < 128


def alike(figure):
    """Pairs of labels whose lines a reader of a black and white print would confuse."""
    shown = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, map(ink, handles), strict=True))
    return [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(shown.items(), 2)
        if (one ^ other).sum() < 15  # pixels; a square differs from a circle by 26
    ]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in place of their files."""
    found = []
    for module in (comparison, reproduction, report):
        monkeypatch.setattr(module, "save_figure", lambda figure, *_, **__: found.append(figure))
    yield found
    for figure in found:
        plotting().close(figure)


def test_arms_differ_in_dashes_or_marker_and_not_in_colour_alone():
    looks = [look(number) for number in range(28)]
    assert len({(str(one["ls"]), one["marker"]) for one in looks}) == len(looks)
    figure, axes = plotting().subplots()
    for number in range(12):
        draw = draw_line if number % 2 else draw_band
        draw(axes, *[range(50)] * (2 if number % 2 else 4), number, label=str(number))
    assert not alike(figure)
    axes.plot(range(50), **(look(0) | {"color": COLOURS[1]}), label="planted")
    assert alike(figure) == [("0", "planted")]
    plotting().close(figure)


def test_every_line_of_a_comparison_is_told_apart(drawn):
    """13 methods, and one method with five numbers of rounds."""
    for name, expected in (("rules", 13), ("rounds", 5)):
        table = json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))
        rows = msgspec.convert(table["rows"], list[comparison.TableRow])
        comparison.draw(Path("figure"), [r for r in rows if r.data == rows[0].data], name)
        assert len(drawn[-1].axes[0].get_legend_handles_labels()[1]) == expected
        assert not alike(drawn[-1])


def test_every_line_of_the_reproduction_is_told_apart(drawn):
    run = MethodRuns(Tuned(1.0, 1.0), [Outcome(Noise(), (0.1, 0.5, 0.7), 0.7, 1.0, 1, 1, 1)])
    runs = {panel: dict.fromkeys(METHODS, run) for panel in panels(FULL)}
    reproduction.draw_accuracy(Path("figure"), FULL, "mlp", runs)
    (figure,) = drawn
    assert len(figure.axes[0].get_legend_handles_labels()[1]) == len(METHODS)
    assert not alike(figure)


FIGURES = sorted(path for path in DOCS.rglob("*.png") if not path.name.startswith("report-"))


@pytest.mark.parametrize("picture", FIGURES, ids=lambda path: path.name)
def test_pictures_of_the_pages_are_small_and_fit_a_page(picture):
    from PIL import Image

    assert picture.stat().st_size < 200_000
    assert 800 <= Image.open(picture).width <= 1800
