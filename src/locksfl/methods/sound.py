"""Which rule, estimator and trust go together, by what they state about themselves; and which
numbers of an arm go with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from locksfl._validate import positive, probability
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.estimators import Estimator
from locksfl.methods.rules import Rule
from locksfl.methods.trusts import Trust

if TYPE_CHECKING:
    from locksfl.arm import Arm

Problem = tuple[str, str, str]  # a setting of an arm, its value, and what is wrong with it


def either(names: Iterable[str]) -> str:
    """Names to choose from, in a refusal."""
    return " or ".join(repr(name) for name in names)


def trusts_with(kind: str, has: bool = True) -> str:
    """The trusts that have a property, or do not, to be named in a refusal."""
    return either(name for name, trust in TRUSTS.items() if getattr(trust, kind) is has)


def default_estimator(rule: Rule, trust: Trust) -> str:
    """The name of the best one that is sound with them."""
    best_first = sorted(ESTIMATORS, key=lambda name: _drawbacks(ESTIMATORS[name], rule, trust))
    sound = [name for name in best_first if not unsound(rule, ESTIMATORS[name], trust)]
    return (sound or best_first)[0]


def _drawbacks(estimator: Estimator, rule: Rule, trust: Trust) -> tuple[bool, bool]:
    """What speaks against an estimator as the default, the more important first.

    An estimator should be unbiased, unless the rule is biased itself. A cap that can bind makes an
    estimator biased, which is worth it only where the cap keeps noise small. And it should have one
    bound for all clients, with two exceptions: if probabilities do not follow the norms, one bound
    would be that of the least probability; and some rules are the optimum where each client's noise
    is in units of a bound of its own."""
    in_vain = rule.cap_can_bind and not trust.private and not estimator.own_bound
    unbiased = estimator.unbiased and not in_vain
    own_bound = rule.jointly or (rule.for_divided_noise and trust.clients_add_noise)
    return unbiased == rule.biased, estimator.own_bound != own_bound


def unsound(
    rule: Rule, estimator: Estimator, trust: Trust, names: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Why these three cannot be combined, based on what they state.

    Args:
        rule, estimator, trust: the methods.
        names: how the user named each of the three, for the messages.

    Returns:
        (setting, problem) for each problem; empty if they are sound together.
    """
    return list(_unsound(rule, estimator, trust, names or {}))


