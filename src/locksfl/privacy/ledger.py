"""The ledger: what every client released, apart from the accountants that read it.

Two homes with one meaning:

* a run folder, for a simulation: for each arm the numbers of norms and uploads of every client and
  its sum of 1/|Z|, saved in the same atomic checkpoint as model and random state, with the terms
  that turn them into epsilons and a checksum over both. `read_run` needs nothing else.
* `sqlite_ledger.SqliteLedger`, for a federation or a device, written before a release leaves.

Both are opened with the identity of their experiment; the ledger of another one is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from locksfl._arrays import unpack_arrays
from locksfl.arm import Arm
from locksfl.methods.releases import ACCOUNTANTS, RELATIONS, Accountant, Relation
from locksfl.privacy.statement import Cost, Counts, guarantee, spent
from locksfl.privacy.terms import Budget

KINDS = {"norms": np.int32, "uploads": np.int32, "shares": np.float64}
CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True)
class ArmLedger:
    """One arm: what was planned, and what its clients released."""

    name: str
    counts: Counts
    budget: Budget | None
    claimed_epsilon: float | None = None  # as printed in the paper, no guarantee


@dataclass(frozen=True)
class Ledger:
    """All arms of an experiment."""

    experiment: str
    delta: float
    relation: Relation
    accountant: Accountant
    accounting: str
    arms: tuple[ArmLedger, ...]


def experiment_id(settings: Mapping[str, Any]) -> str:
    """The identity of an experiment: a hash of its resolved settings, where its data lie apart."""
    plain = {k: v for k, v in settings.items() if k != "data"}
    plain["data"] = {k: v for k, v in settings.get("data", {}).items() if k != "dir"}
    return hashlib.sha256(_canonical(plain)).hexdigest()


def empty_arrays(arm: str, clients: int) -> dict[str, np.ndarray]:
    """An arm's arrays before its first round."""
    return {f"ledger_{arm}_{kind}": np.zeros(clients, dtype) for kind, dtype in KINDS.items()}


def charge(
    arrays: dict[str, np.ndarray],
    arm: str,
    cohort: np.ndarray,
    uploaded: np.ndarray,
    norms: bool,
    received: np.ndarray | None = None,
) -> None:
    """Enter one round. A client is in a cohort once, so plain indexing counts right.

    `received`: whose update is in the sum, where some that were sent are not. Only their noises add
    up; an update that may have been sent and was not summed is charged without credit.
    """
    if norms:
        arrays[f"ledger_{arm}_norms"][cohort] += 1
    summed = uploaded if received is None else received
    arrays[f"ledger_{arm}_uploads"][cohort[uploaded]] += 1
    arrays[f"ledger_{arm}_shares"][cohort[uploaded & ~summed]] += 1
    if summed.any():
        arrays[f"ledger_{arm}_shares"][cohort[summed]] += 1 / int(summed.sum())


def describe(
    experiment: str,
    arms: Sequence[tuple[str, Arm, Budget | None, int, float | None]],
    arrays: Mapping[str, np.ndarray],
    *,
    delta: float,
    relation: str,
    accountant: str,
    accounting: str,
) -> dict[str, Any]:
    """The header that stands beside the arrays: (name, terms, budget, rounds played, claimed)."""
    header: dict[str, Any] = {
        "experiment": experiment,
        "delta": delta,
        "relation": relation,
        "accountant": accountant,
        "accounting": accounting,
        "arms": [
            {
                "name": name,
                "terms": terms.as_dict(),
                "budget": None if budget is None else asdict(budget),
                "rounds_played": rounds,
                "claimed_epsilon": claimed,
            }
            for name, terms, budget, rounds, claimed in arms
        ],
    }
    return {**header, "checksum": _checksum(header, arrays)}


