"""Theory against practice: the measured gradient by round under both bounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._arrays import Floats
from locksfl.experiment.figures import (
    COLOURS,
    draw_band,
    draw_line,
    legend_below,
    plotting,
    save_figure,
)
from locksfl.paper.theory.bound import by_round, corrected, each_bound, printed
from locksfl.paper.theory.check import cases, measure
from locksfl.paper.theory.estimate import Study

MEASURED, PRINTED, CORRECTED = range(3)  # looks of lines


def draw_study(study: Study, name: str, path: Path) -> None:
    """An arm's paths under its bounds."""
    figure, axes = plotting().subplots(figsize=(6.4, 4.2))
    bounds = {"corrected": study.corrected, "printed": study.printed}
    _panel(axes, study.gradient, study.weighted(), bounds, study.reasons)
    axes.set_title(f"{name}, arm {study.arm}", fontsize=10, loc="left")
    legend_below(figure, axes, fontsize=8)
    words = "Seen by a simulation, released to nobody: it reads every client's data."
    _finish(figure, words, path)


def draw_known(seeds: int, path: Path) -> None:
    """Three problems whose constants are known: sampling only, one where the printed bound says
    nothing, one where it fails."""
    wanted = (
        "quadratic: uniform, trust none",
        "logistic: uniform, trust none, step 5",
        "all alike",
    )
    shown = [next(c for c in cases() if name in c.arm.name) for name in wanted]
    figure, panels = plotting().subplots(1, len(shown), figsize=(9.2, 3.6))
    for case, axes in zip(shown, panels, strict=True):
        _, descent = measure(case, seeds)
        bounds, reasons = each_bound(
            corrected=partial(by_round, corrected, case.constants),
            printed=partial(by_round, printed, case.printed_constants),
        )
        _panel(axes, descent.gradient, descent.weighted(), bounds, reasons)
        axes.set_title(case.arm.name, fontsize=8, loc="left")
    legend_below(figure, panels[0], fontsize=8, ncols=3)
    _finish(figure, f"Known constants, {seeds} seeds: mean, and the range of all seeds.", path)


def _panel(
    axes: Any,
    gradient: Floats,
    weighted: Floats,
    bounds: dict[str, list[float] | None],
    reasons: dict[str, str],
) -> None:
    t = np.arange(1, gradient.shape[1] + 1)
    mean = gradient.mean(axis=0)
    axes.plot(t, mean, color=COLOURS[MEASURED], lw=0.8, label="measured |∇F(w)|²")
    low, middle, high = weighted.min(axis=0), weighted.mean(axis=0), weighted.max(axis=0)
    draw_band(axes, t, low, middle, high, MEASURED, label="its weighted mean so far")
    axes.axhline(mean[0], color="black", lw=0.8, ls=":", label="before the first round")
    missing = []
    for name, number, label in (
        ("corrected", CORRECTED, "corrected bound"),
        ("printed", PRINTED, "bound as printed"),
    ):
        if (values := bounds[name]) is not None:
            draw_line(axes, t, values, number, label=label)
        else:
            missing.append(f"{label}: none ({reasons[name].partition(',')[0]})")
    if missing:
        where = {"transform": axes.transAxes, "va": "top", "fontsize": 7}
        axes.text(0.03, 0.98, "\n".join(missing), **where)
    axes.set_yscale("log")
    axes.set_xlabel("rounds")
    axes.set_ylabel("squared gradient norm")


def _finish(figure: Any, words: str, path: Path) -> None:
    figure.text(0.01, 0.01, words, fontsize=8, color="#555555")
    save_figure(figure, path, only_png=True, rect=(0, 0.03, 1, 1))
