"""One round of LOCKS. Read this first.

     population n --each with probability q--> cohort X
     client    u_i from w          its update: a gradient, or the change after local epochs
               g_i                 u_i clipped to norm C, or scaled to it; NaN or Inf becomes zero
     release 1 norms               with noise from each client, or as a noisy sum from the server
     server    K'                  the norm sum, clamped to [K_low, m C]: one public number
               p_i                 (1 - lambda) b z_i / K' + lambda b / m      (the rule "norm")
     second sample: each with probability p_i --> uploaders Z
     release 2 clip(g_i / p_i, S)  S = C / p_C, with noise from each client or on the sum
     server    update              the sum divided by n q, a public constant
               w <- w - eta_t update

Every function here is pure and takes arrays with one entry per client: a simulator's chunk of
clients, a whole cohort, or a single device. Uniform sampling is the same round with p_i = b / m and
no first release. An empty cohort, or no uploaders at all, is a round like any other: noise only.

`play`, at the end, has the order of these steps, for every run. What differs between a simulation
and a secret run is only what a sum is, its noise and its rounding: an `Arithmetic`, which is
`FloatSums` (floats.py) or, in whole numbers, `ExactSums` (exact.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.methods import Method
from locksfl.methods.dials import Dials
from locksfl.methods.estimators import within
from locksfl.round.draws import Members, second_sample

Total = Callable[[Array], Array]  # a sum over every client of the round, on every device
Everyone = Callable[[Any], Any]  # the sum of the sums of all devices
Facts = dict[str, Array]  # of every member, by their names in `rules.FACTS`
# a function of all members' entries at once, on whichever device; each device gets its own part
Together = Callable[..., Array]


def here(function: Callable[..., Array], *entries: Array) -> Array:
    """`Together` where all members are on one device."""
    return function(*entries)


def one_device(sums: Any) -> Any:
    """`Everyone` where all members are on one device."""
    return sums


class Released(NamedTuple):
    """The release of stage 1."""

    shown: Array  # what the trust shows the rule of each member's norm, or score
    summed: Array  # their sum, as released


class Norms(NamedTuple):
    """The result of stage 1."""

    scores: Array  # what the rule may use of each client
    released: Array  # the norm sum as released (K~)
    used: Array  # the public number that the rule derives from it (K')
    refined: Any = None  # [refinements, 2] the sums by which the rule refined it, as released


class Uploads(NamedTuple):
    """What stage 2 decides for each client, before anything is summed."""

    coefficient: Array  # multiplies the raw update u_i: clipping, weight and draw in one number
    uploaded: Array  # whether it was drawn
    scale: Array  # norm bound of the contribution, the unit of its noise
    expected_weight: Array  # p_i times the weight: the share of g_i that arrives on average
    within_clip: Any = False  # whether |u_i| <= C: of every member, asked for if C adapts


class WeightedSum(NamedTuple):
    """The sum of what the members contribute, on all devices."""

    summed: Any  # without noise of the server, as its arithmetic has it
    uploads: Uploads  # of every member here
    norms: Any = None  # the true norms, a secret, of a simulation


class RoundResult(NamedTuple):
    """What a round passes to the server's optimiser, and what may be logged."""

    update: Array  # the noisy sum, divided
    released_norm_sum: Array  # K~
    used_norm_sum: Array  # K'
    signal: Array  # norm of the noiseless update: only a simulation can know it
    noise: Array  # expected norm of its noise
    released_count: Array  # the number of uploads as released; NaN if the rule releases none
    released_bits: Any = None  # if C adapts: the sum of b_i - 1/2 over the cohort, with noise
    refined: Any = None  # as in Norms


def clip_factor(norms: Array, dials: Dials) -> Array:
    """The factor that makes g_i of u_i: 1 / max(shortest, |u_i| / C). A `shortest` of 1 clips; with
    almost 0, every update that is not zero is scaled to length C."""
    return 1.0 / jnp.maximum(dials.shortest, norms / dials.clip_norm)


