"""Convolutions on a CPU with fewer products, by the method of Winograd (Lavin and Gray, 2016).

Two neighbouring outputs of a row of `size` weights are, transposed, a product of polynomials, which
is determined by its values at size + 1 points: size + 1 products instead of 2 size. In both
directions a square of 2x2 outputs takes 36 products instead of 100 with a 5x5 kernel, and 16
instead of 36 with 3x3. The sums before and after them run along channels and are cheap.

How the work is divided follows from XLA: it would fuse all sums into loops that repeat them, but
does not fuse across products, ends of loops, or stacks of more than eight arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

CACHE_FLOATS = 1_000_000  # processed at a time: 4 MB
POINTS = {3: (0.0, 1.0, -1.0), 5: (0.0, 1.0, -1.0, 2.0, -0.5)}  # and infinity; these round least


def winograd(images: Array, kernel: Array) -> Array:
    """[B, H, W, in] by [size, size, in, out], stride 1 and "same" padding; size as in POINTS."""
    height, width = images.shape[1:3]
    even = jnp.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    return _woven(_squares(even, kernel))[:, :height, :width]


def in_groups(images: Array, floats: int) -> Array:
    """[B, ...] -> [groups, images, ...]: as many images as fit in the cache, at `floats` each."""
    most = max(1, CACHE_FLOATS // floats)
    size = next(n for n in range(min(most, len(images)), 0, -1) if len(images) % n == 0)
    return images.reshape(-1, size, *images.shape[1:])


def transforms(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices D, K, Y with outputs = Y ((K kernel) * (D inputs)): [n, n], [n, size], [2, n]."""
    points, n = np.array(POINTS[size]), size + 1
    data, kernel, outputs = np.zeros((n, n)), np.zeros((n, size)), np.zeros((2, n))
    for k, point in enumerate(points):
        others = np.delete(points, k)
        data[k, :size] = np.poly(others)[::-1]
        kernel[k] = point ** np.arange(size) / np.prod(point - others)
        outputs[:, k] = 1.0, point
    data[size] = np.poly(points)[::-1]
    kernel[size, -1] = outputs[1, size] = 1.0
    return data, kernel, outputs


