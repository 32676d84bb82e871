"""How long a stage waits, and for whom.

* A stage ends when all that were asked have answered, or after the deadline.
* Whoever has missed a stage is asked again only after it has called: a device that is switched off
  costs the deadline once. One that calls, and misses again, then rests for 1, 3, 7, ... rounds; it
  pays for answers that arrive too late. One that has never called is not asked at all.
* Quorum: when this share has answered, the others have as long again as the quorum took.

Who is left out by the first two depends on that device alone. A quorum is different: whether one
device is in a sum then depends on how fast others were, and so, perhaps, on their data. Under
central trust a neighbouring sum could differ by two contributions, where one is charged, so it is
refused there; under local trust every release carries its own noise, and only PUBLIC's credit for
the noise of others is lost (engine.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SHORTEST = 1.0  # seconds that the others have at least, after a quorum
LONGEST_REST = 63  # rounds


class Miss(NamedTuple):
    """How often a device has missed its stage, in a row, and when it last did."""

    times: int
    round: int
    time: float  # seconds since 1970


@dataclass
class Patience:
    """Of one run. `seen`: by the client's number, when it last called; without it, all are here."""

    quorum: float = 1.0
    seen: Callable[[], Mapping[int, float]] | None = None
    _missed: dict[int, Miss] = field(default_factory=dict)

    def away(self, clients: Collection[int], round_number: int) -> set[int]:
        """Those of these clients that are not asked in this round."""
        seen = self.seen() if self.seen is not None else {}
        if not seen:  # nothing is known: ask all
            return set()
        return {i for i in clients if not self._here(i, seen.get(i), round_number)}

    def _here(self, client: int, called: float | None, round_number: int) -> bool:
        if called is None:
            return False
        if (miss := self._missed.get(client)) is None:
            return True
        rest = min(2 ** (miss.times - 1) - 1, LONGEST_REST)
        return called > miss.time and round_number > miss.round + rest

    def note(self, asked: Collection[int], answered: Collection[int], round_number: int) -> None:
        """What became of a stage that is over."""
        now = time.time()
        for client in asked:
            before = self._missed.pop(client, None)
            if client not in answered:
                times = 1 if before is None else before.times + 1
                self._missed[client] = Miss(times, round_number, now)

    def enough(self, released: int, possible: int) -> bool:
        """Whether a quorum of those that can still answer has answered."""
        return self.quorum < 1 and released >= math.ceil(self.quorum * possible - 1e-9)

    @staticmethod
    def longest(took: float) -> float:
        """How many seconds a stage may take whose quorum took so many."""
        return took + max(took, SHORTEST)
