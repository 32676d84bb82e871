"""Ledgers that version 0.1 of this program wrote, read as those of version 2.

Version 0.1 had three: counts in a checkpoint, and two kinds of SQLite files, one for a federation
(one entry per client) and one for a device. Each was chained by its own rule, by which it is
verified here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def checkpoint(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The packed form of a checkpoint's ledger. Its arrays already have their present names."""
    arms = [{k: v for k, v in arm.items() if k != "rounds_played"} for arm in meta["arms"]]
    totals = {
        arm["name"]: {"rounds": t, "last": [arm["name"], t], "latest": 0}
        for arm in meta["arms"]
        for t in [arm["rounds_played"]]
    }
    rest = {k: v for k, v in meta.items() if k != "checksum"}
    header = {**rest, "version": 2, "arms": arms}
    return {"header": header, "head": f"0 {meta['checksum']}", "totals": totals}


def journal(
    meta: Mapping[str, str], rows: list[tuple[Any, ...]], damaged: str
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """What differs from an empty header, and the values of all entries, of a SQLite file.

    `damaged`: how an error message begins. A file that was altered, or is of no known kind, is
    refused.
    """
    before = _link(meta["settings"])
    for expected, (number, *values, found) in enumerate(rows, 1):
        before = _link(before, number, *values)
        if number != expected or found != before:
            raise ValueError(f"{damaged} (entry {expected} is not chained to the entry before it)")
    if meta.get("head") != f"{len(rows)} {before}":
        raise ValueError(f"{damaged} (entries are missing at the end)")
    settings = json.loads(meta["settings"])
    form = settings.pop("format", None)
    if form == "device 1":
        one = np.zeros(1, np.int32)
        of_device = [(run, t, kind, one, 1, terms, at) for _, run, t, kind, terms, at, _ in rows]
        return {"upgraded": meta["head"]}, of_device
    if form != 1:
        raise ValueError(f"{damaged} (format {form!r}: expected a ledger of version 1 or 2)")
    names = ("name", "terms", "budget", "claimed_epsilon")
    arms = [dict(zip(names, (*arm, None), strict=True)) for arm in settings["arms"]]
    entries = [
        (arm, t, kind, np.array([client], np.int32), uploaders)
        for _, arm, t, client, kind, uploaders, _ in rows
    ]
    return {**settings, "arms": arms, "upgraded": meta["head"]}, entries


def _link(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
