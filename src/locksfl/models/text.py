"""A recurrent model of characters: at every position, scores for the next one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from equinox import Module
from equinox.nn import Linear
from jax import Array


class GatedLayer(Module):
    """A layer of gated recurrent units (Cho et al., 2014).

    The input is multiplied for all positions at once; only the product with the state is a loop.
    """

    inputs: Linear  # [reset, update, candidate] from the input
    state: Array  # the same from the previous state
    candidate_bias: Array

    def __init__(self, width: int, hidden: int, key: Array) -> None:
        first, second = jax.random.split(key)
        self.inputs = Linear(width, 3 * hidden, key=first)
        bound = 1 / np.sqrt(hidden)
        self.state = jax.random.uniform(second, (hidden, 3 * hidden), minval=-bound, maxval=bound)
        self.candidate_bias = jnp.zeros(hidden)

    def __call__(self, sequence: Array) -> Array:
        """[L, width] -> [L, hidden]"""
        projected = jax.vmap(self.inputs)(sequence)

        def step(before: Array, given: Array) -> tuple[Array, Array]:
            reset_in, update_in, candidate_in = jnp.split(given, 3)
            reset_by, update_by, candidate_by = jnp.split(before @ self.state, 3)
            reset = jax.nn.sigmoid(reset_in + reset_by)
            update = jax.nn.sigmoid(update_in + update_by)
            candidate = jnp.tanh(candidate_in + reset * (candidate_by + self.candidate_bias))
            after = update * before + (1 - update) * candidate
            return after, after

        start = jnp.zeros(self.candidate_bias.shape)
        return jax.lax.scan(step, start, projected)[1]


class Characters(Module):
    """Ids [L] -> an embedding, gated layers, scores [L, classes]. No position sees a later one."""

    table: Array
    layers: tuple[GatedLayer, ...]
    last: Linear

    def __init__(
        self, classes: int, embedding: int, hidden: int, layers: int, symbols: int, key: Array
    ) -> None:
        keys = jax.random.split(key, layers + 2)
        self.table = 0.5 * jax.random.normal(keys[0], (symbols, embedding))
        widths = [embedding] + [hidden] * (layers - 1)
        self.layers = tuple(GatedLayer(w, hidden, k) for w, k in zip(widths, keys[2:], strict=True))
        self.last = Linear(hidden, classes, key=keys[1])

    def __call__(self, record: Array) -> Array:
        ids = jnp.clip(record.astype(jnp.int32), 0, self.table.shape[0] - 1)
        values = self.table[ids]
        for layer in self.layers:
            values = layer(values)
        return jax.vmap(self.last)(values)
