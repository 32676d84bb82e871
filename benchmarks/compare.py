"""One workload, everybody in turn: block after block of rounds, in one run on one machine."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import OURS, PEERS
from benchmarks.peer import Peer, PeerError
from benchmarks.workloads import SCALING, WORKLOADS, Workload, checks

BLOCK_SECONDS = 2.5  # of each contender; one round at least
SLOW_SECONDS = 5.0  # whose round takes longer plays in every other block only
Say = Callable[[str], None]


def compare(name: str, peers: Sequence[str], blocks: int, say: Say) -> dict[str, Any]:
    """Ours, LOCKS and the named peers on one workload; the peers' mean updates against ours."""
    workload = WORKLOADS[name]
    began = time.monotonic()
    contenders = OURS | {peer: PEERS[peer] for peer in peers}
    result: dict[str, Any] = {"about": workload.about, "flops": workload.flops, "failed": {}}
    with ExitStack() as stack:
        started: dict[str, Peer] = {}
        for who, contender in contenders.items():
            say(f"{name}: starting {contender.about}")
            try:
                started[who] = stack.enter_context(contender.start(name))
            except PeerError as error:
                _fail(result, who, error, say)
        seconds, rates = _interleave(name, started, blocks, result, say)
        result["device"] = started["ours"].ask("device")
        say(f"{name}: comparing mean updates")
        result["parity"] = parity(workload, started)
        result["gemm"] = {kind: statistics.median(r[kind] for r in rates) for kind in rates[0]}
        result["gemm_range"] = [pick(r["float32"] for r in rates) for pick in (min, max)]
        result["contenders"] = {
            who: {"about": contenders[who].about, **describe(values), **started[who].memory}
            for who, values in seconds.items()
        }
    result["took_s"] = round(time.monotonic() - began)
    return result


def compare_sizes(blocks: int, say: Say) -> dict[str, Any]:
    """Workload S: ours on populations of growing size, the cohort the same."""
    began = time.monotonic()
    result: dict[str, Any] = {"failed": {}}
    with ExitStack() as stack:
        started: dict[str, Peer] = {}
        for name, workload in SCALING.items():
            say(f"S: starting {workload.about}")
            started[name] = stack.enter_context(OURS["ours"].start(name))
        seconds, _ = _interleave("S", started, blocks, result, say)
        result["device"] = next(iter(started.values())).ask("device")
        result["sizes"] = {
            name: {
                "clients": SCALING[name].clients,
                "data_mb": SCALING[name].data_bytes / 2**20,
                **describe(values),
                **started[name].memory,
            }
            for name, values in seconds.items()
        }
    return (
        result
        | growth(list(result["sizes"].values()))
        | {"took_s": round(time.monotonic() - began)}
    )


def growth(sizes: Sequence[dict[str, Any]]) -> dict[str, float]:
    """From the smallest population to the largest: how much longer a round takes, and how many
    bytes each further client needs beyond its data."""
    first, last = sizes[0], sizes[-1]
    beyond = [(size["memory_mb"] - size["data_mb"]) * 2**20 for size in (first, last)]
    return {
        "time_ratio": last["median"] / first["median"],
        "bytes_a_client": (beyond[1] - beyond[0]) / (last["clients"] - first["clients"]),
    }


def _interleave(
    name: str, started: dict[str, Peer], blocks: int, result: dict[str, Any], say: Say
) -> tuple[dict[str, list[float]], list[dict[str, float]]]:
    """Seconds of every contender's rounds, and how fast matrices were multiplied meanwhile."""
    seconds: dict[str, list[float]] = {who: [] for who in started}
    first = next(iter(started.values()))
    rates = [first.ask("gemm")["gemm"]]
    for block in range(blocks):
        for who, peer in started.items():
            if who not in seconds or (block % 2 and peer.pace > SLOW_SECONDS):
                continue
            say(f"{name}: block {block + 1} of {blocks}, {who}")
            try:
                seconds[who] += peer.run(BLOCK_SECONDS)
            except PeerError as error:
                del seconds[who]
                _fail(result, who, error, say)
        rates.append(first.ask("gemm")["gemm"])
    return seconds, rates


def _fail(result: dict[str, Any], who: str, error: PeerError, say: Say) -> None:
    if who in OURS:
        raise error
    result["failed"][who] = str(error)
    say(f"left out: {error}")


def parity(workload: Workload, started: dict[str, Peer]) -> dict[str, float]:
    """The largest |theirs - ours| / |ours| over the checks, for every peer."""
    worst: dict[str, float] = {}
    peers = [who for who in started if who not in OURS]
    with tempfile.TemporaryDirectory() as folder:
        for check in checks(workload) if peers else ():
            found = {}
            for who in ("ours", *peers):
                path = Path(folder) / f"{who}.npy"
                try:
                    started[who].check(check, path)
                except PeerError:
                    continue  # it is among the failed already
                found[who] = np.load(path)
            for who in found.keys() & set(peers):
                worst[who] = max(worst.get(who, 0.0), difference(found[who], found["ours"]))
    return {who: worst[who] for who in peers if who in worst}


def difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """|theirs - ours| / |ours|; a vector of another length, or no number, is infinitely far."""
    if theirs.shape != ours.shape or not np.isfinite(theirs).all():
        return float("inf")
    return float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours))


def describe(values: Sequence[float]) -> dict[str, float]:
    """Median, and the range from 10% to 90% of the rounds."""
    low, high = (float(np.quantile(values, q)) for q in (0.1, 0.9))
    return {"median": statistics.median(values), "low": low, "high": high, "rounds": len(values)}
