"""A user's own table as a population: one pass counts and checks, another places the rows.

Memory holds one batch and a few numbers per client, never the table. The first pass raises every
error, before anything is written or released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl import _validate
from locksfl.data import npy_folder, raw
from locksfl.data.columns import Missing, in_order, owners
from locksfl.data.placing import ANYBODY, Counts, Part, Reading, place
from locksfl.data.population import Population
from locksfl.data.recipe import Recipe, Release
from locksfl.data.shakespeare import ALPHABET
from locksfl.data.table_features import Numbers, features_of
from locksfl.data.tables import KINDS, PACKED, Table, open_table
from locksfl.data.targets import targets_of
from locksfl.data.task import CLASSES, Task

Sums = NDArray[np.float64]
# [clients, numbers], the largest length of a row, who pays: the sums over clients, with noise
Releasing = Callable[[Sums, float, Release], tuple[Sums, float]]  # and the std of its noise


@dataclass(frozen=True)
class Request:
    """What to import: the columns of the client and of the label, and what the model sees."""

    client: str | None = None  # None: LEAF's
    label: str | tuple[str, ...] | None = None  # None with text: the next character
    features: tuple[str, ...] | None = None  # None: every other column
    text: str | None = None  # or a column of text
    image: str | None = None  # or a column of images
    task: Task = CLASSES  # what the labels are
    classes: tuple[str, ...] | None = None  # names, or one number
    test_share: float = 0.1  # of the clients, when there is no held-out file; 0, 1: none, all
    test_public: bool = False  # the owner declares the held-out file public
    recipe: Any = None  # what `Recipe.read` takes
    separator: str | None = None  # None: the one that fits
    encoding: str | None = None  # None: as the file's first bytes say

    def __post_init__(self) -> None:
        given = [n for n in ("features", "text", "image") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"--{given[0]} and --{given[1]}: expected only one of them")
        if self.test_share not in (0, 1):
            _validate.probability(**{"--test-share": self.test_share})

    def open(self, source: Any) -> Table:
        """The table of a source."""
        return open_table(source, self.separator, self.encoding)

    def of(self, table: Table, held: Table | None) -> Request:
        """The request with the columns that every LEAF file has. Owners may be left out where all
        rows are trained on, as on a device, or all are held out, as for a federation's server."""
        client, label = self.client, self.label
        if table.leaf:
            client = client or "user"
            label = label or (None if self.text else "y")
        if client is None and (held is not None or not self.whole):
            raise ValueError("--client is missing: expected the column that names each row's owner")
        if label is None and self.text is None:
            raise ValueError("--label is missing: expected the class column (or --text)")
        return replace(self, client=client, label=label)

    @property
    def whole(self) -> bool:
        """Nobody is held out, or everybody."""
        return self.test_share in (0, 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()


def folder_for(source: Path) -> Path:
    """The default place of an imported table: beside its file, or beside its folder."""
    if source.is_dir():
        place = source if source.name else source.resolve()
        return place.parent / f"{place.name}-imported"
    while source.suffix.lower() in (*PACKED, *KINDS):
        source = source.with_suffix("")
    return source


def import_table(
    source: Any, out: Path, request: Request, test: Any = None, release: Releasing | None = None
) -> Path:
    """Make the folder `out` from a table; held-out rows from `test`, or from some of the clients.

    Held-out data belong to no training client: a share of the clients, chosen by the hash of their
    ids, is held out entirely, and a held-out file that names a training client is refused. They are
    somebody's own all the same, unless the owner declares the file public.

    Args:
        source: what `open_table` takes.
        out: a new folder.
        request: what to import.
        test: like `source`.
        release: adds noise to the statistics that a recipe wants released, and charges for them.
    """
    if out.exists():
        raise ValueError(f"{out}: already exists; expected a new folder (--out)")
    checked = _check(source, request, test, release)
    with npy_folder.new_folder(out) as building:
        mapped: list[Any] = []

        def new(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
            path = building / f"{name}.npy"
            mapped.append(np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape))
            return mapped[-1]

        place(checked.parts, checked.reading, new)
        for array in mapped:
            array.flush()
        npy_folder.finish(building, checked.header(out.name))
    return out


def population_of(
    source: Any, request: Request, test: Any, name: str, release: Releasing | None
) -> Population:
    """The same population in memory."""
    checked = _check(source, request, test, release)
    arrays: dict[str, Any] = {}

    def new(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        return arrays.setdefault(name, np.empty(shape, dtype))

    place(checked.parts, checked.reading, new)
    return checked.header(name).population(**arrays)


@dataclass(frozen=True)
class _Checked:
    """A table that was read once, without an error, and is to be placed."""

    request: Request  # with the columns that LEAF names by itself
    parts: tuple[Part, Part]  # to train on, and held out
    reading: Reading  # what is read of a row

    def header(self, name: str) -> npy_folder.Header:
        """The header of its folder."""
        (train, test), features, targets = self.parts, self.reading.features, self.reading.targets
        request = self.request
        chosen = (request.features, request.text, request.image)
        declared = any(each is not None for each in chosen) or not train.table.inferred
        return npy_folder.Header(
            name=name,
            kind=features.kind,
            clients=len(train.counts),
            samples=sum(train.counts.values()),
            tests=sum(test.counts.values()),
            classes=targets.count if targets else len(ALPHABET),
            scale=features.scale,
            class_names=targets.names if targets else None,
            feature_names=features.names if isinstance(features, Numbers) else None,
            test_clients=len(test.counts) if test.named else None,
            test_public=request.test_public,
            classes_public=targets is None or targets.public,
            task=request.task,
            recipe=raw.preparation(features, declared),
        )


def _check(source: Any, request: Request, test: Any, release: Releasing | None) -> _Checked:
    """The first pass, and the statistics of the recipe."""
    if request.test_public and test is None and request.test_share != 1:
        raise ValueError(
            "--test-public: only with --test FILE or --test-share 1; without them clients of the "
            "table are held out, and their records are as private as the others"
        )
    table = request.open(source)
    held = request.open(test) if test is not None else None
    request = request.of(table, held)
    client, labels = request.client or "", request.labels
    named = request.client is not None
    _has_columns(table, request, named)
    recipe = Recipe.read(request.recipe)
    if recipe.features and request.features is None:
        request = replace(request, features=tuple(recipe.features))
        _has_columns(table, request, named, "--recipe")
    with _named(table):
        features = features_of(
            table, request.features, request.text, request.image, (client, *labels),
            labelled=bool(labels), recipe=recipe,
        )  # fmt: skip
    if isinstance(features, Numbers):
        _is_another(features.recipe.public, source)
        features = Numbers(features.columns, features.recipe.with_public(request.open))
    targets = targets_of(labels, request.classes, request.task) if labels else None
    reading = Reading(client, features, targets)
    counts = _count(table, reading, named)
    if len(counts) < 2 and not (request.whole and held is None):
        raise ValueError(
            f"{table.name}: column {client!r} names only one client, {next(iter(counts))!r}; "
            "expected at least two"
        )
    if held is None:
        train, tests = _hold_out(counts, request.test_share)
        parts = (Part("", table, train, named), Part("test_", table, tests, named))
    else:
        tests = _count_held_out(held, request, reading, counts, table)
        parts = (Part("", table, counts), Part("test_", held, tests, client in held.columns))
    if isinstance(features, Numbers):
        features.recipe = _with_released(features.recipe, parts[0], client, release)
    return _Checked(request, parts, reading)


def _with_released(recipe: Recipe, part: Part, client: str, release: Releasing | None) -> Recipe:
    """The recipe with statistics of the training clients, each of whom counts once."""
    if not recipe.released:
        return recipe
    if release is None or recipe.release is None:
        raise ValueError("recipe: scale = 'released' is for `locks data import` and from_table")
    clients = {name: place for place, name in enumerate(part.counts)}
    sums, rows = np.zeros((len(clients), 3 * len(recipe.released))), np.zeros(len(clients))
    for batch in part.table.read([client, *recipe.released]):
        names, index = owners(batch[client], client)
        owner = np.array([clients.get(name, -1) for name in names], np.int64)[index]
        mine = owner >= 0
        np.add.at(sums, owner[mine], recipe.facts(batch, 1)[mine])
        np.add.at(rows, owner[mine], 1)
    noised, std = release(sums / rows[:, None], recipe.sensitivity, recipe.release)
    return recipe.with_released(noised, std, recipe.release)


@contextmanager
def _named(table: Table) -> Iterator[None]:
    """Refusals with the name of the table."""
    try:
        yield
    except ValueError as error:
        why = str(error)
        named = why.startswith((table.name, "--", "columns."))
        raise ValueError(why if named else f"{table.name}: {why}") from None


def _is_another(public: str | None, source: Any) -> None:
    """Refuse the table itself as the public one."""
    if public is None or not isinstance(source, str | Path):
        return
    mine, other = Path(source).resolve(), Path(public).resolve()
    if other == mine or mine in other.parents:
        raise ValueError(
            f"public = {public!r}: it is the table that is imported; expected another one, which "
            "anybody may see"
        )


def _has_columns(
    table: Table, request: Request, named: bool = True, chosen: str = "--features"
) -> None:
    options = {"--client": request.client if named else None}
    options |= {"--text": request.text, "--image": request.image}
    wanted = [(option, name) for option, name in options.items() if name is not None]
    wanted += [("--label", name) for name in request.labels]
    wanted += [(chosen, name) for name in request.features or ()]
    known = set(table.columns)
    for option, name in wanted:
        if name not in known:
            shown = ", ".join(repr(known)[1:-1] for known in table.columns[:30])
            shown += " ..." if len(table.columns) > 30 else ""
            about = f" ({table.about})" if table.about else ""
            raise ValueError(
                f"{table.name}: no column {name!r} ({option}); it has {shown}{about}"
                f"{_validate.nearest(name, table.columns[:1000])}"
            )


def _count(table: Table, reading: Reading, named: bool = True) -> Counts:
    """The first pass: check every value and count the samples of each client."""
    counts: Counts = {}
    missing, rows = Missing(table.name), 0
    with _named(table):
        for batch in table.read(reading.columns(named)):
            length = len(next(iter(batch.values())))
            names, index = [ANYBODY], np.zeros(length, np.int64)
            if named:
                names, index = owners(batch[reading.owner], reading.owner)
                missing.add(reading.owner, rows + 1 + np.flatnonzero(index < 0))
            if reading.targets:
                reading.targets.look(batch, rows + 1, missing)
            sizes = reading.features.look(batch, rows + 1, missing)
            there = index >= 0
            added = np.bincount(index[there], weights=sizes[there], minlength=len(names))
            for name, count in zip(names, added.astype(int).tolist(), strict=True):
                counts[name] = counts.get(name, 0) + count
            rows += length
    missing.refuse()
    if not rows:
        raise ValueError(f"{table.name}: no rows; expected at least one")
    if empty := in_order(name for name, count in counts.items() if not count):
        raise ValueError(
            f"{table.name}: client {empty[0]!r} has no samples ({len(empty)} of {len(counts)} "
            "have none): expected at least two characters of text"
        )
    return counts


def _count_held_out(
    held: Table, request: Request, reading: Reading, counts: Counts, table: Table
) -> Counts:
    """The same for a held-out file, whose clients, if it names them, must be different ones."""
    known = set(held.columns)
    named = request.client in known
    _has_columns(held, request, named)
    for name in reading.features.columns:
        if name not in known:
            raise ValueError(f"{held.name}: no column {name!r} like {table.name}")
    tests = _count(held, reading, named)
    both = in_order(counts.keys() & tests.keys()) if named else []
    if both:
        raise ValueError(
            f"{held.name}: client {both[0]!r} is also in {table.name} ({len(both)} are in both); "
            "expected held-out data of other clients"
        )
    return tests


def _hold_out(counts: Counts, share: float) -> tuple[Counts, Counts]:
    """Some clients, by the sha256 of their ids: the same on every machine, whatever the order."""
    number = round(share * len(counts))
    if share not in (0, 1):
        number = min(max(1, number), len(counts) - 1)
    by_hash = sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest())
    held = {name: counts[name] for name in by_hash[:number]}
    return {name: count for name, count in counts.items() if name not in held}, held
