"""One round of LOCKS. Read this first.

     population n --coin q each--> cohort X
     client    u_i from w          its update: a gradient, or the change after local epochs
               g_i                 u_i clipped to norm C; NaN or Inf becomes zero
     release 1 norms               noised by each client, or as a noised sum by the server
     server    K'                  the norm sum, clamped to [K_low, m C]: one public number
               p_i                 (1 - lambda) b z_i / K' + lambda b / m      (the rule "norm")
     second sample: coin p_i each --> uploaders Z
     release 2 clip(g_i / p_i, S)  S = C / p_C, noised by each client or on the sum
     server    update              the sum over n q: a public constant
               w <- w - eta_t update

Everything here is a pure function of arrays with one entry a client: a simulator's chunk of
clients, a whole cohort or one device alone. Uniform sampling is the same round with p_i = b / m and
no first release. An empty cohort, or no uploader at all, is a round like any other: noise only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from locksfl.arm import Dials
from locksfl.methods import Method
from locksfl.methods.estimators import within
from locksfl.round.draws import Members, ServerDraws, second_sample

Total = Callable[[Array], Array]  # a sum over every client of the round, on every device
# a function of all members' entries at once, wherever they are; each place gets its own part
Together = Callable[..., Array]


class Norms(NamedTuple):
    """What stage 1 leaves behind."""

    scores: Array  # what the rule may use of each client
    released: Array  # the norm sum as released (K~)
    used: Array  # the public number that the rule makes of it (K')


class Uploads(NamedTuple):
    """What stage 2 decides for each client, before anything is summed."""

    coefficient: Array  # multiplies the raw update u_i: clipping, weight and coin in one number
    uploaded: Array
    scale: Array  # norm bound of the contribution, in whose units its noise is given
    expected_weight: Array  # p_i times the weight: the share of g_i that arrives on average


class RoundResult(NamedTuple):
    """What a round gives to the server's optimiser, and what it may log."""

    update: Array
    released_norm_sum: Array
    used_norm_sum: Array
    signal: Array  # norm of the noiseless update: only a simulation can know it
    noise: Array  # expected norm of its noise


def clip_factor(norms: Array, clip_norm: Array) -> Array:
    """What scales u_i to norm C at most: 1 / max(1, |u_i| / C)."""
    return 1.0 / jnp.maximum(1.0, norms / clip_norm)


def query_norms(
    method: Method,
    norms: Array,
    members: Members,
    server_noise: Array,
    dials: Dials,
    total: Total,
) -> Norms:
    """Stage 1: release the clipped norms and settle the one public number K'."""
    _, _, trust = method.parts
    clipped = jnp.minimum(norms, dials.clip_norm)
    scores, released = trust.release_norms(clipped, members, server_noise, dials, total, jnp)
    return settle_norms(method, scores, released, dials)


def settle_norms(method: Method, scores: Array, released: Array, dials: Dials) -> Norms:
    """K': what the rule makes of the released sum."""
    rule, _, _ = method.parts
    return Norms(scores, released, rule.settle(released, dials, jnp))


def no_norms(members: Members, dials: Dials) -> Norms:
    """Stage 1 of a rule that releases nothing: K' is never read."""
    nothing = jnp.zeros_like(dials.least_norm_sum)
    return Norms(jnp.zeros_like(members.coins), nothing, nothing)


def compare_norms(
    method: Method, norms: Array, members: Members, dials: Dials, together: Together
) -> Norms:
    """Stage 1 of a rule that looks at all members at once (so: without privacy). The scores that it
    leaves are the probabilities themselves; a member that is not there counts as a norm of 0."""
    rule, _, _ = method.parts
    nothing = jnp.zeros_like(dials.least_norm_sum)
    here = jnp.where(members.present, jnp.minimum(norms, dials.clip_norm), 0.0)
    weights = jnp.broadcast_to(members.weights, here.shape)
    p = together(lambda own, w: rule.probability(own, nothing, w, dials, jnp), here, weights)
    return Norms(jnp.where(members.present, p, 0.0), nothing, nothing)


def upload_probability(
    method: Method, own: Array, public: Array, weight: Array, dials: Dials
) -> Array:
    """p_i for each member, by its own value and public numbers alone, and never above the maximum
    that the rule states: that is what is charged. What is not a number is 0."""
    rule, _, _ = method.parts
    if rule.jointly:
        p = own
    else:  # one client at a time: a rule cannot look at the others

        def one(own: Array, public: Array, weight: Array) -> Array:
            return jnp.asarray(rule.probability(own, public, weight, dials, jnp))

        p = jnp.vectorize(one)(own, public, weight)
    return jnp.where(p > 0, jnp.minimum(p, dials.largest_probability), 0.0)


def contribution_bounds(method: Method, p: Array, norm_sum: Array, dials: Dials) -> Array:
    """The bound of each client's contribution, in whose units its noise is given: one public bound
    for all, unless the estimator states that a client's own probability enters it."""
    rule, estimator, _ = method.parts
    if estimator.bound is None:  # possible without privacy only
        return jnp.full(jnp.shape(p), jnp.inf)
    own = dials.largest_probability if rule.jointly else dials.clip_norm
    at_clip = upload_probability(method, own, norm_sum, jnp.ones(()), dials)
    own_p = p if estimator.own_bound else jnp.broadcast_to(at_clip, jnp.shape(p))
    return jnp.asarray(estimator.bound(own_p, at_clip, dials.clip_norm, jnp))


