"""This project beside its peers, block by block in one run: `python -m benchmarks`.

Prints, for each workload, seconds a round, their spread, the ratio to ours, the fraction of the
measured GEMM rate, peak memory, and how far the peers' mean updates are from ours with noise off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import table
from benchmarks.compare import compare, compare_sizes
from benchmarks.contenders import CORES, DEFAULT_PEERS, PEERS
from benchmarks.first_round import measure
from benchmarks.peer import PeerError
from benchmarks.workloads import WORKLOADS

NAMES = (*WORKLOADS, "S", "first-round")
RESULTS = Path(__file__).parent / "results" / "speed.json"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked, keep the figures, print the tables."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stopped peers must not stay behind
    options = _options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        results = read(options.json)
        if not options.show:
            _run(options, results, console)
    except (ValueError, PeerError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    show(results, console, options.markdown)
    if options.figure:
        from benchmarks.figure import draw

        draw(results, options.figure)
    return int(disagree(results))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--workloads",
        nargs="*",
        choices=NAMES,
        default=NAMES,
        metavar="NAME",
        help=", ".join(NAMES),
    )
    add("--peers", nargs="*", choices=list(PEERS), default=None, metavar="NAME",
        help=f"{', '.join(PEERS)}; without it: {', '.join(DEFAULT_PEERS)}")  # fmt: skip
    add("--blocks", type=int, default=3, help="blocks of each contender (3)")
    add("--device", choices=["auto", "cpu"], default="auto", help="cpu: leave a GPU alone")
    add("--json", type=Path, default=RESULTS, help="results, merged in by workload")
    add("--figure", type=Path, help="draw the results to this file")
    add("--show", action="store_true", help="run nothing: show the results of --json")
    add("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args(arguments)
    if options.blocks < 1:
        parser.error(f"--blocks = {options.blocks}: expected 1 or more")
    return options


def _run(options: argparse.Namespace, results: dict[str, Any], console: Console) -> None:
    peers = []
    for who in DEFAULT_PEERS if options.peers is None else options.peers:
        if PEERS[who].installed:
            peers.append(who)
        else:
            console.print(
                f"without {who}: install it with `make bench-peer-{PEERS[who].environment}`"
            )
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began:4.0f} s] {text}", highlight=False, markup=False)

    for name in options.workloads:
        if name == "first-round":
            result = measure(say)
        elif name == "S":
            result = compare_sizes(options.blocks, say)
        else:
            result = compare(name, peers, options.blocks, say)
        merge(results, name, result)
        write(options.json, results)  # after each: a run that is stopped keeps what it has
    say("done")


def machine() -> dict[str, Any]:
    """What figures belong to: they are not mixed with those of another."""
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if "model name" in line]
    return {"cores": CORES, "cpu": names[0] if names else platform.processor()}


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def read(path: Path) -> dict[str, Any]:
    """Earlier results, or none."""
    if not path.exists():
        return {"machine": machine(), "workloads": {}}
    results: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return results


def merge(results: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    """Put a workload's new results in the place of its old ones."""
    if results["machine"] != machine():
        raise ValueError(f"--json: holds results of {results['machine']}; expected a new file")
    results["workloads"][name] = result


def write(path: Path, results: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    half.replace(path)


def show(results: dict[str, Any], console: Console, as_markdown: bool = False) -> None:
    """Everything in the results, workload by workload."""

    def lay_out(title: str, heads: tuple[str, ...], lines: list[list[str]]) -> None:
        if as_markdown:
            print(f"\n{title}\n\n{table.markdown(heads, lines)}\n")
            return
        laid = Table(title=title, title_justify="left")
        for number, head in enumerate(heads):
            laid.add_column(head, justify="right" if number else "left")
        for line in lines:
            laid.add_row(*line)
        console.print(laid)

    for name in NAMES:
        result = results["workloads"].get(name)
        if result is None:
            continue
        if name == "first-round":
            print(table.first_round_line(result))
        elif name == "S":
            lay_out("S: population", table.SIZE_HEADS, table.size_rows(result))
            print(table.size_line(result))
        else:
            lines = table.rows(result, WORKLOADS[name].tolerance)
            lay_out(table.heading(name, result), table.HEADS, lines)
            for line in table.below(result):
                print(line)
    if not as_markdown:
        for note in table.NOTES:
            console.print(f"* {note}", highlight=False)


def disagree(results: dict[str, Any]) -> bool:
    """Whether some peer computes another mean update than ours: then nothing was compared."""
    return any(
        not table.same(who, apart, WORKLOADS[name].tolerance)
        for name, result in results["workloads"].items()
        if name in WORKLOADS
        for who, apart in result["parity"].items()
    )


if __name__ == "__main__":
    sys.exit(main())
