"""Make the embedded digits from the four original files of MNIST, byte for byte.

    python scripts/make_embedded_digits.py FOLDER_OF_THE_GZ_FILES [OUTPUT_FILE]

Of each digit it takes the 1,000 of the training file and the 200 of the test file whose SHA-256
of "train INDEX" or "test INDEX" is smallest, and keeps the order of the file. A hash, not the
first rows: the two halves of MNIST's test file come from different groups of writers. And not a
seeded generator: this selection can be made again in any language. Classes come out equal, so
shards of one class do too.

The four parts are what datasets.py reads. The committed file was packed by liblzma 5.4.1; should
another version pack differently, the content's own SHA-256, also printed, is still the same.
"""

from __future__ import annotations

import hashlib
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl.data import datasets
from locksfl.data.catalogue import CATALOGUE

TARGET = Path(__file__).parents[1] / "src/locksfl/data/embedded" / datasets.EMBEDDED_FILE
PER_CLASS = {"train": 1000, "test": 200}


def chosen(part: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Rows of the part's file that are taken, in its order."""
    draw = [hashlib.sha256(f"{part} {row}".encode()).digest() for row in range(len(labels))]
    rows: list[int] = []
    for label in range(10):
        members = np.flatnonzero(labels == label).tolist()
        rows += sorted(members, key=draw.__getitem__)[: PER_CLASS[part]]
    return np.sort(np.array(rows))


def idx(array: NDArray[Any]) -> bytes:
    """An array of bytes in MNIST's own format."""
    data = array.astype(np.uint8)
    head = bytes([0, 0, 8, data.ndim])
    return head + np.array(data.shape, ">u4").tobytes() + data.tobytes()


def content(source: datasets.Dataset) -> bytes:
    """What is packed: train images, train labels, test images, test labels."""
    train, test = chosen("train", source.labels), chosen("test", source.test_labels)
    parts = (
        source.features[train],
        source.labels[train],
        source.test_features[test],
        source.test_labels[test],
    )
    return b"".join(idx(part) for part in parts)


def pack(data: bytes) -> bytes:
    """One xz stream. Pixels have no alignment (pb=0), and the one before says most (lc=4)."""
    lzma2 = {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 1 << 24,
        "lc": 4,
        "lp": 0,
        "pb": 0,
    }
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=[lzma2])


def main(arguments: list[str]) -> None:
    if len(arguments) not in (1, 2):
        sys.exit("usage: make_embedded_digits.py FOLDER_OF_THE_GZ_FILES [OUTPUT_FILE]")
    data = content(datasets.read_idx(CATALOGUE["mnist"], Path(arguments[0])))
    packed = pack(data)
    target = Path(arguments[1]) if len(arguments) == 2 else TARGET
    target.write_bytes(packed)
    print(f"content {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    print(f"{target.name} {len(packed)} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main(sys.argv[1:])
