"""Every epsilon of a run beside that of the second opinion (`privacy.recompute`) on its terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import UnionType
from typing import Any

from msgspec import structs

from locksfl._tables import or_infinite, or_null
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import CURVE_POINTS
from locksfl.experiment.own_code import described
from locksfl.experiment.record import Cost, PublicArm, PublicRound, PublicRun
from locksfl.methods.events import Exact, Rounds, Sampled, Seen, Sent, Terms, for_rounds
from locksfl.methods.releases import OBSERVERS, RELATIONS, Observer, Relation
from locksfl.privacy.accountant import able_to_charge
from locksfl.privacy.recompute import Recomputed, recomputed

ALL_ARMS = "all arms together"
PAIRS: list[tuple[Observer, Relation]] = list(product(OBSERVERS, RELATIONS))
ABOVE_ASKED = 1 + 1e-6  # how far an epsilon may be above the one that was asked for


@dataclass(frozen=True)
class Row:
    """One printed epsilon beside the recomputed one; math.inf is infinite. `expected`: the cost as
    it has to be printed."""

    arm: str
    observer: Observer
    relation: Relation
    printed: float
    found: Recomputed
    expected: Cost

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


def priced(run: PublicRun) -> tuple[PublicRun, list[Row]]:
    """A run with its epsilons where the second opinion agrees with them, else with that; and a row
    for each epsilon of an arm, of an arm that ended early, and of all arms together."""
    privacy = run.settings.privacy
    rows: list[Row] = []
    arms: list[PublicArm] = []

    def costs(name: str, stated: Sequence[Cost], *terms: Terms) -> tuple[Cost, ...]:
        found = [
            _row(name, cost, who, relation, [one for each in terms for one in each[who]], privacy)
            for (who, relation), cost in zip(PAIRS, stated, strict=True)
        ]
        rows.extend(found)
        return tuple(row.expected for row in found)

    for arm, plan in zip(run.arms, described(run).arms, strict=True):
        guarantee = costs(arm.name, arm.privacy, arm.terms)
        if (spent := arm.spent_so_far) and not by_ledger(arm.terms):
            played = for_rounds(arm.terms, arm.played)
            spent = costs(f"{arm.name}, rounds played", spent, played)
        arms.append(
            structs.replace(
                arm,
                privacy=tuple(_as_asked(cost, arm, privacy) for cost in guarantee),
                rounds=tuple(_curve(arm, privacy)),
                claimed_epsilon=_claimed(arm, plan, privacy),
                spent_so_far=spent and tuple(map(_at_most, spent, guarantee)),
            )
        )
    all_arms = costs(ALL_ARMS, run.all_arms, *(arm.terms for arm in arms))
    return structs.replace(run, arms=tuple(arms), all_arms=all_arms), rows


def agreed(found: Recomputed, stated: float | None) -> float | None:
    """An epsilon if the second opinion agrees with it, else that, within dp_accounting's bounds:
    beyond them our own accountant is wrong, too. None is infinite."""
    if found.problem(or_infinite(stated)) is None:
        return stated
    return or_null(min(max(found.epsilon, found.low), found.high))


def by_ledger(terms: Terms) -> bool:
    """Whether what an arm has spent is that of the clients in its ledger: who sends messages of
    its own spends by being asked, which no public term tells."""
    return _has(terms["PUBLIC"], Sent)


def _row(
    name: str, cost: Cost, who: Observer, relation: Relation, seen: Seen, privacy: PrivacyConfig
) -> Row:
    printed = or_infinite(cost.epsilon)
    found = recomputed(seen, privacy.delta, relation, privacy.accountant, printed)
    by: Any = "none" if _has(seen, Exact) else able_to_charge(seen, privacy.accountant)[-1].name
    expected = Cost(
        observer=who,
        relation=relation,
        epsilon=agreed(found, cost.epsilon),
        delta=privacy.delta,
        accountant=by,
    )
    return Row(name, who, relation, printed, found, expected)


def _as_asked(cost: Cost, arm: PublicArm, privacy: PrivacyConfig) -> Cost:
    """At most the total that was asked for, against the observer whom the trust protects from."""
    limit = privacy.epsilon or privacy.max_epsilon
    mine = (_guarded(arm.terms), privacy.relation) == (cost.observer, cost.relation)
    if limit is None or not mine or privacy.accounting != "sound":
        return cost
    return _at_most(cost, structs.replace(cost, epsilon=limit))


def _at_most(cost: Cost, most: Cost) -> Cost:
    above = or_infinite(cost.epsilon) > or_infinite(most.epsilon) * ABOVE_ASKED
    return most if above else structs.replace(most, epsilon=cost.epsilon)


def _claimed(arm: PublicArm, plan: Arm, privacy: PrivacyConfig) -> float | None:
    """The epsilon that the paper's formula leads to, if that was printed."""
    if (stated := arm.claimed_epsilon) is None:
        return None
    seen = [Rounds(Sampled(plan.uploads / plan.clients, arm.noise.known()), arm.planned)]
    found = recomputed(seen, privacy.delta, "zero-out", privacy.accountant, stated)
    limit = or_infinite(privacy.epsilon)
    return agreed(found, stated) if stated <= limit * ABOVE_ASKED else limit


def _curve(arm: PublicArm, privacy: PrivacyConfig) -> Iterator[PublicRound]:
    """The rounds with the epsilons after each, against the observer whom the trust protects from;
    in central trust the values of every so many rounds are computed, and given up to there."""
    seen = arm.terms[_guarded(arm.terms)]
    stride = 1 if _has(seen, Sent) else -(-arm.planned // CURVE_POINTS)
    known: dict[int, Recomputed] = {}
    for number, one in enumerate(arm.rounds, 1):
        at, printed = min(arm.planned, -(-number // stride) * stride), or_infinite(one.epsilon)
        if at not in known:
            so_far = [Rounds(event, at) for event, _ in seen]
            known[at] = recomputed(so_far, *privacy.accounted, printed, rough=True)
        yield structs.replace(one, epsilon=agreed(known[at], one.epsilon))


def _guarded(terms: Terms) -> Observer:
    """The observer whom the trust protects from, of those who see no exact values."""
    return "PUBLIC" if _has(terms["SERVER"], Exact) else "SERVER"


def _has(seen: Seen, kinds: type | UnionType) -> bool:
    return any(isinstance(event, kinds) for event, _ in seen)