@jax.custom_vjp
def _squares(images: Array, kernel: Array) -> list[Array]:
    """The outputs at even rows and even columns, then at even rows and odd columns, and so on."""
    number, height, width, _ = images.shape
    kernels, outputs = _kernels(kernel), _outputs(kernel)

    def step(group: Array) -> list[Array]:
        pairs = zip(_spread(group, len(kernel)), kernels, strict=True)
        products = [factors @ weights for factors, weights in pairs]
        return [_sum(weights, products) for weights in outputs]

    places = jax.lax.map(step, _grouped(images, kernel))
    return [place.reshape(number, height // 2, width // 2, -1) for place in places]


def _forwards(images: Array, kernel: Array) -> tuple[list[Array], tuple[Array, Array]]:
    return _squares(images, kernel), (images, kernel)


def _backwards(kept: tuple[Array, Array], errors: list[Array]) -> tuple[Array, Array]:
    images, kernel = kept
    kernels, back = jax.vjp(_kernels, kernel)
    outputs = _outputs(kernel)
    groups = _grouped(images, kernel)

    def step(summed: list[Array], group: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        own, *places = group
        products = [_sum(weights, places) for weights in outputs.T]
        factors = zip(summed, _spread(own, len(kernel)), products, strict=True)
        summed = [so_far + factor.T @ product for so_far, factor, product in factors]
        before = [p @ weights.T for p, weights in zip(products, kernels, strict=True)]
        return summed, _unspread(before, len(kernel), own.shape)

    start = [jnp.zeros(kernel.shape[2:], kernel.dtype)] * len(kernels)
    split = [place.reshape(len(groups), -1, place.shape[-1]) for place in errors]
    summed, before = jax.lax.scan(step, start, (groups, *split))
    places = [place.reshape(-1, *place.shape[2:]) for place in before]
    return _woven(places), back(jnp.stack(summed))[0]


_squares.defvjp(_forwards, _backwards)


def _kernels(kernel: Array) -> Array:
    """K kernel K': [size, size, in, out] -> [n * n, in, out]."""
    rows = transforms(len(kernel))[1]
    both = jnp.asarray(np.kron(rows, rows), kernel.dtype)
    return (both @ kernel.reshape(both.shape[1], -1)).reshape(-1, *kernel.shape[2:])


def _outputs(kernel: Array) -> np.ndarray:
    """The weights [4, n * n] of the products in the four outputs of a square."""
    rows = transforms(len(kernel))[2]
    return np.kron(rows, rows)


def _grouped(images: Array, kernel: Array) -> Array:
    """The images in groups, sized by the floats of an image's factors and products."""
    squares = images.shape[1] * images.shape[2] // 4
    return in_groups(images, squares * (len(kernel) + 1) ** 2 * sum(kernel.shape[2:]))


def _sum(weights: Iterable[float], arrays: Iterable[Array]) -> Array:
    pairs = zip(weights, arrays, strict=True)
    return reduce(add, (float(weight) * array for weight, array in pairs if weight))


def _spread(images: Array, size: int) -> list[Array]:
    """D inputs D' of every square: [B, H, W, in] -> n * n arrays [squares, in]."""
    data, n = transforms(size)[0], size + 1
    height, width, channels = images.shape[1:]
    around = (size // 2, size // 2)
    padded = jnp.pad(images, ((0, 0), around, around, (0, 0)))
    rows = jnp.stack(
        [
            _sum(weights, [padded[:, i : i + height : 2, odd::2] for i in range(n)])
            for weights in data
            for odd in (0, 1)
        ]
    )
    rows = rows.reshape(n, 2, *rows.shape[1:])
    columns = [(j % 2, slice(j // 2, j // 2 + width // 2)) for j in range(n)]
    return [
        _sum(weights, [row[odd, :, :, where] for odd, where in columns]).reshape(-1, channels)
        for row in rows
        for weights in data
    ]


def _unspread(arrays: list[Array], size: int, shape: tuple[int, ...]) -> list[Array]:
    """The transpose of `_spread`: an array [B, H / 2, W / 2, in] for each place in a square."""
    data, n = transforms(size)[0], size + 1
    number, height, width, channels = shape
    squares = (number, height // 2, width // 2, channels)

    def pixels(parts: Sequence[Array], odd: int, axis: int) -> Array:
        """Even or odd pixels along an axis, which lie in the windows of several squares."""
        at = odd + size // 2
        windows = [(i, (at - i) // 2) for i in range(at % 2, n, 2)]
        return reduce(add, [_moved(_sum(data[:, i], parts), by, axis) for i, by in windows])

    arrays = [array.reshape(squares) for array in arrays]
    rows = jnp.stack(
        [pixels(arrays[n * a : n * a + n], odd, 2) for a in range(n) for odd in (0, 1)]
    )
    rows = rows.reshape(n, 2, *squares)
    return [pixels(list(rows[:, odd]), row, 1) for row in (0, 1) for odd in (0, 1)]


def _moved(values: Array, by: int, axis: int) -> Array:
    """values[at + by] along an axis, zeros from outside."""
    pads = [(0, 0, 0)] * values.ndim
    pads[axis] = (-by, by, 0)
    return jax.lax.pad(values, jnp.zeros((), values.dtype), pads)


def _woven(places: list[Array]) -> Array:
    """Four arrays [B, h, w, C] -> [B, 2 h, 2 w, C]."""
    number, height, width, channels = places[0].shape
    rows = [jnp.stack(places[:2], axis=3), jnp.stack(places[2:], axis=3)]
    return jnp.stack(rows, axis=2).reshape(number, 2 * height, 2 * width, channels)
