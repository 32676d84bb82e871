"""docs/performance.png, from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.table import limit, seconds
from benchmarks.workloads import WORKLOADS

GREY, BLUE, RED = "#888c90", "#4477aa", "#ee6677"


def draw(results: dict[str, Any], path: Path) -> None:
    """A panel a workload: seconds a round of everybody, and what the processor allows."""
    timed = [name for name in WORKLOADS if name in results["workloads"]]
    sizes = results["workloads"].get("S")
    panels = len(timed) + (sizes is not None)
    across = min(3, max(1, panels))
    down = -(-panels // across)
    figure, grid = plt.subplots(down, across, figsize=(4.6 * across, 2.9 * down), squeeze=False)
    axes = list(grid.flat)
    for axis, name in zip(axes, timed, strict=False):
        _dots(axis, name, results["workloads"][name])
    if sizes is not None:
        _sizes(axes[len(timed)], sizes)
    for axis in axes[panels:]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _dots(axis: Axes, name: str, result: dict[str, Any]) -> None:
    """Dots, since bars on a logarithmic axis begin nowhere."""
    bound = limit(result)
    found = list(result["contenders"].items())
    for place, (who, one) in enumerate(found):
        colour = {"ours": BLUE, "locks": RED}.get(who, GREY)
        axis.plot([one["low"], one["high"]], [place, place], color=colour, lw=2)
        axis.plot(one["median"], place, "o", color=colour, ms=7)
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
    axis.set_title(name, loc="left", fontsize=10, fontweight="bold")
    axis.set_xlabel("seconds a round (dotted: GEMM limit)", fontsize=8)
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
    axis.set_title("S: population", loc="left", fontsize=10, fontweight="bold")
    axis.set_xlabel("clients, 1,000 of them a round", fontsize=8)
    axis.set_ylabel("milliseconds a round", fontsize=8)
    _plain(axis)


def _plain(axis: Axes) -> None:
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
