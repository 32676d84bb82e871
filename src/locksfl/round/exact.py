"""The round of a secret run: integers from each contribution to the noised sum.

Floats leave traces. The noise of a float generator can be recognised, and a sum of floats is
rounded in a way that depends on all clients, so that one client can move it by more than its bound.
Here, in steps of a public grid (`draws.grid_of`),

    contribution c_i    floor(|c_i| steps / S), sign kept, in each coordinate: whole numbers, whose
                        sum of squares is checked exactly against steps^2; too long becomes zero
    norm |g_i|          floor(|g_i| steps / C), between 0 and steps; a score in its place likewise
    bit                 steps or -steps, if the clip norm adapts: |u_i| <= C or not
    sum                 of whole numbers, exact in any order: one client moves it by S or C, no more
    release             the sum + round(steps z N(0, 1)), drawn exactly on the host
    number of uploads   a whole number as it is; + round(std N(0, 1)), if the rule releases it

which is the Gaussian mechanism, rounded: exactly as private as it is charged (see noise.py). Only
released integers reach K', S, the optimiser and the model, so the floats computed from them are
post-processing. What a client contributes is computed from its own data and public numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.arm import Dials
from locksfl.methods import Method
from locksfl.round.algorithm import (
    Facts,
    Norms,
    RoundResult,
    Together,
    Total,
    Uploads,
    asked_values,
    checked_refine_noise,
    choose_uploads,
    compare_norms,
    contribution_bound,
    no_norms,
    refine_norms,
    release_count,
    settle_norms,
    sum_of_bits,
)
from locksfl.round.draws import Grid, Members

MOST_PARAMETERS = 2**24 - 1  # so that squares are summed exactly
SHORTER = 1 - 2.0**-20  # 16 units of float32's rounding: the factor of an update has fewer


class Words(NamedTuple):
    """Whole numbers high 2^16 + low, 0 <= low < 2^16: sums that do not fit in 32 bits."""

    high: Array
    low: Array

    @property
    def value(self) -> Array:
        """The nearest floats. For released numbers only: rounding an exact sum would undo it."""
        return self.high * 65536.0 + self.low


def words(steps: Array) -> Words:
    """Whole numbers of 32 bits as Words."""
    return Words(steps >> 16, steps & 0xFFFF)


def carried(high: Array, low: Array) -> Words:
    """Words from a low part that may have grown."""
    return Words(high + (low >> 16), low & 0xFFFF)


def add(one: Words, other: Words) -> Words:
    """The sum."""
    return carried(one.high + other.high, one.low + other.low)


def total_steps(steps: Array) -> Words:
    """The sum over the first axis, of up to 2^15 whole numbers."""
    high, low = words(steps)
    return carried(jnp.sum(high, axis=0), jnp.sum(low, axis=0))


def total_counts(counts: Array) -> Words:
    """The sum over the last axis, of fewer than 2^24 whole numbers from 0 to 2^24 - 1: rows of 256
    first, which fit in 32 bits. (Padding to whole rows would take longer than the sums.)"""
    counts, rows = counts.astype(jnp.uint32), counts.shape[-1] // 256
    whole = counts[..., : 256 * rows].reshape(*counts.shape[:-1], rows, 256)
    each, rest = jnp.sum(whole, axis=-1), jnp.sum(counts[..., 256 * rows :], axis=-1)
    high = jnp.sum(each >> 16, axis=-1) + (rest >> 16)
    return carried(high, jnp.sum(each & 0xFFFF, axis=-1) + (rest & 0xFFFF))


def sum_of_squares(steps: Array) -> tuple[Array, Array]:
    """The exact sum of squares over the last axis, of whole numbers below 2^24 in size, as
    (high, low): high 2^24 + low. A sum of 2^53 or more may be the largest `high` that there is."""
    sizes = jnp.abs(steps).astype(jnp.uint32)
    a, b = sizes >> 12, sizes & 0xFFF  # (a 2^12 + b)^2 = a^2 2^24 + a b 2^13 + b^2
    squares, across, rest = (total_counts(product) for product in (a * a, a * b, b * b))
    low = (across.low << 13) + ((rest.high & 0xFF) << 16) + rest.low
    high = (squares.high << 16) + squares.low + (across.high << 5) + (rest.high >> 8) + (low >> 24)
    too_long = (squares.high >= 2**14) | (across.high >= 2**24)
    return jnp.where(too_long, jnp.uint32(2**32 - 1), high), low & 0xFFFFFF


def safe_norms(updates: Array) -> Array:
    """At least the true |u_i|, and at most a factor 1 + (sqrt(d) + 16) 2^-22 more; infinite for
    coordinates of 2^120 and more, whose inverse float32 may lose.

    Dividing by the largest coordinate rules out underflow. Sums of k float32 in any order are off
    by at most k 2^-24 of a sum without signs; here there are two of sqrt(d) terms, one after the
    other, and the root halves their error. The barrier keeps a compiler from making one sum of d.
    """
    side = math.isqrt(updates.shape[-1] - 1) + 1
    largest = jnp.max(jnp.abs(updates), axis=-1)
    scaled = updates / jnp.where(largest > 0, largest, 1.0)[:, None]
    square = jnp.pad(scaled, [(0, 0), (0, side * side - updates.shape[-1])])
    rows = jnp.sum(jnp.square(square.reshape(-1, side, side)), axis=-1)
    lengths = jnp.sqrt(jnp.sum(jax.lax.optimization_barrier(rows), axis=-1))
    found = largest * lengths * (1 + (side + 16) * 2.0**-23)
    return jnp.where(largest < 2.0**120, found, jnp.inf)  # also for NaN


def contribution_steps(updates: Array, coefficient: Array, bounds: Array, steps: Array) -> Array:
    """coefficient_i u_i as whole numbers, `steps` of which are the bound S of client i.

    Their norm is at most `steps`, exactly: a contribution that is longer, which no rounding can
    bring about if the coefficient is right, becomes zero.
    """
    factor = coefficient * (steps / bounds) * SHORTER
    scaled = updates * factor[:, None]
    whole = jnp.clip(jnp.where(jnp.isfinite(scaled), scaled, 0.0), -steps, steps).astype(jnp.int32)
    high, low = sum_of_squares(whole)
    most, rest = sum_of_squares(jnp.asarray(steps)[None])
    fits = (high < most) | ((high == most) & (low <= rest))
    return jnp.where(fits[:, None], whole, 0)


class Noise(NamedTuple):
    """The noise of a round, in steps (`draws.SecretDraws`): the server's own, or one row for each
    member."""

    norm: Array
    update: Array
    counted: Array  # on the number of uploads
    bits: Any = None  # if the clip norm adapts
    refine: Any = None  # [refinements, 2], of the server


class ExactClients(Protocol):
    """What an engine can do with the cohort of a secret run."""

    def measure(self, facts: tuple[str, ...] = ()) -> tuple[Array, Facts, Any]:
        """`safe_norms` of every member (0 if the update is not finite), the facts of these names,
        and what is needed to avoid recomputing its update."""

    def exact_sum(
        self,
        choose: Callable[[Array, Any], Uploads],
        each: Any,
        kept: Any,
        steps: Array,
        messages: Array | None,
    ) -> tuple[Any, Uploads]:
        """Add up the contributions.

        Args:
            choose, each, kept: as for `algorithm.Clients.weighted_sum`.
            steps: in the bound of a contribution.
            messages: the noise of each member's message, or None.

        Returns:
            The sum of all members on all devices and the uploads of every member. Words, not yet
            noised without `messages`; floats if members have bounds of their own, hence steps of
            different sizes.
        """


def play_exact(
    method: Method,
    clients: ExactClients,
    members: Members,
    noise: Noise,
    grid: Grid,
    dials: Dials,
    total: Total,
    everyone: Callable[[Words], Words],
    together: Together,
) -> tuple[RoundResult, Uploads]:
    """Play a whole round, as `algorithm.play` does with floats.

    Args:
        method: rule, estimator and trust, which must be private.
        clients: the cohort, able to compute its updates.
        members: the members, with coins of 64 bits.
        noise: of the round.
        grid: the public grids.
        dials: the arm's numbers.
        total: sums floats over every client of the round; for released numbers only.
        everyone: sums Words over all devices.
        together: applies a function to the entries of all members at once.

    Returns:
        The update for the server's step, and what each member uploaded (a secret, unless every
        member adds its own noise). What a simulation can see besides is NaN.
    """
    rule, estimator, trust = method.parts
    each, kept = trust.clients_add_noise, None
    norms = no_norms(members, dials)
    if rule.released:
        measured, facts, kept = clients.measure(rule.facts)
        values = asked_values(method, measured, facts, dials)
        norms = _release_norms(
            method, values, members, noise, grid, dials, total, everyone, together
        )
    steps = grid.update if dials.ladder is None else grid.update[dials.rung(norms.used, jnp)]
    dials = dials.at_public(norms.used, jnp)

    def choose(client_norms: Array, each: tuple[Members, Array]) -> Uploads:
        return choose_uploads(method, client_norms, *each, norms.used, dials)

    messages = noise.update if each else None
    summed, uploads = clients.exact_sum(choose, (members, norms.scores), kept, steps, messages)
    bound = contribution_bound(method, norms.used, dials)
    if not each:
        summed = add(summed, words(noise.update))
    if not estimator.own_bound:  # whole numbers: PUBLIC is told the sum, not how it was rounded
        summed = summed.value * (bound / steps)
    divisor = estimator.divisor(dials)
    std = trust.noise_std(uploads.scale, bound, uploads.uploaded, dials, total, jnp)
    result = RoundResult(
        update=summed / divisor,
        released_norm_sum=norms.released,
        used_norm_sum=norms.used,
        signal=jnp.full((), jnp.nan),
        noise=std * math.sqrt(noise.update.shape[-1]) / divisor,
        released_count=release_count(method, uploads, noise.counted, total),
        refined=norms.refined,
    )
    if noise.bits is not None:
        whole = sum_of_bits(uploads, members, total) * grid.bits.astype(jnp.int32) + noise.bits
        result = result._replace(released_bits=whole / (2 * grid.bits))
    return result, uploads


def _release_norms(
    method: Method,
    values: Array,
    members: Members,
    noise: Noise,
    grid: Grid,
    dials: Dials,
    total: Total,
    everyone: Callable[[Words], Words],
    together: Together,
) -> Norms:
    """Stage 1 in steps: each member's noisy norm or score, or the noisy sums."""
    rule, _, trust = method.parts
    step = dials.clip_norm / grid.norm
    if trust.server_adds_noise:
        checked_refine_noise(method, noise.refine)

    def in_steps(each: Array) -> Array:
        whole = jnp.clip(jnp.floor(each), 0.0, grid.norm).astype(jnp.int32)
        return jnp.where(members.present, whole, 0)

    def summed(steps: Array, noise: Array) -> Array:
        whole = everyone(Words(*(part.astype(jnp.int32) for part in total_counts(steps))))
        return add(whole, words(noise)).value

    def release(k: int, *each: Array) -> Any:
        if trust.clients_add_noise:  # of what they have released
            return jnp.stack([*map(total, each)])
        pairs = zip(each, noise.refine[k], strict=True)
        return jnp.stack([summed(in_steps(one * grid.norm), own) / grid.norm for one, own in pairs])

    steps = in_steps(values / step)
    if trust.clients_add_noise:
        told = jnp.where(members.present, jnp.clip(steps + noise.norm, 0, grid.norm), 0)
        found = settle_norms(method, told * step, summed(told, jnp.int32(0)) * step, dials)
    else:
        found = settle_norms(method, values, summed(steps, noise.norm) * step, dials)
    if rule.compares:
        return compare_norms(method, found, members, dials, together)
    return refine_norms(method, found, members, dials, release)
