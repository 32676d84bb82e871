"""The ledger on a disk: a journal's entries in SQLite, durable before a release leaves.

Guarantees:

* What was appended is on disk (WAL, synchronous FULL) when its transaction ends, all of it or
  nothing; one process writes at a time, and sees what all others wrote before.
* An altered, removed or inserted entry, a cut file, and a file older than its kept head are errors
  when the journal is opened. Whoever can rewrite the whole file can also rewrite the hashes: note
  `head` elsewhere and give it to `open`, and that is seen too.
* A file that is there is never written over, and `open` never makes one.

**Opening does not cost time in proportion to a life.** Beside the file, in FILE.head, lie the
totals up to the head that was kept last, with the size and the time of the file then. A file that
nobody has touched since is trusted up to that head, and only what came after it is verified. One
that was touched, or has no kept head, is verified from its first entry; so is one that a person
asks about (`whole`). To make a touch show, whatever the grain of the file system's clock, the
file's time is set back a little whenever its head is kept.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from locksfl.privacy import version_1
from locksfl.privacy.journal import COLUMNS, Books, Entry, header

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
    def create(cls, path: Path, head: dict[str, Any]) -> Self:
        """A new file with this header (`journal.header`)."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise ValueError(f"{path}: already there; expected a new file, or open it") from None
        journal = cls(path, _connect(path))
        with journal.transaction():
            journal._begin(head)
        _sync_folder(path.parent)
        return journal

    @classmethod
    def open(cls, path: Path, head: str | None = None, *, whole: bool = False) -> Self:
        """A file that is there, verified. `head`: one that was noted elsewhere, earlier; `whole`:
        from the first entry on, even where the kept head says that it was. A file of version 1
        (program 0.1) is verified by its own rule and rewritten, in one transaction."""
        journal = cls(path, _connect(path, must_exist=True))
        try:
            journal._verify(head, whole)
        except BaseException:
            journal._db.close()
            raise
        return journal

    @classmethod
    def read(cls, path: Path, head: str | None = None) -> Books:
        """What a file comes to, verified whole; nothing is written. `head`: one that was noted."""
        with closing(_connect(path, must_exist=True)) as connection:
            journal = cls(path, connection)
            with journal._one_moment():
                if not journal._is_old():
                    books = journal._fold_whole(None)
                    journal._check_head(head, "noted")
                    return books
                old, entries = journal._version_1()
                books = Books(old)
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
        """All of it or nothing, and nobody else meanwhile; on disk when it ends. `books` are up to
        date when it begins, and take in what was appended when it ends: what makes no sense to
        them is not written."""
        if self._db.in_transaction:  # part of a larger one
            yield
            return
        with self._begun("BEGIN IMMEDIATE"):
            if self._books is not None:
                self._fold()
            yield
            after, self._books = self._fold(), None  # nothing is certain until it is on disk
        self._books = after

    def append(self, entry: Entry) -> None:
        """One more entry, within a transaction."""
        if not self._db.in_transaction:
            raise RuntimeError("an entry is appended within a transaction")
        number, _, before = self.head.partition(" ")
        digest = entry.link(int(number) + 1, before)
        clients = np.asarray(entry.clients, "<i4").tobytes()
        values = {**vars(entry), "clients": clients}.values()
        row = (int(number) + 1, *values, digest)
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (f"{row[0]} {digest}",))

    def entries(self, account: str | None = None, round_number: int | None = None) -> list[Entry]:
        """The entries of one round of one account; without both, all."""
        if account is None:
            rows = self.query(f"SELECT {ENTRY} FROM entries ORDER BY number")
        else:
            some = f"SELECT {ENTRY} FROM entries WHERE account = ? AND round = ? ORDER BY number"
            rows = self.query(some, (account, round_number))
        return [_entry(row) for row in rows]

    def holds(self, head: str) -> bool:
        """Whether a head that was noted earlier is one of this file's."""
        number, _, digest = head.partition(" ")
        if number == "0":
            return head == Books(self.books.header).head
        if head == self.books.header.get("upgraded"):
            return True
        rows = self.query("SELECT hash FROM entries WHERE number = ?", (number,))
        return rows == [(digest,)]

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Let go of the file; what was written is there already. Its head is kept."""
        self._db.close()
        if self._books is not None and self._kept != (self._books.head, self._stamp()):
            with suppress(OSError):  # a full disk: the next open verifies everything
                self._keep(self._books)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self, first: dict[str, Any], entries: Iterable[Entry] = ()) -> None:
        """Tables, header and first entries, within a transaction."""
        for table in TABLES:
            self._db.execute(table)
        self._db.execute("DELETE FROM meta")
        rows = [("header", json.dumps(first, sort_keys=True)), ("head", Books(first).head)]
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
        """All that is read within is of one moment: others may be writing."""
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

    def _verify(self, noted: str | None, whole: bool) -> None:
        with self._one_moment():
            old = self._is_old()
        if old:
            with self.transaction():
                if self._is_old():  # nobody else was faster
                    head, entries = self._version_1()
                    self._db.execute("DROP TABLE entries")
                    self._begin(head, entries)
        kept, stamp = self._read_kept()
        with self._one_moment():
            if kept is not None and stamp == self._stamp() and not whole:
                self._books = kept
                self._kept = (kept.head, stamp)
                self._fold()
            else:
                self._fold_whole(kept)
            self._check_head(None if kept is None else kept.head, "kept")
            self._check_head(noted, "noted")
        if self._kept is None:
            with suppress(OSError):
                self._keep(self.books)

    def _quick_check(self) -> None:
        if self.query("PRAGMA quick_check") != [("ok",)]:
            raise ValueError(f"{self._damaged} (the file is not whole)")

    def _check_head(self, head: str | None, what: str) -> None:
        if head is not None and not self.holds(head):
            raise ValueError(f"{self.path}: not the one whose head was {what}, or an old copy")

    def _is_old(self) -> bool:
        return "settings" in self._meta()

    def _fold_whole(self, kept: Books | None) -> Books:
        """Verify everything from the first entry on, the kept totals too."""
        self._quick_check()
        self._books = None
        if kept is not None:
            mine = self._fold(kept.number)
            if mine.head == kept.head and mine.pack()[0] != kept.pack()[0]:
                raise ValueError(f"{self._damaged} (its kept totals do not fit)")
        return self._fold()

    def _fold(self, most: int | None = None) -> Books:
        """Take in the entries that are new here, each verified: that it follows from all before.
        Until it is done there are no books: an interruption cannot leave them half done."""
        books, self._books = self._books, None
        meta = self._meta()
        if not {"header", "head"} <= meta.keys():
            raise ValueError(f"{self._damaged} (it has no header)")
        if books is None:
            try:
                books = Books(json.loads(meta["header"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{self._damaged} ({error})") from None
        limit = -1 if most is None else most - books.number
        rows = self.query(
            f"SELECT number, hash, {ENTRY} FROM entries WHERE number > ? ORDER BY number LIMIT ?",
            (books.number, limit),
        )
        for number, found, *row in rows:
            try:
                books.enter(_entry(row))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self._damaged} (entry {number}: {error})") from None
            if (number, found) != (books.number, books.hash):
                raise ValueError(f"{self._damaged} (entry {number} does not fit those before it)")
        if most is None and meta["head"] != books.head:
            raise ValueError(f"{self._damaged} (entries are missing at its end)")
        self._books = books
        return books

    def _version_1(self) -> tuple[dict[str, Any], list[Entry]]:
        """Header and entries of a file that version 0.1 wrote, verified by its rule."""
        self._quick_check()
        rows = self.query("SELECT * FROM entries ORDER BY number")
        first, entries = version_1.journal(self._meta(), rows, self._damaged)
        return {**header(), **first}, [Entry(*values) for values in entries]

    def _stamp(self) -> list[int]:
        found = self.path.stat()
        return [found.st_size, found.st_mtime_ns]

    @property
    def _head_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.head")

    def _read_kept(self) -> tuple[Books | None, list[int]]:
        """The books and the stamp that were kept; nothing, where there is no whole file."""
        try:
            table = json.loads(self._head_file.read_text("utf-8"))
            arrays = {
                name: np.array(values, COLUMNS[name.rpartition("_")[2]])
                for name, values in table["arrays"].items()
            }
            return Books.unpack(table["ledger"], arrays, self._head_file), table["stamp"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, []

    def _keep(self, books: Books) -> None:
        """Write totals and head beside the file, atomically; only its owner can read them."""
        back = time.time_ns() - SET_BACK
        os.utime(self.path, ns=(back, back))
        (meta, arrays), stamp = books.pack(), self._stamp()
        lists = {name: array.tolist() for name, array in arrays.items()}
        text = json.dumps({"ledger": meta, "arrays": lists, "stamp": stamp})
        temporary = self._head_file.with_name(f".{self._head_file.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            os.chmod(temporary, 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._head_file)
        self._kept = (books.head, stamp)


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


def _sync_folder(folder: Path) -> None:
    """A new file's name is durable too: a ledger that a power cut removes is a new budget."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
