"""Every release of a device, for all runs and servers together: a ledger whose accounts are runs.

A round of a run is recorded as "reserve" (its norm, if it has one, and its update), then perhaps as
"commit" (the update is released) or "refund" (it never will be), each at most once. An entry holds
the terms in full, and what they release to the server (`methods.events`), so that anyone can count
what was spent under any relation. In format 2 it held the terms alone.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from locksfl.federation.device.terms import RoundTerms
from locksfl.methods.events import Event, Rounds, Terms, terms_from_json, terms_to_json
from locksfl.privacy.budget import charges
from locksfl.privacy.journal import Entry, Header, Kind, Tally
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
    def create(cls, path: Path, head: Header | None = None) -> Self:
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
        if ledger.books.header.experiment is not None:
            ledger.close()
            raise ValueError(f"{path}: not the ledger of a device, but that of a federation")
        return ledger

    def enter(self, terms: RoundTerms, kind: Kind) -> None:
        """Add one entry, within a transaction. What resolves a reservation has its text, which may
        be of format 2."""
        before, now = self.entries(terms.run, terms.round), int(time.time())
        text = before[0].terms if before else _text(terms)
        self.append(Entry(terms.run, terms.round, kind, DEVICE, 1, text, now))

    def kinds(self, terms: RoundTerms) -> dict[str, bool]:
        """The entries of this round of this run, each with whether the terms are the same."""
        found = self.entries(terms.run, terms.round)
        return {e.kind: _terms(terms.run, terms.round, e.terms) == terms for e in found}

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

    def charges(self) -> Counter[Event]:
        """How often each release to a server was charged, over all runs. The time grows with the
        number of sets of terms, not with the number of rounds."""
        charged: Counter[Event] = Counter()
        for text, tally in self.books.tallies.items():
            counts = (int(tally.norms[0]), int(tally.uploads[0]))
            charged.update(charges(_released(text), *counts))
        return charged

    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(tally.rounds for tally in self.books.tallies.values())

    def tallies(self) -> list[RunTally]:
        """What was charged, by run and terms, in the order of their first entries; it reads every
        entry, for display to a person."""
        return [
            RunTally(
                terms,
                tally.rounds,
                int(tally.uploads[0]),
                int(tally.uploads[0] - tally.open[0]),
                tally.latest,
            )
            for terms, tally in _by_terms(self.entries()).items()
        ]


def new_header() -> Header:
    """The header of a new ledger."""
    return Header(device=secrets.token_hex(16))


def _by_terms(entries: Iterable[Entry]) -> dict[RoundTerms, Tally]:
    found: dict[RoundTerms, Tally] = {}
    for entry in entries:
        terms = _terms(entry.account, 1, entry.terms)
        found.setdefault(terms, Tally(terms.asks_norms, 1)).enter(entry)
    return found


def _text(terms: RoundTerms) -> str:
    parts = terms.as_dict()
    del parts["round"]
    released: Terms = {"SERVER": tuple(Rounds(event, 1) for event in terms.releases())}
    return json.dumps({**parts, "terms": terms_to_json(released)}, sort_keys=True)


def _terms(run: str, number: int, text: str) -> RoundTerms:
    parts = json.loads(text)
    parts.pop("terms", None)
    return RoundTerms.parse(run, {**parts, "round": number})


def _released(text: str) -> tuple[Event, ...]:
    """What a round releases to the server, as its entry says."""
    table = json.loads(text)
    if "terms" not in table:  # of format 2
        return _terms("all", 1, text).releases()
    return tuple(event for event, _ in terms_from_json(table["terms"])["SERVER"])
