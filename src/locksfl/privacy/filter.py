"""The filter of local trust: no client ever passes its budget, whatever the sampler does.

A client is asked only if it can pay for a whole round, norm and upload; the round is reserved, and
an upload that the coin does not draw is refunded (it was not released). What can be paid is a table
of whole numbers made once (`Budget.most_uploads`), so that a simulation on many devices decides
exactly as this does, and so that no float rounding can let a client through.

Guarantee: after any sequence of `ask` and `enter`, however the cohorts were chosen,
`terms.client_releases(uploads[i], norms[i])` costs no client i more than the budget.
"""

from __future__ import annotations

import numpy as np

from locksfl.arm import Arm
from locksfl.privacy.terms import Budget


class Filter:
    """The counts of all clients of an arm, and who can still pay."""

    def __init__(
        self,
        arm: Arm,
        budget: Budget,
        norms: np.ndarray | None = None,
        uploads: np.ndarray | None = None,
    ) -> None:
        budget.check(arm)
        self.asks_norms = arm.releases_norms
        self.table = np.asarray(budget.most_uploads(arm), np.int32)
        zeros = np.zeros(arm.clients, np.int32)
        self.norms = np.array(zeros if norms is None else norms, np.int32)
        self.uploads = np.array(zeros if uploads is None else uploads, np.int32)
        self.exhausted = int(np.sum(~self.can_pay()))  # clients that cannot pay for another round

    def can_pay(self, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
        """For each of these clients, whether its budget pays for one more whole round."""
        norms = self.norms[clients] + self.asks_norms
        paid = self.table[np.minimum(norms, len(self.table) - 1)]
        return (norms < len(self.table)) & (self.uploads[clients] + 1 <= paid)

    def ask(self, cohort: np.ndarray) -> np.ndarray:
        """The members of a drawn cohort that may be asked."""
        return cohort[self.can_pay(cohort)]

    def enter(self, asked: np.ndarray, uploaded: np.ndarray) -> None:
        """Enter a round: a norm of each that was asked, an upload of each that was drawn."""
        if not self.can_pay(asked).all() or len(np.unique(asked)) < len(asked):
            raise ValueError("a client was asked that cannot pay, or twice in one round")
        if self.asks_norms:
            self.norms[asked] += 1
        self.uploads[asked[uploaded]] += 1
        self.exhausted += int(np.sum(~self.can_pay(asked)))  # nobody else's counts have changed