def clipped_norms(norms: Array, dials: Dials) -> Array:
    """|g_i|, at most C."""
    return jnp.minimum(norms / dials.shortest, dials.clip_norm)


def asked_values(method: Method, norms: Array, facts: Facts, dials: Dials) -> Array:
    """What the rule asks of each member, from 0 to C: the norm of its clipped update, or the score
    of its own facts. NaN becomes 0."""
    score = method.parts.rule.score
    if score is None:
        return clipped_norms(norms, dials)
    # one client at a time: a score cannot look at the others
    scores = jax.vmap(lambda own: jnp.reshape(score(own, dials, jnp), ()))(facts)
    return jnp.where(scores > 0, jnp.minimum(scores, dials.clip_norm), 0.0)


class Arithmetic(Protocol):
    """What a sum over the clients of a round is: its numbers, its noise and its rounding."""

    def total(self, values: Array) -> Array:
        """A `Total` of numbers that are released, or whose sum is."""

    def release_norms(
        self, method: Method, values: Array, members: Members, dials: Dials
    ) -> Released:
        """Release what the rule asked of each member: values from 0 to C."""

    def release_pair(self, method: Method, k: int, pair: Sequence[Array], dials: Dials) -> Array:
        """[2] the two sums of refinement k as they are released: of each member's p if that is
        below 1, and of whether p is 1. A member's presence moves the pair by 1 at most; of who is
        absent, both are 0."""

    def at_public(self, public: Array, dials: Dials) -> Arithmetic:
        """The same once K' is released; `dials` are those of before."""

    def zero(self, method: Method, size: int) -> Any:
        """The sum of no contributions, of so many parameters."""

    def contributions(self, trace: Any, uploads: Uploads) -> Any:
        """What some clients contribute, by the trace of their updates and what they chose."""

    def add(self, method: Method, summed: Any, more: Any, uploads: Uploads, start: Array) -> Any:
        """A sum with the `contributions` of the members from slot `start` on."""

    def everyone(self, summed: Any) -> Any:
        """The sum over all devices."""

    def noised(self, method: Method, summed: Any, std: Array, bound: Array) -> Array:
        """The sum as it is released, in floats: with noise of this std, in units of this public
        bound of a contribution."""

    def signal(self, summed: Any, divisor: Array) -> Array:
        """The norm of the update without noise; NaN where that is a secret."""

    def count_noise(self, dials: Dials) -> Array:
        """The noise on the number of uploads."""

    def release_bits(self, method: Method, bits: Array, dials: Dials) -> Array:
        """The sum of b_i - 1/2 as it is released, by that of 2 b_i - 1."""


def query_norms(
    method: Method,
    norms: Array,
    members: Members,
    arithmetic: Arithmetic,
    dials: Dials,
    facts: Facts | None = None,
    together: Together = here,
) -> Norms:
    """Stage 1: release the clipped norms, or scores, and derive the one public number K'.

    Args:
        method: rule, estimator and trust.
        norms: |u_i| of every member, before clipping.
        members: the members' own draws.
        arithmetic: of the sums, with the server's noise.
        dials: the arm's numbers.
        facts: that the rule's score needs.
        together: applies a function to the entries of all members at once.

    Returns:
        The scores of the members, the released sum, and K'.
    """
    values = asked_values(method, norms, facts or {}, dials)
    released = arithmetic.release_norms(method, values, members, dials)
    settled = settle_norms(method, released, dials)
    if method.parts.rule.compares:
        return compare_norms(method, settled, members, dials, together)

    def release(k: int, *pair: Array) -> Array:
        return arithmetic.release_pair(method, k, pair, dials)

    return refine_norms(method, settled, members, dials, release)


