"""Every epsilon of a statement, recomputed from its public terms (`privacy.recompute`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from locksfl.experiment.costs import CURVE_POINTS
from locksfl.experiment.documents import Document
from locksfl.methods.releases import OBSERVERS, RELATIONS
from locksfl.privacy.recompute import Recomputed, recomputed
from locksfl.privacy.terms import Term

Record = dict[str, Any]

MESSAGES = {"gaussian", "filtered-gaussian"}
ALL_ARMS = "all arms together"
BY = {"pld": "dp_accounting pld", "rdp": "dp_accounting rdp", "gaussian": "dp_accounting gaussian"}


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
        if self.found.by in BY or self.found.by == "none":
            return BY.get(self.found.by, "no noise")
        low, high = self.found.low, self.found.high
        told = f"{low:.4g} to {high:.4g}" if low else f"at most {high:.4g}"
        if math.isinf(high):
            told = f"at least {low:.4g}" if low else "no bound"
        return f"{self.found.by} (dp_accounting: {told})"


def cost_rows(document: Document) -> Iterator[Row]:
    """A row for every epsilon of the arms, of all arms together, and of arms that ended early."""
    statement, asked = document["statement"], document["config"]["privacy"]
    arms = statement["arms"]
    told = [(arm["name"], arm["privacy"], [arm["terms"]]) for arm in arms]
    told.append((ALL_ARMS, statement["all_arms_composed"], [arm["terms"] for arm in arms]))
    for arm in arms:
        if "spent_so_far" in arm and not by_ledger(arm):
            played = _played(arm["terms"], arm["played_rounds"])
            name = f"{arm['name']}, rounds played"
            told.append((name, arm["spent_so_far"], [played]))
    for name, costs, terms in told:
        for cost in costs:
            seen = [term for one in terms for term in one[cost["observer"]]]
            yield _row(name, cost, seen, asked)


def by_ledger(arm: Record) -> bool:
    """Whether what an arm has spent is that of the clients in its ledger: who sends messages of
    its own spends by being asked, which no public term tells."""
    return not _kinds(arm["terms"]["PUBLIC"]).isdisjoint(MESSAGES)


def _row(name: str, cost: Record, terms: list[Term], asked: Record) -> Row:
    printed = math.inf if cost["epsilon"] is None else cost["epsilon"]
    delta, accountant = asked.get("delta", 1e-5), asked.get("accountant", "pld")
    found = recomputed(terms, delta, cost["relation"], accountant, printed)
    where = f"{name}, {cost['observer']}, {cost['relation']}"
    faults = []
    if cost["delta"] != delta:
        faults.append(f"{where}: delta {cost['delta']:g}; the configuration says {delta:g}")
    if problem := found.problem(printed):
        faults.append(f"{where}: epsilon {_text(printed)}: {problem}")
    if cost["accountant"] != (expected := _accountant(terms, accountant)):
        faults.append(f"{where}: accountant {cost['accountant']}; expected {expected}")
    return Row(name, cost["observer"], cost["relation"], printed, found, tuple(faults))


def _accountant(terms: Sequence[Term], asked: str) -> str:
    """The accountant that a statement names: docs/accounting.md."""
    kinds = _kinds(terms)
    if "exact" in kinds:
        return "none"
    if kinds <= MESSAGES | {"turns"}:
        return "gdp"
    return "rdp" if "chosen" in kinds else asked


def curve_faults(document: Document) -> Iterator[str]:
    """Faults of the epsilons after each round, against the observer whom the trust protects from;
    in central trust the values of every so many rounds are computed, and given up to there."""
    asked = document["config"]["privacy"]
    delta, relation = asked.get("delta", 1e-5), asked.get("relation", "zero-out")
    accountant = asked.get("accountant", "pld")
    for arm in document["statement"]["arms"]:
        lines = [line for line in document["rounds"] if line["arm"] == arm["name"]]
        terms = arm["terms"]["SERVER"]
        if "exact" in _kinds(terms):
            terms = arm["terms"]["PUBLIC"]
        secret = _kinds(terms).isdisjoint(MESSAGES)
        stride = -(-arm["rounds"] // CURVE_POINTS) if secret else 1
        known: dict[int, Recomputed] = {}
        for line in lines:
            at = min(arm["rounds"], -(-line["round"] // stride) * stride)
            printed = math.inf if line["epsilon"] is None else line["epsilon"]
            if at not in known:
                so_far = [{**term, "rounds": at} for term in terms]
                known[at] = recomputed(so_far, delta, relation, accountant, printed, rough=True)
            if problem := known[at].problem(printed):
                where = f"{arm['name']}, round {line['round']}"
                yield f"{where}: epsilon {_text(printed)}: {problem}"


def shape_faults(document: Document) -> Iterator[str]:
    """Faults of the lists of epsilons: one for each observer and relation, no more and no less."""
    statement = document["statement"]
    expected = [(observer, relation) for observer in OBSERVERS for relation in RELATIONS]
    lists = [(arm["name"], arm["privacy"]) for arm in statement["arms"]]
    lists += [(arm["name"], arm["spent_so_far"]) for arm in statement["arms"] if _ended(arm)]
    for name, costs in (*lists, (ALL_ARMS, statement["all_arms_composed"])):
        if [(cost["observer"], cost["relation"]) for cost in costs] != expected:
            yield f"{name}: expected one epsilon for each observer and relation"


def _ended(arm: Record) -> bool:
    return "spent_so_far" in arm


def _played(terms: dict[str, list[Term]], rounds: int) -> dict[str, list[Term]]:
    return {
        who: [one | {"rounds": rounds} if "rounds" in one else one for one in seen]
        for who, seen in terms.items()
    }


def _kinds(terms: Sequence[Term]) -> set[str]:
    return {term["mechanism"] for term in terms}


def _text(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
