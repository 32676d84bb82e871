"""A user's own table as a data-set folder: one pass counts and checks, another places the rows.

Memory holds one batch and a few numbers per client, never the table. All errors are found in the
first pass, before anything is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl import _validate
from locksfl.data import folder
from locksfl.data.columns import Classes, Features, Missing, client_ids, features_of
from locksfl.data.tables import Table, open_table

Counts = dict[int | str, int]  # samples of each client


@dataclass(frozen=True)
class Request:
    """What to import: the columns of the client and of the label, and what the model sees."""

    client: str
    label: str | None = None  # None with text: the label is the next character
    features: tuple[str, ...] | None = None  # None: every other column
    text: str | None = None
    image: str | None = None
    classes: tuple[str, ...] | None = None  # names, or one number
    test_share: float = 0.1  # of the clients, when there is no held-out file
    test_public: bool = False  # the owner declares the held-out file public

    def __post_init__(self) -> None:
        given = [n for n in ("features", "text", "image") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"--{given[0]} and --{given[1]}: expected only one of them")
        if self.label is None and self.text is None:
            raise ValueError("--label is missing: expected the class column (or --text)")
        _validate.probability(**{"--test-share": self.test_share})


def import_table(path: Path, out: Path, request: Request, test: Path | None = None) -> Path:
    """Make the folder `out` from a table; held-out rows from `test`, or from some of the clients.

    Held-out data belong to no training client: a share of the clients, chosen by the hash of their
    ids, is held out entirely, and a held-out file that names a training client is refused. They are
    somebody's own all the same, unless the owner declares the file public.
    """
    if request.test_public and test is None:
        raise ValueError(
            "--test-public: only with --test FILE; without it clients of the table are held out, "
            "and their records are as private as the others"
        )
    if out.exists():
        raise ValueError(f"{out}: already exists; expected a new folder (--out)")
    table = open_table(path)
    held = open_table(test) if test is not None else None
    _has_columns(table, request)
    features = features_of(
        table, request.features, request.text, request.image, _taken(request),
        labelled=request.label is not None,
    )  # fmt: skip
    classes = Classes(request.label, request.classes)
    counts = _count(table, request, features, classes)
    if len(counts) < 2:
        only = ", ".join(map(repr, counts))
        raise ValueError(
            f"{path}: column {request.client!r} names only one client, {only}; expected at least "
            "two"
        )
    if held is None:
        train, tests = _hold_out(counts, request.test_share)
        parts = [_Part("", table, train), _Part("test_", table, tests)]
    else:
        tests = _count_held_out(held, request, features, classes, counts, table)
        named = request.client in held.columns
        parts = [_Part("", table, counts), _Part("test_", held, tests, named)]
    with folder.new_folder(out) as building:
        for part in parts:
            _place(building, part, request, features, classes)
        folder.finish(building, _header(out.name, request, parts, features, classes))
    return out


@dataclass(frozen=True)
class _Part:
    """The training or the held-out rows: where they are, and who owns them."""

    prefix: str  # of its files
    table: Table
    counts: Counts
    named: bool = True  # the table has the client column


def _header(
    name: str, request: Request, parts: Sequence[_Part], features: Features, classes: Classes
) -> folder.Header:
    train, test = parts
    return folder.Header(
        name=name,
        kind=features.kind,
        clients=len(train.counts),
        samples=sum(train.counts.values()),
        tests=sum(test.counts.values()),
        classes=classes.number(),
        scale=features.scale,
        class_names=classes.names(),
        feature_names=list(features.columns) if features.kind == "table" else None,
        test_clients=len(test.counts) if test.named else None,
        test_public=request.test_public,
        classes_public=request.label is None or request.classes is not None,
    )


def _taken(request: Request) -> tuple[str, ...]:
    return tuple(n for n in (request.client, request.label, request.text, request.image) if n)


def _has_columns(table: Table, request: Request, named: bool = True) -> None:
    options = {"--client": request.client if named else None, "--label": request.label}
    options |= {"--text": request.text, "--image": request.image}
    wanted = [(option, name) for option, name in options.items() if name is not None]
    wanted += [("--features", name) for name in request.features or ()]
    for option, name in wanted:
        if name not in table.columns:
            shown = ", ".join(table.columns[:30]) + (" ..." if len(table.columns) > 30 else "")
            raise ValueError(
                f"{table.path}: no column {name!r} ({option}); it has {shown}"
                f"{_validate.nearest(name, table.columns)}"
            )


def _wanted(request: Request, features: Features, named: bool) -> list[str]:
    names = [request.client] if named else []
    names += [request.label] if request.label else []
    return [*names, *features.columns]


def _count(
    table: Table, request: Request, features: Features, classes: Classes, named: bool = True
) -> Counts:
    """The first pass: check every value and count the samples of each client."""
    counts: Counts = {}
    missing, rows = Missing(table.path), 0
    for batch in table.read(_wanted(request, features, named)):
        length = len(next(iter(batch.values())))
        ids: NDArray[Any] = np.zeros(length, np.int64)
        if named:
            ids = client_ids(batch[request.client], request.client, rows + 1, missing)
        if request.label:
            classes.look(batch[request.label], rows + 1, missing, table.path)
        sizes = features.look(batch, rows + 1, missing)
        values, inverse = np.unique(ids, return_inverse=True)
        added = np.bincount(inverse, weights=sizes, minlength=len(values)).astype(int)
        for name, count in zip(values.tolist(), added.tolist(), strict=True):
            counts[name] = counts.get(name, 0) + count
        rows += length
    missing.refuse()
    if not rows:
        raise ValueError(f"{table.path}: no rows; expected at least one")
    if empty := sorted(str(name) for name, count in counts.items() if not count):
        raise ValueError(
            f"{table.path}: client {empty[0]!r} has no samples ({len(empty)} of {len(counts)} "
            "have none): expected at least two characters of text"
        )
    return counts


def _count_held_out(
    held: Table,
    request: Request,
    features: Features,
    classes: Classes,
    counts: Counts,
    table: Table,
) -> Counts:
    """The same for a held-out file, whose clients, if it names them, must be different ones."""
    named = request.client in held.columns
    _has_columns(held, request, named)
    shape, dtype = features.shape, features.dtype
    tests = _count(held, request, features, classes, named)
    if (shape, dtype) != (features.shape, features.dtype):
        raise ValueError(f"{held.path}: expected features like those of {table.path}")
    both = sorted(set(map(str, tests)) & set(map(str, counts))) if named else []
    if both:
        raise ValueError(
            f"{held.path}: client {both[0]!r} is also in {table.path} ({len(both)} are in both); "
            "expected held-out data of other clients"
        )
    return tests


def _hold_out(counts: Counts, share: float) -> tuple[Counts, Counts]:
    """Some clients, by the sha256 of their ids: the same on every machine, whatever the order."""
    number = min(max(1, round(share * len(counts))), len(counts) - 1)
    by_hash = sorted(counts, key=lambda name: hashlib.sha256(str(name).encode()).digest())
    held = {name: counts[name] for name in by_hash[:number]}
    return {name: count for name, count in counts.items() if name not in held}, held


def _place(
    building: Path, part: _Part, request: Request, features: Features, classes: Classes
) -> None:
    """The second pass: write the rows of a part to their places in mapped files."""
    ids: NDArray[Any] = np.array(sorted(part.counts))
    sizes = [part.counts[name] for name in ids.tolist()]
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    total = int(offsets[-1])

    def new(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        path = building / f"{part.prefix}{name}.npy"
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(total, *shape))

    samples = new("features", features.shape, features.dtype)
    labels = new("labels", () if request.label else features.shape, np.int32)
    cursor = offsets[:-1].copy()
    for batch in part.table.read(_wanted(request, features, part.named)):
        rows, values, following = features.take(batch)
        targets = classes.take(batch[request.label])[rows] if request.label else following
        at = np.zeros(len(rows), np.int64)
        if part.named:
            owners = client_ids(batch[request.client], request.client, 1, None)[rows]
            at = np.minimum(np.searchsorted(ids, owners), len(ids) - 1)
            mine = ids[at] == owners  # the others belong to the other part
            at, values, targets = at[mine], values[mine], targets[mine]
        where = _next_places(at, cursor)
        samples[where], labels[where] = values, targets
    samples.flush()
    labels.flush()
    if not part.prefix:
        np.save(building / "offsets.npy", offsets)


def _next_places(owner: NDArray[np.int64], cursor: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position of each sample, in order within its client; advances the cursors."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else ordered
    counts = np.diff(np.r_[starts, len(ordered)])
    rank = np.arange(len(ordered)) - np.repeat(starts, counts)
    places = np.empty(len(owner), np.int64)
    places[order] = cursor[ordered] + rank
    cursor[ordered[starts]] += counts
    return places
