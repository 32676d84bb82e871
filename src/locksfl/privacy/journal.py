"""The ledger: entries that can only be added, each chained to all before it. Format 3.

    header    `Header`: what turns counts into epsilons, and of every arm what its rounds release to
              each observer (`methods.events`). A device's and a population's have no arms: their
              entries carry their terms
    entry     `Entry`: account, round, kind, the clients that it is about, uploaders, terms, time
    head      the number of entries, and the hash over the header and all of them
    totals    the sums of the entries for each arm or, on a device, for each set of terms

A header of format 2 is read as one of format 3 and stays as it was written: it is the first link of
a chain that others have noted. Its ledger goes on under it, entry by entry, by the same rules.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np

from locksfl._tables import Json
from locksfl.arm import Arm
from locksfl.methods.releases import ACCOUNTANTS, RELATIONS, Accountant, Relation
from locksfl.privacy import old
from locksfl.privacy.guarantees import Counts
from locksfl.privacy.terms import LedgerArm

VERSION = 3
Kind = Literal["reserve", "commit", "refund"]
EVERYBODY = np.array([-1], np.int32)  # the clients of a round in central trust: all are charged
COLUMNS = {"norms": np.int32, "uploads": np.int32, "open": np.int32, "shares": np.float64}


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger."""

    account: str  # an arm or, on a device, a run
    round: int  # of that account
    kind: Kind  # what became of the round: reserved, or resolved in one of two ways
    clients: np.ndarray  # their numbers, increasing; or EVERYBODY
    uploaders: int = 1  # of a commitment: clients whose noise adds up (1 is the worst case)
    terms: str = ""  # on a device, in full; elsewhere they are in the header
    time: int = 0  # seconds since 1970; 0 in a simulation

    def __post_init__(self) -> None:
        if self.uploaders < 1:
            raise ValueError(f"uploaders = {self.uploaders}: expected a whole number >= 1")

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

    asks_norms: bool  # whether a reservation charges a norm too
    clients: int  # the length of the columns
    rounds: int = 0  # that were reserved
    last: tuple[str, int] = ("", 0)  # account and round of the latest reservation
    latest: int = 0  # seconds since 1970
    # of each client: norms, uploads, uploads not yet resolved, and its sum of 1/|Z|
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {k: np.zeros(self.clients, dtype) for k, dtype in COLUMNS.items()} | self.columns
        if any(column.shape != (self.clients,) for column in columns.values()):
            raise ValueError("the length of an array differs from the number of clients")
        self.columns = columns
        self.norms, self.uploads, self.open, self.shares = (columns[k] for k in COLUMNS)

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
class Header:
    """What a ledger is about, which never changes: the first link of the chain."""

    experiment: str | None = None  # its identity (`experiment_id`)
    delta: float | None = None  # of the experiment's guarantee
    relation: Relation | None = None  # likewise
    accountant: Accountant | None = None  # likewise
    accounting: str = "sound"  # or "as-printed", for claims of the paper
    trust: str | None = None  # of all arms
    arms: tuple[LedgerArm, ...] = ()  # none in the ledger of a device or a population
    device: str | None = None  # a random name
    population: str | None = None  # its id
    total: Mapping[str, str | float | None] | None = None  # of a population (`population.Total`)
    upgraded: str | None = None  # the head of the file of version 0.1 that this one replaced

    def __post_init__(self) -> None:
        if self.arms and (self.relation not in RELATIONS or self.accountant not in ACCOUNTANTS):
            raise ValueError("unknown relation or accountant")
        if len({arm.name for arm in self.arms}) < len(self.arms):
            raise ValueError("two arms of one name")

    @classmethod
    def of(cls, experiment: str, arms: Sequence[tuple[Arm, float | None]], **rest: Any) -> Self:
        """The header of an experiment's ledger.

        Args:
            experiment: the identity of the experiment (`experiment_id`).
            arms: each arm with the epsilon that it claims without a guarantee, or None.
            rest: delta, relation, accountant and accounting.
        """
        planned = tuple(LedgerArm.of(arm, claimed) for arm, claimed in arms)
        return cls(experiment, trust=arms[0][0].trust, arms=planned, **rest)

    @classmethod
    def read(cls, written: Json) -> Self:
        """A header as it was written, in format 3 or 2. What is none is a ValueError."""
        try:
            table: Any = dict(written)
            version = table.pop("version", None)
            if version == 2:
                arms, trust = old.arms_of(table.pop("arms"))
                return cls(**{**table, "arms": arms, "trust": trust})
            if version == VERSION:
                arms = tuple(map(LedgerArm.from_dict, table.pop("arms")))
                return cls(**table, arms=arms)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            msgspec.ValidationError,
        ) as error:
            raise ValueError(f"not a header: {error!r}") from None
        raise ValueError(
            f"a ledger of version {version!r}; expected version {VERSION}, 2 or 1: a newer program "
            "wrote it"
        )

    def as_dict(self) -> Json:
        """As it is written; what is None is left out."""
        arms = [arm.as_dict() for arm in self.arms]
        table = {"version": VERSION, **vars(self), "arms": arms}
        return {name: value for name, value in table.items() if value is not None}


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

    def __init__(self, header: Header, written: Json | None = None) -> None:
        """Empty books. `written`: the header as it was written, if that was in an older format."""
        self.header, self.written = header, header.as_dict() if written is None else written
        self.number, self.hash = 0, hashlib.sha256(_canonical(self.written)).hexdigest()
        self.began = self.head
        self.planned = {arm.name: arm for arm in header.arms}
        self.tallies = {
            name: Tally(arm.asks_norms, arm.clients) for name, arm in self.planned.items()
        }

    @classmethod
    def begun(cls, written: Json) -> Self:
        """Empty books of a header as it was written."""
        return cls(Header.read(written), written)

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
            if self.planned:
                raise ValueError(f"arm = {key!r}: expected one of {', '.join(self.planned)}")
            self.tallies[key] = Tally(bool(json.loads(key)["asks_norms"]), 1)
        return self.tallies[key]

    @property
    def arms(self) -> tuple[Counts, ...]:
        """Every arm, for the accountants."""
        return tuple(map(self.counts, self.planned))

    def covers(self, other: Books) -> bool:
        """Whether it is about the same releases, and nothing is charged in another's totals that is
        not charged here."""
        return self.header.arms == other.header.arms and all(
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
        return Counts(self.planned[arm], tally.rounds, tally.norms, tally.uploads, shares)

    def pack(self) -> tuple[Json, dict[str, np.ndarray]]:
        """Everything as a JSON table and arrays, with a checksum over both. Columns of zeros are
        left out, such as `open` between the rounds of a simulation."""
        meta: Json = {
            "header": self.written,
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
                meta = old.checkpoint(meta)
            books = cls.begun(meta["header"])
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


def checksum(meta: Json, arrays: Mapping[str, np.ndarray]) -> str:
    """The hash over a JSON table and the arrays of a ledger that go with it."""
    digest = hashlib.sha256(_canonical(meta))
    for name in sorted(n for n in arrays if n.startswith("ledger_")):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def experiment_id(settings: Json) -> str:
    """The identity of an experiment: a hash of its resolved settings except the data directory."""
    data: Any = settings.get("data", {})
    there = {name: value for name, value in data.items() if name != "dir"}
    return hashlib.sha256(_canonical({**settings, "data": there})).hexdigest()


def same_experiment(known: str | None, expected: str, where: Path) -> None:
    """Refuse the ledger of another experiment."""
    if known != expected:
        raise ValueError(
            f"{where}: the ledger belongs to another experiment ({str(known)[:16]}, expected "
            f"{expected[:16]}): its settings were changed"
        )


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
