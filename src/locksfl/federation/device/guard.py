"""The guard: every release of a device is checked and debited here, and only then gets its noise.

    with Guard(Policy.read(policy_file), Witness(ledger_file, key_file).open()) as guard:
        released = guard.release_norm(terms, norm)              # stage 1 of rule "norm"
        released = guard.release_update(terms, update, bound)   # stage 2, or the only stage

The order is always: clip, check against policy and ledger, debit, sync to disk, note the ledger's
head elsewhere (`Witness`), draw noise, return. A process that is killed at any point has at worst
paid too much; nothing leaves it unpaid.

Stage 1 reserves the whole round, norm and upload. Stage 2 turns the reservation into a commitment.
An unused reservation is refunded when its run continues with a later round, or by `end_round`.

**Why anyone may ask for a refund.** A refund says "this update will never be released" and makes
that true: commit and refund exclude each other, the first one wins, both are decided in one
exclusive transaction, and the noise of an update is drawn only after its commitment is on disk. A
server that falsely reports "not drawn", or sends a later round early, closes the round without an
update: it loses a release and cannot gain one. So what is charged (all norms of reserved rounds,
all updates that are not refunded) is at least what was released, whatever messages arrive.

**Replays.** Answers are not stored. If it is asked again for the same stage of the same round, even
after a crash that lost the answer, the guard refuses: a stage of a round draws noise once or never.

**What a refusal reveals.** It is decided from the request, the policy and the ledger, before the
data are looked at; the ledger in turn holds only requests.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from locksfl.federation.device.ledger import DeviceLedger
from locksfl.federation.device.policy import Policy
from locksfl.federation.device.terms import (
    LARGEST_ROUND,
    LENGTHS,
    Refusal,
    Refused,
    RoundTerms,
    Stage,
    within,
)
from locksfl.federation.device.update import clip
from locksfl.methods.events import Event
from locksfl.privacy.budget import charges
from locksfl.round.noise import SYSTEM, NoiseSource, add_noise, gaussian_std

log = logging.getLogger(__name__)
LARGEST_BOUND = 1e6  # of a contribution, over the clip norm: 1 / p is never that large


class Guard:
    """One device's guard; one object for one thread. Use as a context manager, or `close` it."""

    def __init__(self, policy: Policy, ledger: DeviceLedger, noise: NoiseSource = SYSTEM) -> None:
        self.policy, self.ledger, self._noise = policy, ledger, noise
        self._budget = policy.budget

    @classmethod
    def open(cls, policy: Policy, ledger: Path, noise: NoiseSource = SYSTEM) -> Guard:
        """A guard with an existing ledger (`DeviceLedger.create` makes one): a missing ledger is a
        ValueError, because a new one would be a new budget. Without a `Witness`, an old copy of it
        is refused only by the head that lies next to it."""
        return cls(policy, DeviceLedger.open(ledger), noise)

    def check(self, terms: RoundTerms, stage: Stage) -> None:
        """Raise `Refused` if the release would be refused; nothing is written. Call it before a
        device spends minutes on an update that it may not send."""
        with self._transaction():
            self._admit(terms, stage)

    def release_norm(self, terms: RoundTerms, norm: float) -> float:
        """The norm, clipped to [0, C], with noise, clipped again; the whole round is reserved."""
        kept = min(max(float(norm), 0.0), terms.clip_norm) if math.isfinite(norm) else 0.0
        with self._transaction():
            self._admit(terms, "norm")
            self._close_rounds(terms.run, terms.round - 1)
            self.ledger.enter(terms, "reserve")
        if not terms.known_trust.clients_add_noise:
            return kept
        if terms.norm_multiplier is None:  # cannot happen with valid terms
            raise Refused(Refusal.MALFORMED)
        std = gaussian_std(terms.norm_multiplier, terms.clip_norm)
        released = add_noise(np.array([kept]), std, self._noise)
        return float(np.clip(released[0], 0.0, terms.clip_norm))

    def release_update(
        self, terms: RoundTerms, contribution: npt.ArrayLike, bound: float
    ) -> npt.NDArray[np.float32]:
        """The contribution, clipped to `bound` here, with noise of std noise_multiplier * bound."""
        if not within(LENGTHS, bound) or bound > LARGEST_BOUND * terms.clip_norm:
            raise Refused(Refusal.MALFORMED)
        kept = clip(contribution, bound)
        with self._transaction():
            self._admit(terms, "update")
            if not terms.asks_norms:
                self._close_rounds(terms.run, terms.round - 1)
                self.ledger.enter(terms, "reserve")
            self.ledger.enter(terms, "commit")
        if not terms.known_trust.clients_add_noise:
            return kept.astype(np.float32)
        std = gaussian_std(terms.noise_multiplier, bound)
        return add_noise(kept, std, self._noise, np.float32)

    def end_round(self, run: str, round_number: int) -> None:
        """Release no more updates of this round or of the run's earlier rounds: what was reserved
        for them is refunded. It is harmless, whoever asks and however often."""
        if not isinstance(run, str) or not within((0, LARGEST_ROUND), round_number):
            raise Refused(Refusal.MALFORMED)
        with self._transaction():
            self._close_rounds(run, int(round_number))

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Decisions made within this context are durable afterwards, or refused."""
        try:
            with self.ledger.transaction():
                yield
        except (sqlite3.Error, OSError):  # locked for too long, a full disk, a broken one
            raise Refused(Refusal.LEDGER) from None

    def _admit(self, terms: RoundTerms, stage: Stage) -> None:
        """Refuse or allow, within a transaction."""
        refusal = self.policy.refusal(terms)
        if refusal is not None:
            raise Refused(refusal)
        entered = self.ledger.kinds(terms)
        if stage == "update" and terms.asks_norms:
            if not entered:
                raise Refused(Refusal.ORDER)
            if set(entered) != {"reserve"}:
                raise Refused(Refusal.REPEATED)
            if not entered["reserve"]:
                raise Refused(Refusal.TERMS)
            # already paid, unless the policy has changed
            self._afford(self.ledger.charges(), self.ledger.rounds())
            return
        if stage == "norm" and not terms.asks_norms:
            raise Refused(Refusal.MALFORMED)
        if entered:
            raise Refused(Refusal.REPEATED)
        if terms.round < self.ledger.last_round(terms.run):
            raise Refused(Refusal.ORDER)
        charged = self.ledger.charges()
        unused = self.ledger.open_round(terms.run, terms.round - 1)
        if unused is not None:  # refunded with this entry
            charged.subtract(charges(unused.releases(), 0, 1))
        charged.update(charges(terms.releases(), 1, 1))
        self._afford(charged, self.ledger.rounds() + 1)

    def _afford(self, charged: Counter[Event], rounds: int) -> None:
        if rounds > self.policy.max_rounds:
            log.warning("all %d rounds of max_rounds are used", self.policy.max_rounds)
            raise Refused(Refusal.BUDGET)
        if self.ledger.restored:
            raise Refused(Refusal.BUDGET)
        # in central trust no budget can hold
        if self._budget is not None and not self._budget.pays(charged):
            raise Refused(Refusal.BUDGET)

    def _close_rounds(self, run: str, up_to: int) -> None:
        unused = self.ledger.open_round(run, up_to)
        if unused is not None:
            self.ledger.enter(unused, "refund")