def _unsound(
    rule: Rule, estimator: Estimator, trust: Trust, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    named = {"rule": rule.name, "estimator": estimator.name, "trust": trust.name, **names}
    if trust.private:
        without = "so it cannot be accounted; expected a statement, or a trust without noise"
        if rule.compares and trust.server_adds_noise:
            each = [t.name for t in TRUSTS.values() if t.clients_add_noise]
            yield (
                "rule",
                f"it needs other clients' raw values, and under trust {named['trust']!r} no "
                "accountant charges their influence; expected a trust without noise"
                + "".join(f", or {name!r}, whose clients release theirs" for name in each),
            )
        elif rule.largest_probability is None:
            yield "rule", f"it states no largest probability, {without}"
        if estimator.bound is None:
            yield "estimator", f"it states no bound on a contribution, {without}"
        if trust.guards_server and rule.asks is not None and not rule.released:
            yield (
                "rule",
                f"uploads would depend on a {rule.asks.name} that is not released; under trust "
                f"{named['trust']!r} expected a rule that releases what it asks for",
            )
    if trust.clients_add_noise and rule.count_share:
        yield (
            "rule",
            f"it releases a noisy number of uploads, and under trust {named['trust']!r} no server "
            f"adds noise; expected trust {trusts_with('clients_add_noise', False)}",
        )
    if trust.server_adds_noise and estimator.own_bound:
        yield (
            "estimator",
            f"not with trust {named['trust']!r} (the noise would have to grow with 1/p on a sum); "
            f"expected trust {trusts_with('server_adds_noise', False)}",
        )
    noised = trust.clients_add_noise and rule.released and not rule.jointly
    if estimator.needs_floor and noised and rule.asks and "floor" not in rule.takes:
        yield (
            "rule",
            f"a noised {rule.asks.name} may be 0, and estimator {named['estimator']!r} divides by "
            "the probability; expected a rule with a floor",
        )
    if estimator.weighted != ("weights" in rule.takes):
        if estimator.weighted:
            partners = f"rule {either(n for n, r in RULES.items() if 'weights' in r.takes)}"
        else:
            partners = f"estimator {either(n for n, e in ESTIMATORS.items() if e.weighted)}"
        yield "rule", f"not with estimator {named['estimator']!r}; expected {partners}"


def unsound_sizes(arm: Arm) -> Iterator[Problem]:
    """Numbers of clients, and a floor, that no arm can have."""
    if arm.cohort > arm.clients:
        yield "cohort", f"{arm.cohort:g}", f"expected at most the {arm.clients} clients"
    if arm.uploads > arm.cohort:
        yield "uploads", f"{arm.uploads:g}", f"expected at most the cohort, {arm.cohort:g}"
    if not 0 <= arm.floor < 1:
        yield "floor", repr(arm.floor), "expected a share in [0, 1)"


def unsound_clip(arm: Arm) -> Iterator[Problem]:
    """Adaptive clipping where nobody sums the count of updates within C."""
    quantile, where = arm.clip_quantile, "clip_quantile"
    if quantile is None:
        if arm.clip_multiplier:
            problem = "only with clip_quantile, to which the clip norm adapts"
            yield "clip_multiplier", repr(arm.clip_multiplier), problem
        return
    probability(**{arm.named(where): quantile})
    positive(**{arm.named("clip_rate"): arm.clip_rate})
    if TRUSTS[arm.trust].clients_add_noise:
        problem = (
            f"not with trust {arm.trust!r}, whose clients would each have to release a bit; "
            f"expected trust {trusts_with('clients_add_noise', False)}"
        )
        yield where, repr(quantile), problem
    if arm.dropouts:
        yield where, repr(quantile), "not in a federation; expected a fixed clip norm"
    if arm.controlled:
        problem = (
            f"not with uploads = {arm.uploads:g} of rule {arm.rule!r}, whose rates are "
            "charged at one order; leave one of them out"
        )
        yield where, repr(quantile), problem


def unsound_weights(arm: Arm) -> Iterator[Problem]:
    """Public weights of a rule that takes none, or that are not one share for each client."""
    takes = "weights" in arm.parts.rule.takes
    if takes and arm.weights is None:
        yield "weights", "", f"missing: rule {arm.rule!r} needs one number per client"
    if arm.weights is None:
        return
    if not takes:
        takers = either(name for name, rule in RULES.items() if "weights" in rule.takes)
        yield "weights", "", f"only with rule {takers}, not {arm.rule!r}"
    values = np.asarray(arm.weights)
    sound = np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) <= 1e-6
    if values.shape != (arm.clients,) or not sound:
        problem = (
            f"expected {arm.clients} numbers >= 0 that sum to 1, "
            f"got {values.size} that sum to {values.sum():.6g}"
        )
        yield "weights", "", problem


def unsound_ladder(arm: Arm) -> Iterator[Problem]:
    """Noise of the rungs that is not one number > 0 for each of them."""
    sound = all(math.isfinite(z) and z > 0 for z in arm.ladder)
    if arm.ladder and (len(arm.ladder) != len(arm.rungs) or not sound):
        problem = (
            f"{len(arm.ladder)} noise multipliers; expected {len(arm.rungs)} numbers > 0, as many "
            "as there are rungs"
        )
        yield "ladder", "", problem


def unsound_arm(arm: Arm) -> Iterator[Problem]:
    """First the methods, then numbers that they forbid."""
    rule, estimator, trust = arm.parts
    names = {"rule": arm.rule, "estimator": arm.estimator, "trust": arm.trust}
    for setting, problem in unsound(rule, estimator, trust, names):
        yield setting, repr(names[setting]), problem
    yield from arm.scheme.unsound(arm)
    if estimator.needs_floor and "floor" in rule.takes and arm.floor == 0:
        problem = f"estimator {arm.estimator!r} divides by the probability; expected > 0"
        yield "floor", "0", problem
    if arm.dropouts and rule.score is not None:
        problem = (
            f"a device of a federation is not asked for {', '.join(rule.facts)}; expected a "
            "rule by the norm, or by nothing"
        )
        yield "rule", repr(arm.rule), problem
    if rule.everyone and not arm.cohort == arm.uploads == arm.clients:
        problem = f"rule {arm.rule!r} asks all {arm.clients} clients; leave cohort and uploads out"
        yield "cohort", f"{arm.cohort:g}", problem
    if rule.all_clients and not rule.everyone and arm.cohort != arm.clients:
        problem = f"rule {arm.rule!r} scores all {arm.clients} clients; leave cohort out"
        yield "cohort", f"{arm.cohort:g}", problem
