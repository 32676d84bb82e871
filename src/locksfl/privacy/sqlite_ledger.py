"""The ledger of a federation: SQLite, durable before a release leaves. (A device's own ledger,
for all runs and servers, is `locksfl.federation.device.ledger`.)

    ledger = SqliteLedger.create(path, experiment, arms, delta=1e-5)
    if ledger.reserve("locks", round, client):     # on disk when it returns True
        ...send the norm...
        ledger.commit("locks", round, client)      # the coin drew it: now send the update
        ledger.refund("locks", round, client)      # or it did not: the upload was not released

Guarantees:

* A reservation is on disk (WAL, synchronous FULL) before `reserve` returns, and counts in full,
  norm and upload, until it is refunded: a crash can only overstate what was spent.
* A client that cannot pay for the whole round, a round reserved twice, a refund after a commit, a
  round past the plan: refused, and nothing is written.
* It is a `Journal`: what was altered, cut or put back from an old copy is refused.
* It is opened with the identity of its experiment; another experiment's ledger is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from locksfl.arm import Arm
from locksfl.methods.releases import Accountant, Relation
from locksfl.privacy.journal import Journal
from locksfl.privacy.ledger import ArmLedger, Ledger, counts, empty_arrays
from locksfl.privacy.terms import Budget

FORMAT = 1
EVERYBODY = -1  # the client of a round in central trust, where all are charged
_COLUMNS = (
    "arm TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL, kind TEXT NOT NULL, "
    "uploaders INTEGER NOT NULL"
)


class SqliteLedger:
    """One experiment's ledger. Use as a context manager, or `close` it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._arms: dict[str, tuple[Arm, Budget | None]] = {}
        self._tables: dict[str, list[int]] = {}
        for name, terms, budget in journal.settings["arms"]:
            kept_terms = Arm.from_dict(terms, name)
            kept_budget = None if budget is None else Budget(**budget)
            self._arms[name] = (kept_terms, kept_budget)
            if kept_budget is not None:
                self._tables[name] = kept_budget.most_uploads(kept_terms)

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: str,
        arms: Sequence[tuple[str, Arm, Budget | None]],
        *,
        delta: float,
        relation: Relation = "zero-out",
        accountant: Accountant = "pld",
    ) -> SqliteLedger:
        """A new ledger; a file that is there is never written over."""
        for _, terms, budget in arms:
            if budget is not None:
                budget.check(terms)
        settings = {
            "format": FORMAT,
            "experiment": experiment,
            "delta": delta,
            "relation": relation,
            "accountant": accountant,
            "arms": [
                [name, terms.as_dict(), None if budget is None else asdict(budget)]
                for name, terms, budget in arms
            ],
        }
        return cls(Journal.create(path, settings, _COLUMNS, "arm, client, round, kind"))

    @classmethod
    def open(cls, path: Path, experiment: str, head: str | None = None) -> SqliteLedger:
        """A ledger that is there, verified whole. `head`: one that was noted earlier."""
        journal = Journal.open(path, head)
        try:
            settings = journal.settings
            if settings.get("format") != FORMAT or "experiment" not in settings:
                raise ValueError(f"{path}: not a ledger of a federation, in format {FORMAT}")
            if settings["experiment"] != experiment:
                raise ValueError(
                    f"{path}: the ledger is of another experiment "
                    f"({settings['experiment'][:16]}, expected {experiment[:16]})"
                )
            return cls(journal)
        except BaseException:
            journal.close()
            raise

    @property
    def head(self) -> str:
        """The number of entries and the hash over all of them, to be noted elsewhere."""
        return self._journal.head

    def reserve(self, arm: str, round_number: int, client: int) -> bool:
        """Reserve a whole round, norm and upload, for a client in local trust. False: it cannot
        pay and must not be asked; nothing is written."""
        terms, _ = self._arm(arm, "local")
        if not 0 <= client < terms.clients:
            raise ValueError(f"client = {client}: expected a number below {terms.clients}")
        with self._journal.transaction():
            self._check_round(arm, round_number, client)
            norms, uploads = self._counts(arm, client)
            table = self._tables.get(arm)
            if table is not None:
                after = norms + 1 if terms.releases_norms else 0
                if after >= len(table) or uploads + 1 > table[after]:
                    return False
            self._journal.append(arm, round_number, client, "reserve", 1)
        return True

    def reserve_round(self, arm: str, round_number: int) -> None:
        """Charge a round of central trust to every client, before its sums are released."""
        self._arm(arm, "central")
        with self._journal.transaction():
            self._check_round(arm, round_number, EVERYBODY)
            self._journal.append(arm, round_number, EVERYBODY, "reserve", 1)

    def reserved(self, arm: str, round_number: int) -> list[int]:
        """Who was reserved for a round: after a crash, those not to be asked again."""
        query = "SELECT client FROM entries WHERE arm = ? AND round = ? AND kind = 'reserve'"
        return [client for (client,) in self._journal.query(query, (arm, round_number))]

    def commit(self, arm: str, round_number: int, client: int, uploaders: int = 1) -> None:
        """The upload was drawn, among so many uploaders (for PUBLIC's credit; 1 is the worst)."""
        if uploaders < 1:
            raise ValueError(f"uploaders = {uploaders}: expected a whole number >= 1")
        self._resolve(arm, round_number, client, "commit", uploaders)

    def refund(self, arm: str, round_number: int, client: int) -> None:
        """The upload was not drawn, and is not released. The norm stays spent."""
        self._resolve(arm, round_number, client, "refund", 1)

    def to_ledger(self) -> Ledger:
        """The counts, for the accountants: the same record as a run folder gives."""
        settings, arms = self._journal.settings, []
        for name, (terms, budget) in self._arms.items():
            arrays = empty_arrays(name, terms.clients)
            norms, uploads, shares = (arrays[f"ledger_{name}_{k}"] for k in _KINDS)
            rounds = set()
            query = "SELECT round, client, kind, uploaders FROM entries WHERE arm = ?"
            for round_number, client, kind, uploaders in self._journal.query(query, (name,)):
                rounds.add(round_number)
                if client == EVERYBODY:
                    continue
                if kind == "reserve":
                    norms[client] += terms.releases_norms
                    uploads[client] += 1
                    shares[client] += 1.0
                elif kind == "refund":
                    uploads[client] -= 1
                    shares[client] -= 1.0
                else:
                    shares[client] += 1 / uploaders - 1.0
            arms.append(ArmLedger(name, counts(arrays, name, terms, len(rounds)), budget))
        return Ledger(
            settings["experiment"],
            settings["delta"],
            settings["relation"],
            settings["accountant"],
            "sound",
            tuple(arms),
        )

    def close(self) -> None:
        """Let go of the file; what was written is there already."""
        self._journal.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _arm(self, arm: str, trust: str) -> tuple[Arm, Budget | None]:
        if arm not in self._arms:
            raise ValueError(f"arm = {arm!r}: expected one of {', '.join(self._arms)}")
        terms, budget = self._arms[arm]
        if terms.trust != trust:
            raise ValueError(f"arm = {arm!r}: trust {terms.trust!r} is not entered this way")
        return terms, budget

    def _check_round(self, arm: str, round_number: int, client: int) -> None:
        planned = self._arms[arm][0].rounds
        if not 1 <= round_number <= planned:
            raise ValueError(f"round = {round_number}: expected 1 to {planned}, as was planned")
        if self._kinds(arm, round_number, client):
            raise ValueError(f"round = {round_number}: already reserved; nothing is sent twice")

    def _kinds(self, arm: str, round_number: int, client: int) -> set[str]:
        query = "SELECT kind FROM entries WHERE arm = ? AND client = ? AND round = ?"
        return {kind for (kind,) in self._journal.query(query, (arm, client, round_number))}

    def _counts(self, arm: str, client: int) -> tuple[int, int]:
        query = "SELECT kind, COUNT(*) FROM entries WHERE arm = ? AND client = ? GROUP BY kind"
        found = dict(self._journal.query(query, (arm, client)))
        reserved = found.get("reserve", 0)
        norms = reserved if self._arms[arm][0].releases_norms else 0
        return norms, reserved - found.get("refund", 0)

    def _resolve(self, arm: str, round_number: int, client: int, kind: str, uploaders: int) -> None:
        self._arm(arm, "local")
        with self._journal.transaction():
            kinds = self._kinds(arm, round_number, client)
            if kinds != {"reserve"}:
                why = "it was never reserved" if not kinds else "it is resolved already"
                raise ValueError(f"{kind} of round {round_number}, client {client}: {why}")
            self._journal.append(arm, round_number, client, kind, uploaders)


_KINDS = ("norms", "uploads", "shares")
