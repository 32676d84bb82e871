"""The memory layout of a cohort: clients of different sizes in rectangular arrays, cohorts of any
size in a fixed number of slots.

XLA compiles for fixed shapes, but cohorts differ from round to round and clients differ in size.
Clients are sorted into a few classes of similar size, and each class gets slots for more clients
than a round is likely to have; a round that has more gets a larger layout, never a shorter cohort.
Empty slots cost next to nothing: whole chunks of them are skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from locksfl.round.client import LocalWork, SizeClass, used_samples

MOST_CLASSES = 8


@dataclass(frozen=True)
class Bucket:
    """The slots of one size class on each device: `chunks` times `chunk` clients."""

    shape: SizeClass
    chunk: int  # clients processed at a time
    chunks: int

    @property
    def slots(self) -> int:
        """Clients that fit on one device."""
        return self.chunk * self.chunks


Layout = tuple[Bucket, ...]


def size_classes(
    sizes: np.ndarray, work: LocalWork, most: int = MOST_CLASSES
) -> tuple[list[SizeClass], np.ndarray]:
    """Classes in which the smallest client uses at least two thirds of the rows of the largest
    (less if that would make more than `most` classes), and the class of every client."""
    used = used_samples(sizes, work)
    low, high = int(used.min()), int(used.max())
    ratio = max(1.5, (high / max(low, 1)) ** (1 / most) * 1.001)
    edges = [high]  # the largest use in each class, downwards
    present = np.unique(used)
    while (smaller := present[present < edges[-1] / ratio]).size:
        edges.append(int(smaller[-1]))
    edges.reverse()
    class_of = np.searchsorted(edges, used).astype(np.int8)
    classes = []
    for number, rows in enumerate(edges):
        members = class_of == number
        leaves_out = members & (sizes > used)
        classes.append(
            SizeClass(
                rows=rows,
                subsample_from=int(sizes[leaves_out].max()) if leaves_out.any() else 0,
                repeats=bool((members & (sizes < used)).any()),
            )
        )
    return classes, class_of


def public_classes(
    sizes: np.ndarray, work: LocalWork, finely: bool
) -> tuple[list[SizeClass], np.ndarray]:
    """Classes whose shapes are public constants, for a secret run: what a client computes, to the
    last bit, then depends on its own size only. In `size_classes` the largest client of a class
    sets the shape of all its members.

    Args:
        sizes: of all clients.
        work: limits the samples that a client uses.
        finely: padding costs time. Rows are then max_samples, half of that, a quarter and an
            eighth or, without a limit, a power of 2; otherwise a power of 4.
    """
    ladder = np.array([2**k if finely else 4**k for k in range(31 if finely else 16)])
    rungs = ladder
    if work.max_samples:
        rungs = np.array([-(-work.max_samples // 2**k) for k in (3, 2, 1, 0) if finely or k == 0])
    used = used_samples(sizes, work)

    rows = rungs[np.searchsorted(rungs, used)]
    whole = np.where(sizes > used, ladder[np.searchsorted(ladder, sizes)], 0)
    shapes, class_of = np.unique(
        np.stack([rows, whole, sizes < used], axis=1), axis=0, return_inverse=True
    )
    classes = [SizeClass(int(r), int(whole), bool(repeats)) for r, whole, repeats in shapes]
    return classes, class_of.reshape(-1).astype(np.int8)


def likely_count(clients: int, sampling_rate: float) -> int:
    """A count that a binomial number of clients exceeds in at most one round in a million."""
    mean = clients * sampling_rate
    spread = 5 * math.sqrt(mean * (1 - sampling_rate)) + 5
    return max(1, min(clients, math.ceil(mean + spread)))


def usual_rate(rate: float) -> float:
    """The power of two at or above a rate: rounds of changing rates need few layouts, each of which
    is a compiled program."""
    return min(1.0, 2.0 ** math.ceil(math.log2(rate)))


def usual_count(clients: int, sampling_rate: float) -> int:
    """A count that about one round in thirty exceeds: slots processed at once beyond it would
    usually be empty, yet cost as much as clients."""
    mean = clients * sampling_rate
    return max(1, min(clients, math.ceil(mean + 2 * math.sqrt(mean * (1 - sampling_rate)))))


def widen(layout: Layout, counts: list[int], devices: int) -> Layout:
    """The layout with at least as many slots as the counts need, doubling what is too small."""
    wider = []
    for bucket, clients in zip(layout, counts, strict=True):
        chunks = bucket.chunks
        while chunks * bucket.chunk * devices < clients:
            chunks *= 2
        wider.append(replace(bucket, chunks=chunks))
    return tuple(wider)


def class_counts(cohort: np.ndarray, class_of: np.ndarray, classes: int) -> np.ndarray:
    """How many members of a cohort are in each class."""
    return np.bincount(class_of[cohort], minlength=classes)


def pack(cohort: np.ndarray, class_of: np.ndarray, layout: Layout, devices: int) -> np.ndarray:
    """Client numbers in slots [devices, slots], -1 if empty; members of a class are dealt to the
    devices in turn, so that all devices have the same work."""
    slots = np.full((devices, sum(b.slots for b in layout)), -1, np.int32)
    first = 0
    member_class = class_of[cohort]
    for number, bucket in enumerate(layout):
        members = cohort[member_class == number]
        if members.size > devices * bucket.slots:
            raise AssertionError("a cohort must never be cut: widen the layout first")
        for device in range(devices):
            dealt = members[device::devices]
            slots[device, first : first + dealt.size] = dealt
        first += bucket.slots
    return slots
