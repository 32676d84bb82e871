"""The ledger on disk: its entries in SQLite, durable before a release leaves.

Guarantees:

* Appended entries are on disk (WAL, synchronous FULL) when their transaction ends, all of them or
  none; one process writes at a time, and it sees everything written before.
* An altered, removed or inserted entry, a truncated file, and a file older than its saved head are
  errors when the ledger is opened. Anyone who can rewrite the whole file can also rewrite the
  hashes: note `head` elsewhere and pass it to `open`, and that is detected as well.
* An existing file is never overwritten, and `open` never creates one.

**The time to open a ledger does not grow with its age.** FILE.head, next to the file, holds the
totals up to the last head that was saved, of those clients that were charged, with the size and the
modification time of the file at that moment. A file that has not been touched since is trusted up
to that head, and only later entries are verified. A file that was touched, or has no saved head, is
verified from its first entry; so is one that a person asks about (`whole`). To make every touch
visible, however coarse the file system's clock, the file's time is set back a little whenever its
head is saved.
"""

from __future__ import annotations

import copy
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from locksfl._files import sync_folder, write_atomically
from locksfl._tables import Json
from locksfl.privacy import old
from locksfl.privacy.journal import COLUMNS, Books, Entry, Header

Seen = tuple[Books, list[int]]  # totals up to a head, and size and time of the file at that moment
SET_BACK = 2_000_000_000  # nanoseconds; no clock of a file system is coarser
ENTRY = "account, round, kind, clients, uploaders, terms, time"
TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, account TEXT NOT NULL, "
    "round INTEGER NOT NULL, kind TEXT NOT NULL, clients BLOB NOT NULL, "
    "uploaders INTEGER NOT NULL, terms TEXT NOT NULL, time INTEGER NOT NULL, hash TEXT NOT NULL) "
    "STRICT",
    "CREATE INDEX rounds ON entries (account, round)",
)


