"""The search for a clip norm and a step: a grid over the clip norm C and the reach C x step, the
farthest that a first step can go. The noise of a step grows with the reach, whatever the clip norm.
Where the best lies at an end of an axis, the grid is widened there by the ratio of the last two
values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from locksfl.grids.drive import Plays

NAMES = ("clip_norm", "reach")
Pair = tuple[float, float]  # clip norm, reach
T = TypeVar("T")  # what is known of a pair that was tried


class Searched(NamedTuple, Generic[T]):
    """A finished search."""

    tried: dict[Pair, T]
    best: Pair
    widened: int  # how often
    edge: list[str]  # the axes at an end of which the best still lies


def searched(
    axes: Sequence[Sequence[float]],
    tries: Callable[[list[Pair], T | None], Plays[list[T]]],
    rank: Callable[[T], tuple[float, ...]],
    widen: int,
    tidy: Callable[[float], float] = float,
) -> Plays[Searched[T]]:
    """Search a grid.

    Args:
        axes: the clip norms and the reaches, rising.
        tries: plays pairs; it is given the best that is known, if there is one.
        rank: what the best is the largest of; the first of equals.
        widen: how often the grid is widened at most.
        tidy: rounds a value that the grid is widened by.
    """
    grid, tried = [list(axis) for axis in axes], dict[Pair, T]()
    known: T | None = None
    for widened in itertools.count():
        new = [(c, r) for c, r in itertools.product(*grid) if (c, r) not in tried]
        tried |= zip(new, (yield from tries(new, known)), strict=True)
        best = max(tried, key=lambda pair: rank(tried[pair]))
        ends, known = edges(best, grid), tried[best]
        if not ends or widened == widen:
            break
        for number in ends:
            beyond(grid[number], best[number], tidy)
    return Searched(tried, best, widened, [NAMES[number] for number in ends])


def edges(best: Pair, axes: Sequence[Sequence[float]]) -> list[int]:
    """The axes at an end of which the best lies; an axis of one value has no ends."""
    return [i for i, axis in enumerate(axes) if len(axis) > 1 and best[i] in (axis[0], axis[-1])]


def beyond(axis: list[float], end: float, tidy: Callable[[float], float]) -> None:
    """One more value beyond this end."""
    if end == axis[0]:
        axis.insert(0, tidy(axis[0] * axis[0] / axis[1]))
    else:
        axis.append(tidy(axis[-1] * axis[-1] / axis[-2]))
