"""Convolutional networks, with convolutions written as matrix products.

`lax.conv` inside a loop on a CPU is an order of magnitude slower than the equivalent matrix
products, and on a GPU with different weights for every client it becomes a grouped convolution. So
it is written as one product of all patches; on a CPU, for a few images at a time, whose patches
stay in a core's cache, and with fewer products if images have several channels (winograd.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from equinox import Module
from equinox.nn import Linear
from jax import Array

from locksfl._validate import count
from locksfl.models.winograd import POINTS, in_groups, winograd

FEW_CHANNELS = 3  # up to this many, patches are faster on a CPU


def patches(images: Array, size: int) -> Array:
    """[..., H, W, C] -> [..., H, W, size * size * C]: each pixel's neighbourhood, zeros outside.

    Columns first, then rows: 2 * size shifted copies instead of size * size.
    """
    before, after = (size - 1) // 2, size // 2
    around = [(0, 0)] * (images.ndim - 3) + [(before, after)] * 2 + [(0, 0)]
    height, width = images.shape[-3:-1]
    padded = jnp.pad(images, around)
    wide = jnp.concatenate([padded[..., j : j + width, :] for j in range(size)], axis=-1)
    return jnp.concatenate([wide[..., i : i + height, :, :] for i in range(size)], axis=-1)


def convolve(images: Array, kernel: Array) -> Array:
    """[..., H, W, in] by [size, size, in, out], stride 1 and "same" padding, as in lax.conv."""
    kind = images.dtype
    if _sixteen_bits():
        images, kernel = images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    elif images.ndim == 4 and jax.default_backend() == "cpu":
        fewer = images.shape[-1] > FEW_CHANNELS and kernel.shape[0] in POINTS
        return (winograd if fewer else _convolve_by_groups)(images, kernel)
    return jnp.matmul(
        patches(images, kernel.shape[0]), _matrix(kernel), preferred_element_type=kind
    )


def _sixteen_bits() -> bool:
    """Whether precision is "reduced" (`LocalWork`) on a GPU, where moving patches takes most of the
    time: in 16 bits they are half as large, and are summed in 32."""
    asked = getattr(jax.config, "jax_default_matmul_precision", None)
    return asked == "default" and jax.default_backend() != "cpu"


def _matrix(kernel: Array) -> Array:
    return kernel.reshape(-1, kernel.shape[-1])


def _grouped(images: Array, kernel: Array) -> Array:
    return in_groups(images, images[0, ..., 0].size * kernel[..., 0].size)


@jax.custom_vjp
def _convolve_by_groups(images: Array, kernel: Array) -> Array:
    """[B, H, W, in], a few images at a time: the patches of a whole batch, and those of its
    gradients, exceed a core's cache."""
    size = kernel.shape[0]
    out = jax.lax.map(
        lambda group: patches(group, size) @ _matrix(kernel), _grouped(images, kernel)
    )
    return out.reshape(*images.shape[:-1], -1)


