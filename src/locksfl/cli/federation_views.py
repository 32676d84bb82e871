"""What `locks federation` shows a person: a run's status, a device's ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from locksfl.cli.console import plain_table

COUNTS = ("rounds", "norms", "updates", "open")


def status_parts(stands: dict[str, Any]) -> Iterator[Any]:
    """A run's status for a person."""
    from locksfl.federation.server.devices import HEADS, device_cells

    rounds = ", ".join(f"{arm} {done} of {all_}" for arm, (done, all_) in stands["rounds"].items())
    yield f"{stands['run']}: {stands['state']}; rounds: {rounds}"
    if stands["time"] is None:
        yield "no device has been asked yet"
        return
    yield f"as of {stands['time']}; a stage waits {stands['seconds']:g} s for answers"
    yield plain_table(HEADS, map(device_cells, stands["devices"]), left=3)


def ledger_parts(view: dict[str, Any]) -> Iterator[Any]:
    """A device's ledger for a person: one row per run, and what is left."""
    heads = ("run", *COUNTS, "noise", "norm noise", "of budget")
    rows = (
        (
            row["run"],
            *(str(row[name]) for name in COUNTS),
            f"{row['noise_multiplier']:.4g}",
            "" if row["norm_multiplier"] is None else f"{row['norm_multiplier']:.4g}",
            "" if row["share"] is None else f"{row['share']:.1%}",
        )
        for row in view["runs"]
    )
    yield plain_table(heads, rows, left=1)
    yield view["message"]