def contribution_bound(method: Method, norm_sum: Array, dials: Dials) -> Array:
    """The bound of a client with norm C: public, and everybody's where noise is put on a sum.
    S = C / p_C for the capped estimator, C for those that do not divide by p."""
    at_clip = upload_probability(method, dials.clip_norm, norm_sum, jnp.ones(()), dials)
    return contribution_bounds(method, at_clip, norm_sum, dials)


def choose_uploads(
    method: Method, norms: Array, members: Members, scores: Array, norm_sum: Array, dials: Dials
) -> Uploads:
    """Stage 2 at each client: the coin, and what the contribution is multiplied by."""
    rule, estimator, _ = method.parts
    clipped = jnp.minimum(norms, dials.clip_norm)
    own = clipped if rule.asks is not None and not rule.released and not rule.jointly else scores
    p = upload_probability(method, own, norm_sum, members.weights, dials)
    uploaded = second_sample(members.coins, p, members.present)
    bounds = contribution_bounds(method, p, norm_sum, dials)
    weight = bounded_weight(estimator.weight(clipped, p, bounds, jnp), bounds, clipped)
    coefficient = jnp.where(uploaded, clip_factor(norms, dials.clip_norm) * weight, 0.0)
    return Uploads(coefficient, uploaded, bounds, p * weight)


def bounded_weight(weight: Array, bound: Array, clipped: Array) -> Array:
    """The weight, cut so that |weight g_i| stays within the stated bound, whatever the estimator
    said; what is not a number is 0."""
    most = within(bound, clipped, jnp)
    return jnp.where(jnp.isnan(weight), 0.0, jnp.clip(weight, -most, most))


def aggregate(
    method: Method,
    summed: Array,
    uploads: Uploads,
    norms: Norms,
    update_noise: Array,
    dials: Dials,
    total: Total,
) -> RoundResult:
    """The noised sum over a public constant, never over the size that came out."""
    _, estimator, trust = method.parts
    bound = contribution_bound(method, norms.used, dials)
    std = trust.noise_std(uploads.scale, bound, uploads.uploaded, dials, total, jnp)
    divisor = estimator.divisor(dials)
    return RoundResult(
        update=(summed + std * update_noise) / divisor,
        released_norm_sum=norms.released,
        used_norm_sum=norms.used,
        signal=jnp.linalg.norm(summed) / divisor,
        noise=std * math.sqrt(update_noise.size) / divisor,
    )


class Clients(Protocol):
    """What an engine can do with the cohort: ask every member, whole or in chunks."""

    def measure(self) -> tuple[Array, Any]:
        """Every member's |u_i| (0 for a broken one), and whatever spares computing u_i again."""

    def weighted_sum(
        self, choose: Callable[[Array, Any], Uploads], each: Any, kept: Any
    ) -> tuple[Array, Uploads, Array]:
        """Sum of coefficient_i u_i, where choose(norms, each) gives the coefficients; the norms."""


class GivenClients:
    """Clients whose raw updates are given: what an audit, or a problem on paper, plays with."""

    def __init__(self, updates: Array) -> None:
        self.updates, self.norms = updates, jnp.linalg.norm(updates, axis=1)

    def measure(self) -> tuple[Array, Any]:
        """Their norms."""
        return self.norms, None

    def weighted_sum(
        self, choose: Callable[[Array, Any], Uploads], each: Any, kept: Any
    ) -> tuple[Array, Uploads, Array]:
        """Sum of coefficient_i u_i."""
        del kept
        uploads = choose(self.norms, each)
        return uploads.coefficient @ self.updates, uploads, self.norms


def play(
    method: Method,
    clients: Clients,
    members: Members,
    server_draws: ServerDraws,
    dials: Dials,
    total: Total = jnp.sum,
    together: Together = lambda function, *entries: function(*entries),
) -> tuple[RoundResult, Uploads, Array]:
    """A whole round: what the server steps by, who uploaded, and the true norms (a secret)."""
    rule, _, _ = method.parts
    if rule.released:
        measured, kept = clients.measure()
        norms = query_norms(method, measured, members, server_draws.norm_noise, dials, total)
    elif rule.jointly:
        measured, kept = clients.measure()
        norms = compare_norms(method, measured, members, dials, together)
    else:  # nothing may be released at the cohort stage, and clients are visited once
        kept, norms = None, no_norms(members, dials)

    def choose(client_norms: Array, each: tuple[Members, Array]) -> Uploads:
        return choose_uploads(method, client_norms, *each, norms.used, dials)

    summed, uploads, client_norms = clients.weighted_sum(choose, (members, norms.scores), kept)
    result = aggregate(method, summed, uploads, norms, server_draws.update_noise, dials, total)
    return result, uploads, client_norms
