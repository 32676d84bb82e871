"""The guard: every release of a device passes here, is checked, debited, and only then noised.

    with Guard.open(Policy.read(policy_file), ledger_file) as guard:
        released = guard.release_norm(terms, norm)              # stage 1 of rule "norm"
        released = guard.release_update(terms, update, bound)   # stage 2, or the only stage

The order inside is always: check against policy and ledger, debit, sync to disk, draw noise, return.
A process that is killed at any point has spent too much at worst, and has not sent unpaid.

Stage 1 reserves the whole round, norm and upload. Stage 2 turns the reservation into a commitment.
A reservation that is not used is refunded when its run goes on to a later round, or by `end_round`.

**Why a refund can be asked for by anyone.** A refund says "this update will never be released", and
makes itself true: commit and refund exclude each other, the first one wins, both are decided in one
exclusive transaction, and the noise of an update is drawn only after its commitment is on disk. A
server that fakes "not drawn", or sends a later round early, closes the round without an update: it
loses a release and cannot gain one. So what is charged (all norms of reserved rounds, all updates
that are not refunded) is at least what was released, whatever messages arrive.

**Replays.** An answer is not kept. Asked again for the same stage of the same round, also after a
crash that lost the answer, the guard refuses: one stage of one round draws noise once or never.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from locksfl.device.noise import SYSTEM, Noise
from locksfl.device.policy import Policy
from locksfl.device.terms import RoundTerms, Stage


class Guard:
    """One device's guard; one object for one thread. Use as a context manager, or `close` it."""

    @classmethod
    def open(cls, policy: Policy, ledger: Path, noise: Noise = SYSTEM) -> Guard:
        """Over a ledger that is there (`DeviceLedger.create` makes one): a missing ledger is a
        ValueError, because a new one would be a new budget."""
        raise NotImplementedError

    def check(self, terms: RoundTerms, stage: Stage) -> None:
        """Raise `Refused` if the release would be; nothing is written. To be asked before a device
        spends minutes on an update that it may not send."""

    def release_norm(self, terms: RoundTerms, norm: float) -> float:
        """The norm, clipped to [0, C], noised, clipped again; the whole round is reserved."""
        raise NotImplementedError

    def release_update(
        self, terms: RoundTerms, contribution: npt.ArrayLike, bound: float
    ) -> npt.NDArray[np.float32]:
        """The contribution, clipped to `bound` here, with noise of std noise_multiplier * bound."""
        raise NotImplementedError

    def end_round(self, run: str, round_number: int) -> None:
        """No update of this round, nor of the run's rounds before it, will be released any more:
        what was reserved for them is refunded. Harmless whoever asks, as often as they like."""

    def close(self) -> None:
        """Let go of the ledger."""

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
