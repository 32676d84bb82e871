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
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.methods import Method
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import Everyone, Released, Uploads, check_refine_noise, one_device
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
    norms = largest * lengths * (1 + (side + 16) * 2.0**-23)
    return jnp.where(largest < 2.0**120, norms, jnp.inf)  # also for NaN


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


class NoiseSteps(NamedTuple):
    """The noise of a round, in steps (`draws.SecretDraws`): the server's own, or one row for each
    member."""

    norm: Array
    update: Array
    counted: Array  # on the number of uploads
    bits: Array  # on the sum of bits, read if the clip norm adapts
    refine: Array  # [refinements, 2], of the server


class ExactSums(NamedTuple):
    """The `Arithmetic` of whole numbers. What only a simulation can see is left out."""

    noise: NoiseSteps
    grid: Grid  # with the steps of every rung until K' is released, and of its own from then on
    everyone: Everyone = one_device

    def total(self, values: Array) -> Array:
        """The sum over every client of the round: of released floats, or of counts."""
        return self.everyone(jnp.sum(values))

    def _in_steps(self, values: Array) -> Array:
        """Rounded down, and none of more than a whole C."""
        return jnp.clip(jnp.floor(values), 0.0, self.grid.norm).astype(jnp.int32)

    def _noised_total(self, steps: Array, noise: Any) -> Array:
        """The exact sum over every client, with noise, as floats."""
        here = Words(*(part.astype(jnp.int32) for part in total_counts(steps)))
        return add(self.everyone(here), words(noise)).value

    def release_norms(
        self, method: Method, values: Array, members: Members, dials: Dials
    ) -> Released:
        """Each client's noisy value from 0 to C, or their noisy sum, on the grid."""
        step = dials.clip_norm / self.grid.norm
        steps = jnp.where(members.present, self._in_steps(values / step), 0)
        if not method.parts.trust.clients_add_noise:
            return Released(values, self._noised_total(steps, self.noise.norm) * step)
        sent = jnp.clip(steps + self.noise.norm, 0, self.grid.norm)
        sent = jnp.where(members.present, sent, 0)
        return Released(sent * step, self._noised_total(sent, jnp.int32(0)) * step)

    def release_pair(self, method: Method, k: int, pair: Sequence[Array], dials: Dials) -> Array:
        """Of what members have released, as it is; else with the server's noise, on the grid."""
        del dials
        if method.parts.trust.clients_add_noise:
            return jnp.stack([self.total(one) for one in pair])
        check_refine_noise(method, self.noise.refine)
        steps = (self._in_steps(one * self.grid.norm) for one in pair)
        each = zip(steps, self.noise.refine[k], strict=True)
        return jnp.stack([self._noised_total(*one) / self.grid.norm for one in each])

    def at_public(self, public: Array, dials: Dials) -> ExactSums:
        """With the steps of its rung, where the noise follows K'."""
        if dials.ladder is None:
            return self
        steps = self.grid.update[dials.rung(public, jnp)]
        return self._replace(grid=self.grid._replace(update=steps))

    def zero(self, method: Method, size: int) -> Any:
        """Words; floats if members have bounds of their own, hence steps of different sizes."""
        zero = jnp.zeros(size, jnp.int32)
        return zero.astype(jnp.float32) if method.parts.estimator.own_bound else Words(zero, zero)

    def contributions(self, trace: Any, uploads: Uploads) -> Array:
        """Each client's, in steps of its own bound."""
        return contribution_steps(trace, uploads.coefficient, uploads.scale, self.grid.update)

    def add(self, method: Method, summed: Any, more: Any, uploads: Uploads, start: Array) -> Any:
        """Of what every member released, where members add noise."""
        _, estimator, trust = method.parts
        if trust.clients_add_noise:
            noise = jax.lax.dynamic_slice_in_dim(self.noise.update, start, more.shape[0])
            more = jnp.where(uploads.uploaded[:, None], more + noise, 0)
        if estimator.own_bound:
            return summed + jnp.sum(more * (uploads.scale / self.grid.update)[:, None], axis=0)
        return add(summed, total_steps(more))

    def noised(self, method: Method, summed: Any, std: Array, bound: Array) -> Array:
        """With the server's noise in whole numbers: PUBLIC sees the sum, not how it was
        rounded."""
        del std
        _, estimator, trust = method.parts
        if not trust.clients_add_noise:
            summed = add(summed, words(self.noise.update))
        return summed if estimator.own_bound else summed.value * (bound / self.grid.update)

    def signal(self, summed: Any, divisor: Array) -> Array:
        """NaN."""
        del summed, divisor
        return jnp.full((), jnp.nan)

    def count_noise(self, dials: Dials) -> Array:
        """A whole number."""
        del dials
        return self.noise.counted

    def release_bits(self, method: Method, bits: Array, dials: Dials) -> Array:
        """With the server's noise, on the grid."""
        del method, dials
        whole = bits * self.grid.bits.astype(jnp.int32) + self.noise.bits
        return whole / (2 * self.grid.bits)
