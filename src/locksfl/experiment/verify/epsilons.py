"""Every epsilon of a statement, recomputed from its public terms (`privacy.recompute`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType

from locksfl._tables import Record, or_infinite
from locksfl.experiment.costs import CURVE_POINTS
from locksfl.experiment.documents import Document
from locksfl.methods.events import Exact, Rounds, Seen, Sent, Terms, for_rounds, terms_from_json
from locksfl.methods.releases import OBSERVERS, RELATIONS, Accountant
from locksfl.privacy.accountant import able_to_charge
from locksfl.privacy.recompute import Recomputed, recomputed

ALL_ARMS = "all arms together"


@dataclass(frozen=True)
class Row:
    """One printed epsilon beside the recomputed one; math.inf is infinite."""

    arm: str
    observer: str
    relation: str
    printed: float
    found: Recomputed
    faults: tuple[str, ...]

    @property
    def by(self) -> str:
        """By which accountant it was recomputed, with dp_accounting's bounds if it was our own."""
        if self.found.by == "none":
            return "no noise"
        if not self.found.by.startswith("locks "):
            return f"dp_accounting {self.found.by}"
        low, high = self.found.low, self.found.high
        told = f"{low:.4g} to {high:.4g}" if low else f"at most {high:.4g}"
        if math.isinf(high):
            told = f"at least {low:.4g}" if low else "no bound"
        return f"{self.found.by} (dp_accounting: {told})"


def cost_rows(document: Document) -> Iterator[Row]:
    """A row for every epsilon of the arms, of all arms together, and of arms that ended early."""
    statement, asked = document["statement"], document["config"]["privacy"]
    arms = statement["arms"]
    every = {arm["name"]: terms_in(arm) for arm in arms}
    told = [(arm["name"], arm["privacy"], [every[arm["name"]]]) for arm in arms]
    told.append((ALL_ARMS, statement["all_arms_composed"], list(every.values())))
    for arm in arms:
        if "spent_so_far" in arm and not by_ledger(terms_in(arm)):
            played = for_rounds(every[arm["name"]], arm["played_rounds"])
            name = f"{arm['name']}, rounds played"
            told.append((name, arm["spent_so_far"], [played]))
    for name, costs, terms in told:
        for cost in costs:
            seen = [rounds for one in terms for rounds in one[cost["observer"]]]
            yield _row(name, cost, seen, asked)


def terms_in(arm: Record) -> Terms:
    """The terms of an arm of a statement."""
    return terms_from_json(arm["terms"])


def by_ledger(terms: Terms) -> bool:
    """Whether what an arm has spent is that of the clients in its ledger: who sends messages of
    its own spends by being asked, which no public term tells."""
    return _has(terms["PUBLIC"], Sent)


def _row(name: str, cost: Record, seen: Seen, asked: Record) -> Row:
    printed = or_infinite(cost["epsilon"])
    delta, accountant = asked.get("delta", 1e-5), asked.get("accountant", "pld")
    found = recomputed(seen, delta, cost["relation"], accountant, printed)
    where = f"{name}, {cost['observer']}, {cost['relation']}"
    faults = []
    if cost["delta"] != delta:
        faults.append(f"{where}: delta {cost['delta']:g}; the configuration says {delta:g}")
    if problem := found.problem(printed):
        faults.append(f"{where}: epsilon {_text(printed)}: {problem}")
    if cost["accountant"] != (expected := _accountant(seen, accountant)):
        faults.append(f"{where}: accountant {cost['accountant']}; expected {expected}")
    return Row(name, cost["observer"], cost["relation"], printed, found, tuple(faults))


def _accountant(seen: Seen, asked: Accountant) -> str:
    """The accountant that a statement names: docs/accounting.md."""
    if _has(seen, Exact):
        return "none"
    return able_to_charge(seen, asked)[-1].name


def curve_faults(document: Document) -> Iterator[str]:
    """Faults of the epsilons after each round, against the observer whom the trust protects from;
    in central trust the values of every so many rounds are computed, and given up to there."""
    asked = document["config"]["privacy"]
    delta, relation = asked.get("delta", 1e-5), asked.get("relation", "zero-out")
    accountant = asked.get("accountant", "pld")
    for arm in document["statement"]["arms"]:
        lines = [line for line in document["rounds"] if line["arm"] == arm["name"]]
        terms = terms_in(arm)
        seen = terms["PUBLIC"] if _has(terms["SERVER"], Exact) else terms["SERVER"]
        secret = not _has(seen, Sent)
        stride = -(-arm["rounds"] // CURVE_POINTS) if secret else 1
        known: dict[int, Recomputed] = {}
        for line in lines:
            at = min(arm["rounds"], -(-line["round"] // stride) * stride)
            printed = or_infinite(line["epsilon"])
            if at not in known:
                so_far = [Rounds(event, at) for event, _ in seen]
                known[at] = recomputed(so_far, delta, relation, accountant, printed, rough=True)
            if problem := known[at].problem(printed):
                where = f"{arm['name']}, round {line['round']}"
                yield f"{where}: epsilon {_text(printed)}: {problem}"


def shape_faults(document: Document) -> Iterator[str]:
    """Faults of the lists of epsilons: one for each observer and relation, no more and no less."""
    statement = document["statement"]
    observers = [who for who in OBSERVERS if who in statement["arms"][0]["terms"]]
    expected = [(observer, relation) for observer in observers for relation in RELATIONS]
    lists = [(arm["name"], arm["privacy"]) for arm in statement["arms"]]
    lists += [
        (arm["name"], arm["spent_so_far"]) for arm in statement["arms"] if "spent_so_far" in arm
    ]
    if covers := statement["covers"]:
        lists.append(("covers, composed", covers["composed"]))
    for name, costs in (*lists, (ALL_ARMS, statement["all_arms_composed"])):
        if [(cost["observer"], cost["relation"]) for cost in costs] != expected:
            yield f"{name}: expected one epsilon for each observer and relation"


def _has(seen: Seen, kinds: type | UnionType) -> bool:
    return any(isinstance(event, kinds) for event, _ in seen)


def _text(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
