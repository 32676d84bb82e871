"""Theory against practice: the measured gradient by round under both bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from locksfl._arrays import Floats
from locksfl._charts import Chart, Line
from locksfl._svg import svg_file
from locksfl.paper.theory.bound import by_round, corrected, each_bound, printed
from locksfl.paper.theory.check import cases, measure
from locksfl.paper.theory.estimate import Study

MEASURED, PRINTED, CORRECTED = range(3)  # styles of lines


def study_figure(study: Study, name: str) -> str:
    """An arm's paths under its bounds, as SVG."""
    bounds = {"corrected": study.corrected, "printed": study.printed}
    title = f"{name}, arm {study.arm}"
    chart = _panel(title, study.gradient, study.weighted(), bounds, study.reasons)
    words = "Seen by a simulation, released to nobody: it reads every client's data."
    return svg_file([chart], width=800, height=320, note=words)


def known_figure(seeds: int) -> str:
    """Three problems whose constants are known: sampling only, one where the printed bound says
    nothing, one where it fails."""
    wanted = (
        "quadratic: uniform, trust none",
        "logistic: uniform, trust none, step 5",
        "all alike",
    )
    charts = []
    for name in wanted:
        case = next(c for c in cases() if name in c.arm.name)
        _, descent = measure(case, seeds)
        bounds, reasons = each_bound(
            corrected=partial(by_round, corrected, case.constants),
            printed=partial(by_round, printed, case.printed_constants),
        )
        title = case.arm.name.replace(", trust", ",\ntrust")
        charts.append(_panel(title, descent.gradient, descent.weighted(), bounds, reasons))
    words = f"Known constants, {seeds} seeds: mean, and the range of all seeds."
    return svg_file(charts, columns=len(charts), width=1000, note=words)


def _panel(
    title: str,
    gradient: Floats,
    weighted: Floats,
    bounds: Mapping[str, Sequence[float] | None],
    reasons: Mapping[str, str],
) -> Chart:
    t = range(1, gradient.shape[1] + 1)
    mean = gradient.mean(axis=0)
    low, middle, high = weighted.min(axis=0), weighted.mean(axis=0), weighted.max(axis=0)
    lines = [
        Line("measured |∇F(w)|²", t, mean, MEASURED, thin=True),
        Line("its weighted mean so far", t, middle, MEASURED, low=low, high=high),
        Line("before the first round", (t[0], t[-1]), (mean[0], mean[0])),
    ]
    missing = []
    for name, number, label in (
        ("corrected", CORRECTED, "corrected bound"),
        ("printed", PRINTED, "bound as printed"),
    ):
        if (values := bounds[name]) is not None:
            lines.append(Line(label, t, values, number))
        else:
            missing.append(f"{label}: none ({reasons[name].partition(',')[0]})")
    title = "\n".join([title, *missing])
    return Chart("rounds", "squared gradient norm", lines, log_y=True, title=title)
