"""From a target epsilon to the noise: never above the target, and at most 0.01 % below it.

Calibration uses no data, so it costs nothing. The resulting multipliers are accounted by the same
functions that will account the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from scipy import optimize

from locksfl import _validate
from locksfl.arm import Arm, Noise
from locksfl.methods.events import Coins, Rounds, Sampled, SampledTwice, Sum
from locksfl.methods.releases import (
    ACCOUNTANTS,
    RELATIONS,
    UPDATE,
    Accountant,
    Relation,
    as_count,
    joint_multiplier,
)
from locksfl.privacy import gdp
from locksfl.privacy.accountant import as_coins, epsilon_of
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


class _Target(NamedTuple):
    """What all rounds together may cost."""

    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant

    def check(self) -> None:
        """Refuse what is no target."""
        _validate.positive(epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)

    def cost(self, event: Coins, rounds: int) -> float:
        """The epsilon of so many rounds."""
        seen = [Rounds(event, rounds)]
        return epsilon_of(seen, self.delta, self.relation, self.accountant).epsilon

    def update_noise(self, near: Coins, rounds: int) -> float:
        """The update noise with which so many rounds cost epsilon, all else as in this event."""

        def cost(event: Coins) -> float:
            return self.cost(event, rounds)

        def event(z: float) -> Coins:
            return msgspec.structs.replace(near, noise_multiplier=z)

        return _least_noise(cost, self.epsilon, event, near.noise_multiplier, _TOLERANCE)


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
    target = _Target(epsilon, delta, relation, accountant)
    target.check()
    return replace(arm, noise=_noise(arm, target, most))


def _noise(arm: Arm, target: _Target, most: tuple[int, int] | None = None) -> Noise:
    """The noise of `calibrate`."""
    if arm.clip_quantile is not None:
        return _with_bits(arm, target)
    if arm.rungs and arm.parts.trust.amplified:
        return _with_rungs(arm, target, arm.noise.norm_multiplier)
    joint, given = arm.releases_norms, arm.noise.norm_multiplier
    scheme, times = arm.scheme, arm.scheme.times(arm, arm.rounds)
    if arm.parts.trust.amplified and scheme.secret:
        q, p = scheme.rate(arm), arm.largest_probability
        if not joint:
            return _central(target, times, q * p, 1.0, given)
        return _best_split(arm, target) if given is None else _central(target, times, q, p, given)
    norms, uploads = most or (arm.rounds, arm.rounds)
    if not scheme.secret:  # the server's noise costs each client what its own would
        uploads = times
    return calibrate_local(
        target.epsilon,
        target.delta,
        uploads=uploads,
        norms=norms if joint else 0,
        relation=target.relation,
        norm_multiplier=given,
    )


def _with_bits(arm: Arm, target: _Target) -> Noise:
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
    epsilon, delta, relation, _ = target
    norm, bits = arm.noise.norm_multiplier, arm.noise.clip_multiplier
    plain = replace(arm, clip_quantile=None, noise=replace(arm.noise, clip_multiplier=None))
    noise = _noise(plain, target)
    shared = "norm_multiplier" if arm.releases_norms else "noise_multiplier"
    whole: float = getattr(noise, shared)
    q, p = arm.sampling_rate, arm.largest_probability
    apart = p < 1 and not arm.releases_norms
    beside = search_noise(epsilon, delta, arm.rounds, q, relation) if apart else whole
    bits = bits or max(arm.cohort / 10, 5 * beside)
    given = [norm] if arm.releases_norms and norm else []
    if given or apart:  # the updates pay
        first = joint_multiplier(bits, *given)
        alone = target.cost(Sampled(q, first), arm.rounds)
        if alone >= epsilon:
            norms = f" and norms of multiplier {given[0]:g}" if given else ""
            raise ValueError(
                f"clip_multiplier = {bits!r}: {arm.rounds} releases of bits{norms} cost epsilon = "
                f"{alone:.4g} alone; expected a larger multiplier, or epsilon > {alone:.4g}"
            )
        if plain.rungs:
            noise = _with_rungs(plain, target, first)
            return replace(noise, norm_multiplier=norm, clip_multiplier=bits)
        update = target.update_noise(SampledTwice(q, first, p, first / 4), arm.rounds)
        return Noise(update, norm, bits)
    if bits <= whole:
        raise ValueError(
            f"clip_multiplier = {bits!r}: the bits alone cost more than epsilon = {epsilon:g} "
            f"allows; expected more than {whole:.4g}"
        )
    rest = (whole**-2 - bits**-2) ** -0.5 * (1 + 1e-12)
    return replace(noise, clip_multiplier=bits, **{shared: rest})


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
) -> Noise:
    """The least noise with which `rounds` rounds cost at most epsilon against PUBLIC.

    Args:
        epsilon: the target for all rounds together.
        delta: the delta of the guarantee.
        rounds: how many rounds are composed.
        sampling_rate: the probability with which each client joins the cohort; b/n of uniform
            sampling.
        relation: the relation between neighbours.
        accountant: how rounds are composed.
        upload_probability: the largest probability with which a member uploads.
        norm_multiplier: z_K, if the cohort releases its norms first (`calibrate` can find it).

    Returns:
        The multipliers.
    """
    target = _Target(epsilon, delta, relation, accountant)
    target.check()
    _validate.count(rounds=rounds)
    return _central(target, rounds, sampling_rate, upload_probability, norm_multiplier)


def _central(target: _Target, rounds: int, q: float, p: float, norm: float | None) -> Noise:
    if norm is None:
        near = search_noise(target.epsilon, target.delta, rounds, q * p, target.relation)
        return Noise(target.update_noise(Sampled(q * p, near), rounds))
    # Without a second release the pair is that of the norm sum alone.
    alone = target.cost(Sampled(q, norm), rounds)
    if alone >= target.epsilon:
        raise _norms_cost(norm, rounds, alone)
    return Noise(target.update_noise(SampledTwice(q, norm, p, norm / 4), rounds), norm)


def _with_rungs(arm: Arm, target: _Target, norms: float | None) -> Noise:
    """The noise of each rung (`Arm.rungs`), such that all cost a round the same. `norms`: the
    multiplier of what the whole cohort releases before, if it is given.

    The rung of a round depends on what was released before, so that no list of rounds is known
    beforehand. But at one order, fixed here, every rung of the ladder has the same RDP, so that the
    sum over the rounds is a constant whatever was chosen (adaptive composition), and the run is
    charged that. The order is the best one for a run at the middle of the ladder; under replace it
    is 2 alpha, at which the formula of `rdp.replace_rdp` is largest.

    A norm sum that chooses the rung is released before it, by all clients: a Gaussian, whose cost
    is the same in every round. Without a multiplier of its own it gets a share of the cost that
    keeps the variance of the update's noise, about (1 + (z_K / K)^2) / (1 - share), smallest for a
    sum K (in clip norms) at the middle of the ladder; see `_best_split`.
    """
    epsilon, delta, relation, _ = target
    rates = [one.sampling_rate * one.largest_probability for one in arm.at_rungs()]
    middle = math.sqrt(rates[0] * rates[-1])
    first = search_noise(epsilon, delta, arm.rounds, middle, relation)
    noise = target._replace(accountant="rdp").update_noise(Sampled(middle, first), arm.rounds)
    near = Sampled(middle, noise)
    doubled = relation == "replace"
    orders, curve = (REPLACE_ORDERS, replace_rdp) if doubled else (ORDERS, composed_rdp)
    each = [
        epsilon_from_rdp((order,), cost, delta)
        for order, cost in zip(orders, curve([(near, arm.rounds)], orders), strict=True)
    ]
    alpha = orders[int(np.argmin(each))]
    order = 2 * alpha if doubled else alpha

    (cost,) = round_rdp(near, (order,))
    log_cost = math.log(cost)

    def charged(event: Sum) -> float:
        played = as_coins([Rounds(event, arm.rounds)], relation)
        return epsilon_from_rdp((alpha,), curve(played, (alpha,)), delta)

    if arm.releases_norms and norms is None:
        whole = order / 2 / math.exp(log_cost)  # z_K^2, if nothing else were released
        off = whole / (math.sqrt(arm.norm_low) * arm.cohort) ** 2
        norms = math.sqrt(whole / (math.sqrt(off * off + off) - off))
    elif norms is not None and (alone := charged(Sampled(1.0, norms))) >= epsilon:
        raise _norms_cost(norms, arm.rounds, alone)

    def at(log_cost: float) -> Noise:
        ladder = tuple(_noise_at(rate, order, math.exp(log_cost)) for rate in rates)
        return Noise(ladder[-1], norms, ladder=ladder)

    def cost_of(noise: Noise) -> float:
        return charged(replace(arm, noise=noise).event())

    def excess(log_cost: float) -> float:
        return cost_of(at(log_cost)) - epsilon * (1 - _TOLERANCE / 2)

    low, high = log_cost - 0.1, log_cost + 0.1
    while excess(low) > 0:
        low -= 0.3
    while excess(high) < 0:
        high += 0.3
    best = at(optimize.brentq(excess, low, high, xtol=_TOLERANCE / 8))
    if cost_of(best) > epsilon:
        raise AssertionError("the search for the noise ended above its target")
    return best


@lru_cache(maxsize=4096)
def search_noise(
    epsilon: float, delta: float, rounds: int, rate: float, relation: Relation
) -> float:
    """The noise multiplier of uniform sampling by RDP at few orders, for searches: in some
    milliseconds, and a little more than is needed."""

    def cost(event: Coins) -> float:
        return rdp_epsilon([(event, rounds)], delta, relation, coarse=True)

    return _least_noise(cost, epsilon, lambda z: Sampled(rate, z), 1.0, _SEARCH_TOLERANCE)


def calibrate_local(
    epsilon: float,
    delta: float,
    *,
    uploads: int,
    norms: int = 0,
    relation: Relation = "zero-out",
    norm_multiplier: float | None = None,
    norm_budget: float = 0.1,
) -> Noise:
    """The noise with which releases cost one client epsilon, and never more, against SERVER.

    Args:
        epsilon: the target for all releases of the client together.
        delta: the delta of the guarantee.
        uploads: the most updates that the client releases.
        norms: the most norms that it releases.
        relation: the relation between neighbours.
        norm_multiplier: z_s, if it is given.
        norm_budget: the share of mu^2 that is spent on norms if `norm_multiplier` is not given.

    Returns:
        The multipliers.
    """
    _validate.positive(epsilon=epsilon)
    _validate.count(uploads=uploads)
    _validate.one_of(RELATIONS, relation=relation)
    as_count("norms", norms)
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
            raise _norms_cost(norm_multiplier, norms, alone)
    moved = UPDATE.sensitivity(relation)
    return Noise(moved * math.sqrt(uploads / (budget - for_norms)), norm_multiplier)


def _norms_cost(multiplier: float, norms: int, alone: float) -> ValueError:
    """The refusal of a given multiplier that leaves nothing for the updates."""
    return ValueError(
        f"norm_multiplier = {multiplier!r}: {norms} norm releases alone cost epsilon = "
        f"{alone:.4g}; expected a larger multiplier, or epsilon > {alone:.4g}"
    )


def _noise_at(sampling_rate: float, order: float, cost: float) -> float:
    """The least noise multiplier at which a round of this rate has at most this RDP at an order."""

    def excess(log_z: float) -> float:
        event = Sampled(sampling_rate, math.exp(log_z))
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


def _best_split(arm: Arm, target: _Target) -> Noise:
    """The budget split between norms and updates so that the expected variance of the update's
    noise is smallest,

        z_G(z_K)^2 (1 + (z_K / (norm_low cohort))^2),

    because that noise has std z_G S with S proportional to K + N(0, (z_K C)^2), and K is at least
    norm_low cohort C. A one-dimensional search by RDP.
    """
    epsilon, delta, relation, _ = target
    q, p, norm_sum = arm.sampling_rate, arm.largest_probability, arm.norm_low * arm.cohort
    near = search_noise(epsilon, delta, arm.rounds, q, relation)
    low, high = math.log(1.01 * near), math.log(20 * max(near, norm_sum))

    def cost(event: Coins) -> float:
        return rdp_epsilon([(event, arm.rounds)], delta, relation, coarse=True)

    def noise(log_norm: float) -> float:
        nonlocal near
        norm = math.exp(log_norm)
        near = _least_noise(
            cost, epsilon, lambda z: SampledTwice(q, norm, p, z), near, _SEARCH_TOLERANCE
        )
        return near

    def log_variance(log_norm: float) -> float:
        spread = math.log1p((math.exp(log_norm) / norm_sum) ** 2)
        return 2 * math.log(noise(log_norm)) + spread

    best = optimize.minimize_scalar(
        log_variance, bounds=(low, high), method="bounded", options={"xatol": 0.03}
    )
    log_norm = float(best.x)
    pair = SampledTwice(q, math.exp(log_norm), p, noise(log_norm))
    return Noise(target.update_noise(pair, arm.rounds), pair.first_multiplier)


def _least_noise(
    cost: Callable[[Coins], float],
    epsilon: float,
    event: Callable[[float], Coins],
    near: float,
    tolerance: float,
) -> float:
    """The multiplier whose event costs between epsilon (1 - tolerance) and epsilon.

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
    return math.exp(high)
