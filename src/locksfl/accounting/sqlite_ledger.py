"""The ledger of a federation or of a device: SQLite, durable before a release leaves.

    ledger = SqliteLedger.create(path, experiment, arms, delta=1e-5)
    if ledger.reserve("locks", round, client):     # on disk when it returns True
        ...send the norm...
        ledger.commit("locks", round, client)      # the coin drew it: now send the update
        ledger.refund("locks", round, client)      # or it did not: the upload was not released

Guarantees:

* A reservation is on disk (WAL, synchronous FULL) before `reserve` returns, and counts in full,
  norm and upload, until it is refunded: a crash can only overstate what was spent.
* A client that cannot pay for the whole round, a round reserved twice, a refund after a commit, a
  round past the plan: refused, and nothing is written.
* Every entry carries the hash of all before it, and the head is kept beside them: an altered,
  removed or inserted entry, or a cut file, is an error when the ledger is opened. Who can rewrite
  the whole file can also rewrite the hashes, or put an old copy back: note `head` elsewhere and
  give it to `open`, and that is seen too.
* It is opened with the identity of its experiment; another experiment's ledger is refused.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from locksfl.accounting.events import Accountant, Relation
from locksfl.accounting.ledger import ArmLedger, Ledger, counts, empty_arrays
from locksfl.accounting.terms import Budget, Terms

FORMAT = 1
EVERYBODY = -1  # the client of a round in central trust, where all are charged
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, arm TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL,
    kind TEXT NOT NULL, uploaders INTEGER NOT NULL, hash TEXT NOT NULL,
    UNIQUE (arm, client, round, kind)
) STRICT;
"""


