"""The ledger: entries that can only be added, each chained to all before it. Format 2.

    header    version, experiment, delta, relation, accountant, accounting, and the arms: terms and
              budget. A device's header has no experiment and no arms: its entries carry their terms
    entry     account, round, kind, clients, uploaders, terms, time
    head      the number of entries, and the hash over the header and all of them
    totals    the sums of the entries for each arm or, on a device, for each set of terms

An account is an arm on a server or in a simulation, and a run on a device. A round is recorded as
"reserve" (all clients that will be asked, for norm and upload), then for each client as "commit"
(the upload is released; `uploaders` is the number of clients whose noise adds up) or "refund" (the
upload will never be released).

    charged: every norm that was reserved, and every upload that was not refunded

One fold, `Tally.enter`, computes the totals, wherever the ledger is stored:

* in a simulation's checkpoint: header, totals and head (`Books.pack`), and no entries;
* on the disk of a server or a device: SQLite with all entries (`journal_file.Journal`) and, next to
  it, packed in the same way, the totals up to the last head that was saved.

Accountants read `Books`, which are the same in both cases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from locksfl.arm import Arm
from locksfl.methods.releases import ACCOUNTANTS, RELATIONS
from locksfl.privacy import version_1
from locksfl.privacy.budget import Budget
from locksfl.privacy.statement import Counts

VERSION = 2
Kind = Literal["reserve", "commit", "refund"]
EVERYBODY = np.array([-1], np.int32)  # the clients of a round in central trust: all are charged
COLUMNS = {"norms": np.int32, "uploads": np.int32, "open": np.int32, "shares": np.float64}


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger."""

    account: str
    round: int
    kind: Kind
    clients: np.ndarray  # their numbers, increasing; or EVERYBODY
    uploaders: int = 1  # of a commitment: clients whose noise adds up (1 is the worst case)
    terms: str = ""  # on a device, in full; elsewhere they are in the header
    time: int = 0  # seconds since 1970; 0 in a simulation

    def link(self, number: int, before: str) -> str:
        """The hash of this entry as the `number`-th, chained to `before`, the hash of the previous
        one."""
        parts = (before, number, *(v for k, v in vars(self).items() if k != "clients"))
        digest = hashlib.sha256(json.dumps(parts).encode())
        digest.update(np.asarray(self.clients, "<i4").tobytes())
        return digest.hexdigest()


@dataclass
class Tally:
    """What was charged to each client under one set of terms."""

    asks_norms: bool
    clients: int
    rounds: int = 0
    last: tuple[str, int] = ("", 0)  # account and round of the latest reservation
    latest: int = 0  # seconds since 1970
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {k: np.zeros(self.clients, dtype) for k, dtype in COLUMNS.items()} | self.columns
        if any(column.shape != (self.clients,) for column in found.values()):
            raise ValueError("the length of an array differs from the number of clients")
        self.columns = found
        self.norms, self.uploads, self.open, self.shares = (found[k] for k in COLUMNS)

    def enter(self, entry: Entry) -> None:
        """Fold one entry. An entry that makes no sense raises a ValueError, and nothing is counted.

        A client appears in an entry once, so plain indexing counts correctly. A reservation that is
        not yet resolved (`open`) counts as an upload without credit for other clients' noise.
        """
        who = entry.clients
        everybody = who.size == 1 and who[0] == EVERYBODY[0]
        if everybody:
            who = who[:0]
        elif who.size and (who[0] < 0 or who[-1] >= self.clients or (who[1:] <= who[:-1]).any()):
            raise ValueError(f"expected increasing client numbers below {self.clients}")
        if entry.kind == "reserve":
            self.rounds += (entry.account, entry.round) != self.last
            self.last = (entry.account, entry.round)
            self.norms[who] += self.asks_norms
            self.uploads[who] += 1
            self.open[who] += 1
        elif everybody or (self.open[who] < 1).any():
            raise ValueError("it was never reserved, or is already resolved")
        else:
            self.open[who] -= 1
            if entry.kind == "commit":
                self.shares[who] += 1 / entry.uploaders
            else:
                self.uploads[who] -= 1
        self.latest = max(self.latest, entry.time)


