"""The sums of a simulation: floats, with noise that was drawn on the device.

The std of each noise is a multiplier of the arm times a derived bound (methods/trusts); sums are
rounded, and noise drawn, as no secret run may do it (exact.py says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.methods import Method
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import Everyone, Released, Uploads, check_refine_noise, one_device
from locksfl.round.client import combine_parts
from locksfl.round.draws import Members, ServerDraws


class FloatSums(NamedTuple):
    """The `Arithmetic` of floats."""

    draws: ServerDraws
    everyone: Everyone = one_device

    def total(self, values: Array) -> Array:
        """The sum over every client of the round."""
        return self.everyone(jnp.sum(values))

    def release_norms(
        self, method: Method, values: Array, members: Members, dials: Dials
    ) -> Released:
        """Each client sends its noisy value, and clipping that to [0, C] costs nothing; or the
        server keeps the values to itself and adds noise to their sum."""
        _, _, trust = method.parts
        std = dials.norm_multiplier * dials.clip_norm
        if trust.clients_add_noise:
            values = jnp.clip(values + std * members.norm_noise, 0.0, dials.clip_norm)
        summed = self.total(jnp.where(members.present, values, 0.0))
        if trust.server_adds_noise:
            summed = summed + std * self.draws.norm_noise
        return Released(values, summed)

    def release_pair(self, method: Method, k: int, pair: Sequence[Array], dials: Dials) -> Array:
        """The sums, with noise if the server adds any: without, they follow from what members
        have released."""
        sums = jnp.stack([self.total(one) for one in pair])
        if method.parts.trust.server_adds_noise:
            check_refine_noise(method, self.draws.refine_noise)
            sums = sums + dials.sum_noise * self.draws.refine_noise[k]
        return sums

    def at_public(self, public: Array, dials: Dials) -> FloatSums:
        """Floats have no grid that follows K'."""
        del public, dials
        return self

    def zero(self, method: Method, size: int) -> Array:
        """Zeros."""
        del method
        return jnp.zeros(size)

    def contributions(self, trace: Any, uploads: Uploads) -> list[Array]:
        """Their sum, as parts of the flat vector."""
        return combine_parts(trace, uploads.coefficient)

    def add(self, method: Method, summed: Any, more: Any, uploads: Uploads, start: Array) -> Any:
        """Part by part."""
        del method, uploads, start
        return jax.tree.map(jnp.add, summed, more)

    def noised(self, method: Method, summed: Array, std: Array, bound: Array) -> Array:
        """The noise of all who add any, drawn once."""
        del method, bound
        return summed + std * self.draws.update_noise

    def signal(self, summed: Array, divisor: Array) -> Array:
        """A simulation can know it."""
        return jnp.linalg.norm(summed) / divisor

    def count_noise(self, dials: Dials) -> Any:
        """A float."""
        return dials.count_noise * self.draws.count_noise

    def release_bits(self, method: Method, bits: Array, dials: Dials) -> Array:
        """With noise if the server adds any."""
        noise = dials.clip_multiplier * method.parts.trust.server_adds_noise * self.draws.clip_noise
        return (bits + noise) / 2
