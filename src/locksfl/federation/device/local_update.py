"""A device's training with this package's models: the simulator's functions, for one client."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.federation.device.update import LocalUpdate
from locksfl.models.build import Model
from locksfl.round.client import LocalWork, Records, SizeClass, choose_rows, combine, measure
from locksfl.round.randomness import Randomness
from locksfl.simulate.layout import size_classes

Key = Callable[[int], Array]  # of a round: a client's own shuffles and subsamples


def local_update(
    model: Model,
    work: LocalWork,
    features: np.ndarray,
    labels: np.ndarray,
    scale: float,
    key: Key | None = None,
) -> LocalUpdate:
    """The update of one client with these records. Without a key, draws come from the operating
    system."""
    if work.control is not None:
        raise ValueError(
            f"local.control = {work.control!r}: a device keeps nothing from round to round; leave "
            "it out"
        )
    source = Randomness.from_system()
    draw = key or (lambda number: jax.random.fold_in(source.arm_key("device"), number))
    size = len(labels)
    records = Records(
        jnp.asarray(features),
        jnp.asarray(labels),
        jnp.zeros(1, jnp.int32),
        jnp.full(1, size, jnp.int32),
        jnp.float32(scale),
    )
    (shape,), _ = size_classes(np.array([size]), work)

    def own_update(weights: np.ndarray, round_number: int, /) -> np.ndarray:
        start = jnp.asarray(weights, jnp.float32)
        return np.asarray(_update(model, work, shape, records, start, draw(round_number)))

    return own_update


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _update(
    model: Model, work: LocalWork, shape: SizeClass, records: Records, weights: Array, key: Array
) -> Array:
    """Compiled once for all clients of one size in a process."""
    chunk = choose_rows(records, jnp.zeros(1, jnp.int32), key[None], shape, work)
    return combine(measure(model, weights, records, chunk, work).trace, jnp.ones(1))