class Journal:
    """One ledger file. Use as a context manager, or `close` it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._db = path, connection
        self._books: Books | None = None  # None while it is being brought up to date
        self._kept: tuple[str, list[int]] | None = None  # head and stamp, as on disk

    @classmethod
    def create(cls, path: Path, head: Header) -> Self:
        """Create a new file with this header."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise ValueError(f"{path}: already exists; expected a new file, or open it") from None
        journal = cls(path, _connect(path))
        with journal.transaction():
            journal._begin(head.as_dict())
        sync_folder(path.parent)
        return journal

    @classmethod
    def open(
        cls,
        path: Path,
        head: str | None = None,
        *,
        whole: bool = False,
        seen: Seen | None = None,
    ) -> Self:
        """Open and verify an existing file. A file of version 1 (program 0.1) is verified by its
        own rule and rewritten in format 2, in one transaction.

        Args:
            path: the file.
            head: a head that was noted elsewhere earlier: then everything is verified, because
                the saved head is no safer than the file beside which it lies.
            whole: verify from the first entry on, even if the saved head says that it was done.
            seen: what this process saw when it closed the file last; then that counts, and not
                what was saved beside the file.
        """
        journal = cls(path, _connect(path, must_exist=True))
        try:
            journal._verify(head, whole or head is not None, seen)
        except BaseException:
            journal._db.close()
            raise
        return journal

    @classmethod
    def read(cls, path: Path, head: str | None = None) -> Books:
        """The totals of a file, after verifying all of it; nothing is written. `head`: a head that
        was noted earlier."""
        with closing(_connect(path, must_exist=True)) as connection:
            journal = cls(path, connection)
            with journal._one_moment():
                if not journal._is_old():
                    books = journal._fold_whole(None)
                    journal._check_head(head, "noted")
                    return books
                if head is not None and head != journal._meta().get("head"):
                    journal._refuse_head("noted")
                old, entries = journal._version_1()
                books = Books.begun(old)
                for entry in entries:
                    books.enter(entry)
                return books

    @property
    def books(self) -> Books:
        """Header, totals and head, as of the last transaction."""
        if self._books is not None:
            return self._books
        with self._one_moment():
            return self._fold()

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        return self._meta()["head"]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """An exclusive transaction, all or nothing, on disk when it ends. `books` are up to date
        when it begins and include the appended entries when it ends; entries that they reject are
        not written."""
        if self._db.in_transaction:  # part of a larger one
            yield
            return
        with self._begun("BEGIN IMMEDIATE"):
            if self._books is not None:
                self._fold()
            yield
            after, self._books = self._fold(), None  # not valid until it is on disk
        self._books = after

    def append(self, entry: Entry) -> None:
        """Append one entry, within a transaction."""
        if not self._db.in_transaction:
            raise RuntimeError("an entry can be appended only within a transaction")
        number, _, before = self.head.partition(" ")
        digest = entry.link(int(number) + 1, before)
        clients = np.asarray(entry.clients, "<i4").tobytes()
        values = {**vars(entry), "clients": clients}.values()
        row = (int(number) + 1, *values, digest)
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (f"{row[0]} {digest}",))

    def entries(self, account: str | None = None, round_number: int | None = None) -> list[Entry]:
        """The entries of one round of one account; without arguments, all entries."""
        if account is None:
            rows = self.query(f"SELECT {ENTRY} FROM entries ORDER BY number")
        else:
            some = f"SELECT {ENTRY} FROM entries WHERE account = ? AND round = ? ORDER BY number"
            rows = self.query(some, (account, round_number))
        return [_entry(row) for row in rows]

    def holds(self, head: str) -> bool:
        """Whether a head that was noted earlier belongs to this file."""
        number, _, digest = head.partition(" ")
        if number == "0":
            return head == self.books.began
        if head == self.books.header.upgraded:
            return True
        rows = self.query("SELECT hash FROM entries WHERE number = ?", (number,))
        return rows == [(digest,)]

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the file; everything written is already on disk. Its head is saved."""
        self._db.close()
        with suppress(OSError):  # a full disk, or deleted: the next open verifies everything
            if self._books is not None and self._kept != (self._books.head, self._stamp()):
                self._keep(self._books)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self, first: Json, entries: Iterable[Entry] = ()) -> None:
        """Tables, header and first entries, within a transaction."""
        for table in TABLES:
            self._db.execute(table)
        self._db.execute("DELETE FROM meta")
        rows = [("header", json.dumps(first, sort_keys=True)), ("head", Books.begun(first).head)]
        self._db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        for entry in entries:
            self.append(entry)

    def _meta(self) -> dict[str, str]:
        return dict(self.query("SELECT key, value FROM meta"))

    @property
    def _damaged(self) -> str:
        return f"{self.path}: the ledger is damaged or was altered"

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Everything read within this context is from one moment, even if others are writing."""
        if self._db.in_transaction:
            yield
            return
        try:
            with self._begun("BEGIN"):
                yield
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self._damaged} ({error})") from None

    @contextmanager
    def _begun(self, begin: str) -> Iterator[None]:
        self._db.execute(begin)
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _verify(self, noted: str | None, whole: bool, seen: Seen | None) -> None:
        with self._one_moment():
            old = self._is_old()
        if old:
            with self.transaction():
                if self._is_old():  # no other process was faster
                    head, entries = self._version_1()
                    self._db.execute("DROP TABLE entries")
                    self._begin(head, entries)
        kept, stamp = self._read_kept() if seen is None else copy.deepcopy(seen)
        with self._one_moment():
            if kept is not None and stamp == self._stamp() and not whole:
                self._books = kept
                self._kept = (kept.head, stamp)
                self._fold()
            else:
                self._fold_whole(kept)
            if kept is not None:
                self._check_head(kept.head, "saved" if seen is None else "last seen")
            self._check_head(noted, "noted")
        if self._kept is None:
            with suppress(OSError):
                self._keep(self.books)

    def _quick_check(self) -> None:
        if self.query("PRAGMA quick_check") != [("ok",)]:
            raise ValueError(f"{self._damaged} (the file is incomplete)")

    def _check_head(self, head: str | None, what: str) -> None:
        if head is not None and not self.holds(head):
            self._refuse_head(what)

    def _refuse_head(self, what: str) -> NoReturn:
        raise ValueError(f"{self.path}: not the ledger whose head was {what}, or an old copy of it")

    def _is_old(self) -> bool:
        return "settings" in self._meta()

    def _fold_whole(self, kept: Books | None) -> Books:
        """Verify everything from the first entry on, including the saved totals."""
        self._quick_check()
        self._books = None
        if kept is not None:
            mine = self._fold(kept.number)
            if mine.head == kept.head and mine.pack()[0] != kept.pack()[0]:
                raise ValueError(f"{self._damaged} (its saved totals do not match)")
        return self._fold()

    def _fold(self, most: int | None = None) -> Books:
        """Add the entries that are new here, verifying that each is chained to all before it. While
        this runs there are no books, so that an interruption cannot leave them half done."""
        books, self._books = self._books, None
        meta = self._meta()
        if not {"header", "head"} <= meta.keys():
            raise ValueError(f"{self._damaged} (it has no header)")
        if books is None:
            try:
                books = Books.begun(json.loads(meta["header"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{self._damaged} ({error})") from None
        limit = -1 if most is None else most - books.number
        rows = self.query(
            f"SELECT number, hash, {ENTRY} FROM entries WHERE number > ? ORDER BY number LIMIT ?",
            (books.number, limit),
        )
        for number, link, *row in rows:
            try:
                books.enter(_entry(row))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self._damaged} (entry {number}: {error})") from None
            if (number, link) != (books.number, books.hash):
                raise ValueError(
                    f"{self._damaged} (entry {number} is not chained to the entry before it)"
                )
        if most is None and meta["head"] != books.head:
            raise ValueError(f"{self._damaged} (entries are missing at the end)")
        self._books = books
        return books

    def _version_1(self) -> tuple[Json, list[Entry]]:
        """Header and entries of a file that version 0.1 wrote, verified by its rule."""
        self._quick_check()
        rows = self.query("SELECT * FROM entries ORDER BY number")
        first, entries = old.journal(self._meta(), rows, self._damaged)
        return first, [Entry(*values) for values in entries]

    def _stamp(self) -> list[int]:
        file = self.path.stat()
        return [file.st_size, file.st_mtime_ns]

    @property
    def _head_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.head")

    def _read_kept(self) -> tuple[Books | None, list[int]]:
        """The books and the stamp that were saved; nothing if the file is missing or damaged."""
        try:
            table = json.loads(self._head_file.read_text("utf-8"))
            arrays = {
                name: _dense(values, COLUMNS[name.rpartition("_")[2]])
                for name, values in table["arrays"].items()
            }
            return Books.unpack(table["ledger"], arrays, self._head_file), table["stamp"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError):
            return None, []

    def _keep(self, books: Books) -> None:
        """Save totals and head next to the file, atomically; only its owner can read them."""
        back = time.time_ns() - SET_BACK
        os.utime(self.path, ns=(back, back))
        (meta, arrays), stamp = books.pack(), self._stamp()
        lists = {name: _sparse(array) for name, array in arrays.items()}
        text = json.dumps({"ledger": meta, "arrays": lists, "stamp": stamp})
        write_atomically(self._head_file, text.encode(), secret=True)
        self._kept = (books.head, stamp)


def _sparse(column: np.ndarray) -> list[Any]:
    """The number of clients, those that are not at 0, and what they are at."""
    who = np.flatnonzero(column)
    return [column.size, who.tolist(), column[who].tolist()]


def _dense(saved: list[Any], kind: type) -> np.ndarray:
    """The inverse, which also reads the numbers of all clients, as of format 2."""
    if not any(isinstance(part, list) for part in saved):
        return np.array(saved, kind)
    size, who, values = saved
    column = np.zeros(size, kind)
    column[who] = values
    return column


def _entry(row: Any) -> Entry:
    account, number, kind, clients, uploaders, terms, when = row
    who = np.frombuffer(clients, "<i4")
    return Entry(account, number, kind, who, uploaders, terms, when)


def _connect(path: Path, must_exist: bool = False) -> sqlite3.Connection:
    if must_exist:
        if not path.is_file():
            raise ValueError(f"{path}: no such ledger")
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the ledger is truncated (empty)")
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ValueError(f"{path}: the ledger is damaged or truncated ({error})") from None
    return connection
