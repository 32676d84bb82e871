"""Which rule, estimator and trust go together, by what they state about themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.estimators import Estimator
from locksfl.methods.rules import Rule
from locksfl.methods.trusts import Trust


def either(names: Iterable[str]) -> str:
    """Names to choose from, in a refusal."""
    return " or ".join(repr(name) for name in names)


def trusts_with(kind: str, has: bool = True) -> str:
    """The trusts that have a property, or do not, to be named in a refusal."""
    return either(name for name, trust in TRUSTS.items() if getattr(trust, kind) is has)


def default_estimator(rule: Rule, trust: Trust) -> str:
    """The name of the best one that is sound with them."""
    by_merit = sorted(ESTIMATORS, key=lambda name: _merit(ESTIMATORS[name], rule, trust))
    sound = [name for name in by_merit if not unsound(rule, ESTIMATORS[name], trust)]
    return (sound or by_merit)[0]


def _merit(estimator: Estimator, rule: Rule, trust: Trust) -> tuple[bool, bool]:
    """The order of preference for the default: unbiased first, unless the rule is not; then one
    bound for all, unless the rule gives probabilities that do not follow the norms: one bound would
    be that of the least of them. Also where the rule is the optimum for clients' noise that is
    divided by p, which is noise in units of a bound of its own. Where a cap would bias and there is
    no noise that it keeps small, one that caps nothing."""
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
                f"it needs other clients' raw values, and under trust {named['trust']!r} their "
                "influence is charged to nobody; expected a trust without noise"
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
