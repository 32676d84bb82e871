"""A user's own training code, in any framework, and the part of its update that a device sends.

The adapter is one function:

    def update(weights, round_number):
        model = load(weights)                       # the flat model, as an array
        train(model, my_data)                       # whatever your framework does
        return weights - flatten(model)             # the flat update: the server steps against it

It declares its model, so that a server with another one is refused before anything is paid:

    update.parameters = 7850                        # how many numbers the flat model has
    update.model = "softmax"                        # optional: its name in the server's experiment

If it fails or returns nonsense, the device silently contributes zero, because an error that depends
on the data would tell the server something about it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from locksfl.federation.device.terms import Refusal, Refused, within
from locksfl.methods import ESTIMATORS, RULES
from locksfl.methods.dials import Dials
from locksfl.methods.estimators import SMALLEST_NORM
from locksfl.round.noise import BLOCK

Vector = npt.NDArray[np.float64]

log = logging.getLogger(__name__)


class LocalUpdate(Protocol):
    """A client's training: the flat model in, the flat update out (which descent subtracts)."""

    def __call__(self, weights: npt.NDArray[np.floating], round_number: int, /) -> npt.ArrayLike:
        """The update, as long as `weights`."""


@dataclass(frozen=True)
class Declared:
    """Training with the size and the name of its model, as attributes of a function say them."""

    update: LocalUpdate
    parameters: int
    model: str

    def __call__(self, weights: npt.NDArray[np.floating], round_number: int, /) -> npt.ArrayLike:
        """The update, as long as `weights`."""
        return self.update(weights, round_number)


def check_model(update: LocalUpdate, size: int, name: str | None) -> None:
    """`Refused` if the server's model is another than the one that the training declares. This is
    decided by declarations, never by what the training returns, which could depend on the data."""
    own_size, own_name = getattr(update, "parameters", None), getattr(update, "model", None)
    if own_size is not None and own_size != size:
        log.error("the server's model has %d parameters, expected %d", size, own_size)
        raise Refused(Refusal.MODEL)
    if own_name is not None and name is not None and own_name != name:
        log.error("the server's model is %r, expected %r", name, own_name)
        raise Refused(Refusal.MODEL)


def safe_update(
    update: LocalUpdate, weights: npt.NDArray[np.floating], round_number: int
) -> Vector:
    """The update, or zero if the training code failed; the reason stays in the device's log."""
    try:
        found = np.asarray(update(weights.copy(), round_number), np.float64).reshape(-1)
    except (Exception, SystemExit):  # even training code that ends the program
        log.exception("round %d: the local update failed; zero is used", round_number)
        return np.zeros(weights.size)
    if found.size != weights.size or not np.isfinite(found).all():
        log.error(
            "round %d: the local update has %d numbers, expected %d finite ones; zero is used",
            round_number,
            found.size,
            weights.size,
        )
        return np.zeros(weights.size)
    return found


def clip(vector: npt.ArrayLike, bound: float, lengths: str = "clipped") -> Vector:
    """The vector, scaled so that its exact norm is at most `bound`, even when floats round. Lengths
    "equal": also a shorter vector is scaled to it, unless it is almost zero.

    A sum of d floats has a relative error of at most about d 2^-53, in whatever order it is
    computed; a vector that has to be scaled is shortened by twice that. A vector that is not finite
    becomes zero.
    """
    flat = np.asarray(vector, np.float64).reshape(-1)
    largest = float(max(np.max(flat, initial=0.0), -np.min(flat, initial=0.0)))
    if not math.isfinite(largest) or largest == 0.0:
        return np.zeros(flat.size)
    slack = (flat.size + 8) * 2.0**-52
    length = largest * math.sqrt(math.fsum(_squares(flat, largest)))
    if lengths == "clipped" and length * (1 + 2 * slack) <= bound:
        return flat
    return flat * (bound / max(length, SMALLEST_NORM) * (1 - 4 * slack))


def _squares(flat: Vector, largest: float) -> Iterator[float]:
    """The sum of the squares over `largest`, in blocks: no copy of a large model."""
    for start in range(0, flat.size, BLOCK):
        yield float(np.sum((flat[start : start + BLOCK] / largest) ** 2))


def norm(vector: npt.ArrayLike) -> float:
    """The length of a vector; 0 if it is not finite."""
    length = float(np.linalg.norm(np.asarray(vector, np.float64)))
    return length if math.isfinite(length) else 0.0


def upload_probability(rule: str, clipped: npt.ArrayLike, clip_norm: float, most: float) -> float:
    """The probability with which a device uploads, where a rule of this program leaves that to the
    device: a function of its own norm and the clip norm, at most `most`, which is what is charged.
    Anything else that a server may name is `Refused`."""
    known = RULES.get(rule) if isinstance(rule, str) else None
    if known is None or known.asks is None or known.released:
        raise Refused(Refusal.MALFORMED)
    if not within((0.0, 1.0), most):
        raise Refused(Refusal.MALFORMED)
    dials = Dials(*[np.nan] * len(Dials._fields))._replace(clip_norm=np.float64(clip_norm))
    own = np.float64(min(norm(clipped), clip_norm))
    p = float(known.probability(own, np.float64(0.0), np.float64(1.0), dials, np))
    return min(p, most) if p > 0 else 0.0


def flip(probability: float, entropy: Callable[[int], bytes]) -> bool:
    """A coin of 64 bits, compared as a whole number: never too likely."""
    return int.from_bytes(entropy(8), "big") < int(Fraction(probability) * 2**64)


def contribution(
    estimator: str, clipped: npt.ArrayLike, probability: float, bound: float
) -> Vector:
    """What an uploader sends, before the guard clips it to its bound and adds noise: the clipped
    update times the estimator's weight. The server's numbers are `Refused` if they are invalid."""
    flat = np.asarray(clipped, np.float64).reshape(-1)
    if estimator not in ESTIMATORS or not within((0.0, 1.0), probability) or probability == 0:
        raise Refused(Refusal.MALFORMED)
    p, length = np.float64(probability), np.float64(norm(flat))
    with np.errstate(over="ignore"):
        return flat * ESTIMATORS[estimator].weight(length, p, np.float64(bound), np)