@dataclass(frozen=True)
class ArmLedger:
    """One arm: what was planned, and what its clients released."""

    name: str
    counts: Counts
    claimed_epsilon: float | None = None  # as printed in the paper, no guarantee


def header(
    experiment: str | None = None,
    arms: Iterable[tuple[Arm, float | None]] = (),
    *,
    delta: float | None = None,
    relation: str | None = None,
    accountant: str | None = None,
    accounting: str = "sound",
) -> dict[str, Any]:
    """The header of a ledger, which never changes: the first link of the chain.

    Args:
        experiment: the identity of the experiment (`experiment_id`); None on a device.
        arms: each arm with the epsilon that it claims without a guarantee, or None.
        delta, relation, accountant: those of the experiment's guarantee.
        accounting: "sound", or "as-printed" for claims of the paper.
    """
    return {
        "version": VERSION,
        "experiment": experiment,
        "delta": delta,
        "relation": relation,
        "accountant": accountant,
        "accounting": accounting,
        "arms": [
            {
                "name": arm.name,
                "terms": arm.as_dict(),
                "budget": None if arm.budget is None else asdict(arm.budget),
                "claimed_epsilon": claimed,
            }
            for arm, claimed in arms
        ],
    }


def settlement(
    account: str,
    round_number: int,
    asked: np.ndarray,
    uploaded: np.ndarray,
    received: np.ndarray | None = None,
) -> Iterator[Entry]:
    """The entries that resolve the reservations of a round.

    Args:
        account: the arm or the run.
        round_number: the round.
        asked: client numbers for which the round was reserved.
        uploaded: a mask over `asked`: clients whose update was, or may have been, sent.
        received: a mask over `asked`: clients whose update is in the sum; without it, `uploaded`.
            Only their noise adds up; an update that may have been sent but was not summed is
            charged without credit.
    """
    summed = uploaded if received is None else received
    together, alone, unused = asked[summed], asked[uploaded & ~summed], asked[~uploaded]
    if together.size:
        yield Entry(account, round_number, "commit", together, len(together))
    if alone.size:
        yield Entry(account, round_number, "commit", alone)
    if unused.size:
        yield Entry(account, round_number, "refund", unused)


