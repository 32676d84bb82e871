"""Scattering features less a public centre: their mean over random pen strokes, drawn here.

Half of the energy of MNIST's scattering features is that of their mean, which tells nothing about a
class and fills the clip norm. The strokes know of MNIST only its format (LeCun et al.: white on
black, a box of 20 x 20 pixels inside 28 x 28, the centre of mass in the middle), so the centre
costs no privacy. They remove about three quarters of the mean's energy.

[features]
name = "encoder"
file = "experiments.results.strokes:centred"
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from locksfl.models.public_features import scattering

# Guessed before the first run, never tuned.
SIDE, IMAGES = 28, 1000
REACH = 9.0  # pixels from the middle to the tip of the pen: the box, less the pen's half width
OFF_CENTRE = 0.2  # how much of the way from the box's middle to the centre of mass is left


def stroke(rng: np.random.Generator) -> NDArray[np.float32]:
    """One image: one or two cubic curves, one beginning where the other ends."""
    along = np.linspace(0, 1, 60)[:, None]
    points, start = [], rng.uniform(-1, 1, 2)
    for _ in range(rng.integers(1, 3)):
        a, b, end = rng.uniform(-1, 1, (3, 2))
        points.append(
            (1 - along) ** 3 * start
            + 3 * (1 - along) ** 2 * along * a
            + 3 * (1 - along) * along**2 * b
            + along**3 * end
        )
        start = end
    pen = np.concatenate(points)
    pen -= (pen.max(axis=0) + pen.min(axis=0)) / 2
    pen *= REACH / np.abs(pen).max()
    pen -= (1 - OFF_CENTRE) * pen.mean(axis=0)
    down, across = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    far = np.hypot(down[..., None] - pen[:, 0], across[..., None] - pen[:, 1]).min(axis=-1)
    ink: NDArray[np.float32] = np.clip(1.7 - 0.9 * far / rng.uniform(1, 1.8), 0, 1)
    return ink.astype(np.float32)


@functools.cache
def centre() -> NDArray[np.float32]:
    """The mean of the strokes' features."""
    rng = np.random.default_rng(0)
    images = np.stack([stroke(rng) for _ in range(IMAGES)])
    with jax.ensure_compile_time_eval():
        found = jax.jit(scattering((SIDE, SIDE)))(jnp.asarray(images))
        return np.asarray(found.mean(axis=0))


def centred(records: Array) -> Array:
    """Records [B, 28, 28] -> [B, 3969]."""
    return scattering((SIDE, SIDE))(records) - jnp.asarray(centre())
