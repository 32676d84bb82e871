"""A witness of a device's ledger: its last head, kept where the ledger is not.

Whoever restores an old copy of a ledger restores the budget that was spent since. So the last head,
the number of entries and the hash over all of them, is also noted beside the node's key, in
KEY.ledger, and a running process remembers it together with the totals. A ledger that lacks the
noted head in its chain is an old copy, or another ledger, and is refused.

**When it is noted.** After the entry is on disk and before noise is drawn. So whatever was released
has its entry noted, and no older copy passes. A process that is killed in between has released
nothing and leaves a ledger that is ahead of its note by entries that extend it, which is accepted.

**What is refused, until a person decides.** A missing ledger (`create` makes one, once), a missing
note (`accept` takes the ledger as it is), and a ledger that does not hold the note. Who can restore
the ledger but cannot write to the key's folder gains nothing from any of these. Who can restore
both at once, while no process runs, is not detected.

**After a loss.** `restore` puts an older copy in the place of a lost ledger, for its history. What
was released after it is unknown, so the note says "restored", and the budget counts as spent, until
the owner opens a new one (`open_budget`): then what is unknown is not counted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from locksfl._files import sync_folder, write_atomically
from locksfl.federation.device import consent
from locksfl.federation.device.ledger import DeviceLedger, new_header
from locksfl.privacy.journal import Books
from locksfl.privacy.journal_file import Seen

NOTE = re.compile(r"([0-9]+ [0-9a-f]{64})( restored)?")

RESTORED = " restored"  # in a note: the ledger is an older copy, and its budget counts as spent


@dataclass
class Witness:
    """A device's ledger and the note beside its key; and, in memory, what was seen last."""

    ledger: Path
    key: Path
    seen: Seen | None = field(default=None, repr=False)

    @property
    def note(self) -> Path:
        """The file that holds the last head: one line, in the folder of the key."""
        return self.key.with_name(f"{self.key.name}.ledger")

    def check_new(self) -> None:
        """Refuse a second ledger: it would be a second budget."""
        if self.ledger.exists():
            raise ValueError(
                f"--new-ledger: {self.ledger} already exists; expected no --new-ledger, which is "
                "for the first start only"
            )
        if (entries := self._entries()) or self._restored():
            raise ValueError(
                f"--new-ledger: this node already has a ledger, of which {self.note} notes "
                f"{entries} entries; expected it as {self.ledger}; if it is lost, and only if "
                f"spending its budget again is acceptable, remove {self.note}"
            )

    def create(self) -> None:
        """Create the ledger, which is a new budget. The note comes first: if this is interrupted,
        a note of no entries, hence of no release, does not prevent another attempt."""
        self.check_new()
        first = new_header()
        self._write(Books(first).head)
        DeviceLedger.create(self.ledger, first).close()

    def accept(self) -> None:
        """Note the head of a ledger that has no note: of an older program, or under a new key. A
        note that the ledger holds stays: a new key may have taken the place of the old one."""
        noted = self._read()
        with DeviceLedger.open(self.ledger, whole=True) as ledger:
            if noted is None:
                self._write(ledger.head)
            elif not ledger.holds(noted):
                raise ValueError(
                    f"--accept: {self.note} notes the head of another ledger, or of a later copy; "
                    f"expected no note; remove it only if it is certain that {self.ledger} is the "
                    "latest ledger of this device"
                )

    def restore(self, backup: Path) -> bool:
        """Put a backup in the place of a lost ledger. Whether it is an older copy than the note, or
        there is no note: then its budget counts as spent. The note comes first: if this is
        interrupted, it can be tried again."""
        if self.ledger.exists():
            raise ValueError(
                f"--restore: {self.ledger} already exists; expected none; move it away if it is "
                "damaged"
            )
        books = DeviceLedger.read(backup)  # all of it is verified
        if books.header.experiment is not None:
            raise ValueError(f"{backup}: not the ledger of a device, but that of a federation")
        noted = self._note()
        older = noted is None or noted != (books.head, "")
        self._write(books.head + (RESTORED if older else ""))
        for name in ("head", "wal", "shm"):  # of the lost file
            for sign in ".-":
                self.ledger.with_name(f"{self.ledger.name}{sign}{name}").unlink(missing_ok=True)
        temporary = self.ledger.with_name(f"{self.ledger.name}.restoring")
        shutil.copyfile(backup, temporary)
        temporary.chmod(0o600)
        temporary.rename(self.ledger)
        sync_folder(self.ledger.parent)
        return older

    def open_budget(self) -> None:
        """After `restore`, by the owner: spend what the restored ledger leaves. What was released
        after it was copied is not in it."""
        found = self._note()
        if found is None or not found[1]:
            raise ValueError(
                f"--new-budget: {self.ledger} was not restored; expected it after --restore only"
            )
        self._write(found[0])

    def open(self, *, whole: bool = False) -> WitnessedLedger:
        """Open the ledger if it holds everything that was noted and seen (`Journal.open`)."""
        if not self.ledger.is_file():
            if entries := self._entries():
                raise ValueError(
                    f"{self.ledger}: no such ledger, but {self.note} notes {entries} entries of "
                    "it; expected the ledger itself: a new one would be a new budget"
                )
            raise ValueError(
                f"{self.ledger}: no such ledger; expected --new-ledger at the first start of a "
                "device, and never again: a new ledger is a new budget"
            )
        head = self._read()
        if head is None:
            raise ValueError(
                f"{self.note}: missing; it notes the last entry of {self.ledger}, so that an old "
                f"copy is refused; if this is the latest, expected once: locks federation ledger "
                f"{self.ledger} --policy FILE --key {self.key} --accept"
            )
        ledger = WitnessedLedger.open(self.ledger, whole=whole, seen=self.seen)
        if not ledger.holds(head):
            ledger.close()
            raise ValueError(
                f"{self.ledger}: not the ledger whose head is noted in {self.note}, or an old copy "
                "of it; expected the latest"
            )
        ledger.witness, ledger.opened = self, self.ledger.stat()
        ledger.restored = self._restored()
        return ledger

    def check(self, holds: Callable[[str], bool]) -> None:
        """An OSError if the ledger no longer `holds` what is noted: since it was opened a copy of
        it was used, and both would spend the same budget. Or if the device has left."""
        self._check_consent()
        noted = self._read()
        if noted is None or not holds(noted):
            raise OSError(f"{self.note}: notes the head of another copy of {self.ledger}")

    def write(self, head: str) -> None:
        """Note a head, durably. Only who holds the ledger's lock may: then no note is overtaken by
        an older one. An OSError if the device has left since the entry: it is not released."""
        self._check_consent()
        if head != self._read():
            self._write(head + (RESTORED if self._restored() else ""))

    def _check_consent(self) -> None:
        if consent.withdrawn(self.key):
            raise OSError(f"{consent.note_of(self.key)}: this device has left")

    def _write(self, text: str) -> None:
        write_atomically(self.note, f"{text}\n".encode(), secret=True)
        sync_folder(self.note.parent)

    def _read(self) -> str | None:
        found = self._note()
        return None if found is None else found[0]

    def _restored(self) -> bool:
        found = self._note()
        return found is not None and bool(found[1])

    def _note(self) -> tuple[str, str] | None:
        """The head, and whether the ledger was restored from an older copy."""
        try:
            text = self.note.read_text("utf-8").strip()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = ""
        found = NOTE.fullmatch(text)
        if found is None:
            raise ValueError(f"{self.note}: damaged; expected the number and hash of an entry")
        return found[1], found[2] or ""

    def _entries(self) -> int:
        return int((self._read() or "0").partition(" ")[0])


class WitnessedLedger(DeviceLedger):
    """A ledger whose head is noted after every transaction, before anything can be released."""

    witness: Witness | None = None  # until it has been compared with the note
    opened: os.stat_result

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As `Journal.transaction`; at its end the head is on disk and noted beside the key. An
        OSError if the file was meanwhile deleted or replaced by another, or if a copy of it was
        used: then what was entered is lost, and nothing may be released."""
        nested = self._db.in_transaction
        with super().transaction():
            if self.witness is not None and not nested:
                self.witness.check(self.holds)
            yield
        if self.witness is None or nested:
            return
        entered, self._books = self.books, None  # not to be saved beside another file
        if not os.path.samestat(self.path.stat(), self.opened):
            raise OSError(f"{self.path}: replaced while it was open")
        self._books = entered
        with super().transaction():  # exclusive again
            self.witness.write(self.books.head)

    def close(self) -> None:
        """Close the file; the process remembers what it saw."""
        super().close()
        if self.witness is not None and self._books is not None:
            with suppress(OSError):  # deleted: the next open says so
                self.witness.seen = (self._books, self._stamp())