def _forwards(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve_by_groups(images, kernel), (images, kernel)


def _backwards(kept: tuple[Array, Array], errors: Array) -> tuple[Array, Array]:
    images, kernel = kept
    size, matrix = kernel.shape[0], _matrix(kernel)

    def step(summed: Array, group: tuple[Array, Array]) -> tuple[Array, Array]:
        own, error = group
        made, back = jax.vjp(lambda image: patches(image, size), own)
        # errors first: the transposed product takes a third longer
        summed += error.reshape(-1, error.shape[-1]).T @ made.reshape(-1, made.shape[-1])
        return summed, back(error @ matrix.T)[0]

    groups = _grouped(images, kernel)
    errors = errors.reshape(*groups.shape[:-1], -1)
    summed, before = jax.lax.scan(step, jnp.zeros_like(matrix.T), (groups, errors))
    return before.reshape(images.shape), summed.T.reshape(kernel.shape)


_convolve_by_groups.defvjp(_forwards, _backwards)


def max_pool(images: Array) -> Array:
    """The largest of each 2x2 square; an odd last row or column is left out.

    It halves one axis after the other: in the backward pass this is twice as fast as one maximum
    over two axes.
    """
    height, width, channels = images.shape[-3:]
    lead = images.shape[:-3]
    rows = images[..., : height // 2 * 2, : width // 2 * 2, :]
    rows = rows.reshape(*lead, height // 2, 2, -1, channels)
    rows = jnp.maximum(rows[..., 0, :, :], rows[..., 1, :, :])
    columns = rows.reshape(*lead, height // 2, width // 2, 2, channels)
    return jnp.maximum(columns[..., 0, :], columns[..., 1, :])


def group_norm(values: Array, groups: int, scale: Array, shift: Array) -> Array:
    """[..., H, W, C], each group of channels with mean 0 and variance 1 within each record."""
    *lead, height, width, channels = values.shape
    grouped = values.reshape(*lead, height * width, groups, channels // groups)
    mean = jnp.mean(grouped, axis=(-3, -1), keepdims=True)
    variance = jnp.mean(jnp.square(grouped - mean), axis=(-3, -1), keepdims=True)
    normal = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normal.reshape(values.shape) * scale + shift


class Convolution(Module):
    """A convolution with bias, initialised like Equinox's layers."""

    kernel: Array
    bias: Array

    def __init__(self, size: int, channels: int, out: int, key: Array) -> None:
        first, second = jax.random.split(key)
        bound = 1 / np.sqrt(size * size * channels)
        shape = (size, size, channels, out)
        self.kernel = jax.random.uniform(first, shape, minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(second, (out,), minval=-bound, maxval=bound)

    def __call__(self, images: Array) -> Array:
        return convolve(images, self.kernel) + self.bias


class TwoConvolutions(Module):
    """The CNN of McMahan et al. (2017): 5x5x32, pool, 5x5x64, pool, 512, classes. Takes batches."""

    shape: tuple[int, int, int]
    convolutions: tuple[Convolution, Convolution]
    layers: tuple[Linear, Linear]

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        filters: tuple[int, int],
        dense: int,
        key: Array,
    ) -> None:
        keys = jax.random.split(key, 4)
        height, width, channels = self.shape = shape
        self.convolutions = (
            Convolution(5, channels, filters[0], keys[0]),
            Convolution(5, filters[0], filters[1], keys[1]),
        )
        flat = (height // 4) * (width // 4) * filters[1]
        self.layers = (Linear(flat, dense, key=keys[2]), Linear(dense, classes, key=keys[3]))

    def __call__(self, records: Array) -> Array:
        images = records.reshape(-1, *self.shape)
        for convolution in self.convolutions:
            images = jax.nn.relu(max_pool(convolution(images)))  # relu after the maximum: a quarter
        hidden = jax.nn.relu(jax.vmap(self.layers[0])(images.reshape(len(images), -1)))
        return jax.vmap(self.layers[1])(hidden)


class GroupedStack(Module):
    """3x3 convolutions with group normalisation, two and a pool for each width, then the mean over
    the image and one linear layer: few weights, so that the noise is small. Takes batches."""

    shape: tuple[int, int, int]
    groups: int
    convolutions: tuple[Convolution, ...]
    scales: tuple[Array, ...]
    shifts: tuple[Array, ...]
    last: Linear

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        filters: tuple[int, ...],
        groups: int,
        key: Array,
    ) -> None:
        self.shape, self.groups = shape, groups
        widths = [width for width in filters for _ in range(2)]
        keys = jax.random.split(key, len(widths) + 1)
        channels = [shape[-1], *widths]
        self.convolutions = tuple(
            Convolution(3, i, o, k) for i, o, k in zip(channels, widths, keys[1:], strict=False)
        )
        self.scales = tuple(jnp.ones(width) for width in widths)
        self.shifts = tuple(jnp.zeros(width) for width in widths)
        self.last = Linear(filters[-1], classes, key=keys[0])

    def __call__(self, records: Array) -> Array:
        images = records.reshape(-1, *self.shape)
        layers = zip(self.convolutions, self.scales, self.shifts, strict=True)
        for number, (convolution, scale, shift) in enumerate(layers):
            images = group_norm(convolution(images), self.groups, scale, shift)
            images = jax.nn.relu(images)
            if number % 2:
                images = max_pool(images)
        return jax.vmap(self.last)(jnp.mean(images, axis=(1, 2)))


def image_shape(name: str, shape: tuple[int, ...], halvings: int) -> tuple[int, int, int]:
    """Height, width and channels of records [H, W] or [H, W, C], large enough for the pooling."""
    if len(shape) not in (2, 3) or min(shape[:2]) < 2**halvings:
        raise ValueError(
            f"model.name = {name!r}: expected images of shape [height, width] or [height, width, "
            f"channels] of {2**halvings} pixels or more per side, got records of shape "
            f"{list(shape)}"
        )
    height, width = shape[:2]
    return height, width, shape[2] if len(shape) == 3 else 1


def widths(given: Sequence[int], length: int | None = None) -> tuple[int, ...]:
    """Filters as whole numbers, one per convolution of the model."""
    if not isinstance(given, tuple | list) or not given or (length and len(given) != length):
        many = f"a list of {length} whole numbers" if length else "a list of whole numbers"
        raise ValueError(f"model.options.filters = {given!r}: expected {many}")
    for width in given:
        count(**{"model.options.filters": width})
    return tuple(given)
