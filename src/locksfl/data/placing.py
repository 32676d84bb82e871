"""The second pass over a table: every row to its place among those of its client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl.data.columns import in_order, owners
from locksfl.data.population import offsets_of
from locksfl.data.table_features import Features
from locksfl.data.tables import Table
from locksfl.data.targets import Classes, Targets

ANYBODY = ""  # who owns the rows of a held-out file that names no clients
Counts = dict[str, int]  # samples of each client
New = Callable[[str, tuple[int, ...], Any], Any]  # an array: name, shape, type


@dataclass(frozen=True)
class Part:
    """The training or the held-out rows: where they are, and who owns them."""

    prefix: str  # of its arrays
    table: Table  # where its rows are
    counts: Counts  # how many samples each client has there
    named: bool = True  # the table has the client column


@dataclass(frozen=True)
class Reading:
    """What is read of a table: the owner of a row, its features, and its labels (None: the next
    characters, which the features know)."""

    owner: str
    features: Features
    targets: Classes | Targets | None  # the label columns

    def columns(self, named: bool) -> Sequence[str]:
        """The columns that are needed; without the owner if the table does not name it."""
        labels = self.targets.columns if self.targets else ()
        return [*([self.owner] if named else []), *labels, *self.features.columns]


def place(parts: Sequence[Part], reading: Reading, new: New) -> None:
    """Write the rows of all parts to their places in new arrays; each table is read once."""
    rooms = [_Room(part, reading, new) for part in parts]
    for table, named in {id(p.table): (p.table, p.named) for p in parts}.values():
        for batch in table.read(reading.columns(named)):
            rows, values, following = reading.features.take(batch)
            answers = reading.targets.take(batch)[rows] if reading.targets else following
            names, index = [ANYBODY], np.zeros(len(rows), np.int64)
            if named:
                names, index = owners(batch[reading.owner], reading.owner)
                index = index[rows]
            for room in rooms:
                if room.part.table is table:
                    room.put(names, index, values, answers)


class _Room:
    """The arrays of a part, and how far each client's slice of them is filled."""

    def __init__(self, part: Part, reading: Reading, new: New) -> None:
        features, targets = reading.features, reading.targets
        clients = in_order(part.counts)
        offsets = offsets_of([part.counts[client] for client in clients])
        if not part.prefix:
            new("offsets", offsets.shape, np.int64)[:] = offsets
        total = int(offsets[-1])
        self.part, self.cursor = part, offsets[:-1].copy()
        self.place_of = {name: place for place, name in enumerate(clients)}
        self.features = new(f"{part.prefix}features", (total, *features.shape), features.dtype)
        shape, dtype = (targets.shape, targets.dtype) if targets else (features.shape, np.int32)
        self.labels = new(f"{part.prefix}labels", (total, *shape), dtype)

    def put(self, names: list[str], index: NDArray[np.int64], values: Any, answers: Any) -> None:
        """Place the samples of a batch that belong to clients of this part."""
        owner = np.array([self.place_of.get(name, -1) for name in names], np.int64)[index]
        mine = owner >= 0
        where = _next_places(owner[mine], self.cursor)
        self.features[where], self.labels[where] = values[mine], answers[mine]


def _next_places(owner: NDArray[np.int64], cursor: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position of each sample, in order within its client; advances the cursors."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    rank = np.arange(len(owner)) - np.searchsorted(ordered, ordered)
    places = np.empty(len(owner), np.int64)
    places[order] = cursor[ordered] + rank
    np.add.at(cursor, owner, 1)
    return places
