"""Every release of a device, for all runs and servers together: a ledger whose accounts are runs.

A round of a run is recorded as "reserve" (its norm, if it has one, and its update), then perhaps as
"commit" (the update is released) or "refund" (it never will be), each at most once. An entry holds
the terms in full, so that anyone can count what was spent under any relation.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from locksfl.federation.device.terms import RoundTerms
from locksfl.methods.releases import Release
from locksfl.privacy.budget import charges
from locksfl.privacy.journal import Entry, Kind, Tally, header
from locksfl.privacy.journal_file import Journal, Seen

DEVICE = np.zeros(1, np.int32)  # the one client of its ledger


@dataclass(frozen=True)
class RunTally:
    """What one run was charged for under one set of terms (the round in `terms` is not used)."""

    terms: RoundTerms
    rounds: int
    uploads: int
    sent: int  # committed: the others are still open
    latest: int  # seconds since 1970


class DeviceLedger(Journal):
    """A device's ledger. Each release is decided within one `transaction`."""

    restored = False  # an older copy of a lost ledger (witness.py): its budget counts as spent

    @classmethod
    def create(cls, path: Path, head: dict[str, Any] | None = None) -> Self:
        """Create a ledger, which is a new budget; an existing file is never overwritten. Its header
        has a random name, so that no two devices have the same chain."""
        return super().create(path, head or new_header())

    @classmethod
    def open(
        cls,
        path: Path,
        head: str | None = None,
        *,
        whole: bool = False,
        seen: Seen | None = None,
    ) -> Self:
        """Open an existing ledger and verify it (`Journal.open`)."""
        ledger = super().open(path, head, whole=whole, seen=seen)
        if ledger.books.header["experiment"] is not None:
            ledger.close()
            raise ValueError(f"{path}: not the ledger of a device, but that of a federation")
        return ledger

    def enter(self, terms: RoundTerms, kind: Kind) -> None:
        """Add one entry, within a transaction."""
        now = int(time.time())
        self.append(Entry(terms.run, terms.round, kind, DEVICE, 1, _text(terms), now))

    def kinds(self, terms: RoundTerms) -> dict[str, bool]:
        """The entries of this round of this run, each with whether the terms are the same."""
        text = _text(terms)
        return {e.kind: e.terms == text for e in self.entries(terms.run, terms.round)}

    def last_round(self, run: str) -> int:
        """The largest round of a run that was recorded; 0 before the first."""
        query = "SELECT MAX(round) FROM entries WHERE account = ?"
        return int(self.query(query, (run,))[0][0] or 0)

    def open_round(self, run: str, up_to: int) -> RoundTerms | None:
        """The round of a run that is reserved and neither committed nor refunded. Only the last one
        can be in this state: a later reservation refunds whatever earlier ones left open."""
        last = self.last_round(run)
        found = self.entries(run, last) if last <= up_to else []
        return _terms(run, last, found[0].terms) if len(found) == 1 else None

    def charges(self) -> Counter[Release]:
        """How often each release to a server was charged, over all runs. The time grows with the
        number of sets of terms, not with the number of rounds."""
        charged: Counter[Release] = Counter()
        for text, tally in self.books.tallies.items():
            counts = (int(tally.norms[0]), int(tally.uploads[0]))
            charged.update(charges(_terms("all", 1, text).releases(), *counts))
        return charged

    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(tally.rounds for tally in self.books.tallies.values())

    def tallies(self) -> list[RunTally]:
        """What was charged, by run and terms, in the order of their first entries; it reads every
        entry, for display to a person."""
        return [
            RunTally(
                _terms(run, 1, text),
                tally.rounds,
                int(tally.uploads[0]),
                int(tally.uploads[0] - tally.open[0]),
                tally.latest,
            )
            for (run, text), tally in _by_run(self.entries()).items()
        ]


def new_header() -> dict[str, Any]:
    """The header of a new ledger."""
    return {**header(), "device": secrets.token_hex(16)}


def _by_run(entries: Iterable[Entry]) -> dict[tuple[str, str], Tally]:
    found: dict[tuple[str, str], Tally] = {}
    for entry in entries:
        key = (entry.account, entry.terms)
        if key not in found:
            found[key] = Tally(bool(json.loads(entry.terms)["asks_norms"]), 1)
        found[key].enter(entry)
    return found


def _text(terms: RoundTerms) -> str:
    parts = terms.as_dict()
    del parts["round"]
    return json.dumps(parts, sort_keys=True)


def _terms(run: str, number: int, text: str) -> RoundTerms:
    return RoundTerms.parse(run, {**json.loads(text), "round": number})
