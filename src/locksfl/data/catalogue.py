"""The data sets by name, as public facts: counts, files with their checksums, and their sources.

Nothing here looks at the disk. Counts are fixed, so an experiment on natural users knows its number
of clients before the data are opened; tests check every number against the files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file of a data set: its name in the set's folder, its published checksum, its address."""

    name: str
    checksum: str  # "md5:..." or "sha256:..."
    address: str | None = None


@dataclass(frozen=True)
class Entry:
    """What is known about a data set without opening it."""

    name: str
    about: str
    train: int  # samples
    test: int
    classes: int
    licence: str
    clients: int | None = None  # natural users to train on; None: it has none and needs a split
    files: tuple[File, ...] = ()
    archive: File | None = None  # one address that holds all the files
    needs: tuple[str, ...] = ()  # other sets whose files it reads
    how: str = ""  # how to get the files that have no address
    part_of: str | None = None  # another set, whose records these are


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"


_IDX = tuple(
    f"{part}-ubyte.gz"
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def _at(base: str, names: tuple[str, ...], *md5: str) -> tuple[File, ...]:
    return tuple(File(name, f"md5:{m}", base + name) for name, m in zip(names, md5, strict=True))


_ENTRIES = (
    Entry(
        "mnist-embedded",
        "digits in the package, a part of MNIST",
        train=10_000,
        test=2_000,
        classes=10,
        licence="none stated (often CC BY-SA 3.0)",
        part_of="mnist",
    ),
    Entry(
        "mnist",
        "digits, 28 x 28",
        train=60_000,
        test=10_000,
        classes=10,
        licence="none stated (often CC BY-SA 3.0)",
        files=_at(
            _MNIST,
            _IDX,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    Entry(
        "fashion-mnist",
        "garments, 28 x 28",
        train=60_000,
        test=10_000,
        classes=10,
        licence="MIT",
        files=_at(
            _FASHION,
            _IDX,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    Entry(
        "mnist-writers",
        "MNIST by writer of the digit (QMNIST); test: 297 other writers",
        train=60_000,
        test=10_000,
        classes=10,
        licence="BSD (writer ids); MNIST as above",
        clients=539,
        files=_at(
            _QMNIST,
            ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz"),
            "0058f8dd561b90ffdd0f734c6a30e5e4",
            "5b5b05890a5e13444e108efe57b788aa",
        ),
        needs=("mnist",),
        part_of="mnist",
        how="the two label files are on QMNIST's page, github.com/facebookresearch/qmnist",
    ),
    Entry(
        "cifar10",
        "photographs, 32 x 32 x 3",
        train=50_000,
        test=10_000,
        classes=10,
        licence="none stated",
        files=tuple(
            File(f"{name}.bin", f"sha256:{digest}")
            for name, digest in {
                "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }.items()
        ),
        archive=File(
            "cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        ),
    ),
    Entry(
        "shakespeare",
        "next character by speaking role; test: 110 other roles",
        train=48_075,
        test=6_236,
        classes=80,
        licence="public domain",
        clients=945,
        files=(
            File(
                "shakespeare_roles.jsonl.xz",
                "sha256:12a06852be721a91f8cdc61a5dfa65fcd25a411cb16fcc6e5494124996d66e39",
            ),
        ),
        how="it has no public address: put the file there (docs/data.md says what is in it)",
    ),
)
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
NAMES = tuple(CATALOGUE)


def same_records(one: str, other: str) -> bool:
    """Whether two sets have records in common; what is not in the catalogue has only its name."""
    whole = [(CATALOGUE[name].part_of if name in NAMES else None) or name for name in (one, other)]
    return whole[0] == whole[1]
