"""What a run says of its population's journal (`covers`), made anew from the run itself.

The journal is not public: its total, and what other runs cost, are the operator's word. But the run
is in it, so that it can neither have allowed less than the run costs, nor have charged less.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from msgspec import structs

from locksfl._tables import or_infinite, or_null
from locksfl.experiment.record import Cost, Covers, PublicRun
from locksfl.experiment.verify.epsilons import PAIRS, agreed
from locksfl.experiment.verify.rebuilt import kept
from locksfl.methods.releases import Observer, Relation
from locksfl.privacy.population import Total
from locksfl.privacy.recompute import ABOVE, CLOSE, Recomputed, recomputed
from locksfl.privacy.terms import PlannedArm

LESS, MORE = 1 - CLOSE["pld"], 1 + ABOVE["pld"]


def rebuilt_covers(run: PublicRun) -> Covers | None:
    """What the journal can have said of a run: numbers that the run alone fixes or bounds, and
    sums. Which other runs there were, and what they cost, is taken."""
    privacy = run.settings.privacy
    charged = not run.simulated and privacy.population is not None
    if (covers := kept(run.covers, charged, "covers")) is None:
        return None
    own = [one for one in covers.runs if one.run == covers.run]
    label = re.escape(run.settings.name) + " [0-9a-f]{8}"
    if len(own) != 1 or not re.fullmatch(label, covers.run):
        raise ValueError(f"covers.run = {covers.run!r}: expected this run, and once among the runs")
    total = replace(covers.total, epsilon=privacy.total or covers.total.epsilon)
    found = _alone(run, total, total.observer, total.relation, own[0].epsilon)
    arms = [PlannedArm(a.name, run.settings.clients, a.planned, a.terms) for a in run.arms]
    played = [one.for_rounds(arm.played) for one, arm in zip(arms, run.arms, strict=True)]
    least, most = (total.charge(each) / total.limit for each in (played, arms))
    mine = structs.replace(
        own[0],
        epsilon=agreed(found, own[0].epsilon),
        share=own[0].share if least * LESS <= own[0].share <= most * MORE else most,
    )
    runs = tuple(mine if one is own[0] else one for one in covers.runs)
    share = _near(covers.share, math.fsum(one.share for one in runs))
    allowed = total.epsilon
    if allowed < found.epsilon * LESS:
        allowed = found.epsilon
    elif most * LESS > 1:  # what the filter has charged for it
        allowed = total.epsilon_of(most * total.limit)
    return structs.replace(
        covers,
        population=privacy.population,
        total=replace(total, epsilon=allowed),
        runs=runs,
        share=share,
        spent_so_far=_near(covers.spent_so_far, total.epsilon_of(share * total.limit)),
        composed=tuple(
            _composed(run, covers, cost, *pair)
            for cost, pair in zip(covers.composed, PAIRS, strict=True)
        ),
    )


def _near(stated: float, found: float) -> float:
    return stated if math.isclose(stated, found, rel_tol=1e-6) else found


def _alone(
    run: PublicRun, total: Total, who: Observer, relation: Relation, stated: float | None
) -> Recomputed:
    """What this run costs by itself, at the delta of the journal."""
    seen = [one for arm in run.arms for one in arm.terms[who]]
    return recomputed(seen, total.delta, relation, "pld", or_infinite(stated))


def _composed(
    run: PublicRun, covers: Covers, cost: Cost, who: Observer, relation: Relation
) -> Cost:
    """All runs together: they cost at least as much as this one and, against whom the total is, as
    each of them; a single run costs exactly as much."""
    total, together = covers.total, cost.epsilon
    found = _alone(run, total, who, relation, together)
    if len(covers.runs) == 1 or or_infinite(together) < found.epsilon:
        together = agreed(found, together)
    most = max(or_infinite(one.epsilon) for one in covers.runs)
    beside = (who, relation) == (total.observer, total.relation)
    if beside and or_infinite(together) < most * LESS:
        together = or_null(most)
    return structs.replace(
        cost, observer=who, relation=relation, epsilon=together, delta=total.delta
    )