class SqliteLedger:
    """One experiment's ledger. Use as a context manager, or `close` it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._db = path, connection
        self._arms: dict[str, tuple[Terms, Budget | None]] = {}
        self._tables: dict[str, list[int]] = {}
        self._settings: dict[str, Any] = {}

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: str,
        arms: Sequence[tuple[str, Terms, Budget | None]],
        *,
        delta: float,
        relation: Relation = "zero-out",
        accountant: Accountant = "pld",
    ) -> SqliteLedger:
        """A new ledger; a file that is there is never written over."""
        if path.exists():
            raise ValueError(f"{path}: already there; expected a new file, or open it")
        for _, terms, budget in arms:
            if budget is not None:
                budget.check(terms)
        settings = {
            "format": FORMAT,
            "experiment": experiment,
            "delta": delta,
            "relation": relation,
            "accountant": accountant,
            "arms": [
                [name, terms.as_dict(), None if budget is None else asdict(budget)]
                for name, terms, budget in arms
            ],
        }
        ledger = cls(path, _connect(path))
        with ledger._transaction() as db:
            for statement in filter(str.strip, _TABLES.split(";")):
                db.execute(statement)
            text = json.dumps(settings, sort_keys=True)
            head = f"0 {_hash(text)}"
            db.executemany("INSERT INTO meta VALUES (?, ?)", [("settings", text), ("head", head)])
        ledger._load(experiment, None)
        return ledger

    @classmethod
    def open(cls, path: Path, experiment: str, head: str | None = None) -> SqliteLedger:
        """A ledger that is there, verified whole. `head`: one that was noted earlier."""
        if not path.is_file():
            raise ValueError(f"{path}: no such ledger")
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the ledger is truncated (empty)")
        ledger = cls(path, _connect(path))
        try:
            ledger._load(experiment, head)
        except BaseException:
            ledger._db.close()
            raise
        return ledger

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        ((value,),) = self._db.execute("SELECT value FROM meta WHERE key = 'head'").fetchall()
        return str(value)

    def reserve(self, arm: str, round_number: int, client: int) -> bool:
        """Reserve a whole round, norm and upload, for a client in local trust. False: it cannot
        pay and must not be asked; nothing is written."""
        terms, _ = self._arm(arm, "local")
        if not 0 <= client < terms.clients:
            raise ValueError(f"client = {client}: expected a number below {terms.clients}")
        with self._transaction():
            self._check_round(arm, round_number, client)
            norms, uploads = self._counts(arm, client)
            table = self._tables.get(arm)
            if table is not None:
                after = norms + 1 if terms.asks_norms else 0
                if after >= len(table) or uploads + 1 > table[after]:
                    return False
            self._enter(arm, round_number, client, "reserve", 1)
        return True

    def reserve_round(self, arm: str, round_number: int) -> None:
        """Charge a round of central trust to every client, before its sums are released."""
        self._arm(arm, "central")
        with self._transaction():
            self._check_round(arm, round_number, EVERYBODY)
            self._enter(arm, round_number, EVERYBODY, "reserve", 1)

    def commit(self, arm: str, round_number: int, client: int, uploaders: int = 1) -> None:
        """The upload was drawn, among so many uploaders (for PUBLIC's credit; 1 is the worst)."""
        if uploaders < 1:
            raise ValueError(f"uploaders = {uploaders}: expected a whole number >= 1")
        self._resolve(arm, round_number, client, "commit", uploaders)

    def refund(self, arm: str, round_number: int, client: int) -> None:
        """The upload was not drawn, and is not released. The norm stays spent."""
        self._resolve(arm, round_number, client, "refund", 1)

    def to_ledger(self) -> Ledger:
        """The counts, for the accountants: the same record as a run folder gives."""
        settings, arms = self._settings, []
        for name, (terms, budget) in self._arms.items():
            arrays = empty_arrays(name, terms.clients)
            norms, uploads, shares = (arrays[f"ledger_{name}_{k}"] for k in _KINDS)
            rounds = set()
            query = "SELECT round, client, kind, uploaders FROM entries WHERE arm = ?"
            for round_number, client, kind, uploaders in self._db.execute(query, (name,)):
                rounds.add(round_number)
                if client == EVERYBODY:
                    continue
                if kind == "reserve":
                    norms[client] += terms.asks_norms
                    uploads[client] += 1
                    shares[client] += 1.0
                elif kind == "refund":
                    uploads[client] -= 1
                    shares[client] -= 1.0
                else:
                    shares[client] += 1 / uploaders - 1.0
            arms.append(ArmLedger(name, counts(arrays, name, terms, len(rounds)), budget))
        return Ledger(
            settings["experiment"],
            settings["delta"],
            settings["relation"],
            settings["accountant"],
            "sound",
            tuple(arms),
        )

    def close(self) -> None:
        """Let go of the file; what was written is there already."""
        self._db.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self, experiment: str, head: str | None) -> None:
        """Read the settings and verify every entry."""
        damaged = f"{self.path}: the ledger is damaged or was altered"
        try:
            if self._db.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                raise ValueError(f"{damaged} (the file is not whole)")
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            rows = self._db.execute(
                "SELECT number, arm, round, client, kind, uploaders, hash FROM entries "
                "ORDER BY number"
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{damaged} ({error})") from None
        if not {"settings", "head"} <= meta.keys():
            raise ValueError(f"{damaged} (it has no settings)")
        hashes = [_hash(meta["settings"])]
        for expected, (number, *entry, found) in enumerate(rows, 1):
            hashes.append(_hash(hashes[-1], number, *entry))
            if number != expected or found != hashes[-1]:
                raise ValueError(f"{damaged} (entry {expected} does not fit those before it)")
        if meta["head"] != f"{len(rows)} {hashes[-1]}":
            raise ValueError(f"{damaged} (entries are missing at its end)")
        if head is not None:
            number, _, noted = head.partition(" ")
            if not number.isdigit() or int(number) >= len(hashes) or hashes[int(number)] != noted:
                raise ValueError(f"{self.path}: not the one whose head was noted, or an old copy")
        settings = json.loads(meta["settings"])
        if settings["format"] != FORMAT:
            raise ValueError(f"{self.path}: format {settings['format']}, expected {FORMAT}")
        if settings["experiment"] != experiment:
            raise ValueError(
                f"{self.path}: the ledger is of another experiment "
                f"({settings['experiment'][:16]}, expected {experiment[:16]})"
            )
        self._settings = settings
        for name, terms, budget in settings["arms"]:
            self._arms[name] = (Terms(**terms), None if budget is None else Budget(**budget))
            kept_terms, kept_budget = self._arms[name]
            if kept_budget is not None:
                self._tables[name] = kept_budget.most_uploads(kept_terms)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and nobody else meanwhile; on disk when it ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _arm(self, arm: str, trust: str) -> tuple[Terms, Budget | None]:
        if arm not in self._arms:
            raise ValueError(f"arm = {arm!r}: expected one of {', '.join(self._arms)}")
        terms, budget = self._arms[arm]
        if terms.trust != trust:
            raise ValueError(f"arm = {arm!r}: trust {terms.trust!r} is not entered this way")
        return terms, budget

    def _check_round(self, arm: str, round_number: int, client: int) -> None:
        planned = self._arms[arm][0].rounds
        if not 1 <= round_number <= planned:
            raise ValueError(f"round = {round_number}: expected 1 to {planned}, as was planned")
        if self._kinds(arm, round_number, client):
            raise ValueError(f"round = {round_number}: already reserved; nothing is sent twice")

    def _kinds(self, arm: str, round_number: int, client: int) -> set[str]:
        query = "SELECT kind FROM entries WHERE arm = ? AND client = ? AND round = ?"
        return {kind for (kind,) in self._db.execute(query, (arm, client, round_number))}

    def _counts(self, arm: str, client: int) -> tuple[int, int]:
        query = "SELECT kind, COUNT(*) FROM entries WHERE arm = ? AND client = ? GROUP BY kind"
        found = dict(self._db.execute(query, (arm, client)).fetchall())
        reserved = found.get("reserve", 0)
        norms = reserved if self._arms[arm][0].asks_norms else 0
        return norms, reserved - found.get("refund", 0)

    def _resolve(self, arm: str, round_number: int, client: int, kind: str, uploaders: int) -> None:
        self._arm(arm, "local")
        with self._transaction():
            kinds = self._kinds(arm, round_number, client)
            if kinds != {"reserve"}:
                why = "it was never reserved" if not kinds else "it is resolved already"
                raise ValueError(f"{kind} of round {round_number}, client {client}: {why}")
            self._enter(arm, round_number, client, kind, uploaders)

    def _enter(self, arm: str, round_number: int, client: int, kind: str, uploaders: int) -> None:
        number, _, before = self.head.partition(" ")
        entry = (int(number) + 1, arm, round_number, client, kind, uploaders)
        digest = _hash(before, *entry)
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", (*entry, digest))
        head = f"{entry[0]} {digest}"
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (head,))


_KINDS = ("norms", "uploads", "shares")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ValueError(f"{path}: the ledger is damaged or truncated ({error})") from None
    return connection


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
