"""Data sets by name: features and labels to train on, and held-out ones.

    mnist-embedded   10,000 + 2,000 digits inside the package, 1,000 + 200 of each class
    mnist            60,000 + 10,000 digits: the original files, in the folder data_dir/mnist

Files are checked before use: these numbers are what results are compared on.
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
from locksfl.tasks import splits
from locksfl.tasks.population import Population

DATA_VARIABLE = "LOCKS_DATA"
NAMES = ("mnist-embedded", "mnist")

# The order in which both data sets hold their four parts, and MNIST's published md5.
MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
EMBEDDED_FILE = "mnist_digits.idx.xz"
EMBEDDED_SHA256 = "1d67ba3ee839d61c3bb3b27908eba7ce625a32c7364b59997636fc252ac5bb07"

_SPLIT_STREAM = 0x5911  # keeps a split's draws apart from anything else seeded with that number


class Dataset(NamedTuple):
    """Images are [samples, 28, 28] uint8, labels [samples] int32 in 0..classes-1."""

    train_features: NDArray[Any]
    train_labels: NDArray[np.int32]
    test_features: NDArray[Any]
    test_labels: NDArray[np.int32]
    classes: int


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set of that name.

    Args:
        name: one of NAMES.
        data_dir: folder of downloaded data; without it, the environment variable LOCKS_DATA.
            The embedded digits need none.
    """
    _validate.one_of(NAMES, dataset=name)
    if name == "mnist":
        return read_mnist(_folder(name, data_dir))
    packed = resources.files("locksfl.tasks").joinpath("embedded", EMBEDDED_FILE).read_bytes()
    return _unpack(packed)


def open_population(
    name: str,
    clients: int,
    split_kind: str,
    split_options: Mapping[str, Any],
    seed: int,
    data_dir: str | os.PathLike[str] | None = None,
) -> Population:
    """A data set, dealt to clients.

    The split is public and part of the task, so it has a seed of its own, which is safe to
    print: it says nothing about the seed of the coins and of the noise.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"split seed = {seed!r}: expected a whole number >= 0")
    train_features, train_labels, test_features, test_labels, classes = load(name, data_dir)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _SPLIT_STREAM])))
    owner = splits.split(split_kind, train_labels, clients, rng, **split_options)
    return Population.from_split(
        train_features,
        train_labels,
        owner,
        test_features,
        test_labels,
        classes=classes,
        clients=clients,
        name=name,
    )


def read_mnist(folder: Path) -> Dataset:
    """The four original files of MNIST in a folder, checked by md5."""
    parts = []
    for file, md5 in MNIST_FILES.items():
        path = folder / file
        if not path.is_file():
            raise ValueError(
                f"data set mnist: no file {path} (data_dir, or {DATA_VARIABLE} in the "
                f"environment, names the folder that holds mnist/ with its four .gz files)"
            )
        packed = path.read_bytes()
        found = hashlib.md5(packed, usedforsecurity=False).hexdigest()
        if found != md5:
            raise ValueError(f"data set mnist: {path} has md5 {found}, expected {md5}")
        parts.append(gzip.decompress(packed))
    return _from_idx(b"".join(parts))


def _unpack(packed: bytes) -> Dataset:
    found = hashlib.sha256(packed).hexdigest()
    if found != EMBEDDED_SHA256:
        raise ValueError(
            f"data set mnist-embedded: {EMBEDDED_FILE} has sha256 {found}, expected "
            f"{EMBEDDED_SHA256} (damaged: install the package again)"
        )
    return _from_idx(lzma.decompress(packed))


def _folder(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    root = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    if not root:
        raise ValueError(
            f"data set {name}: no folder to look in; set data_dir, or {DATA_VARIABLE} in the "
            f"environment, to the folder that holds {name}/ with its four .gz files"
        )
    return Path(root).expanduser() / name


def _from_idx(buffer: bytes) -> Dataset:
    """Four idx files one after the other: train images, train labels, test images, test labels."""
    arrays = []
    start = 0
    for _ in range(4):
        # idx: two zero bytes, the type (8 is uint8), the number of axes, their big-endian lengths
        axes = buffer[start + 3]
        lengths = np.frombuffer(buffer, ">u4", axes, start + 4).astype(int)
        start += 4 + 4 * axes
        count = int(lengths.prod())
        arrays.append(np.frombuffer(buffer, np.uint8, count, start).reshape(lengths))
        start += count
    train_features, train_labels, test_features, test_labels = arrays
    return Dataset(
        train_features,
        train_labels.astype(np.int32),
        test_features,
        test_labels.astype(np.int32),
        classes=10,
    )
