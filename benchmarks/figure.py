"""docs/performance.png, from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.table import limit, seconds
from benchmarks.workloads import WORKLOADS

GREY, BLUE, RED = "#888c90", "#004488", "#ee6677"
STYLES = {"ours": (BLUE, "o", BLUE), "locks": (RED, "s", RED)}  # colour, marker, its filling
PEER = (GREY, "o", "white")
NETWORKS = {
    "mlp": "dense network",
    "cnn": "convolutional network",
    "cifar": "colour images, convolutional network",
}


def draw(results: dict[str, Any], path: Path) -> None:
    """The picture as a file."""
    figure = picture(results)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def picture(results: dict[str, Any]) -> Figure:
    """A panel a workload: seconds a round of everybody, and what the processor allows."""
    timed = [name for name in WORKLOADS if name in results["workloads"]]
    sizes = results["workloads"].get("S")
    panels = len(timed) + (sizes is not None)
    down = -(-panels // 2)
    heights = [1.0] * down
    if sizes is not None and panels % 2:
        heights[-1] = 0.7  # one line, in a row of its own
    figure = plt.figure(figsize=(9.2, 3.0 * sum(heights)))
    grid = figure.add_gridspec(down, 2, height_ratios=heights)
    places = [grid[divmod(number, 2)] for number in range(panels)]
    if panels % 2:
        places[-1] = grid[-1, :]  # no panel is empty
    axes = [figure.add_subplot(place) for place in places]
    for axis, name in zip(axes, timed, strict=False):
        _dots(axis, name, results["workloads"][name])
    if sizes is not None:
        _sizes(axes[-1], sizes)
    figure.tight_layout()
    return figure


def title(name: str) -> str:
    """A workload in words."""
    one = WORKLOADS[name]
    work = "one gradient each" if one.batch is None else f"{one.epochs} local epochs"
    work = work.replace("1 local epochs", "1 local epoch")
    return f"{one.cohort:,} of {one.clients:,} clients, {work},\n{NETWORKS[one.network_name]}"


def _dots(axis: Axes, name: str, result: dict[str, Any]) -> None:
    """Dots, since bars on a logarithmic axis begin nowhere."""
    bound = limit(result)
    found = list(result["contenders"].items())
    for place, (who, one) in enumerate(found):
        colour, marker, filling = STYLES.get(who, PEER)
        axis.plot([one["low"], one["high"]], [place, place], color=colour, lw=2)
        axis.plot(one["median"], place, marker, color=colour, mfc=filling, ms=7)
        axis.text(one["high"] * 1.2, place, seconds(one["median"]), va="center", fontsize=8)
    axis.axvline(bound, color="black", lw=1, ls=":")
    axis.set_xscale("log")
    axis.set_xlim(bound / 1.5, 3 * max(one["high"] for _, one in found))
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color="#eeeeee")
    axis.set_axisbelow(True)
    axis.set_yticks(range(len(found)), [one["about"] for _, one in found], fontsize=8)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_title(title(name), loc="left", fontsize=10)
    axis.set_xlabel("seconds a round (dotted: the processor's limit)", fontsize=8)
    _plain(axis)


def _sizes(axis: Axes, result: dict[str, Any]) -> None:
    found = result["sizes"].values()
    clients = [one["clients"] for one in found]
    axis.errorbar(
        clients,
        [one["median"] * 1e3 for one in found],
        [
            [(one["median"] - one["low"]) * 1e3 for one in found],
            [(one["high"] - one["median"]) * 1e3 for one in found],
        ],
        color=BLUE,
        marker="o",
    )
    axis.set_xscale("log")
    axis.set_ylim(0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_title(
        "this project: 1,000 clients a round, one gradient each", loc="left", fontsize=10
    )
    axis.set_xlabel("clients in all", fontsize=8)
    axis.set_ylabel("milliseconds a round", fontsize=8)
    _plain(axis)


def _plain(axis: Axes) -> None:
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
