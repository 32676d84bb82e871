"""The owner of a device withdraws consent: a note beside the key, in KEY.left.

It is written before any server is told, and needs none: from then on nothing is released under this
key, whatever any server asks. The ledger's witness looks for it before an entry, and again between
the entry and its noise; so what may still be on its way was paid for before. The ledger stays.

Only the owner takes it back, by removing the file: the same ledger goes on, and no budget is new.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from locksfl._files import sync_folder, write_atomically


def note_of(key: Path) -> Path:
    """The file that says so: it holds the time."""
    return key.with_name(f"{key.name}.left")


def withdrawn(key: Path) -> bool:
    """Whether the device with this key has left."""
    return note_of(key).exists()


def withdraw(key: Path) -> None:
    """Leave, durably; once is enough."""
    note = note_of(key)
    if not note.exists():
        write_atomically(note, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode())
    sync_folder(note.parent)


def check(key: Path) -> None:
    """Refuse a device that has left."""
    if withdrawn(key):
        raise ValueError(
            f"{note_of(key)}: this device has left, and releases nothing; expected no such file: "
            "its owner may remove it to come back (docs/federation.md, joining and leaving)"
        )
