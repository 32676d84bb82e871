"""Ours beside the peer, block by block in one run: `python -m benchmarks`.

Prints median seconds a round, their spread, the ratio to the peer, and whether both compute the
same mean update with noise off. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.data import WORKLOADS, initial_weights
from benchmarks.ours import Ours, peak_memory_mb
from benchmarks.peer import CHECK_CLIENTS, Peer, PeerError

TARGETS = {"W1-MLP": 0.55, "W2": 0.25}  # the most that our time may be of the peer's
RESULTS = Path(__file__).parent / "results"


def compare(name: str, blocks: int, console: Console) -> dict[str, Any]:
    """One workload: alternate blocks of the peer's rounds and of ours, twice for LOCKS."""
    workload = WORKLOADS[name]
    ours = {rule: Ours(workload, rule) for rule in ("uniform", "norm")}
    for side in ours.values():
        side.run(2.0)
    seconds: dict[str, list[float]] = {rule: [] for rule in ours}
    result: dict[str, Any] = {"workload": name}
    try:
        peer = Peer(name, processes=2)
    except PeerError as error:
        console.print(f"{name}: without the peer ({error})")
        peer = None
    peers: list[float] = []
    try:
        for block in range(blocks):
            if peer is not None:
                peers += peer.run(5)["seconds"]
            for rule, side in ours.items():
                seconds[rule] += side.run(3.0)
            console.print(f"{name}: block {block + 1} of {blocks}")
        if peer is not None and ours["uniform"].work.update == "gradient":
            result["parity"] = parity(peer, ours["uniform"])
    finally:
        if peer is not None:
            peer.close()
    result |= {rule: _describe(values) for rule, values in seconds.items()}
    result["memory_mb"] = peak_memory_mb()
    if peers:
        result["pfl"] = _describe(peers)
        result["ratio_to_pfl"] = result["uniform"]["median"] / result["pfl"]["median"]
        result["target"] = TARGETS[name]
    result["locks_to_uniform"] = result["norm"]["median"] / result["uniform"]["median"]
    return result


def parity(peer: Peer, ours: Ours) -> float:
    """The largest difference of the two mean clipped updates, over two clip norms. (W1's clients
    shuffle differently: only one gradient each can agree.)"""
    weights, worst = initial_weights(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for clip_norm in (1.0, 4.1):
            path = Path(folder) / "mean.npy"
            peer.check(str(path), CHECK_CLIENTS, clip_norm=clip_norm)
            theirs = np.load(path)
            mine = ours.mean_update(weights, CHECK_CLIENTS, clip_norm)
            # theirs is w_new - w, ours w - w_new
            worst = max(worst, float(np.abs(theirs + mine).max()))
    return worst


def _describe(values: list[float]) -> dict[str, float]:
    low, high = (float(np.quantile(values, q)) for q in (0.1, 0.9))
    return {"median": statistics.median(values), "low": low, "high": high, "rounds": len(values)}


def main() -> None:
    """Run what is asked, print the table, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    console = Console()
    table = Table("workload", "who", title="seconds a round", title_justify="left")
    for head in ("median", "10% to 90%", "to pfl", "wanted"):
        table.add_column(head, justify="right")
    results = []
    for name in options.workloads:
        result = compare(name, options.blocks, console)
        results.append(result)
        for row in _rows(result):
            table.add_row(*row)
        table.add_section()
    console.print(table)
    for result in results:
        if "parity" in result:
            console.print(f"{result['workload']}: mean updates differ by {result['parity']:.1e}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "speed.json").write_text(json.dumps(results, indent=2) + "\n")


def _rows(result: dict[str, Any]) -> list[list[str]]:
    names = {"uniform": "ours, uniform", "norm": "ours, LOCKS", "pfl": "pfl, 2 processes"}
    rows = []
    for key, name in names.items():
        if key not in result:
            continue
        value = result[key]
        row = [result["workload"], name, f"{value['median']:.3f}"]
        row.append(f"{value['low']:.3f} - {value['high']:.3f}")
        row.append(f"{value['median'] / result['pfl']['median']:.2f}" if "pfl" in result else "-")
        wanted = key == "uniform" and "target" in result
        rows.append([*row, f"<= {result['target']}" if wanted else ""])
    return rows


if __name__ == "__main__":
    main()
