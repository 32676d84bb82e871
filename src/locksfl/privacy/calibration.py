"""From a target epsilon to the noise: never above the target, and at most 0.01 % below it.

Calibration uses no data, so it costs nothing. The resulting multipliers are accounted by the same
functions that will account the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    ClientReleases,
    CyclicRound,
    Relation,
    Round,
    SampledRound,
    joint_multiplier,
)
from locksfl.privacy import gdp
from locksfl.privacy.accountant import central_epsilon
from locksfl.privacy.rdp import (
    ORDERS,
    REPLACE_ORDERS,
    composed_rdp,
    epsilon_from_rdp,
    rdp_epsilon,
    replace_rdp,
    round_rdp,
)

_TOLERANCE = 1e-4
_SEARCH_TOLERANCE = 2e-3
_LARGEST_MULTIPLIER = 1e6


def calibrate(
    arm: Arm,
    epsilon: float,
    delta: float,
    *,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
    most: tuple[int, int] | None = None,
) -> Arm:
    """The arm with the least noise that costs no more than epsilon, norm releases included.

    Args:
        arm: an arm whose trust adds noise. If it has a norm multiplier, that is kept.
        epsilon: the total over all its rounds, against the observer that the trust guards against.
        delta: well below 1 / clients.
        relation: the relation that epsilon refers to.
        accountant: how rounds over a secret cohort are composed.
        most: the most (norms, uploads) of one client if clients add the noise; one of each per
            round, if not given.

    Returns:
        The arm with its multipliers.
    """
    if arm.clip_quantile is not None:
        return _with_bits(arm, epsilon, delta, relation, accountant)
    if arm.rungs and arm.parts[2].amplified:
        return calibrate_rungs(arm, epsilon, delta, relation)
    joint, given = arm.releases_norms, arm.norm_multiplier or None
    found: ClientReleases | SampledRound
    if arm.parts[2].amplified and not arm.separation:
        p = arm.largest_probability
        found = calibrate_central(
            epsilon,
            delta,
            arm.rounds,
            arm.sampling_rate * (1.0 if joint else p),
            relation=relation,
            accountant=accountant,
            upload_probability=p if joint else 1.0,
            norm_release=joint,
            norm_multiplier=given,
            cohort=arm.cohort if joint else None,
            norm_share=arm.norm_low,
        )
    else:
        norms, uploads = most or (arm.rounds, arm.rounds)
        if arm.separation:  # the server's noise costs each client what its own would
            uploads = CyclicRound(arm.separation, 1.0).turns(arm.rounds)
        found = calibrate_local(
            epsilon,
            delta,
            uploads=uploads,
            norms=norms if joint else 0,
            relation=relation,
            norm_multiplier=given,
        )
    return replace(
        arm,
        noise_multiplier=found.noise_multiplier,
        norm_multiplier=found.norm_multiplier or 0.0,
    )


def _with_bits(
    arm: Arm, epsilon: float, delta: float, relation: Relation, accountant: Accountant
) -> Arm:
    """The same for an arm whose clip norm adapts: the bits are paid out of the same epsilon.

    First the multipliers without bits. The bits then take a share of the release that comes from
    the same sample (1/z^2 adds up): of the norms, or of the updates if the whole cohort uploads;
    else they are a release of their own, at the rate of the cohort.

    Without a multiplier of their own they get max(m / 10, 5 z), z that of the release from the same
    sample or, if there is none, what one would have. m / 10 is sigma_b = m / 20 (Andrew et al.
    2021): the share of updates within C is then known to .05, which costs nearly nothing in a large
    cohort. In a small one it would cost much; 5 z adds 2% to the noise of the other release, and
    what the count is off by averages out: C moves by eta_C times it in a round.
    """
    plain = replace(arm, clip_quantile=None, clip_multiplier=0.0)
    found = calibrate(plain, epsilon, delta, relation=relation, accountant=accountant)
    shared = "norm_multiplier" if arm.releases_norms else "noise_multiplier"
    whole: float = getattr(found, shared)
    apart = arm.largest_probability < 1 and not arm.releases_norms
    beside = whole
    if apart:
        beside = search_noise(epsilon, delta, arm.rounds, arm.sampling_rate, relation)
    bits = arm.clip_multiplier or max(arm.cohort / 10, 5 * beside)
    given = [arm.norm_multiplier] if arm.releases_norms and arm.norm_multiplier else []
    if given or apart:  # the updates pay
        first = SampledRound(arm.sampling_rate, joint_multiplier(bits, *given))
        alone = central_epsilon([(first, arm.rounds)], delta, relation, accountant)
        if alone >= epsilon:
            norms = f" and norms of multiplier {given[0]:g}" if given else ""
            raise ValueError(
                f"clip_multiplier = {bits!r}: {arm.rounds} releases of bits{norms} cost epsilon = "
                f"{alone:.4g} alone; expected a larger multiplier, or epsilon > {alone:.4g}"
            )
        if given:
            both = replace(plain, norm_multiplier=first.noise_multiplier)
            found = calibrate(both, epsilon, delta, relation=relation, accountant=accountant)
            noise, ladder = found.noise_multiplier, found.ladder
            return replace(arm, noise_multiplier=noise, ladder=ladder, clip_multiplier=bits)
        pair = calibrate_central(
            epsilon,
            delta,
            arm.rounds,
            arm.sampling_rate,
            relation=relation,
            accountant=accountant,
            upload_probability=arm.largest_probability,
            norm_multiplier=first.noise_multiplier,
        )
        return replace(arm, noise_multiplier=pair.noise_multiplier, clip_multiplier=bits)
    if bits <= whole:
        raise ValueError(
            f"clip_multiplier = {bits!r}: the bits alone cost more than epsilon = {epsilon:g} "
            f"allows; expected more than {whole:.4g}"
        )
    rest: Any = {shared: (whole**-2 - bits**-2) ** -0.5 * (1 + 1e-12)}
    return replace(found, clip_quantile=arm.clip_quantile, clip_multiplier=bits, **rest)


def calibrate_central(
    epsilon: float,
    delta: float,
    rounds: int,
    sampling_rate: float,
    *,
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
    upload_probability: float = 1.0,
    norm_multiplier: float | None = None,
    norm_release: bool = False,
    cohort: float | None = None,
    norm_share: float = 1.0,
) -> SampledRound:
    """The round with the least noise of which `rounds` cost at most epsilon against PUBLIC.

    * Uniform sampling: leave `norm_release` False; `sampling_rate` is b/n.
    * With a norm release: `upload_probability` is the largest p that a cohort member can get, and
      `norm_multiplier` is z_K. Without a `norm_multiplier`, the budget is split between the two
      releases so that the expected variance of the update's noise is smallest,

          z_G(z_K)^2 (1 + (z_K / (norm_share cohort))^2),

      because that noise has std z_G S with S proportional to K + N(0, (z_K C)^2), and K is about
      norm_share cohort C: `cohort` is the expected cohort size, `norm_share` the expected mean of
      the clipped norm over C (a public guess; a bad one costs accuracy, not privacy).

    Args:
        epsilon: the target for all rounds together.
        delta: the delta of the guarantee.
        rounds: how many rounds are composed.
        sampling_rate: the probability with which each client joins the cohort.
        relation: the relation between neighbours.
        accountant: how rounds are composed.
        upload_probability: the largest probability with which a member uploads.
        norm_multiplier: z_K, if it is given.
        norm_release: whether norms are released, with a z_K to be found.
        cohort: the expected cohort size; needed to find z_K.
        norm_share: the expected mean of the clipped norm over C.

    Returns:
        The round, with its multipliers.
    """
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.count(rounds=rounds)
    _validate.one_of(RELATIONS, relation=relation)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)

    def quick(event: SampledRound) -> float:
        return rdp_epsilon([(event, rounds)], delta, relation, coarse=True)

    def full(event: SampledRound) -> float:
        return central_epsilon([(event, rounds)], delta, relation, accountant)

    def finish(norm: float | None, near: float) -> SampledRound:
        return _least_noise(
            full,
            epsilon,
            lambda z: SampledRound(sampling_rate, z, norm, upload_probability),
            near,
            _TOLERANCE,
        )

    if norm_multiplier is None and not norm_release:
        rate = sampling_rate * upload_probability
        return finish(None, search_noise(epsilon, delta, rounds, rate, relation))
    if norm_multiplier is not None:
        # Without a second release the pair is that of the norm sum alone.
        alone = full(SampledRound(sampling_rate, norm_multiplier))
        if alone >= epsilon:
            raise ValueError(
                f"norm_multiplier = {norm_multiplier!r}: {rounds} norm releases alone cost "
                f"epsilon = {alone:.4g}; expected a larger multiplier, or epsilon > {alone:.4g}"
            )
        return finish(norm_multiplier, norm_multiplier / 4)
    if cohort is None:
        raise ValueError("cohort = None: expected the mean cohort size, a number > 0")
    _validate.positive(cohort=cohort)
    _validate.rate(norm_share=norm_share)
    best = _best_split(
        quick, epsilon, sampling_rate, upload_probability, norm_sum=norm_share * cohort
    )
    return finish(best.norm_multiplier, best.noise_multiplier)


def calibrate_rungs(arm: Arm, epsilon: float, delta: float, relation: Relation) -> Arm:
    """An arm with rungs (`Arm.rungs`), the noise of each such that all cost a round the same.

    The rung of a round depends on what was released before, so that no list of rounds is known
    beforehand. But at one order, fixed here, every rung of the ladder has the same RDP, so that the
    sum over the rounds is a constant whatever was chosen (adaptive composition), and the run is
    charged that. The order is the best one for a run at the middle of the ladder; under replace it
    is 2 alpha, at which the formula of `rdp.replace_rdp` is largest.

    A norm sum that chooses the rung is released before it, by all clients: a Gaussian, whose cost
    is the same in every round. Without a multiplier of its own it gets a share of the cost that
    keeps the variance of the update's noise, about (1 + (z_K / K)^2) / (1 - share), smallest for a
    sum K (in clip norms) at the middle of the ladder; see `calibrate_central`.
    """
    rungs = [arm.at_rung(number) for number in range(len(arm.rungs))]
    rates = [one.sampling_rate * one.largest_probability for one in rungs]
    middle = math.sqrt(rates[0] * rates[-1])
    near = calibrate_central(
        epsilon, delta, arm.rounds, middle, relation=relation, accountant="rdp"
    )
    spent = [(near, arm.rounds)]
    doubled = relation == "replace"
    orders, curve = (REPLACE_ORDERS, replace_rdp) if doubled else (ORDERS, composed_rdp)
    each = [
        epsilon_from_rdp((a,), c, delta) for a, c in zip(orders, curve(spent, orders), strict=True)
    ]
    alpha = orders[int(np.argmin(each))]
    order = 2 * alpha if doubled else alpha

    log_cost, norms = math.log(round_rdp(near, (order,))[0]), arm.norm_multiplier

    def charged(event: Round) -> float:
        return epsilon_from_rdp((alpha,), curve([(event, arm.rounds)], (alpha,)), delta)

    if arm.releases_norms and not norms:
        whole = order / 2 / math.exp(log_cost)  # z_K^2, if nothing else were released
        off = whole / (math.sqrt(arm.norm_low) * arm.cohort) ** 2
        norms = math.sqrt(whole / (math.sqrt(off * off + off) - off))
    elif arm.releases_norms and (alone := charged(SampledRound(1.0, norms))) >= epsilon:
        raise ValueError(
            f"norm_multiplier = {norms!r}: {arm.rounds} norm releases alone cost epsilon = "
            f"{alone:.4g}; expected a larger multiplier, or epsilon > {alone:.4g}"
        )

    def at(cost: float) -> Arm:
        ladder = tuple(_noise_at(rate, order, cost) for rate in rates)
        return replace(arm, noise_multiplier=ladder[-1], norm_multiplier=norms, ladder=ladder)

    def excess(log_cost: float) -> float:
        return charged(at(math.exp(log_cost)).sampled_round()) - epsilon * (1 - _TOLERANCE / 2)

    low, high = log_cost - 0.1, log_cost + 0.1
    while excess(low) > 0:
        low -= 0.3
    while excess(high) < 0:
        high += 0.3
    found = at(math.exp(optimize.brentq(excess, low, high, xtol=_TOLERANCE / 8)))
    if charged(found.sampled_round()) > epsilon:
        raise AssertionError("the search for the noise ended above its target")
    return found


@lru_cache(maxsize=4096)
def search_noise(
    epsilon: float, delta: float, rounds: int, rate: float, relation: Relation = "zero-out"
) -> float:
    """The noise multiplier of uniform sampling by RDP at few orders, for searches: in some
    milliseconds, and a little more than is needed."""

    def cost(event: SampledRound) -> float:
        return rdp_epsilon([(event, rounds)], delta, relation, coarse=True)

    found = _least_noise(cost, epsilon, lambda z: SampledRound(rate, z), 1.0, _SEARCH_TOLERANCE)
    return found.noise_multiplier


def calibrate_local(
    epsilon: float,
    delta: float,
    *,
    uploads: int,
    norms: int = 0,
    relation: Relation = "zero-out",
    norm_multiplier: float | None = None,
    norm_budget: float = 0.1,
) -> ClientReleases:
    """The releases that cost one client epsilon, and never more, against SERVER.

    Args:
        epsilon: the target for all releases of the client together.
        delta: the delta of the guarantee.
        uploads: the most updates that the client releases.
        norms: the most norms that it releases.
        relation: the relation between neighbours.
        norm_multiplier: z_s, if it is given.
        norm_budget: the share of mu^2 that is spent on norms if `norm_multiplier` is not given.

    Returns:
        The releases, with their multipliers.
    """
    _validate.positive(epsilon=epsilon)
    _validate.count(uploads=uploads)
    _validate.one_of(RELATIONS, relation=relation)
    # This ClientReleases only checks the counts; its multipliers are placeholders.
    ClientReleases(1.0, uploads, norm_multiplier or 1.0, norms)
    budget = gdp.mu_from_epsilon(epsilon, delta) ** 2 * (1 - 1e-10)
    for_norms = 0.0
    if norms and norm_multiplier is None:
        _validate.probability(norm_budget=norm_budget)
        for_norms = norm_budget * budget
        norm_multiplier = math.sqrt(norms / for_norms) * (1 + 1e-15)
    elif norms and norm_multiplier is not None:
        _validate.positive(norm_multiplier=norm_multiplier)
        for_norms = norms / norm_multiplier**2
        if for_norms >= budget:
            alone = gdp.epsilon_from_mu(math.sqrt(for_norms), delta)
            raise ValueError(
                f"norm_multiplier = {norm_multiplier!r}: {norms} norm releases alone cost "
                f"epsilon = {alone:.4g}; expected a larger multiplier, or epsilon > {alone:.4g}"
            )
    sensitivity = 1.0 if relation == "zero-out" else 2.0
    noise_multiplier = sensitivity * math.sqrt(uploads / (budget - for_norms))
    return ClientReleases(noise_multiplier, uploads, norm_multiplier, norms)


def _noise_at(sampling_rate: float, order: float, cost: float) -> float:
    """The least noise multiplier at which a round of this rate has at most this RDP at an order."""

    def excess(log_z: float) -> float:
        event = SampledRound(sampling_rate, math.exp(log_z))
        return math.log(round_rdp.__wrapped__(event, (order,))[0]) - math.log(cost)

    low, high = -1.0, 1.0
    while excess(high) > 0:
        high += 1.0
        if high > math.log(_LARGEST_MULTIPLIER):
            raise ValueError(
                f"epsilon: expected a larger one; no noise multiplier up to "
                f"{_LARGEST_MULTIPLIER:g} reaches it at rate {sampling_rate:g}"
            )
    while excess(low) < 0:
        low -= 1.0
    log_z = optimize.brentq(excess, low, high, xtol=1e-10)
    while excess(log_z) > 0:  # never less noise than is charged for
        log_z += 1e-10
    return math.exp(log_z)


def _best_split(
    cost: Callable[[SampledRound], float],
    epsilon: float,
    sampling_rate: float,
    upload_probability: float,
    *,
    norm_sum: float,
) -> SampledRound:
    """The z_K, and hence z_G, with the least expected variance: a one-dimensional search by RDP."""
    alone = _least_noise(
        cost, epsilon, lambda z: SampledRound(sampling_rate, z), 1.0, _SEARCH_TOLERANCE
    )
    near = alone.noise_multiplier
    low, high = math.log(1.01 * near), math.log(20 * max(near, norm_sum))

    def finished(log_norm: float) -> SampledRound:
        nonlocal near
        event = _least_noise(
            cost,
            epsilon,
            lambda z: SampledRound(sampling_rate, z, math.exp(log_norm), upload_probability),
            near,
            _SEARCH_TOLERANCE,
        )
        near = event.noise_multiplier
        return event

    def log_variance(log_norm: float) -> float:
        event = finished(log_norm)
        return 2 * math.log(event.noise_multiplier) + math.log1p(
            (math.exp(log_norm) / norm_sum) ** 2
        )

    found = optimize.minimize_scalar(
        log_variance, bounds=(low, high), method="bounded", options={"xatol": 0.03}
    )
    return finished(float(found.x))


def _least_noise(
    cost: Callable[[SampledRound], float],
    epsilon: float,
    event: Callable[[float], SampledRound],
    near: float,
    tolerance: float,
) -> SampledRound:
    """The event whose cost is in [epsilon (1 - tolerance), epsilon]; more noise costs less.

    Regula falsi on ln cost against ln z inside a bracket, with bisection when it does not shrink.
    """
    aim = math.log(epsilon) + math.log1p(-tolerance / 2)

    def excess(log_z: float) -> float:
        spent = cost(event(math.exp(log_z)))
        return (math.log(spent) if spent > 0 else -math.inf) - aim

    low = high = math.log(near)
    at_low = at_high = excess(low)
    step = 0.1
    while at_high > tolerance / 2:
        low, at_low = high, at_high
        high, step = high + step, 2 * step
        if high > math.log(_LARGEST_MULTIPLIER):
            raise ValueError(
                f"epsilon = {epsilon!r}: expected a larger epsilon; no noise multiplier up to "
                f"{_LARGEST_MULTIPLIER:g} can be shown to reach it"
            )
        at_high = excess(high)
    while at_low < -tolerance / 2:
        high, at_high = low, at_low
        low, step = low - step, 2 * step
        at_low = excess(low)
    for turn in range(60):
        if at_high >= -tolerance / 2:
            break
        middle = (low + high) / 2
        if turn % 4 != 3 and math.isfinite(at_low) and math.isfinite(at_high):
            middle = high + (low - high) * at_high / (at_high - at_low)
        value = excess(middle)
        if value > tolerance / 2:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return event(math.exp(high))
