"""docs/performance.svg, from the results."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

from benchmarks.table import limit, seconds
from benchmarks.workloads import WORKLOADS
from locksfl._charts import Chart, Line
from locksfl._svg import svg_file

STYLES = {"ours": (0, 0), "locks": (1, 1)}  # dash and marker, and colour
PEER = (0, 5)
NETWORKS = {
    "mlp": "dense network",
    "cnn": "convolutional network",
    "cifar": "colour images, convolutional network",
}


def draw(results: dict[str, Any], path: Path) -> None:
    """The picture as a file."""
    words = "The median, and 10 to 90% of the rounds. Dotted: the processor's limit."
    drawing = svg_file(charts(results), columns=2, width=1000, height=200, note=words)
    path.write_text(drawing, "utf-8")


def charts(results: dict[str, Any]) -> list[Chart]:
    """A chart a workload: seconds a round of everybody, and what the processor allows."""
    timed = [name for name in WORKLOADS if name in results["workloads"]]
    every = [_dots(name, results["workloads"][name]) for name in timed]
    sizes = results["workloads"].get("S")
    return [*every, _sizes(sizes)] if sizes is not None else every


def title(name: str) -> str:
    """A workload in words."""
    one = WORKLOADS[name]
    work = "one gradient each" if one.batch is None else f"{one.epochs} local epochs"
    work = work.replace("1 local epochs", "1 local epoch")
    return f"{one.cohort:,} of {one.clients:,} clients, {work},\n{NETWORKS[one.network_name]}"


def _dots(name: str, result: dict[str, Any]) -> Chart:
    """Dots, since bars on a logarithmic axis begin nowhere."""
    bound = limit(result)
    found = result["contenders"]
    most = max(one["high"] for one in found.values())
    lines = [Line("", (bound, bound), (-0.5, len(found) - 0.5))]
    lines.append(Line("", (bound / 1.3, 2 * most), (nan, nan)))  # room for the numbers
    texts = []
    for place, (who, one) in enumerate(found.items()):
        style, colour = STYLES.get(who, PEER)
        lines.append(Line("", (one["low"], one["high"]), (place, place), 0, True, colour=colour))
        dot = Line("", (one["median"],), (place,), style, hollow=who not in STYLES, colour=colour)
        lines.append(dot)
        texts.append((one["high"] * 1.1, place, seconds(one["median"])))
    names = [one["about"] for one in found.values()]
    return Chart(
        "seconds a round", "", lines, title=title(name), log_x=True, names=names, texts=texts
    )


def _sizes(result: dict[str, Any]) -> Chart:
    found = result["sizes"].values()
    clients = [one["clients"] for one in found]
    median, low, high = ([one[name] * 1e3 for one in found] for name in ("median", "low", "high"))
    line = Line("", clients, median, 0, low=low, high=high, bars=True)
    words = "this project: 1,000 clients a round,\none gradient each"
    return Chart(
        "clients in all",
        "milliseconds a round",
        [line],
        from_zero=True,
        title=words,
        log_x=True,
        x_text=lambda count: f"{count:,.0f}",
    )
