"""A user's own data on disk: a folder of npy files and a header, written once and memory-mapped.

    header.json        counts, classes, what the features are, and every file's size and sha256
    features.npy       [samples, ...] rows sorted by client      test_features.npy
    labels.npy         as in data.population                     test_labels.npy
    offsets.npy        [clients + 1] int64

The folder holds no client names: client i is the i-th of the sorted ids. It is written under a
temporary name and renamed when complete, so there is never half of one. Opening maps the arrays: a
row is read from disk when it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from locksfl._files import write_atomically
from locksfl.data.origin import Preparation
from locksfl.data.population import Population
from locksfl.data.task import CLASSES, Task

HEADER = "header.json"
FORMAT = 1
ARRAYS = ("features", "labels", "offsets", "test_features", "test_labels")
# of a population, by its owner
DECLARED = ("test_public", "test_clients", "classes_public", "task")
FACTS = ("name", "classes", "scale", "recipe", *DECLARED)  # by the header
CHECKED_ON_OPENING = 64 * 2**20  # bytes; larger files are checked only by `verify`, to open fast


class StoredFile(msgspec.Struct, frozen=True):
    """What the header notes of a file beside it."""

    bytes: int  # its size
    sha256: str  # of its content


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of header.json."""

    name: str  # what to call the data
    kind: str  # table, image or text
    clients: int  # to train on
    samples: int  # to train on
    tests: int  # held-out samples
    classes: int  # classes, targets or tags
    scale: float  # what a stored feature is multiplied by
    class_names: list[str] | None = None  # if they were given
    feature_names: list[str] | None = None  # of columns of numbers
    test_clients: int | None = None  # None: the held-out file named no clients
    test_public: bool = False  # declared by the owner; older folders declare nothing
    classes_public: bool = False  # the number was given, not counted in the records
    recipe: Preparation | None = None  # how the features were made
    task: Task = CLASSES  # older folders have classes
    files: dict[str, StoredFile] = {}  # by name
    format: int = FORMAT  # of the folder

    def population(self, **arrays: Any) -> Population:
        """The population of these arrays, about which the header knows the rest."""
        return Population(**arrays, **{name: getattr(self, name) for name in FACTS})


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A temporary folder that becomes `place` at the end, or vanishes on any error. It holds raw
    records, so that only its owner can open it: mkdtemp makes it so."""
    if place.exists():
        raise ValueError(f"{place}: already exists; expected a new folder (--out)")
    place.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield building
        os.rename(building, place)  # fails if the folder has appeared meanwhile, unless it is empty
    finally:
        shutil.rmtree(building, ignore_errors=True)


def finish(building: Path, header: Header) -> None:
    """Flush the arrays, note their sizes and checksums, and write the header last. Each file is for
    its owner alone, wherever it is moved to."""
    files = {}
    for name in ARRAYS:
        path = building / f"{name}.npy"
        with path.open("rb+") as file:
            path.chmod(0o600)
            os.fsync(file.fileno())
        files[path.name] = StoredFile(path.stat().st_size, _sha256(path))
    whole = msgspec.json.encode(msgspec.structs.replace(header, files=files))
    write_atomically(building / HEADER, msgspec.json.format(whole, indent=1), secret=True)


def read_header(place: Path) -> Header:
    """Read the header, and check that the files next to it have the recorded sizes."""
    try:
        header = msgspec.json.decode((place / HEADER).read_bytes(), type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ValueError(f"{place / HEADER}: not a header of a data set; import it again") from None
    except OSError as error:
        raise ValueError(f"{place / HEADER}: {error.strerror or error}") from None
    if header.format != FORMAT:
        raise ValueError(
            f"{place / HEADER}: format {header.format}, expected {FORMAT}; import it again"
        )
    for name in ARRAYS:
        path, noted = place / f"{name}.npy", None
        if stored := header.files.get(path.name):
            noted = stored.bytes
        size = path.stat().st_size if path.is_file() else None
        if size != noted or size is None:
            raise ValueError(
                f"{path}: {size if size is not None else 'no'} bytes, expected {noted}; "
                "damaged: import it again"
            )
    return header


def verify(place: Path, largest: int | None = None) -> Header:
    """Check every file (or those of at most `largest` bytes) against its checksum."""
    header = read_header(place)
    for name, noted in header.files.items():
        if largest is None or noted.bytes <= largest:
            digest = _sha256(place / name)
            if digest != noted.sha256:
                raise ValueError(
                    f"{place / name} has sha256 {digest}, expected {noted.sha256}; "
                    "damaged: import it again"
                )
    return header


def open_folder(place: Path) -> Population:
    """The population of a folder; its arrays remain on disk until they are used."""
    header = verify(place, CHECKED_ON_OPENING)
    if not header.samples or not header.tests:
        raise ValueError(
            f"{place}: no {'training' if header.tests else 'held-out'} records; expected both, "
            "besides in a federation"
        )
    return header.population(**{name: _array(place, name) for name in ARRAYS})


def open_part(place: Path, held_out: bool) -> Population:
    """The training or the held-out records of a folder alone, as those of one client."""
    header, name = verify(place, CHECKED_ON_OPENING), "test_" * held_out
    if not (header.tests if held_out else header.samples):
        none, share = ("held-out", 1) if held_out else ("training", 0)
        raise ValueError(
            f"{place}: no {none} records; expected a folder with some "
            f"(locks data import --test-share {share} makes one of nothing else)"
        )
    features, labels = (_array(place, f"{name}{part}") for part in ("features", "labels"))
    offsets = np.array([0, len(labels)])
    return header.population(
        features=features, labels=labels, offsets=offsets,
        test_features=features, test_labels=labels,
    )  # fmt: skip


def _array(place: Path, name: str) -> Any:
    try:
        return np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{place / name}.npy: not an array ({error})") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
