"""Who owns which sample: every client's data in flat arrays, one slice per client.

    features  [ a a a | b | c c ]      client i owns rows offsets[i] to offsets[i+1]
    labels    [ . . . | . | . . ]
    offsets   [ 0       3   4     6 ]  clients + 1 numbers

There is no object per client, so a million clients cost only their bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from locksfl import _validate
from locksfl._arrays import aligned
from locksfl.data.origin import Encoding, Preparation
from locksfl.data.task import CLASSES, Task

MOST_CLASSES = 2**20  # a model has a row of weights for each
_AT_ONCE = 1 << 24  # bytes of an array that are hashed together


@dataclass(frozen=True, eq=False)
class Population:
    """The clients, their samples, and held-out samples that belong to no client.

    The arrays are checked and become read-only views; nothing is copied. Features keep their
    stored type. They may hold NaN or infinity: the engine counts a broken client as zero. What
    users give (`from_arrays`, `locksfl.from_table`) may not: nobody is left out unnoticed.

    Attributes:
        features: [samples, ...] rows sorted by client, real numbers of any type.
        labels: [samples] int32, each in 0..classes-1; or, for sequences (features [samples,
            length]), [samples, length] with one at every position, -1 if it has none. Those of
            other tasks are [samples, classes]: float32 targets, or int32 tags.
        offsets: [clients + 1] int64, increasing from 0 to samples: no client is empty.
        test_features: [tests, ...] like features; test_labels: [tests, ...] like labels.
        classes: the number of classes, targets or tags. It is public, and that of classes is given
            rather than read from the data.
        name: what to call these data in reports.
        scale: what a stored feature is multiplied by before the model sees it. The
            constructors below take uint8 for pixels (1/255) and leave other types alone (1).
        test_public: whether the held-out records are declared public. Otherwise they are somebody's
            own: nobody adds noise to a figure on them, so none is ever published.
        test_clients: how many clients the held-out records were taken from, if that is known.
        classes_public: whether `classes` was given, as it should be, or counted in the records.
        recipe: how the features were made of a table, if they were.
        encoding: where the features came from, if they are not the records themselves.
        task: what the labels are: classes, numbers (regression) or tags (multi-label).

    >>> people = Population.from_arrays(
    ...     features=np.eye(4), labels=[0, 1, 1, 0], client_ids=["ann", "bob", "ann", "bob"],
    ...     test_features=np.eye(4)[:2], test_labels=[0, 1], classes=2,
    ... )
    >>> people.clients, people.sizes.tolist()
    (2, [2, 2])
    >>> features, labels = people.client(0)
    >>> labels.tolist()
    [0, 1]
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    test_features: NDArray[Any]
    test_labels: NDArray[Any]
    classes: int
    name: str
    scale: float
    test_public: bool = False
    test_clients: int | None = None
    classes_public: bool = True
    recipe: Preparation | None = None
    encoding: Encoding | None = None
    task: Task = CLASSES

    def __repr__(self) -> str:
        """Counts alone: the records are private, and a notebook shows what a line leaves."""
        return (
            f"<Population {self.name!r}: {self.clients} clients, {self.samples} samples of "
            f"{list(self.features.shape[1:])}, {len(self.test_labels)} held out>"
        )

    def __post_init__(self) -> None:
        _validate.count(classes=self.classes)
        if self.classes > MOST_CLASSES:
            raise ValueError(f"classes = {self.classes}: expected at most {MOST_CLASSES}")
        _validate.positive(scale=self.scale)
        features, test_features = _features(self.features, self.test_features)
        kind = (self.classes, self.task)
        labels = _labels("labels", self.labels, features, *kind)
        test_labels = _labels("test_labels", self.test_labels, test_features, *kind)
        if labels.ndim != test_labels.ndim:
            raise ValueError(
                f"test_labels: expected one per {'sample' if labels.ndim == 1 else 'position'} "
                f"like labels{_got(test_labels)}"
            )
        offsets = _offsets(self.offsets, len(features))
        checked = {
            "features": features,
            "labels": labels,
            "offsets": offsets,
            "test_features": test_features,
            "test_labels": test_labels,
        }
        for name, array in checked.items():
            view = array.view()  # read-only; the caller's own array is unchanged
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_arrays(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        client_ids: ArrayLike,
        test_features: ArrayLike,
        test_labels: ArrayLike,
        *,
        classes: int | None = None,
        name: str = "custom",
        scale: float | None = None,
        test_public: bool = False,
        task: Task = CLASSES,
    ) -> Population:
        """A population from one row per sample, in any order, with the id of its client.

        Args:
            features, labels: of the clients' samples; see the class.
            client_ids: [samples] whole numbers or strings. Client i of the population is the i-th
                of the sorted ids, `np.unique(client_ids)[i]`; a client's rows keep their order.
            test_features, test_labels: held-out samples.
            classes: how many there are; of targets and tags, as many as labels have columns.
            name: what to call these data in reports.
            scale: of the features; None: 1/255 for uint8, 1 for other types.
            test_public: whether you declare the held-out samples public; see the class.
            task: what the labels are: `Task.numbers(low=0, high=100)`, `Task("tags")`; classes if
                not given.
        """
        _, owner = np.unique(_ids(client_ids), return_inverse=True)
        for given, array in (("features", features), ("test_features", test_features)):
            _finite(given, np.asarray(array))
        return cls.from_split(
            features,
            labels,
            owner,
            test_features,
            test_labels,
            classes=classes,
            name=name,
            scale=scale,
            test_public=test_public,
            task=task,
        )

    @classmethod
    def from_split(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        owner: ArrayLike,
        test_features: ArrayLike,
        test_labels: ArrayLike,
        *,
        classes: int | None = None,
        clients: int | None = None,
        name: str = "custom",
        scale: float | None = None,
        task: Task = CLASSES,
        **declared: Any,
    ) -> Population:
        """A population from one row per sample, with the number of its client.

        Rows are sorted by client, keeping their order within each client; rows that are already
        sorted are not copied.

        Args:
            owner: [samples] the client, 0..clients-1, of each sample: what `locksfl.data.splits`
                gives.
            clients: how many there are; None: the largest number + 1.
            features, labels, test_features, test_labels, classes, name, scale, task: as in
                `from_arrays`.
            declared: test_public, test_clients and classes_public; see the class.
        """
        rows, targets, numbers = np.asarray(features), np.asarray(labels), np.asarray(owner)
        _real("features", rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ValueError(f"client of each sample: expected whole numbers{_got(numbers)}")
        _same_length(features=rows, labels=targets, clients_of_samples=numbers)
        if not numbers.size:
            raise ValueError("features: expected at least one sample, got none")
        if clients is None:
            clients = int(numbers.max()) + 1
        if classes is None:
            if task == CLASSES:
                raise ValueError("classes is missing: expected how many there are")
            classes = max(1, targets.shape[1]) if targets.ndim > 1 else 1
        sizes = _sizes(numbers, clients)
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            rows, targets = aligned(rows[order]), targets[order]
        return cls(
            features=rows,
            labels=targets,
            offsets=offsets_of(sizes),
            test_features=np.asarray(test_features),
            test_labels=np.asarray(test_labels),
            classes=classes,
            name=name,
            scale=(1 / 255 if rows.dtype == np.uint8 else 1.0) if scale is None else scale,
            task=task,
            **declared,
        )

    def limited(self, min_samples: int = 1, max_samples: int | None = None) -> Population:
        """The population without small clients, and with fewer samples of large ones.

        Args:
            min_samples: clients with fewer are left out.
            max_samples: clients with more keep their first ones; None sets no limit.

        Returns:
            A copy of what is left, or the population itself if nothing changes.
        """
        _validate.count(min_samples=min_samples)
        sizes = self.sizes
        kept = np.where(sizes >= min_samples, sizes, 0)
        if not kept.any():
            raise ValueError(
                f"min_samples = {min_samples}: no client has that many; the largest has "
                f"{sizes.max()}"
            )
        if max_samples is not None:
            _validate.count(max_samples=max_samples)
            _validate.in_order(min_samples=min_samples, max_samples=max_samples)
            kept = np.minimum(kept, max_samples)
        if (kept == sizes).all():
            return self
        rank = np.arange(self.samples) - np.repeat(self.offsets[:-1], sizes)
        rows = np.flatnonzero(rank < np.repeat(kept, sizes))
        return dataclasses.replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            offsets=offsets_of(kept[kept > 0]),
        )

    @property
    def clients(self) -> int:
        """The number of clients, n in the privacy statements."""
        return len(self.offsets) - 1

    @property
    def samples(self) -> int:
        """The number of samples of all clients together."""
        return len(self.labels)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[clients] how many samples each client owns."""
        return np.diff(self.offsets)

    @property
    def positions(self) -> tuple[int, ...]:
        """(length,) for sequences with a class at every position; else ()."""
        return self.labels.shape[1:] if self.task == CLASSES else ()

    def client(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Features and labels of client `index`, 0..clients-1, as views."""
        if not 0 <= index < self.clients:
            raise ValueError(f"client = {index!r}: expected a number in 0..{self.clients - 1}")
        rows = slice(self.offsets[index], self.offsets[index + 1])
        return self.features[rows], self.labels[rows]

    def digest(self, key: bytes) -> str:
        """A keyed hash of everything here but the name: the same data under the same key, and no
        other data, have the same one. The key is secret: without one, a hash of private data is a
        release, because anybody can hash what they suspect.

        Args:
            key: 32 random bytes.
        """
        facts = f"{self.classes} {self.scale!r}{'' if self.task == CLASSES else self.task}"
        digest = hashlib.blake2b(facts.encode(), key=key, digest_size=32)
        for name, array in vars(self).items():
            if not isinstance(array, np.ndarray):
                continue
            digest.update(f" {name} {array.dtype.str} {array.shape} ".encode())
            for _, part in _parts(array):
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def offsets_of(sizes: ArrayLike) -> NDArray[np.int64]:
    """Where the slice of each client begins, and the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _features(train: ArrayLike, test: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    features, test_features = np.asarray(train), np.asarray(test)
    for name, array in (("features", features), ("test_features", test_features)):
        _real(name, array)
        if not len(array):
            raise ValueError(f"{name}: expected at least one sample, got none")
    if (features.shape[1:], features.dtype) != (test_features.shape[1:], test_features.dtype):
        raise ValueError(
            f"test_features: expected samples like those of features, {features.dtype} of shape "
            f"{features.shape[1:]}, got {test_features.dtype} of shape {test_features.shape[1:]}"
        )
    return features, test_features


def _real(name: str, array: NDArray[Any]) -> None:
    if array.ndim < 1 or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name}: expected an array of real numbers{_got(array)}; locksfl.from_table takes "
            "tables with text, dates and missing values"
        )


def _parts(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Some rows at a time, with the number of the first: a mapped file stays on the disk."""
    rows = max(1, _AT_ONCE // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        yield first, array[first : first + rows]


def _finite(name: str, array: NDArray[Any]) -> None:
    """Refuse numbers that float32, in which models calculate, cannot hold."""
    if array.dtype.kind != "f":
        return
    for first, part in _parts(array):
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(part.astype(np.float32))
        if wrong.any():
            place = np.unravel_index(int(wrong.argmax()), wrong.shape)
            where = ", ".join(str(int(index)) for index in (first + place[0], *place[1:]))
            raise ValueError(
                f"{name}[{where}] = {part[place]:g}: expected finite numbers that float32 can "
                "hold; locksfl.from_table takes tables with missing values"
            )


def _labels(
    name: str, given: ArrayLike, features: NDArray[Any], classes: int, task: Task
) -> NDArray[Any]:
    labels, samples = np.asarray(given), len(features)
    if task != CLASSES:
        labels = task.checked(name, given)
        if labels.shape != (samples, classes):
            raise ValueError(f"{name}: expected shape {(samples, classes)}{_got(labels)}")
        return labels
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iu":
        hint = "; real numbers are a task of their own, Task.numbers" * (labels.dtype.kind == "f")
        raise ValueError(f"{name}: expected one whole number per sample{_got(labels)}{hint}")
    if len(labels) != samples:
        raise ValueError(f"{name}: expected {samples} of them, one per sample, got {len(labels)}")
    if labels.ndim == 2 and labels.shape != features.shape:
        raise ValueError(
            f"{name}: expected one per sample, or one per position of features of shape "
            f"{features.shape}{_got(labels)}; several 0 or 1 a sample are Task('tags')"
        )
    lowest = 0 if labels.ndim == 1 else -1  # no label: only a padded position may have none
    # two numbers first: no array of millions is made if all labels are valid
    if labels.min() < lowest or labels.max() >= classes:
        where = np.unravel_index(
            int(((labels < lowest) | (labels >= classes)).argmax()), labels.shape
        )
        place = ", ".join(str(int(index)) for index in where)
        none = ", or -1 for no label" if lowest else ""
        raise ValueError(
            f"{name}[{place}] = {labels[where]}: expected a class in 0..{classes - 1}{none}"
        )
    return labels.astype(np.int32, copy=False)


def _offsets(given: ArrayLike, samples: int) -> NDArray[np.int64]:
    offsets = np.asarray(given)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise ValueError(f"offsets: expected clients + 1 whole numbers{_got(offsets)}")
    offsets = offsets.astype(np.int64, copy=False)
    if offsets[0] != 0 or offsets[-1] != samples:
        raise ValueError(
            f"offsets: expected to run from 0 to {samples} (samples), "
            f"got {offsets[0]} to {offsets[-1]}"
        )
    empty = np.diff(offsets) < 1
    if empty.any():
        raise ValueError(
            f"client {int(empty.argmax())} has no samples: expected at least one for every "
            f"client ({int(empty.sum())} of {len(empty)} have none)"
        )
    return offsets


def _ids(client_ids: ArrayLike) -> NDArray[Any]:
    """Ids as an array of one kind: numpy alone would treat [1, "1"] as two equal strings."""
    ids: NDArray[Any]
    if isinstance(client_ids, np.ndarray) and client_ids.dtype.kind != "O":
        ids = client_ids
    else:
        listed: Sequence[Any] = list(client_ids) if np.iterable(client_ids) else []
        strings = sum(isinstance(value, str) for value in listed)
        if 0 < strings < len(listed):
            raise ValueError("client_ids: expected all whole numbers or all strings, got both")
        ids = np.array(listed) if listed else np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise ValueError(f"client_ids: expected whole numbers or strings{_got(ids)}")
    return ids


def _sizes(owner: NDArray[Any], clients: int) -> NDArray[np.int64]:
    _validate.count(clients=clients)
    low, high = int(owner.min()), int(owner.max())
    if low < 0 or high >= clients:
        wrong = low if low < 0 else high
        raise ValueError(f"client of a sample = {wrong}: expected a number in 0..{clients - 1}")
    # More clients than samples cannot all own one; checked before an array of that length is made.
    if clients > len(owner):
        raise ValueError(f"clients = {clients}: expected at most {len(owner)}, one per sample")
    return np.bincount(owner, minlength=clients)


def _same_length(**arrays: NDArray[Any]) -> None:
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"lengths differ: expected one row per sample in each, got {each}")


def _got(array: NDArray[Any]) -> str:
    return f", got {array.dtype} of shape {array.shape}"
