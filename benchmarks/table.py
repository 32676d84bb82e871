"""The results as rows: what the terminal and the documentation show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADS = (
    "",
    "s a round",
    "10% - 90%",
    "rounds",
    "to ours",
    "of the limit",
    "memory MB",
    "same update",
)
STEADY = 0.85  # a quiet machine's GEMM rates are within so much of each other
NOTES = (
    "to ours: how many times longer a round takes than with this project, uniform sampling, in the "
    "same run.",
    "of the limit: FLOPs of the round's gradients over the float32 GEMM rate measured between the "
    "blocks, over the median.",
    "memory: the peak. One process: resident set size. Several (*): proportional set sizes added "
    "up, in which a shared page counts once, sampled until the warm-up ended.",
    "same update: |difference to ours| / |ours| of the mean clipped update without noise.",
    "pfl draws a cohort of fixed size with replacement, Flower, fedjax and the PyTorch loop one of "
    "fixed size; ours is a Poisson sample of that mean. Time is compared, not privacy.",
)


REDUCED = 0.2  # fewer digits: a maximum may pick another of two nearly equal pixels


def same(who: str, apart: float, tolerance: float) -> bool:
    """Whether a contender's mean update is ours; in reduced precision it is so roughly."""
    return apart <= (REDUCED if who == "reduced" else tolerance)


def rows(result: dict[str, Any], tolerance: float) -> list[list[str]]:
    """One workload's contenders."""
    ours = result["contenders"]["ours"]["median"]
    found = []
    for who, one in result["contenders"].items():
        apart = result["parity"].get(who)
        agrees = ""
        if apart is not None:
            agrees = f"{apart:.0e}{'' if same(who, apart, tolerance) else ' NO'}"
        found.append(
            [
                one["about"],
                seconds(one["median"]),
                f"{seconds(one['low'])} - {seconds(one['high'])}",
                str(one["rounds"]),
                "" if who == "ours" else f"{one['median'] / ours:.2f}",
                f"{limit(result) / one['median']:.0%}",
                f"{one['memory_mb']:,}{'*' if one['memory_kind'] == 'PSS' else ''}",
                agrees,
            ]
        )
    return found


def limit(result: dict[str, Any], kind: str = "float32") -> float:
    """Seconds that a round's FLOPs take at the measured rate."""
    return float(result["flops"] / result["gemm"][kind])


def heading(name: str, result: dict[str, Any]) -> str:
    """What the workload is, its FLOPs and its limit."""
    limits = ", ".join(
        f"{rate / 1e9:,.0f} GF/s {kind}: {seconds(limit(result, kind))} s"
        for kind, rate in result["gemm"].items()
    )
    return (
        f"{name}: {result['about']}. {result['flops'] / 1e9:.1f} GFLOP a round; limit at {limits}"
    )


def below(result: dict[str, Any]) -> list[str]:
    """What the norm stage costs, a GPU's memory, and who was left out."""
    both = [result["contenders"][who]["median"] for who in ("ours", "locks")]
    lines = [f"LOCKS takes {both[1] / both[0]:.2f} times as long as uniform, same cohort"]
    if "device_peak_mb" in result["device"]:
        lines.append(
            f"on {result['device']['device']}: {result['device']['device_peak_mb']:,} MB of its "
            f"memory; ours is at {both[0] / limit(result):.1f} times the float32 limit"
        )
    if "gemm_range" not in result:
        lines.append("whether the machine was quiet was not recorded")
    elif (low := result["gemm_range"][0] / 1e9) < STEADY * (high := result["gemm_range"][1] / 1e9):
        lines.append(
            f"NOT QUIET: the GEMM rate went from {low:,.0f} to {high:,.0f} GF/s; measure again"
        )
    return lines + [f"{who} failed" for who in result["failed"]]


def size_rows(result: dict[str, Any]) -> list[list[str]]:
    """Workload S."""
    first = next(iter(result["sizes"].values()))["median"]
    return [
        [
            f"{one['clients']:,}",
            seconds(one["median"]),
            f"{seconds(one['low'])} - {seconds(one['high'])}",
            f"{one['median'] / first:.2f}",
            f"{one['data_mb']:,.0f}",
            f"{one['memory_mb']:,}",
        ]
        for one in result["sizes"].values()
    ]


SIZE_HEADS = ("clients", "s a round", "10% - 90%", "to the first", "data MB", "memory MB")


def size_line(result: dict[str, Any]) -> str:
    """What grows with the population."""
    return (
        f"S: the largest takes {result['time_ratio']:.2f} times as long as the smallest; "
        f"{result['bytes_a_client']:,.0f} bytes a client beyond the data"
    )


def first_round_line(result: dict[str, Any]) -> str:
    """`locks run`, from the start of the process."""
    return (
        f"first round of `locks run`: {result['cold']['median']:.1f} s with an empty compilation "
        f"cache, {result['warm']['median']:.1f} s with a warm one"
    )


def seconds(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.3g}" if value < 1 else f"{value:.2f}"


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for the documentation."""
    parts = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(part) + " |" for part in parts)
