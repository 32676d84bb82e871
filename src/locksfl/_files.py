"""Files that are on the disk whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes, secret: bool = False) -> None:
    """Replace a file, on the disk when this returns: a reader sees the old one or the new one,
    never half of either. A secret one can be read by its owner alone."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not secret:  # mkstemp's files are for their owner alone
            os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # Ctrl-C just after the replacement
            os.unlink(temporary)
        raise


def append(path: Path, content: bytes) -> None:
    """Add to a file, on the disk when this returns."""
    with naming(path), path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a new file's name durable too: a ledger lost in a power cut would be a new budget."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """What this process takes away from the permissions of its files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk does not say which file it refused: say it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
