"""Data sets by name or folder: features and labels to train on, and held-out ones.

    mnist-embedded   10,000 + 2,000 digits inside the package, 1,000 + 200 of each class
    mnist, fashion-mnist, cifar10            distributed to clients by a split
    mnist-writers, shakespeare, a folder     come with their own users: the split "natural"

Named sets are in data_dir/NAME (see catalogue.py). Files are checked before use, because results
are compared on these numbers. A folder is made by `locks data import` (see npy_folder.py).
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locksfl import _validate
from locksfl.data import npy_folder, splits
from locksfl.data.catalogue import CATALOGUE, NAMES, Entry, File
from locksfl.data.population import Population
from locksfl.data.shakespeare import read_roles
from locksfl.data.task import CLASSES, Task

DATA_VARIABLE = "LOCKS_DATA"
EMBEDDED_FILE = "mnist_digits.idx.xz"
EMBEDDED_SHA256 = "1d67ba3ee839d61c3bb3b27908eba7ce625a32c7364b59997636fc252ac5bb07"

_SPLIT_STREAM = 0x5911  # separates a split's draws from anything else with the same seed

Directory = str | os.PathLike[str] | None


class Dataset(NamedTuple):
    """The arrays of a set and fields of `Population`, and `owner` if there are natural users.

    Digits and garments are [samples, 28, 28] uint8, photographs [samples, 32, 32, 3] uint8, texts
    [samples, 80] uint8 character numbers with labels [samples, 80].
    """

    features: NDArray[Any]  # [samples, ...], to train on
    labels: NDArray[np.int32]
    test_features: NDArray[Any]  # the held-out ones
    test_labels: NDArray[np.int32]  # of the held-out ones
    classes: int  # how many there are
    owner: NDArray[np.int64] | None = None
    scale: float | None = None  # None: that of the type, as in `Population`
    test_public: bool = True  # the named sets are public benchmarks; a folder says what it is
    test_clients: int | None = None  # None: not known
    classes_public: bool = True  # it was given, not counted
    task: Task = CLASSES  # what the labels are


def load(name: str, data_dir: Directory = None) -> Dataset:
    """Load a data set by name; its files are checked.

    Args:
        name: one of catalogue.NAMES.
        data_dir: the folder of downloaded data; without it, the environment variable LOCKS_DATA.
            The embedded digits need none.

    >>> load("mnist-embedded").features.shape
    (10000, 28, 28)
    """
    _validate.one_of(NAMES, dataset=name)
    if name == "mnist-embedded":
        packed = resources.files("locksfl.data").joinpath("embedded", EMBEDDED_FILE).read_bytes()
        return _unpack(packed)
    root = data_root(name, data_dir)
    if name == "mnist-writers":
        return read_writers(root)
    readers = {"cifar10": read_cifar10, "shakespeare": read_shakespeare}
    return readers[name](root / name) if name in readers else read_idx(CATALOGUE[name], root / name)


def open_population(
    name: str,
    clients: int | None,
    split_kind: str,
    split_options: Mapping[str, float],
    seed: int,
    data_dir: Directory = None,
    *,
    min_samples: int | None = None,
    max_samples: int | None = None,
) -> Population:
    """A data set, distributed to clients by a split or with its own users ("natural").

    The split is public and part of the task, so it has its own seed, which is safe to print: it
    reveals nothing about the seed of sampling and noise.

    Args:
        name: one of catalogue.NAMES, or a folder that `locks data import` made.
        clients: how many. A natural split fixes the number: None, or exactly that number.
        split_kind: "iid", "shards", "dirichlet" or "natural".
        split_options: what the split takes; see `locksfl.data.splits`.
        seed: of the split.
        data_dir: where the data are; without it, the environment variable LOCKS_DATA.
        min_samples: a natural client with fewer is left out; dirichlet fills its clients up to
            this many; the other splits refuse a number that they cannot provide.
        max_samples: a client with more keeps only its first ones, in any split.

    >>> open_population("mnist-embedded", 100, "shards", {"classes": 2}, seed=0).clients
    100
    """
    _validate.whole(**{"split seed": seed})
    if split_kind == "natural":
        population = natural_population(name, data_dir).limited(min_samples or 1, max_samples)
        if clients is not None and clients != population.clients:
            raise ValueError(
                f"data.clients = {clients}: expected {population.clients}, the users of {name} "
                "(or leave it out)"
            )
        return population
    if clients is None:
        raise ValueError(
            f"data.clients is missing: split {split_kind!r} needs the number of clients"
        )
    if name in NAMES:
        data: Dataset | Population = load(name, data_dir)
    else:
        data = npy_folder.open_folder(find_folder(name, data_dir))
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _SPLIT_STREAM])))
    options = dict(split_options)
    if split_kind == "dirichlet" and min_samples is not None:
        options["min_samples"] = min_samples
    targets = data.labels
    if targets.ndim == 2:
        if split_kind != "iid":
            many = "a label at every position" if data.task == CLASSES else data.task.kind
            raise ValueError(
                f"data.split.kind = {split_kind!r}: {name} has {many} instead of one class per "
                "sample; expected natural or iid"
            )
        targets = np.zeros(len(targets), np.int32)  # iid looks at none of them
    owner = splits.split(split_kind, targets, clients, rng, **options)
    population = _population(data, owner, name, clients)
    fewest = int(population.sizes.min())
    if min_samples is not None and fewest < min_samples:
        raise ValueError(
            f"data.min_samples = {min_samples}: split {split_kind!r} gives a client {fewest}; "
            "expected at most that, or fewer clients"
        )
    return population.limited(1, max_samples)


def natural_population(name: str, data_dir: Directory = None) -> Population:
    """A data set with the users that it comes with.

    Args:
        name: one of catalogue.NAMES that has users, or a folder that `locks data import` made.
        data_dir: where the data are; without it, the environment variable LOCKS_DATA.
    """
    if name not in NAMES:
        return npy_folder.open_folder(find_folder(name, data_dir))
    if not has_users(name):
        raise ValueError(
            f"data.split.kind = 'natural': {name} does not say who owns its records; expected "
            "iid, shards or dirichlet"
        )
    data = load(name, data_dir)
    return _population(data, data.owner, name, CATALOGUE[name].clients)


def held_out_population(name: str, data_dir: Directory = None) -> Population:
    """The held-out records of a set with users: all that a federation's server needs of it."""
    if name not in NAMES:
        return npy_folder.open_part(find_folder(name, data_dir), held_out=True)
    return natural_population(name, data_dir)


