"""Every release of a device, for all runs and servers together: one SQLite file.

A round of a run is entered as "reserve" (its norm, if it has one, and its update), then perhaps as
"commit" (the update is released) or "refund" (it never will be), each at most once. An entry keeps
the terms in full, so that what was spent can be counted under any relation and by anyone.

    charged: every norm that was reserved, and every update that was not refunded
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from locksfl.federation.device.terms import RoundTerms
from locksfl.methods.releases import Relation, Release
from locksfl.privacy.journal import Journal

FORMAT = "device 1"
Kind = Literal["reserve", "commit", "refund"]
_COLUMNS = (
    "run TEXT NOT NULL, round INTEGER NOT NULL, kind TEXT NOT NULL, terms TEXT NOT NULL, "
    "time INTEGER NOT NULL"
)


@dataclass(frozen=True)
class Tally:
    """What one run was charged for under one set of terms (its round says nothing here)."""

    terms: RoundTerms
    rounds: int
    uploads: int
    sent: int  # committed: the others are still open
    latest: int  # seconds since 1970

    def charges(self) -> Counter[Release]:
        """How often each release to the server is charged."""
        return Counter(
            {
                release: self.rounds if release.what == "norm" else self.uploads
                for release in self.terms.server_releases()
            }
        )


class DeviceLedger:
    """A device's ledger. All that decides on a release happens within one `transaction`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @classmethod
    def create(cls, path: Path) -> DeviceLedger:
        """A new ledger, which is a new budget; a file that is there is never written over."""
        return cls(Journal.create(path, {"format": FORMAT}, _COLUMNS, "run, round, kind"))

    @classmethod
    def open(cls, path: Path, head: str | None = None) -> DeviceLedger:
        """A ledger that is there, verified whole. `head`: one that was noted earlier."""
        journal = Journal.open(path, head)
        if journal.settings.get("format") != FORMAT:
            journal.close()
            raise ValueError(f"{path}: not the ledger of a device, in format {FORMAT!r}")
        return cls(journal)

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        return self._journal.head

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing, and nobody else meanwhile; on disk when it ends."""
        return self._journal.transaction()

    def enter(self, terms: RoundTerms, kind: Kind) -> None:
        """One more entry, within a transaction."""
        entry = (terms.run, terms.round, kind, _text(terms), int(time.time()))
        self._journal.append(*entry)

    def kinds(self, terms: RoundTerms) -> dict[str, bool]:
        """What was entered for this round of this run, each with whether the terms are the same."""
        query = "SELECT kind, terms FROM entries WHERE run = ? AND round = ?"
        rows = self._journal.query(query, (terms.run, terms.round))
        return {kind: text == _text(terms) for kind, text in rows}

    def last_round(self, run: str) -> int:
        """The largest round of a run that was entered; 0 before the first."""
        query = "SELECT MAX(round) FROM entries WHERE run = ?"
        return int(self._journal.query(query, (run,))[0][0] or 0)

    def open_rounds(self, run: str, up_to: int) -> list[RoundTerms]:
        """The rounds of a run that are reserved and neither committed nor refunded."""
        query = (
            "SELECT round, MIN(terms) FROM entries WHERE run = ? AND round <= ? "
            "GROUP BY round HAVING COUNT(*) = 1"
        )
        rows = self._journal.query(query, (run, up_to))
        return [_terms(run, number, text) for number, text in rows]

    def tallies(self) -> list[Tally]:
        """What was charged, by run and terms, in the order of the first entries."""
        query = (
            "SELECT run, terms, SUM(kind = 'reserve'), SUM(kind = 'refund'), SUM(kind = 'commit'), "
            "MAX(time) FROM entries GROUP BY run, terms ORDER BY MIN(number)"
        )
        return [
            Tally(_terms(run, 1, text), reserved, reserved - refunded, committed, latest)
            for run, text, reserved, refunded, committed, latest in self._journal.query(query)
        ]

    def close(self) -> None:
        """Let go of the file; what was written is there already."""
        self._journal.close()


def mu_squared(tallies: Iterable[Tally], relation: Relation) -> float:
    """Sum of (sensitivity/std)^2 over all that was charged; infinite after a raw release.

    Equal releases are counted first and multiplied once, as the simulator's filter does, so that
    both come to the same float and stop at the same round.
    """
    charged: Counter[Release] = Counter()
    for tally in tallies:
        charged.update(tally.charges())
    return math.fsum(n * release.mu_squared(relation) for release, n in charged.items() if n)


def _text(terms: RoundTerms) -> str:
    parts = terms.as_dict()
    del parts["round"]
    return json.dumps(parts, sort_keys=True)


def _terms(run: str, number: int, text: str) -> RoundTerms:
    return RoundTerms.parse(run, {**json.loads(text), "round": number})
