"""What a label is, and so which loss, answers and metrics are right.

    classes   [samples] whole numbers, one class of several each; for sequences [samples, length]
    numbers   [samples, targets] real numbers: regression
    tags      [samples, tags] 0 or 1, any number of them true: multi-label

A model gives one score for each class, target or tag. Its loss is in `models.losses`, its metrics
are in `experiment.metrics`. No JAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from locksfl import _validate

KINDS = ("classes", "numbers", "tags")
LOSSES = ("squared", "huber")
MOST_OFFSET = 1e4  # |center| / spread: beyond, float32 would round what is to be learnt

Given = float | Sequence[float] | None  # one for all targets, or one for each
Facts = Mapping[str, str | bool | Sequence[float] | None]  # a task as JSON has it


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the labels of a population are.

    Numbers are learnt as (value - center) / spread, one pair for each target, or one for all. Both
    are public: they come with the task, and are never read from the clients' records.

    >>> Task.numbers(low=0, high=10).predict(np.array([[0.0], [0.5]])).tolist()
    [5.0, 7.5]
    >>> Task("tags").predict(np.array([[-1.0, 2.0]])).tolist()
    [[0, 1]]
    """

    kind: str = "classes"  # one of KINDS
    loss: str | None = None  # of numbers: squared, or huber, which is linear from one spread on
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    bounded: bool = False  # no number is further than the spread from the center

    def __post_init__(self) -> None:
        _validate.one_of(KINDS, task=self.kind)
        if self.kind != "numbers":
            if self.loss or self.center or self.spread or self.bounded:
                raise ValueError(f"task = {self.kind!r}: takes no loss, range, mean or std")
            return
        if not self.spread:
            raise ValueError(
                "task = 'numbers': expected a public range (low, high), or a public mean and std "
                "(Task.numbers); found in the records, they would be a release without noise"
            )
        _validate.one_of(LOSSES, **{"task.loss": self.loss or ""})
        for center, spread in zip(self.center, self.spread, strict=True):
            if not (math.isfinite(center) and math.isfinite(spread) and spread > 0):
                raise ValueError(
                    f"task: center {center:g} and spread {spread:g}: expected finite numbers, "
                    "low < high and std > 0"
                )
            if abs(center) > MOST_OFFSET * spread:
                raise ValueError(
                    f"task: center {center:g} and spread {spread:g}: expected a center of at most "
                    f"{MOST_OFFSET:g} spreads, or float32 rounds the numbers; subtract a constant"
                )

    @classmethod
    def numbers(
        cls,
        *,
        low: Given = None,
        high: Given = None,
        mean: Given = None,
        std: Given = None,
        loss: str = "squared",
    ) -> Task:
        """Regression, scaled by public numbers.

        Args:
            low, high: the range of the targets; a number outside it is refused.
            mean, std: about their mean and standard deviation, from elsewhere; any number goes.
            loss: "squared" or "huber".
        """
        given = {"low": low, "high": high, "mean": mean, "std": std}
        named = {name for name, value in given.items() if value is not None}
        if named not in ({"low", "high"}, {"mean", "std"}):
            names = ", ".join(sorted(named)) or "nothing"
            raise ValueError(
                f"task = 'numbers': got {names}; expected low and high, or mean and std, which are "
                "public; found in the records, they would be a release without noise"
            )
        bounded = "low" in named
        a, b = (_floats(n, given[n]) for n in (("low", "high") if bounded else ("mean", "std")))
        if len(a) != len(b):
            raise ValueError(f"task: {len(a)} and {len(b)} numbers; expected as many of both")
        if not bounded:
            return cls("numbers", loss, a, b)
        ends = list(zip(a, b, strict=True))
        for low_end, high_end in ends:
            if not low_end < high_end:
                raise ValueError(
                    f"task: low = {low_end:g}, high = {high_end:g}; expected finite numbers, "
                    "low < high"
                )
        middle = tuple((low + high) / 2 for low, high in ends)
        half = tuple((high - low) / 2 for low, high in ends)
        return cls("numbers", loss, middle, half, bounded=True)

    @property
    def score(self) -> str:
        """The measure of how good a model is, larger is better, that every round logs."""
        return "r2" if self.kind == "numbers" else "accuracy"

    @property
    def filler(self) -> float:
        """What stands in place of a label where there is none."""
        return math.nan if self.kind == "numbers" else -1

    def there(self, labels: Any) -> Any:
        """Where there is a label: [...], or [..., positions] for sequences of classes."""
        if self.kind == "classes":
            return labels >= 0
        first = labels[..., 0]
        return first == first if self.kind == "numbers" else first >= 0

    def predict(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The answers that scores [..., outputs] are: the best class, the numbers, the tags that
        are more likely than not. One target alone has no axis."""
        if self.kind == "classes":
            return np.argmax(scores, axis=-1)
        if self.kind == "tags":
            return (scores > 0).astype(np.int32)
        numbers = scores * np.asarray(self.spread) + np.asarray(self.center)
        return numbers[..., 0] if numbers.shape[-1] == 1 else numbers

    def checked(self, name: str, given: ArrayLike) -> NDArray[Any]:
        """Numbers as float32 or tags as int32, [samples, outputs]; anything else is refused."""
        values = np.asarray(given)
        tags = self.kind == "tags"
        if values.ndim not in ((2,) if tags else (1, 2)) or values.dtype.kind not in "biuf":
            wanted = "a matrix of 0 and 1" if tags else "one real number per sample, or a row"
            raise ValueError(
                f"{name}: expected {wanted}, got {values.dtype} of shape {values.shape}"
            )
        values = values.reshape(len(values), -1)
        if not values.shape[1]:
            raise ValueError(f"{name}: expected at least one column, got none")
        if not tags and len(self.center) not in (1, values.shape[1]):
            raise ValueError(
                f"{name}: {values.shape[1]} targets a sample, but the task scales "
                f"{len(self.center)}; expected one range for all, or one for each"
            )
        if tags:
            wrong, expected = (values != 0) & (values != 1), "0 or 1"
        elif self.bounded:
            # not > spread, so that NaN is wrong; a little room, because low and high were rounded
            wrong = ~(np.abs(values - np.array(self.center)) <= np.array(self.spread) * (1 + 1e-6))
            expected = f"a number in the public range, {self._range()}"
        else:
            wrong = ~np.isfinite(values.astype(np.float32))
            expected = "a finite number that float32 can hold"
        if wrong.any():
            row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise ValueError(
                f"{name}[{row}, {column}] = {values[row, column]}: expected {expected}"
            )
        return values.astype(np.int32 if tags else np.float32, copy=False)

    def _range(self) -> str:
        ends = [f"{c - s:g}..{c + s:g}" for c, s in zip(self.center, self.spread, strict=True)]
        return ", ".join(ends[:3]) + (" ..." if len(ends) > 3 else "")

    def as_dict(self) -> Facts:
        """The task as JSON has it; `from_dict` reads it."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_dict(cls, table: Facts | None) -> Task:
        """The task of a header, and classes if a file of an earlier version names no task."""
        try:
            return msgspec.convert(table or {}, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"task: {error}") from None


CLASSES = Task()


def parse_task(text: str) -> Task:
    """A task as an option has it: classes, tags, numbers:0..100 (a range), numbers:5+-2 (mean and
    standard deviation), one for each target or one for all; with :huber at the end, that loss.

    >>> parse_task("numbers:0..100,-1..1:huber").spread
    (50.0, 1.0)
    """
    kind, _, rest = text.strip().partition(":")
    if kind != "numbers":
        if rest:
            raise ValueError(f"task = {text!r}: expected nothing after {kind!r}")
        return Task(kind)
    scale, _, loss = rest.partition(":")
    between = "+-" if "+-" in scale else ".."
    names = ("mean", "std") if between == "+-" else ("low", "high")
    try:
        pairs = [[float(end) for end in one.split(between)] for one in scale.split(",")]
        given = dict(zip(names, map(list, zip(*pairs, strict=True)), strict=True))
    except ValueError:
        raise ValueError(
            f"task = {text!r}: expected the public scale of the numbers, such as numbers:0..100 "
            "(their range) or numbers:5+-2 (mean and standard deviation); found in the records, "
            "it would be a release without noise"
        ) from None
    return Task.numbers(**given, loss=loss or "squared")


def _floats(name: str, given: Any) -> tuple[float, ...]:
    values = np.atleast_1d(np.asarray(given))
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not values.size:
        raise ValueError(f"task: {name} = {given!r}: expected a number, or one for each target")
    return tuple(float(value) for value in values)