def natural_clients(name: str, data_dir: Directory = None, min_samples: int | None = None) -> int:
    """How many users a set has: from the catalogue or a folder's header if these state it.

    Args:
        name, data_dir: as for `natural_population`.
        min_samples: users with fewer samples are not counted; then the data are read.
    """
    if (min_samples or 1) > 1:
        return natural_population(name, data_dir).limited(min_samples or 1).clients
    if name in NAMES:
        return CATALOGUE[name].clients or natural_population(name, data_dir).clients
    clients = npy_folder.read_header(find_folder(name, data_dir)).clients
    if not clients:
        raise ValueError(
            f"data.clients is missing: {name} has held-out records alone; expected the number of "
            "devices of a federation"
        )
    return clients


def classes_of(name: str, data_dir: Directory = None) -> int:
    """The number of classes of a set, from the catalogue or a folder's header."""
    if name in NAMES:
        return CATALOGUE[name].classes
    return npy_folder.read_header(find_folder(name, data_dir)).classes


def has_users(name: str) -> bool:
    """Whether a set comes with its own users, as every folder does."""
    return name not in NAMES or CATALOGUE[name].clients is not None


def find_folder(name: str, data_dir: Directory = None) -> Path:
    """An imported folder: a path, or a name in the data directory."""
    root = _root(data_dir)
    for place in (Path(name).expanduser(), *([root / name] if root else [])):
        if (place / npy_folder.HEADER).is_file():
            return place
    raise ValueError(
        f"data.name = {name!r}: expected one of {', '.join(NAMES)}, or a folder that "
        f"`locks data import` made{_validate.nearest(name, NAMES)}"
    )


def _population(
    data: Dataset | Population, owner: Any, name: str, clients: int | None
) -> Population:
    return Population.from_split(
        data.features,
        data.labels,
        owner,
        data.test_features,
        data.test_labels,
        clients=clients,
        name=name,
        **{kept: getattr(data, kept) for kept in ("classes", "scale", *npy_folder.DECLARED)},
    )


def read_idx(entry: Entry, place: Path) -> Dataset:
    """Four idx files: train images, train labels, test images, test labels."""
    return _from_idx(b"".join(gzip.decompress(_read(entry, f, place)) for f in entry.files))


def read_writers(root: Path) -> Dataset:
    """MNIST with the writer of every training digit. The test digits are by other writers."""
    entry, digits = CATALOGUE["mnist-writers"], read_idx(CATALOGUE["mnist"], root / "mnist")
    tables = [
        _idx_array(gzip.decompress(_read(entry, file, root / entry.name)))[0]
        for file in entry.files
    ]
    train, test = tables[0], tables[1][: len(digits.test_labels)]
    same = np.array_equal(train[:, 0], digits.labels)
    if not same or not np.array_equal(test[:, 0], digits.test_labels):
        raise ValueError("data set mnist-writers: its classes are not those of MNIST's digits")
    _, owner = np.unique(train[:, 2], return_inverse=True)
    return digits._replace(owner=owner.astype(np.int64))


