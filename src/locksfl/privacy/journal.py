"""A list of entries on disk that can only grow: SQLite, durable, each entry chained to the last.

Guarantees:

* What was appended is on disk (WAL, synchronous FULL) when its transaction ends, all of it or
  nothing; one process writes at a time, and sees what all others wrote before.
* Every entry carries the hash of all before it, and the head is kept beside them: an altered,
  removed or inserted entry, or a cut file, is an error when the journal is opened. Who can rewrite
  the whole file can also rewrite the hashes, or put an old copy back: note `head` elsewhere and
  give it to `open`, and that is seen too.
* A file that is there is never written over, and `open` never makes one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Journal:
    """The file. `settings` is the first link of the chain: it never changes."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._db = path, connection
        self.settings: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], columns: str, unique: str) -> Journal:
        """A new file. `columns`: an entry's own, in SQL; `unique`: no two entries share these."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise ValueError(f"{path}: already there; expected a new file, or open it") from None
        journal = cls(path, _connect(path))
        text = json.dumps(settings, sort_keys=True)
        with journal.transaction():
            journal._db.execute(
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
            )
            journal._db.execute(
                f"CREATE TABLE entries (number INTEGER PRIMARY KEY, {columns}, "
                f"hash TEXT NOT NULL, UNIQUE ({unique})) STRICT"
            )
            meta = [("settings", text), ("head", f"0 {_hash(text)}")]
            journal._db.executemany("INSERT INTO meta VALUES (?, ?)", meta)
        _sync_folder(path.parent)
        journal.settings = json.loads(text)
        return journal

    @classmethod
    def open(cls, path: Path, head: str | None = None) -> Journal:
        """A file that is there, verified whole. `head`: one that was noted earlier."""
        if not path.is_file():
            raise ValueError(f"{path}: no such ledger")
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the ledger is truncated (empty)")
        journal = cls(path, _connect(path))
        try:
            journal._verify(head)
        except BaseException:
            journal._db.close()
            raise
        return journal

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        ((value,),) = self.query("SELECT value FROM meta WHERE key = 'head'")
        return str(value)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, and nobody else meanwhile; on disk when it ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def append(self, *values: Any) -> None:
        """One more entry, within a transaction."""
        if not self._db.in_transaction:
            raise RuntimeError("an entry is appended within a transaction")
        number, _, before = self.head.partition(" ")
        entry = (int(number) + 1, *values)
        digest = _hash(before, *entry)
        marks = ", ".join("?" * (len(entry) + 1))
        self._db.execute(f"INSERT INTO entries VALUES ({marks})", (*entry, digest))
        head = f"{entry[0]} {digest}"
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (head,))

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Let go of the file; what was written is there already."""
        self._db.close()

    def _verify(self, noted: str | None) -> None:
        damaged = f"{self.path}: the ledger is damaged or was altered"
        try:
            self._db.execute("BEGIN")  # one moment for all that is read: others may be writing
            if self.query("PRAGMA quick_check") != [("ok",)]:
                raise ValueError(f"{damaged} (the file is not whole)")
            meta = dict(self.query("SELECT key, value FROM meta"))
            rows = self.query("SELECT * FROM entries ORDER BY number")
            self._db.execute("COMMIT")
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
        if noted is not None:
            number, _, digest = noted.partition(" ")
            if not number.isdigit() or int(number) >= len(hashes) or hashes[int(number)] != digest:
                raise ValueError(f"{self.path}: not the one whose head was noted, or an old copy")
        self.settings = json.loads(meta["settings"])


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ValueError(f"{path}: the ledger is damaged or truncated ({error})") from None
    return connection


def _sync_folder(folder: Path) -> None:
    """A new file's name is durable too: a ledger that a power cut removes is a new budget."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
