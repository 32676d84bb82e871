"""The data sets by name, as public facts: counts, files with their checksums, and their sources.

Nothing here looks at the data. Counts are fixed, so an experiment on natural users knows its number
of clients before the data are opened; tests check every number against the files.
"""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec


class File(msgspec.Struct, frozen=True):
    """One file of a data set: its name in the set's folder, its published checksum, its address."""

    name: str
    checksum: str  # "md5:..." or "sha256:..."
    address: str | None = None  # one that ends in / is followed by the name

    def __post_init__(self) -> None:
        if self.address and self.address.endswith("/"):
            msgspec.structs.force_setattr(self, "address", self.address + self.name)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known about a data set without opening it."""

    name: str  # as `data.name` has it
    about: str
    train: int  # samples
    test: int  # held-out samples
    classes: int  # how many there are
    licence: str  # in words
    clients: int | None = None  # natural users to train on; None: it has none and needs a split
    files: tuple[File, ...] = ()  # those in its folder
    archive: File | None = None  # one address that holds all the files
    needs: tuple[str, ...] = ()  # other sets whose files it reads
    how: str = ""  # how to get the files that have no address
    part_of: str | None = None  # another set, whose records these are


_TEXT = resources.files("locksfl.data").joinpath("catalogue.toml").read_text("utf-8")
CATALOGUE = {one.name: one for one in msgspec.convert(tomllib.loads(_TEXT)["set"], list[Entry])}
NAMES = tuple(CATALOGUE)


def same_records(one: str, other: str) -> bool:
    """Whether two sets have records in common; what is not in the catalogue has only its name."""
    whole = [(CATALOGUE[name].part_of if name in NAMES else None) or name for name in (one, other)]
    return whole[0] == whole[1]