def read_cifar10(place: Path) -> Dataset:
    """The original binary layout: a label byte, then 3 planes of 32 x 32; here channels last."""
    entry = CATALOGUE["cifar10"]
    read = (_read(entry, file, _unpacked(place)) for file in entry.files)
    batches = [np.frombuffer(b, np.uint8).reshape(10_000, 1 + 3 * 32 * 32) for b in read]

    def images(batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(batch[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    train, test = np.concatenate(batches[:5]), batches[5]
    labels, test_labels = (batch[:, 0].astype(np.int32) for batch in (train, test))
    return Dataset(images(train), labels, images(test), test_labels, classes=10)


def read_shakespeare(place: Path) -> Dataset:
    """Windows of text by speaking role (see shakespeare.py), checked by sha256."""
    entry = CATALOGUE["shakespeare"]
    _read(entry, entry.files[0], place)
    train, labels, test, test_labels, owner = read_roles(place / entry.files[0].name)
    return Dataset(train, labels, test, test_labels, entry.classes, owner, scale=1.0)


def present(entry: Entry, data_dir: Directory = None) -> bool:
    """Whether all files of a set exist (not whether they are complete: loading checks that)."""
    root = _root(data_dir)
    if root is None:
        return not entry.files
    place = _unpacked(root / entry.name)
    here = all((place / file.name).is_file() for file in entry.files)
    return here and all(present(CATALOGUE[name], data_dir) for name in entry.needs)


def _unpacked(place: Path) -> Path:
    inner = place / "cifar-10-batches-bin"  # as the archive unpacks
    return inner if inner.is_dir() else place


def _read(entry: Entry, file: File, place: Path) -> bytes:
    """A file of a data set, checked."""
    path = place / file.name
    if not path.is_file():
        get = f"`locks data fetch {entry.name}` gets it; " if file.address or entry.archive else ""
        raise ValueError(
            f"data set {entry.name}: no file {path} ({get}data_dir, or {DATA_VARIABLE} in the "
            f"environment, names the folder that holds {entry.name}/"
            + (f"; {entry.how})" if entry.how else ")")
        )
    packed = path.read_bytes()
    kind, _, expected = file.checksum.partition(":")
    digest = hashlib.new(kind, packed, usedforsecurity=False).hexdigest()
    if digest != expected:
        raise ValueError(f"data set {entry.name}: {path} has {kind} {digest}, expected {expected}")
    return packed


def _unpack(packed: bytes) -> Dataset:
    digest = hashlib.sha256(packed).hexdigest()
    if digest != EMBEDDED_SHA256:
        raise ValueError(
            f"data set mnist-embedded: {EMBEDDED_FILE} has sha256 {digest}, expected "
            f"{EMBEDDED_SHA256} (damaged: install the package again)"
        )
    return _from_idx(lzma.decompress(packed))


def data_root(name: str, data_dir: Directory = None) -> Path:
    """The data directory: the argument or, without it, LOCKS_DATA."""
    root = _root(data_dir)
    if root is None:
        raise ValueError(
            f"data set {name}: no folder to look in; expected --data-dir (data.dir in a file), "
            f"or {DATA_VARIABLE} in the environment: the folder that holds {name}/"
        )
    return root


def _root(data_dir: Directory) -> Path | None:
    root = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    return Path(root).expanduser() if root else None


def _from_idx(buffer: bytes) -> Dataset:
    """Four idx files one after the other: train images, train labels, test images, test labels."""
    arrays, start = [], 0
    for _ in range(4):
        array, start = _idx_array(buffer, start)
        arrays.append(array)
    features, labels, test_features, test_labels = arrays
    return Dataset(
        features, labels.astype(np.int32), test_features, test_labels.astype(np.int32), classes=10
    )


def _idx_array(buffer: bytes, start: int = 0) -> tuple[NDArray[Any], int]:
    """One array in idx format, and the position of the next."""
    # idx: two zero bytes, the type, the number of axes, their lengths; all big-endian
    kind, axes = np.dtype({8: ">u1", 12: ">i4"}[buffer[start + 2]]), buffer[start + 3]
    lengths = np.frombuffer(buffer, ">u4", axes, start + 4).astype(int)
    start += 4 + 4 * axes
    count = int(lengths.prod())
    array = np.frombuffer(buffer, kind, count, start).reshape(lengths)
    return array, start + count * kind.itemsize
