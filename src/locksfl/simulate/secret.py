"""The draws of a secret run, made on the host, ahead of the devices.

While the devices play a block, threads on half of the cores draw the next rounds, so that the exact
noise (about 0.1 s for a million numbers on a core) mostly costs no waiting.
"""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

from locksfl.arm import Arm
from locksfl.methods.cyclic import check_secret
from locksfl.round.draws import SecretDraws, draw_secret, grid_of
from locksfl.round.exact import MOST_PARAMETERS
from locksfl.round.randomness import Randomness
from locksfl.simulate.block import ROUNDS_A_CALL

NUMBERS_A_CALL = 2**24  # of noise that are passed to a compiled block at once: 64 MiB
MOST_NUMBERS = 2**29  # of noise in one round: 2 GiB


def is_secret(randomness: Randomness, arm: Arm) -> bool:
    """Whether a run's noise has to hold: nobody knows its source, and there is noise."""
    return not randomness.simulated and arm.parts.trust.private


class SecretRounds:
    """The draws of an arm's rounds, each made once."""

    def __init__(self, randomness: Randomness, arm: Arm, size: int) -> None:
        grid_of(arm)  # refuses noise that is too large
        check_secret([arm])
        self.each = arm.parts.trust.clients_add_noise
        self._source, self._arm, self._size = randomness, arm, size
        numbers = int(size * max(1.0, arm.cohort)) if self.each else size
        if size > MOST_PARAMETERS or numbers > MOST_NUMBERS:
            raise ValueError(
                f"{size:,} parameters: expected at most {MOST_PARAMETERS:,} without a seed and, if "
                f"clients add the noise, at most {MOST_NUMBERS:,} numbers in a round (parameters "
                f"times cohort), got {numbers:,}"
            )
        most = 1 if arm.controlled else ROUNDS_A_CALL
        self.rounds_a_call = max(1, min(most, NUMBERS_A_CALL // numbers))
        self._ahead: dict[int, Future[SecretDraws]] = {}
        self._workers = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2))
        # whoever stops in the middle does not wait for rounds that nobody will play
        weakref.finalize(self, self._workers.shutdown, wait=False, cancel_futures=True)

    def draw(self, first: int, length: int, asked: Arm) -> list[SecretDraws]:
        """The draws of `length` rounds from `first` on, and a start on as many more. Under rate
        control `asked` is the arm of this one round, and nobody knows the next."""
        if self._arm.controlled:
            return [draw_secret(self._source, asked, first, self._size)]
        ahead = max(first + length, min(first + 2 * length, self._arm.rounds))
        for t in range(first, ahead):
            if t not in self._ahead:
                self._ahead[t] = self._workers.submit(
                    draw_secret, self._source, self._arm, t, self._size
                )
        return [self._ahead.pop(t).result() for t in range(first, first + length)]