class Books:
    """A ledger's header, totals and head, in memory."""

    def __init__(self, header: dict[str, Any]) -> None:
        if header.get("version") != VERSION:
            raise ValueError(
                f"a ledger of version {header.get('version')!r}; expected version {VERSION} or 1: "
                "a newer program wrote it"
            )
        if header["arms"] and (
            header["relation"] not in RELATIONS or header["accountant"] not in ACCOUNTANTS
        ):
            raise ValueError("unknown relation or accountant")
        self.header = header
        self.number, self.hash = 0, hashlib.sha256(_canonical(header)).hexdigest()
        self.plans: dict[str, Arm] = {}
        for item in header["arms"]:
            arm, budget = Arm.from_dict({**item["terms"], "name": item["name"]}), item["budget"]
            self.plans[arm.name] = replace(arm, budget=None if budget is None else Budget(**budget))
        self.tallies = {
            name: Tally(arm.releases_norms, arm.clients) for name, arm in self.plans.items()
        }

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        return f"{self.number} {self.hash}"

    def enter(self, entry: Entry) -> None:
        """Add one entry."""
        self.tally(entry.terms or entry.account).enter(entry)
        self.number += 1
        self.hash = entry.link(self.number, self.hash)

    def enter_round(
        self,
        account: str,
        round_number: int,
        asked: np.ndarray,
        uploaded: np.ndarray,
        received: np.ndarray | None = None,
    ) -> None:
        """Record a whole round at once, reserved and resolved; arguments as for `settlement`."""
        self.enter(Entry(account, round_number, "reserve", asked))
        for entry in settlement(account, round_number, asked, uploaded, received):
            self.enter(entry)

    def tally(self, key: str) -> Tally:
        """The totals of an arm or, on a device, of a set of terms."""
        if key not in self.tallies:
            if self.plans:
                raise ValueError(f"arm = {key!r}: expected one of {', '.join(self.plans)}")
            self.tallies[key] = Tally(bool(json.loads(key)["asks_norms"]), 1)
        return self.tallies[key]

    @property
    def arms(self) -> tuple[ArmLedger, ...]:
        """Every arm, for the accountants."""
        claimed = (arm["claimed_epsilon"] for arm in self.header["arms"])
        return tuple(
            ArmLedger(name, self.counts(name), epsilon)
            for name, epsilon in zip(self.plans, claimed, strict=True)
        )

    def covers(self, other: Books) -> bool:
        """Whether nothing is charged in another's totals that is not charged here."""
        return all(
            key in self.tallies
            and self.tallies[key].rounds >= tally.rounds
            and (self.tallies[key].norms >= tally.norms).all()
            and (self.tallies[key].uploads >= tally.uploads).all()
            for key, tally in other.tallies.items()
        )

    def counts(self, arm: str) -> Counts:
        """What an arm's clients released; unresolved reservations are charged in full."""
        tally = self.tallies[arm]
        shares = tally.shares + tally.open
        return Counts(self.plans[arm], tally.rounds, tally.norms, tally.uploads, shares)

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Everything as a JSON table and arrays, with a checksum over both. Columns of zeros are
        left out, such as `open` between the rounds of a simulation."""
        meta: dict[str, Any] = {
            "header": self.header,
            "head": self.head,
            "totals": {
                key: {"rounds": t.rounds, "last": list(t.last), "latest": t.latest}
                for key, t in self.tallies.items()
            },
        }
        arrays = {
            f"ledger_{key}_{kind}": column
            for key, tally in self.tallies.items()
            for kind, column in tally.columns.items()
            if column.any()
        }
        return {**meta, "checksum": checksum(meta, arrays)}, arrays

    @classmethod
    def unpack(cls, meta: Any, arrays: Mapping[str, np.ndarray], where: Path) -> Books:
        """The inverse of `pack`; it also reads checkpoints of version 0.1 of this program.

        Args:
            meta: the JSON table.
            arrays: the arrays of the same checkpoint.
            where: the file, for messages.

        Raises:
            ValueError: if the ledger is missing, damaged or was altered.
        """
        damaged = f"{where}: the ledger is damaged or was altered"
        if not isinstance(meta, dict) or "checksum" not in meta:
            raise ValueError(f"{where}: it has no ledger")
        body = {k: v for k, v in meta.items() if k != "checksum"}
        if checksum(body, arrays) != meta["checksum"]:
            raise ValueError(f"{damaged} (its checksum does not match)")
        try:
            if "totals" not in meta:
                meta = version_1.checkpoint(meta)
            books = cls(meta["header"])
            for key, total in meta["totals"].items():
                tally = books.tally(key)
                columns = {kind: arrays.get(f"ledger_{key}_{kind}") for kind in COLUMNS}
                given = {kind: column for kind, column in columns.items() if column is not None}
                last = (str(total["last"][0]), int(total["last"][1]))
                books.tallies[key] = Tally(
                    tally.asks_norms, tally.clients, total["rounds"], last, total["latest"], given
                )
            number, _, books.hash = meta["head"].partition(" ")
            books.number = int(number)
            return books
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{damaged} ({error})") from None


def checksum(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """The hash over a JSON table and the arrays of a ledger that go with it."""
    digest = hashlib.sha256(_canonical(meta))
    for name in sorted(n for n in arrays if n.startswith("ledger_")):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def experiment_id(settings: Mapping[str, Any]) -> str:
    """The identity of an experiment: a hash of its resolved settings except the data directory."""
    plain = {k: v for k, v in settings.items() if k != "data"}
    plain["data"] = {k: v for k, v in settings.get("data", {}).items() if k != "dir"}
    return hashlib.sha256(_canonical(plain)).hexdigest()


def same_experiment(found: str | None, expected: str, where: Path) -> None:
    """Refuse the ledger of another experiment."""
    if found != expected:
        raise ValueError(
            f"{where}: the ledger belongs to another experiment ({str(found)[:16]}, expected "
            f"{expected[:16]}): its settings were changed"
        )


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
