"""Samplings: who may take part in a round, who does, and what a noised sum over them is.

| sampling | who may, by a public schedule | who does        | the noise of rounds         |
|----------|-------------------------------|-----------------|-----------------------------|
| poisson  | everybody                     | by secret coins | independent                 |
| cyclic   | one group after another       | all of it       | correlated, if it has bands |

Whatever depends on the sampling is stated here, and nobody compares names: a file in this folder is
a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from locksfl.methods.events import Sum

if TYPE_CHECKING:
    from locksfl.arm import Arm
    from locksfl.methods.sound import Problem

Clients = npt.NDArray[np.int32]


Settings = Mapping[str, float]  # of an arm, by name


def nothing_derived(where: str, cohort: float | None, clients: int) -> Mapping[str, int]:
    """No setting follows from others."""
    del where, cohort, clients
    return {}


@dataclass(frozen=True)
class Sampling:
    """A way to choose the cohort of a round.

    event(arm): what a round's noised sum is, for whoever sees sums alone. Its cost has to be at
        least that of `times` sums over coins of `rate`, by which the noise is calibrated.
    unsound(arm): why an arm cannot have this sampling: (setting, its value, the problem).
    secret: each client who may take part tosses a secret coin of `rate`; else all of them do, and
        everybody may know.
    group(arm, t): who may take part in round t, counted from 0: sorted numbers. A public function
        of the numbers of clients and rounds. None: everybody, always.
    apart(arm): the rounds from one chance of a client to its next.
    strategy(arm): the coefficients that correlate the noise of rounds (`methods.cyclic`), as many
        as `arm.bands`; none if it is independent. Correlated noise needs a seed.
    takes: the settings that arms of this sampling alone have, and why others do not. The first one
        implies the sampling where nobody names it.
    derived(where, cohort, clients): what an [[arm]] table leaves out where the first of `takes` is
        not given; `where` names the arm in a refusal.
    defaults(arm): settings that follow from others, where they are not given.
    shortened(arm, clients): the settings of an arm of few rounds and so many clients that is
        replayed in place of this one.
    planned: the planner, private tuning and the theory know it.
    tells: the settings by which a summary and the public statement describe an arm's schedule.

    Words, for a statement and a page: `asked` how it is decided whether "{}" is asked, `known` what
    the public sees of that, `reservation` what the epsilons assume, `counts` how the numbers of
    clients are known, `noise` what is said of an arm's noise; `story(arm)` one sentence on what
    an arm has done, of its summary.
    """

    name: str
    about: str
    event: Callable[[Arm], Sum]
    unsound: Callable[[Arm], Iterator[Problem]]
    asked: str
    counts: str
    secret: bool = True
    group: Callable[[Arm, int], Clients] | None = None
    apart: Callable[[Arm], int] = lambda arm: 1
    strategy: Callable[[Arm], tuple[float, ...]] = lambda arm: ()
    takes: Mapping[str, str] = field(default_factory=dict, hash=False)
    derived: Callable[[str, float | None, int], Mapping[str, int]] = nothing_derived
    defaults: Callable[[Arm], Settings] = lambda arm: {"bands": 0}
    shortened: Callable[[Arm, int], Settings] = lambda arm, clients: {"rounds": 1}
    planned: bool = False
    tells: tuple[str, ...] = ()
    known: str = ""
    reservation: str = ""
    noise: str = ""
    story: Callable[[Arm], str] = lambda arm: ""

    def rate(self, arm: Arm) -> float:
        """The probability with which each client who may take part does."""
        return min(1.0, arm.sampling_rate * self.apart(arm)) if self.secret else 1.0

    def times(self, arm: Arm, rounds: int) -> int:
        """The most of so many rounds in which one client may take part."""
        return -(-rounds // self.apart(arm))

    def facts(self, arm: Arm) -> dict[str, int | list[float]]:
        """An arm's schedule and the matrix of its noise, for a summary: both are public."""
        facts: dict[str, int | list[float]] = {name: getattr(arm, name) for name in self.tells}
        return facts | {"strategy": list(arm.strategy)} if facts else {}