def check_refine_noise(method: Method, noise: Any) -> None:
    """Refuse the server's noise on the sums that refine K' unless each sum has its own."""
    shape = (method.parts.rule.refinements, 2)
    if shape[0] and (noise is None or jnp.shape(noise) != shape):
        given = "none" if noise is None else f"shape {jnp.shape(noise)}"
        raise ValueError(
            f"refine_noise: {given}; rule {method.rule!r} under trust {method.trust!r} releases "
            f"sums that the server noises; expected numbers of shape {shape}"
        )


def settle_norms(method: Method, released: Released, dials: Dials) -> Norms:
    """Derive K' from the released sum, as the rule defines it."""
    rule, _, _ = method.parts
    return Norms(released.shown, released.summed, rule.settle(released.summed, dials, jnp))


def no_norms(members: Members, dials: Dials) -> Norms:
    """Stage 1 of a rule that asks for no norms: K' is never read."""
    nothing = jnp.zeros_like(dials.least_norm_sum)
    return Norms(jnp.zeros(members.present.shape), nothing, nothing)


def compare_norms(
    method: Method, norms: Norms, members: Members, dials: Dials, together: Together
) -> Norms:
    """The end of stage 1 of a rule that looks at all members at once: at what the trust shows of
    them, which with privacy is what each of them has released.

    Args:
        method: rule, estimator and trust.
        norms: what the trust shows.
        members: the members' own draws; absent members count as a value of 0 and a weight of 0.
        dials: the arm's numbers.
        together: applies a function to the entries of all members at once.

    Returns:
        Norms with the rule's public number or, if it is `jointly`, with the probabilities
        themselves as scores and with the least of them that is not 0 as the public number.
    """
    rule, _, _ = method.parts
    values = jnp.where(members.present, norms.scores, 0.0)
    if (settle := rule.settle_from_all) is not None:
        return norms._replace(used=_common(lambda own: settle(own, dials, jnp), values, together))
    weights = jnp.where(members.present, members.weights, 0.0)
    p = together(lambda own, w: rule.probability(own, norms.used, w, dials, jnp), values, weights)
    p = jnp.where(members.present, upload_probability(method, p, norms.used, weights, dials), 0.0)
    least = _common(lambda each: jnp.min(jnp.where(each > 0, each, 1.0)), p, together)
    return norms._replace(scores=p, used=least)


def _common(function: Callable[[Array], Array], entries: Array, together: Together) -> Array:
    """One number of all members' entries."""
    return together(lambda own: jnp.broadcast_to(function(own), own.shape), entries)[0]


def refine_norms(
    method: Method,
    norms: Norms,
    members: Members,
    dials: Dials,
    release: Callable[[int, Array, Array], Any],
) -> Norms:
    """The end of stage 1 of a rule that refines its public number by sums over the cohort.

    Args:
        method: rule, estimator and trust.
        norms: what was released, and the first public number.
        members: the members' own draws.
        dials: the arm's numbers.
        release: (refinement, each member's p if that is below 1, whether p is 1) to the two sums as
            they are released. A member's presence moves the pair by 1 at most.
    """
    rule, _, trust = method.parts
    if rule.refine is None:
        return norms
    used, sums = norms.used, []
    for k in range(rule.refined(trust.server_adds_noise)):
        p = upload_probability(method, norms.scores, used, members.weights, dials)
        p = jnp.where(members.present, p, 0.0)
        below, certain = pair = release(k, jnp.where(p < 1, p, 0.0), p >= 1)
        used = rule.refine(used, below, certain, dials, jnp)
        sums.append(pair)
    return norms._replace(used=used, refined=jnp.stack(sums))


def upload_probability(
    method: Method, own: Array, public: Array, weight: Array, dials: Dials
) -> Array:
    """p_i of each member, from its own value and public numbers alone.

    It never exceeds the maximum that the rule states, which is what is charged; NaN becomes 0.

    Args:
        method: rule, estimator and trust.
        own: the value of each member that the rule may use (its score, or its clipped norm).
        public: K'.
        weight: the public weight of each member, with mean 1.
        dials: the arm's numbers.
    """
    rule, _, _ = method.parts
    if rule.jointly:
        p = own
    else:  # one client at a time: a rule cannot look at the others
        p = _each(lambda o, k, w: rule.probability(o, k, w, dials, jnp), own, public, weight)
    return jnp.where(p > 0, jnp.minimum(p, dials.largest_probability), 0.0)


