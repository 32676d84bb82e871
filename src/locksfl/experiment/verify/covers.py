"""What a statement says of its population's journal (`covers`), held against its own run.

The journal is not public: its total, and what other runs cost, are the operator's word. But the run
is in it, so that it can neither have allowed less than the run costs, nor have charged less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from locksfl._tables import Record, or_infinite
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import ended
from locksfl.experiment.documents import Document
from locksfl.experiment.verify.epsilons import terms_in
from locksfl.methods.releases import Observer, Relation
from locksfl.privacy.population import Total, planned_arm
from locksfl.privacy.recompute import ABOVE, CLOSE, Recomputed, recomputed


def cover_faults(document: Document, config: Config, arms: Sequence[Arm]) -> Iterator[str]:
    """What the journal cannot have said.

    Args:
        document: with `covers` or without.
        config: its settings.
        arms: planned anew; none if one has code of the operator's own, so that its charge is not
            known. What its terms lead to is known all the same.
    """
    statement, privacy = document["statement"], config.privacy
    covers, charged = statement["covers"], not statement["simulated"] and privacy.population
    if covers is None or not charged:
        if (covers is None) == bool(charged):
            yield f"expected {'the journal of the population' if charged else 'null'}"
        return
    told, own = covers["total"], [run for run in covers["runs"] if run["run"] == covers["run"]]
    try:
        total = Total(told["epsilon"], told["delta"], told["relation"], told["order"])
    except ValueError as error:
        yield f"total: {error}"
        return
    label = re.compile(re.escape(config.name) + " [0-9a-f]{8}")
    if len(own) != 1 or not label.fullmatch(covers["run"]):
        yield f"run = {covers['run']!r}: expected this run, and once among the runs"
        return
    if covers["population"] != privacy.population:
        yield f"population = {covers['population']!r}: expected {privacy.population!r}"
    limit = privacy.total or total.epsilon
    expected = {"epsilon": limit, "observer": total.observer, "filter": total.filter}
    for name, value in expected.items():
        if told[name] != value:
            yield f"total.{name} = {told[name]!r}: expected {value!r}"
    yield from _epsilon_faults(document, total, own[0])
    yield from _charge_faults(statement, total, own[0], arms)


def _epsilon_faults(document: Document, total: Total, own: Record) -> Iterator[str]:
    """Epsilons below those that the terms of this run lead to, at the delta of the journal."""
    covers = document["statement"]["covers"]
    stated = [terms_in(arm) for arm in document["statement"]["arms"]]

    def alone(observer: Observer, relation: Relation, printed: float) -> Recomputed:
        seen = [one for terms in stated for one in terms[observer]]
        return recomputed(seen, total.delta, relation, "pld", printed)

    printed = or_infinite(own["epsilon"])
    mine = alone(total.observer, total.relation, printed)
    if problem := mine.problem(printed):
        yield f"the run's epsilon {printed:g}: {problem}"
    if total.epsilon < mine.epsilon * (1 - CLOSE["pld"]):
        yield f"total.epsilon = {total.epsilon:g}: this run alone costs {mine.epsilon:.6g}"
    for cost in covers["composed"]:
        where = f"composed, {cost['observer']}, {cost['relation']}"
        together = or_infinite(cost["epsilon"])
        found = alone(cost["observer"], cost["relation"], together)
        problem = found.problem(together)
        if problem and (len(covers["runs"]) == 1 or together < found.epsilon):
            yield f"{where}: epsilon {together:g}: of this run alone, {problem}"
        if cost["delta"] != total.delta:
            yield f"{where}: delta {cost['delta']:g}; the total's is {total.delta:g}"
        if (cost["observer"], cost["relation"]) == (total.observer, total.relation):
            most = max(or_infinite(run["epsilon"]) for run in covers["runs"])
            if together < most * (1 - CLOSE["pld"]):
                yield f"{where}: epsilon {together:g}: one run alone has {most:g}"


def _charge_faults(
    statement: Record, total: Total, own: Record, arms: Sequence[Arm]
) -> Iterator[str]:
    """Shares of the total that are not those of the charges."""
    covers = statement["covers"]
    share = math.fsum(run["share"] for run in covers["runs"])
    spent = total.epsilon_of(share * total.limit)
    for name, value in (("share", share), ("spent_so_far", spent)):
        if not math.isclose(covers[name], value, rel_tol=1e-6):
            yield f"{name} = {covers[name]:g}: its runs have {value:g}"
    if not arms:
        return
    played = [one.get("played_rounds") or one["rounds"] for one in statement["arms"]]
    both = ended(arms, played), arms
    least, most = (total.charge([*map(planned_arm, each)]) / total.limit for each in both)
    if most * (1 - CLOSE["pld"]) > 1:
        yield f"total.epsilon = {total.epsilon:g}: this run alone is charged {most:.4g} of it"
    if not least * (1 - CLOSE["pld"]) <= own["share"] <= most * (1 + ABOVE["pld"]):
        yield f"the run's share {own['share']:.4g}: its terms lead to {most:.4g}"
