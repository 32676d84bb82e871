"""How long a stage waits, and for whom.

* A stage ends when all that were asked have answered, or after the deadline.
* Whoever has missed a stage once is asked again; after it has missed 2, 3, 4, ... in a row, it
  rests for 1, 3, 7, ... rounds. It may have paid for answers that came too late.
* `seen`: whoever has missed a stage is asked again only after it has called, so that a device that
  is switched off costs the deadline once. One that has never called is not asked at all.
* `quorum`: when this share has answered, the others have as long again as the quorum took.

How many devices must wait before a round begins (serving.py) decides when that is, and no more:
they are counted over all members, before a cohort is drawn, and a cohort is asked whoever waits.

By the first two, in which rounds a device is asked depends on that device's own answers alone. By
the others it depends on how fast the rest are, and so, perhaps, on their data. Under central trust
a neighbouring sum could then differ by two contributions, where one is charged: neither is used
there. Under local trust every release carries its own noise, whoever else is in the sum; only
PUBLIC's credit for the noise of others is lost (engine.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from locksfl.federation.wire import Stage

SHORTEST = 1.0  # seconds that the others have at least, after a quorum
LONGEST_REST = 63  # rounds


class Miss(NamedTuple):
    """How often a device has missed a kind of stage, in a row, and when it last did."""

    times: int
    round: int
    time: float


@dataclass
class Patience:
    """Of one run. `seen`: by the client's number, how many seconds ago it last called."""

    quorum: float = 1.0
    seen: Callable[[], Mapping[int, float]] | None = None
    # by client and stage: a device that answers norms and misses updates holds up every round
    _missed: dict[tuple[int, Stage], Miss] = field(default_factory=dict)

    def away(self, clients: Collection[int], round_number: int) -> set[int]:
        """Those of these clients that are not asked in this round."""
        now, away, since = time.monotonic(), set(), dict[int, float]()
        for (client, _), miss in self._missed.items():
            since[client] = max(since.get(client, miss.time), miss.time)
            if round_number <= miss.round + min(2 ** (miss.times - 1) - 1, LONGEST_REST):
                away.add(client)
        called = {} if self.seen is None else self.seen()
        if called:  # otherwise nothing is known
            here = {i for i, ago in called.items() if now - ago > since.get(i, -math.inf)}
            away |= set(clients) - here
        return away

    def note(
        self,
        stage: Stage,
        asked: Collection[int],
        answered: Collection[int],
        round_number: int,
    ) -> None:
        """What became of a stage that is over."""
        now = time.monotonic()
        for client in asked:
            before = self._missed.pop((client, stage), None)
            if client not in answered:
                times = 1 if before is None else before.times + 1
                self._missed[client, stage] = Miss(times, round_number, now)

    def enough(self, released: int, possible: int) -> bool:
        """Whether a quorum of those that can still answer has answered."""
        return self.quorum < 1 and released >= math.ceil(self.quorum * possible - 1e-9)

    @staticmethod
    def longest(took: float) -> float:
        """How many seconds a stage may take whose quorum took so many."""
        return took + max(took, SHORTEST)