def contribution_bounds(method: Method, p: Array, norm_sum: Array, dials: Dials) -> Array:
    """The norm bound of each client's contribution, the unit of its noise: one public bound for
    all, unless the estimator states that it depends on the client's own probability.

    Args:
        method: rule, estimator and trust.
        p: the upload probability of each client.
        norm_sum: K'.
        dials: the arm's numbers.

    Returns:
        One bound per entry of p; infinite if the estimator states none.
    """
    _, estimator, _ = method.parts
    if estimator.bound is None:  # possible only without privacy
        return jnp.full(jnp.shape(p), jnp.inf)
    at_clip = _at_clip(method, norm_sum, dials)
    bound = estimator.bound
    if estimator.own_bound:
        return _each(lambda one, at: bound(one, at, dials.clip_norm, jnp), p, at_clip)
    public = _each(lambda one: bound(one, one, dials.clip_norm, jnp), at_clip)
    return jnp.broadcast_to(public, jnp.broadcast_shapes(jnp.shape(public), jnp.shape(p)))


def _each(function: Callable[..., Any], *entries: Array) -> Array:
    """A function of one client's numbers, for each client: it is never shown those of others."""
    return jnp.vectorize(lambda *one: jnp.reshape(function(*one), ()))(*entries)


def contribution_bound(method: Method, norm_sum: Array, dials: Dials) -> Array:
    """The public bound of a client with norm C, which holds for every client when the noise is
    added to a sum: S = C / p_C for the capped estimator, C for those that do not divide by p."""
    return contribution_bounds(method, _at_clip(method, norm_sum, dials), norm_sum, dials)


def _at_clip(method: Method, norm_sum: Array, dials: Dials) -> Array:
    """p_C; of probabilities that do not follow the norms, the least, which is then public."""
    own = norm_sum if method.parts.rule.jointly else dials.clip_norm
    return upload_probability(method, own, norm_sum, jnp.ones(()), dials)


def choose_uploads(
    method: Method, norms: Array, members: Members, scores: Array, norm_sum: Array, dials: Dials
) -> Uploads:
    """Stage 2 at each client: whether it uploads, and the factor of its contribution.

    Args:
        method: rule, estimator and trust.
        norms: |u_i| of every member, before clipping.
        members: the members' own draws.
        scores: what stage 1 lets the rule use of each member.
        norm_sum: K'.
        dials: the arm's numbers.
    """
    rule, estimator, _ = method.parts
    clipped = clipped_norms(norms, dials)
    own = clipped if rule.asks is not None and not rule.released else scores
    p = upload_probability(method, own, norm_sum, members.weights, dials)
    uploaded = second_sample(members.coins, p, members.present)
    bounds = contribution_bounds(method, p, norm_sum, dials)
    weight = _each(lambda g, one, s: estimator.weight(g, one, s, jnp), clipped, p, bounds)
    weight = bounded_weight(weight, bounds, clipped)
    coefficient = jnp.where(uploaded, clip_factor(norms, dials) * weight, 0.0)
    return Uploads(coefficient, uploaded, bounds, p * weight, norms <= dials.clip_norm)


def sum_of_bits(uploads: Uploads, members: Members, total: Total) -> Array:
    """The sum over the cohort of 2 b_i - 1, b_i = 1 if |u_i| <= C: a whole number that one client
    moves by 1 at most. (A client whose update is not finite counts as zero, hence as within C.)"""
    return total(jnp.where(members.present, jnp.where(uploads.within_clip, 1, -1), 0))


