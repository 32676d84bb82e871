"""What a folder was begun with: only the same command, of the same version, goes on in it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import msgspec

from locksfl._files import write_atomically
from locksfl.experiment.folder import RunFolder, held

VERSION = metadata.version("locks-fl")
LAYOUT = 2  # of a file of rows; earlier ones had no number
SHOWN = 40  # characters of a value that a refusal shows


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a command. Another version may train or account otherwise."""

    version: str = VERSION
    layout: int = LAYOUT


def begin(path: Path, name: str, mine: Begun, *rows: str) -> None:
    """Begin a folder, or go on in the one that the same command began.

    Args:
        path: the folder.
        name: the file in it that says what it was begun with.
        mine: what this command begins it with.
        rows: the files of which one is there when something was played. A folder without them, of a
            command that was killed or refused, is begun anew, unless somebody plays in it now.
    """
    file, content = path / name, msgspec.json.encode(mine) + b"\n"
    for left in path.glob(f".{name}.????????"):  # of `write_atomically`
        left.unlink()
    if not file.is_file():
        RunFolder.make(path)
        write_atomically(file, content)
    elif any((path / one).exists() for one in rows):
        refuse_another(f"--out {path}", file, mine)
    elif file.read_bytes() != content:
        with held(file):  # who plays holds this very file
            write_atomically(file, content)


def refuse_another(named: str, file: Path, mine: Begun) -> None:
    """Refuse a folder that was begun with something else; `named` is what asked for it."""
    try:
        there = msgspec.json.decode(file.read_bytes(), type=dict)
    except (OSError, ValueError):
        raise ValueError(f"{named}: not a folder that this command began") from None
    other = [
        f"{name} = {there.get(name)!r}, not {value!r}"
        if len(repr(value)) < SHOWN
        else f"another {name}"
        for name, value in msgspec.to_builtins(mine).items()
        if there.get(name) != value
    ]
    if other:
        raise ValueError(
            f"{named}: begun with {', '.join(other)}; it stays as it is; expected the same "
            "command, or a new folder"
        )
