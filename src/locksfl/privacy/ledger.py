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
from locksfl.privacy.budget import filtered
from locksfl.privacy.journal import Books, same_experiment
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.statement import Cost, Counts, promised, spent

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
        same_experiment(books.header.experiment, kept.header.experiment or "", durable)
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
    about = ledger.header
    delta, relation, accountant = about.delta, about.relation, about.accountant
    if delta is None or relation is None or accountant is None:
        raise ValueError("the ledger of a device or a population; expected that of an experiment")

    def both(arms: Sequence[Counts]) -> dict[str, Any]:
        promise = promised([counts.arm.terms for counts in arms], delta, accountant)
        so_far = spent(arms, delta, accountant)
        return {
            "guarantee": by_observer(promise, relation),
            "spent_so_far": by_observer(so_far, relation),
        }

    return {
        "experiment": about.experiment,
        "trust": about.trust,
        "accounting": about.accounting,
        "arms": [
            {
                "name": counts.arm.name,
                "rounds": counts.arm.rounds,
                "rounds_played": counts.rounds,
                "claimed_epsilon": counts.arm.claimed_epsilon,
                "budget": (kept := counts.arm.filtered) and asdict(filtered(kept)[0]),
                **both([counts]),
            }
            for counts in ledger.arms
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