LEAST_CLIP, LARGEST_CLIP = 2.0**-39, 2.0**40


def adapted_clip(clip_norm: Array, released_bits: Array, dials: Dials) -> Array:
    """The clip norm of the next round, a function of what was released (Andrew et al. 2021):

        C <- C exp(-eta_C (share - gamma)),   share = 1/2 + (sum of b_i - 1/2, with noise) / m

    If too many updates are within C, it falls. The denominator m is public."""
    share = 0.5 + released_bits / dials.cohort
    moved = clip_norm * jnp.exp(-dials.clip_rate * (share - dials.clip_quantile))
    return jnp.clip(moved, LEAST_CLIP, LARGEST_CLIP)


def bounded_weight(weight: Array, bound: Array, clipped: Array) -> Array:
    """The weight, limited so that |weight g_i| stays within the stated bound whatever the estimator
    returned; NaN becomes 0."""
    most = jnp.minimum(within(bound, clipped, jnp), 1e30)  # finite: 0 times it must be 0
    return jnp.where(jnp.isnan(weight), 0.0, jnp.clip(weight, -most, most))


def aggregate(
    method: Method, sent: WeightedSum, norms: Norms, arithmetic: Arithmetic, dials: Dials
) -> RoundResult:
    """The noisy sum divided by a public constant, never by the realised sample size.

    Args:
        method: rule, estimator and trust.
        sent: the sum of coefficient_i u_i, and what stage 2 decided for each client.
        norms: the result of stage 1.
        arithmetic: of the sums, with the server's noise; of this K'.
        dials: the arm's numbers; of this K'.
    """
    _, estimator, trust = method.parts
    uploads, bound = sent.uploads, contribution_bound(method, norms.used, dials)
    std = trust.noise_std(uploads.scale, bound, uploads.uploaded, dials, arithmetic.total, jnp)
    divisor = estimator.divisor(dials)
    update = arithmetic.noised(method, sent.summed, std, bound) / divisor
    return RoundResult(
        update=update,
        released_norm_sum=norms.released,
        used_norm_sum=norms.used,
        signal=arithmetic.signal(sent.summed, divisor),
        noise=std * math.sqrt(update.size) / divisor,
        released_count=release_count(method, uploads, arithmetic, dials),
        refined=norms.refined,
    )


def release_count(method: Method, uploads: Uploads, arithmetic: Arithmetic, dials: Dials) -> Array:
    """The number of uploads with noise, if the rule releases it. Everybody's are counted, so that
    it is a coordinate of the released sum."""
    rule, _, _ = method.parts
    if not rule.count_share:
        return jnp.full((), jnp.nan)
    count = arithmetic.total(uploads.uploaded) + arithmetic.count_noise(dials)
    return count.astype(jnp.float32)


def facts_of_last(last: Array, clients: int) -> Facts:
    """The public facts about v, the last released update: the same for every client."""
    public = {"last_norm": jnp.linalg.norm(last), "last_sum": jnp.sum(last)}
    public["parameters"] = jnp.float32(last.size)
    return {name: jnp.broadcast_to(value, (clients,)) for name, value in public.items()}


def facts_of_updates(updates: Array, last: Array) -> Facts:
    """The facts that follow from the updates and v."""
    along = jnp.matmul(updates, last, precision=jax.lax.Precision.HIGHEST)
    return {"along": along, "sum": jnp.sum(updates, axis=-1), **facts_of_last(last, len(updates))}


class Measured(NamedTuple):
    """What every member knows of its own update."""

    norms: Array  # |u_i|, 0 if the update is not finite; in a secret run never less (`safe_norms`)
    facts: Facts  # those that were asked for
    kept: Any = None  # what is needed to avoid recomputing u_i; None: nothing was kept


# (norms, arrays with one entry per member) of some members, to what they do
Choose = Callable[[Array, Any], Uploads]


