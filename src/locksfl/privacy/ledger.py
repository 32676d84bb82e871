"""What a run has spent, computed from its ledger alone, wherever the ledger is stored.

A run folder has a ledger in its checkpoint. A federation's run folder also has the ledger that its
server wrote before any client was asked (`LEDGER`). That one is authoritative, because a server may
die between asking and its next checkpoint: `read_run` reads it if it exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from locksfl._arrays import unpack_arrays
from locksfl.privacy.journal import ArmLedger, Books, same_experiment
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.statement import Cost, guarantee, spent

CHECKPOINT = "checkpoint.npz"
LEDGER = "ledger.sqlite"


def read_run(folder: Path) -> Books:
    """The ledger of a run folder, whether the run has finished or was killed in the middle of a
    round."""
    path, durable = folder / CHECKPOINT, folder / LEDGER
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a run folder, or the first round has not been played ({CHECKPOINT})"
        )
    meta, arrays = unpack_arrays(path)
    books = Books.unpack(meta.get("ledger") if isinstance(meta, dict) else None, arrays, path)
    if durable.is_file():
        kept, books = books, Journal.read(durable, books.head if books.number else None)
        same_experiment(books.header["experiment"], kept.header["experiment"], durable)
        if not books.covers(kept):
            raise ValueError(f"{durable}: not the ledger of this checkpoint, or an old copy")
    elif _engine(folder) is not None:
        raise ValueError(f"{durable}: missing; what a federation has spent is recorded there")
    return books


def _engine(folder: Path) -> str | None:
    """The engine of a federation's run; None for a simulation."""
    try:
        engine = tomllib.loads((folder / "config.toml").read_text("utf-8")).get("engine")
    except (OSError, ValueError):
        return None
    return str(engine) if engine is not None else None


def account_ledger(ledger: Books) -> dict[str, Any]:
    """Every epsilon from the ledger alone: the guarantee and, separately, what was spent.

    {"arms": [{"guarantee": {"server": ..., "public": ...}, "spent_so_far": ...}], ...}
    """
    delta, relation, accountant = (ledger.header[k] for k in ("delta", "relation", "accountant"))

    def both(arms: Sequence[ArmLedger]) -> dict[str, Any]:
        promise = guarantee([arm.counts.arm for arm in arms], delta, accountant)
        so_far = spent([arm.counts for arm in arms], delta, accountant)
        return {
            "guarantee": by_observer(promise, relation),
            "spent_so_far": by_observer(so_far, relation),
        }

    return {
        "experiment": ledger.header["experiment"],
        "trust": ledger.arms[0].counts.arm.trust,
        "accounting": ledger.header["accounting"],
        "arms": [
            {
                "name": arm.name,
                "rounds": arm.counts.arm.rounds,
                "rounds_played": arm.counts.rounds,
                "claimed_epsilon": arm.claimed_epsilon,
                "budget": None if arm.counts.arm.budget is None else asdict(arm.counts.arm.budget),
                **both([arm]),
            }
            for arm in ledger.arms
        ],
        "all_arms_composed": both(ledger.arms),
    }


def by_observer(costs: Sequence[Cost], relation: str) -> dict[str, Any]:
    """Group costs by observer.

    Returns:
        {"server": {...}, "public": {...}}, each with epsilon under `relation` and under both.
    """
    answer: dict[str, Any] = {}
    for cost in costs:
        empty: dict[str, Any] = {
            "epsilon": None,
            "delta": cost.delta,
            "relation": relation,
            "accountant": cost.accountant,
            "relations": {},
        }
        mine = answer.setdefault(cost.observer.lower(), empty)
        epsilon = cost.as_dict()["epsilon"]
        mine["relations"][cost.relation] = epsilon
        if cost.relation == relation:
            mine["epsilon"] = epsilon
    return answer