def load(
    header: Any, arrays: Mapping[str, np.ndarray], where: Path, experiment: str | None = None
) -> Ledger:
    """The ledger of a checkpoint; one that was altered, or is another experiment's, is refused."""
    damaged = f"{where}: the ledger is damaged or was altered"
    if not isinstance(header, dict) or "checksum" not in header:
        raise ValueError(f"{where}: it has no ledger")
    body = {k: v for k, v in header.items() if k != "checksum"}
    if _checksum(body, arrays) != header["checksum"]:
        raise ValueError(f"{damaged} (its checksum does not fit)")
    if experiment is not None and header["experiment"] != experiment:
        raise ValueError(
            f"{where}: the ledger is of another experiment ({header['experiment'][:16]}, expected "
            f"{experiment[:16]}): its settings were changed"
        )
    try:
        if header["relation"] not in RELATIONS or header["accountant"] not in ACCOUNTANTS:
            raise ValueError("unknown relation or accountant")
        arms = tuple(_arm(item, arrays) for item in header["arms"])
        return Ledger(
            header["experiment"],
            float(header["delta"]),
            header["relation"],
            header["accountant"],
            header["accounting"],
            arms,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{damaged} ({error})") from None


def read_run(folder: Path) -> Ledger:
    """The ledger of a run folder, finished or not."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise ValueError(f"{folder}: not a run folder, or before its first round ({CHECKPOINT})")
    meta, arrays = unpack_arrays(path)
    return load(meta.get("ledger") if isinstance(meta, dict) else None, arrays, path)


def account_ledger(ledger: Ledger) -> dict[str, Any]:
    """Every epsilon from the ledger alone: the guarantee and, apart from it, what was spent.

    {"arms": [{"guarantee": {"server": ..., "public": ...}, "spent_so_far": ...}], ...}
    """

    def both(arms: Sequence[ArmLedger]) -> dict[str, Any]:
        planned = [replace(arm.counts.arm, budget=arm.budget) for arm in arms]
        promise = guarantee(planned, ledger.delta, ledger.accountant)
        so_far = spent([arm.counts for arm in arms], ledger.delta, ledger.accountant)
        return {
            "guarantee": by_observer(promise, ledger.relation),
            "spent_so_far": by_observer(so_far, ledger.relation),
        }

    return {
        "experiment": ledger.experiment,
        "trust": ledger.arms[0].counts.arm.trust,
        "accounting": ledger.accounting,
        "arms": [
            {
                "name": arm.name,
                "rounds": arm.counts.arm.rounds,
                "rounds_played": arm.counts.rounds,
                "claimed_epsilon": arm.claimed_epsilon,
                "budget": None if arm.budget is None else asdict(arm.budget),
                **both([arm]),
            }
            for arm in ledger.arms
        ],
        "all_arms_composed": both(ledger.arms),
    }


def by_observer(costs: Sequence[Cost], relation: str) -> dict[str, Any]:
    """{"server": {...}, "public": {...}}: epsilon under a relation, and under both."""
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
        mine["relations"][cost.relation] = cost.epsilon
        if cost.relation == relation:
            mine["epsilon"] = cost.epsilon
    return answer


def counts(arrays: Mapping[str, np.ndarray], arm: str, terms: Arm, rounds: int) -> Counts:
    """An arm's columns; nothing yet is zeros."""
    columns = {**empty_arrays(arm, terms.clients), **arrays}
    mine = {kind: columns[f"ledger_{arm}_{kind}"] for kind in KINDS}
    if any(column.shape != (terms.clients,) for column in mine.values()):
        raise ValueError("an array has another length than there are clients")
    return Counts(terms, rounds, **mine)


def _arm(item: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> ArmLedger:
    terms = Arm.from_dict(item["terms"], item["name"])
    budget = None if item["budget"] is None else Budget(**item["budget"])
    columns = counts(arrays, item["name"], terms, int(item["rounds_played"]))
    return ArmLedger(item["name"], columns, budget, item["claimed_epsilon"])


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(_canonical(header))
    for name in sorted(n for n in arrays if n.startswith("ledger_")):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