class Clients(Protocol):
    """What an engine can do with the cohort: ask every member, all at once or in chunks."""

    def measure(self, facts: tuple[str, ...] = ()) -> Measured:
        """The norms of all members, and their facts of these names."""

    def weighted_sum(
        self, choose: Choose, each: Any, kept: Any, arithmetic: Arithmetic
    ) -> WeightedSum:
        """Add up coefficient_i u_i.

        Args:
            choose: what each member does.
            each: arrays with one entry per member, passed on to `choose`.
            kept: by `measure`, or None.
            arithmetic: of the sum.
        """


class GivenClients:
    """Clients with given raw updates, as used by the audit and the theory problems: in floats.

    `last` is the last released update, `given` has the facts that updates do not tell.
    """

    def __init__(
        self, updates: Array, last: Array | None = None, given: Facts | None = None
    ) -> None:
        self.updates, self.norms = updates, jnp.linalg.norm(updates, axis=1)
        self.last, self.given = last, given or {}

    def measure(self, facts: tuple[str, ...] = ()) -> Measured:
        """The norms of the updates and their facts; nothing is kept."""
        known = {"norm": self.norms, "size": jnp.ones_like(self.norms), **self.given}
        if not known.keys() >= set(facts):
            last = jnp.zeros(self.updates.shape[1]) if self.last is None else self.last
            known = facts_of_updates(self.updates, last) | known
        if missing := [name for name in facts if name not in known]:
            raise ValueError(f"clients with given updates: expected their {', '.join(missing)}")
        return Measured(self.norms, {name: known[name] for name in facts})

    def combined(self, coefficient: Array) -> Array:
        """The sum of coefficient_i u_i."""
        return coefficient @ self.updates

    def weighted_sum(
        self, choose: Choose, each: Any, kept: Any, arithmetic: Arithmetic
    ) -> WeightedSum:
        """The sum of coefficient_i u_i, the uploads, and the norms."""
        del kept, arithmetic
        uploads = choose(self.norms, each)
        return WeightedSum(self.combined(uploads.coefficient), uploads, self.norms)


class Round(NamedTuple):
    """A round that was played."""

    result: RoundResult  # what is released, and what may be logged
    uploads: Uploads  # of every member: a secret, unless every member adds its own noise
    norms: Any  # the true norms, a secret; None in a secret run


def play(
    method: Method,
    clients: Clients,
    members: Members,
    arithmetic: Arithmetic,
    dials: Dials,
    together: Together = here,
    adapts: bool = False,
) -> Round:
    """Play a whole round.

    Args:
        method: rule, estimator and trust; private, in a secret run.
        clients: the cohort, able to compute its updates.
        members: the members' own draws.
        arithmetic: of the sums, with the noise of the round.
        dials: the arm's numbers.
        together: applies a function to the entries of all members at once.
        adapts: whether the clip norm adapts, so that bits are released.
    """
    rule, _, _ = method.parts
    if rule.released or rule.jointly:  # jointly without a release: only where there is no noise
        measured = clients.measure(rule.facts)
        asked = (measured.norms, members, arithmetic, dials, measured.facts, together)
        norms, kept = query_norms(method, *asked), measured.kept
    else:  # nothing is released at the cohort stage, and clients are visited only once
        norms, kept = no_norms(members, dials), None
    arithmetic = arithmetic.at_public(norms.used, dials)
    dials = dials.at_public(norms.used, jnp)

    def choose(client_norms: Array, each: tuple[Members, Array]) -> Uploads:
        return choose_uploads(method, client_norms, *each, norms.used, dials)

    sent = clients.weighted_sum(choose, (members, norms.scores), kept, arithmetic)
    result = aggregate(method, sent, norms, arithmetic, dials)
    if adapts:
        bits = sum_of_bits(sent.uploads, members, arithmetic.total)
        result = result._replace(released_bits=arithmetic.release_bits(method, bits, dials))
    return Round(result, sent.uploads, sent.norms)
