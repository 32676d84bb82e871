"""What a server asks, what a device answers, and the network between them: no Flower here.

A `Network` is that of grid.py or, in tests, a few devices in memory. A round is played over either
by the same code (rounds.py), and a device answers both by the same code (answering.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Stage = Literal["norm", "update", "end"]
STAGES: tuple[Stage, ...] = ("norm", "update", "end")


class LostLink(ValueError):
    """Nobody can be asked any more; what was played is kept. The message says why, in one line."""


class Unwilling(ValueError):
    """Every device refuses, whatever its data, and would in later rounds. The message says why, in
    one line; what was played is kept."""


@dataclass(frozen=True)
class Later:
    """A model that has not been sent yet: its size, and a function that gets it (None: it is not
    what was announced)."""

    size: int
    fetch: Callable[[], np.ndarray | None]


@dataclass(frozen=True)
class Question:
    """One message to one device. `terms` is `RoundTerms.as_dict()`; a device trusts none of it."""

    stage: Stage
    terms: Mapping[str, Any]
    weights: np.ndarray | Later | None = None  # the model, float32: in a round's first question
    estimator: str | None = None
    probability: float | None = None  # p_i, with which this device was drawn; with a rule, the most
    bound: float | None = None  # the norm bound of its contribution, the unit of its noise
    rule: str | None = None  # by which the device decides whether it uploads; None: it was drawn
    model: str | None = None  # the name of the model, with its weights


@dataclass(frozen=True)
class Answer:
    """The reply: a released value, or the number of a refusal, or neither (an error)."""

    released: np.ndarray | None = None
    refusal: int | None = None
    rounds_left: int | None = None  # of its budget, if the device's owner lets it tell


class Network(Protocol):
    """Devices that can be asked. Their numbers are the clients' numbers, 0 to n - 1."""

    run: str  # what the devices' ledgers call this run

    def ask(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[int, Answer]:
        """Ask many devices at once. Returns the answers that arrived in time; a device that is
        missing has not answered, or answered too late: a late answer is never returned."""


Kept = dict[str, np.ndarray]  # from the first stage of a round to its second: a device's secret
Respond = Callable[[str, Question, Kept], Answer]
