"""The ledger of a federation's server: on disk, with one account per arm.

    ledger = ServerLedger.create(path, Header.of(experiment, arms, delta=1e-5, ...))
    asked = ledger.reserve("locks", round, cohort)    # on disk when it returns: those that can pay
    ...ask for norms, draw, ask for updates...
    ledger.settle("locks", round, asked, uploaded, received)

Guarantees:

* A reservation is on disk before `reserve` returns, and counts in full, norm and upload, until it
  is refunded: a crash can only overstate what was spent.
* A client that cannot pay for the whole round is not reserved. A round reserved twice for one
  client, a refund after a commit, and a round beyond the plan are refused, and nothing is written.
* It is a `Journal`: a file that was altered, truncated or restored from an old copy is refused.
* It is opened with the identity of its experiment; the ledger of another experiment is refused.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from locksfl.privacy.budget import Filter
from locksfl.privacy.journal import EVERYBODY, Entry, Header, Kind, same_experiment, settlement
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.terms import LedgerArm


class ServerLedger(Journal):
    """One experiment's ledger, for all of its clients."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path, connection)
        self._filters: dict[str, Filter] = {}

    @classmethod
    def create(cls, path: Path, head: Header) -> Self:
        """Create a new ledger; an existing file is never overwritten."""
        for arm in head.arms:
            if arm.filtered is not None:
                Filter(arm)  # refuses a budget that does not pay for one round
        return super().create(path, head)

    @classmethod
    def open_for(cls, path: Path, experiment: str, head: str | None = None) -> Self:
        """Open an existing ledger and verify all of it. `head`: the head noted earlier."""
        ledger = cls.open(path, head, whole=True)
        try:
            found = ledger.books.header.experiment
            if found is None:
                raise ValueError(f"{path}: not the ledger of a federation, but that of a device")
            same_experiment(found, experiment, path)
            return ledger
        except BaseException:
            ledger.close()
            raise

    def charges_each(self, arm: str) -> bool:
        """Whether an arm's clients are charged one by one (`LedgerArm.charges_each`)."""
        self.books.tally(arm)  # refuses an unknown one
        return self.books.planned[arm].charges_each

    def reserve(self, arm: str, round_number: int, clients: npt.ArrayLike) -> np.ndarray:
        """Reserve a whole round, norm and upload, for these clients (increasing numbers) in local
        trust. Returns those that can pay; no others are recorded, or may be asked."""
        terms, who = self._arm(arm, each=True), np.atleast_1d(np.asarray(clients, np.int32))
        if who.size and not (who.min() >= 0 and who.max() < terms.clients):
            raise ValueError(f"client = {who.max()}: expected a number below {terms.clients}")
        with self.transaction():
            self._check_round(arm, round_number, who)
            kept = self._filter(arm)
            asked = who if kept is None else kept.ask(who)
            self._enter(Entry(arm, round_number, "reserve", asked))
        return asked

    def reserve_round(self, arm: str, round_number: int) -> None:
        """Charge a round of central trust to every client, before its sums are released."""
        self._arm(arm, each=False)
        with self.transaction():
            self._check_round(arm, round_number, EVERYBODY)
            self._enter(Entry(arm, round_number, "reserve", EVERYBODY))

    def reserved(self, arm: str, round_number: int) -> np.ndarray:
        """The clients reserved for a round: after a crash, those not to be asked again."""
        found = self.entries(arm, round_number)
        return np.concatenate([EVERYBODY[:0], *(e.clients for e in found if e.kind == "reserve")])

    def settle(
        self,
        arm: str,
        round_number: int,
        asked: np.ndarray,
        uploaded: np.ndarray,
        received: np.ndarray,
    ) -> None:
        """Resolve a round's reservations (`journal.settlement`), all at once."""
        with self.transaction():
            for entry in settlement(arm, round_number, asked, uploaded, received):
                self.resolve(entry)

    def exhausted(self, arm: str) -> int | None:
        """How many clients cannot pay for another round; None without a budget."""
        kept = self._filter(arm)
        return None if kept is None else kept.unable()

    def _filter(self, arm: str) -> Filter | None:
        planned = self.books.planned[arm]
        if planned.filtered is None:
            return None
        if arm not in self._filters:
            self._filters[arm] = Filter(planned)
        kept, tally = self._filters[arm], self.books.tallies[arm]
        kept.norms, kept.uploads = tally.norms, tally.uploads
        return kept

    def _arm(self, arm: str, each: bool) -> LedgerArm:
        if self.charges_each(arm) != each:
            trust = self.books.header.trust
            raise ValueError(
                f"arm = {arm!r}: trust {trust!r} releases nothing that this method records"
            )
        return self.books.planned[arm]

    def _check_round(self, arm: str, round_number: int, clients: np.ndarray) -> None:
        planned, (_, last) = self.books.planned[arm].rounds, self.books.tallies[arm].last
        if not 1 <= round_number <= planned:
            raise ValueError(f"round = {round_number}: expected 1 to {planned}, as planned")
        if np.isin(clients, self.reserved(arm, round_number)).any():
            raise ValueError(f"round = {round_number}: already reserved; nothing is sent twice")
        if round_number < last:
            raise ValueError(f"round = {round_number}: expected {last} or later, in order")

    def resolve(self, entry: Entry) -> None:
        """Record that the uploads of these clients were drawn (a commit), or were not and are never
        released (a refund): then their norms remain spent."""
        self._arm(entry.account, each=True)
        with self.transaction():
            state: dict[Kind, np.ndarray] = {"reserve": EVERYBODY, "commit": EVERYBODY}
            for old in self.entries(entry.account, entry.round):
                kind: Kind = "reserve" if old.kind == "reserve" else "commit"
                state[kind] = np.concatenate([state[kind], old.clients])
            for wrong, why in (
                (~np.isin(entry.clients, state["reserve"]), "it was never reserved"),
                (np.isin(entry.clients, state["commit"]), "it is already resolved"),
            ):
                if wrong.any():
                    who = entry.clients[wrong][0]
                    raise ValueError(f"{entry.kind} of round {entry.round}, client {who}: {why}")
            self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        self.append(replace(entry, time=int(time.time())))
