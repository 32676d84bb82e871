"""Public features: a fixed function of each record, computed once, on which a linear model trains.

Noise grows with the number of weights, so under a small epsilon a linear model on good features
is often better than a network (Tramer and Boneh, "Differentially private learning needs better
features (or much more data)", 2021). The function does not depend on private data: it has fixed
filters or weights from elsewhere, and normalises each record separately. So it costs no privacy.

The scattering transform (Bruna and Mallat, 2013): |image * wavelet|, applied once and twice, each
smoothed and sampled every 4 pixels. Scales 2^0 and 2^1, 8 directions: 1 + 16 + 64 channels per
colour.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from locksfl._loading import in_one_line, load
from locksfl.data.origin import Encoding
from locksfl.data.population import Population
from locksfl.models.own import mixes_records

SCALES, ANGLES, GRID = 2, 8, 4  # GRID = 2**SCALES
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
GROUPS = 27  # of 3 channels each, as in Tramer and Boneh (2021), Section 3
ROWS = 500  # records at a time


def with_features(population: Population, name: str, file: str | None = None) -> Population:
    """The same clients with features in place of their records.

    Args:
        population: the records.
        name: "scattering", "encoder", or "none", which changes nothing.
        file: the encoder's weights or function; see `function_of`.
    """
    if name == "none":
        return population
    shape, weights = population.features.shape[1:], None
    if file is not None and file.endswith((".npy", ".npz")):
        weights = read_weights(file, int(np.prod(shape)))
    encoding = Encoding(name, file, shape, population.scale, weights)
    made = transformed(population, function_of(encoding), name)
    return dataclasses.replace(made, encoding=encoding)


def function_of(encoding: Encoding) -> Callable[[Array], Array]:
    """The function of a batch of records that makes their features: of an encoder, its own, or
    relu(x W + b) with the weights of a .npy (W) or .npz (W and optionally b) file."""
    if encoding.weights is None:
        if encoding.name == "scattering":
            return scattering(encoding.shape)
        return load("features.file", str(encoding.file))
    weights, bias = map(jnp.asarray, encoding.weights)
    return lambda records: jax.nn.relu(records.reshape(len(records), -1) @ weights + bias)


def encoded(records: NDArray[Any], encoding: Encoding) -> NDArray[np.float32]:
    """The features of records as they are stored."""
    if records.shape[1:] != encoding.shape:
        raise ValueError(
            f"records of shape {list(records.shape[1:])}: expected {list(encoding.shape)}, as they "
            f"are before features {encoding.name!r}"
        )
    return _in_parts(_compiled(encoding), records, encoding.scale)


@functools.lru_cache(maxsize=8)
def _compiled(encoding: Encoding) -> Callable[[Any, float], Array]:
    return _of_stored(function_of(encoding))


def _of_stored(function: Callable[[Array], Array]) -> Callable[[Any, float], Array]:
    return jax.jit(lambda records, scale: function(records.astype(jnp.float32) * scale))


def _in_parts(
    call: Callable[[Any, float], Array], stored: NDArray[Any], scale: float
) -> NDArray[np.float32]:
    """The features of stored records, some at a time; the last ones are filled up."""
    rows, shape = max(1, min(ROWS, len(stored))), stored.shape[1:]
    like = jax.eval_shape(call, jax.ShapeDtypeStruct((rows, *shape), stored.dtype), scale)
    features = np.empty((len(stored), *like.shape[1:]), np.float32)
    for start in range(0, len(stored), rows):
        part = np.asarray(stored[start : start + rows])
        padded = np.concatenate([part, np.zeros((rows - len(part), *shape), part.dtype)])
        features[start : start + len(part)] = call(padded, scale)[: len(part)]
    return features


def transformed(
    population: Population, function: Callable[[Array], Array], name: str
) -> Population:
    """The same clients with a function's features in place of their records.

    Args:
        population: the records.
        function: maps records [B, *shape], as a model would see them, to [B, features]. Refused if
            its result for one record depends on another.
        name: the name of the features in messages.
    """
    where, shape = f"features.name = {name!r}", population.features.shape[1:]
    try:
        result = jax.eval_shape(function, jax.ShapeDtypeStruct((3, *shape), jnp.float32))
        mixed = mixes_records(function, (3, *shape))
    except Exception as error:
        raise ValueError(
            f"{where}: it fails on records of shape {list(shape)}: {in_one_line(error)}"
        ) from error
    if not isinstance(result, jax.ShapeDtypeStruct) or result.ndim < 2 or result.shape[0] != 3:
        got = getattr(result, "shape", type(result).__name__)
        raise ValueError(f"{where}: expected [records, features], got {got}")
    if mixed:
        raise ValueError(
            f"{where}: features of a record change with other records; expected "
            "a function of one record; otherwise one client's data would affect another's features"
        )
    stored, call = (population.features, population.test_features), _of_stored(function)
    features, tests = (_in_parts(call, rows, population.scale) for rows in stored)
    return dataclasses.replace(population, features=features, test_features=tests, scale=1.0)


# --- An encoder from a file ------------------------------------------------


def read_weights(file: str, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """W [width, features] and b of an encoder's file, checked."""
    where = f"features.file = {file!r}"
    try:
        loaded: Any = np.load(Path(file).expanduser(), allow_pickle=False)
        arrays = {"W": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{where}: cannot be read: {in_one_line(error)}") from None
    if "W" not in arrays:
        raise ValueError(f"{where}: expected an array W and optionally b; it has {list(arrays)}")
    weights = np.asarray(arrays["W"])
    if weights.ndim != 2 or weights.shape[0] != width or weights.dtype.kind != "f":
        raise ValueError(
            f"{where}: W is {weights.dtype} of shape {list(weights.shape)}, expected floats of "
            f"shape [{width}, features]"
        )
    bias = np.asarray(arrays.get("b", np.zeros(weights.shape[1])))
    if bias.shape != weights.shape[1:] or not (
        np.isfinite(weights).all() and np.isfinite(bias).all()
    ):
        raise ValueError(f"{where}: expected finite numbers, and b of shape [{weights.shape[1]}]")
    return weights.astype(np.float32), bias.astype(np.float32)


# --- Scattering ------------------------------------------------


def scattering(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Records [B, H, W] or [B, H, W, C] -> [B, 81 C (H/4) (W/4)], each record normalised
    separately in groups of channels."""
    if len(shape) not in (2, 3) or any(side % GRID or side < 2 * GRID for side in shape[:2]):
        raise ValueError(
            f"features.name = 'scattering': expected images [height, width] or [height, width, "
            f"channels] with sides in multiples of {GRID}, got records of shape {list(shape)}"
        )

    def features(records: Array) -> Array:
        images = records if records.ndim == 4 else records[..., None]
        planes = jnp.moveaxis(images, -1, 1)  # [B, C, H, W]
        channels = scatter(planes)  # [B, C, 81, h, w]
        groups = channels.reshape(len(channels), -1, CHANNELS // GROUPS, *channels.shape[-2:])
        mean = jnp.mean(groups, axis=(2, 3, 4), keepdims=True)
        spread = jnp.std(groups, axis=(2, 3, 4), keepdims=True)
        return ((groups - mean) / (spread + 1e-3)).reshape(len(channels), -1)

    return features


def scatter(images: Array) -> Array:
    """[..., H, W] -> [..., 81, H/4, W/4], before any normalisation."""
    height, width = images.shape[-2:]
    around = [(0, 0)] * (images.ndim - 2) + [(GRID, GRID)] * 2  # wrapping meets only this margin
    whole = jnp.pad(images, around, mode="reflect")
    sides = (height + 2 * GRID, width + 2 * GRID)
    fine, coarse = (jnp.asarray(bank) for bank in _bank(*sides))
    spectrum = jnp.fft.fft2(whole)[..., None, :, :]
    first = jnp.abs(jnp.fft.ifft2(spectrum * fine))  # scale 1, every pixel
    second = jnp.abs(jnp.fft.ifft2(_fold(spectrum * coarse)))  # scale 2, every other pixel
    again = jnp.fft.fft2(first)[..., None, :, :] * coarse
    both = jnp.abs(jnp.fft.ifft2(_fold(again)))  # [..., 8, 8, H/2, W/2]
    both = both.reshape(*both.shape[:-4], ANGLES**2, *both.shape[-2:])
    smooth = [_smooth(part, sides) for part in (whole[..., None, :, :], first, second, both)]
    return jnp.concatenate(smooth, axis=-3)[..., 1:-1, 1:-1]


def _fold(spectrum: Array) -> Array:
    """The spectrum of every other pixel: the halves of the frequencies added together."""
    height, width = spectrum.shape[-2:]
    halves = spectrum.reshape(*spectrum.shape[:-2], 2, height // 2, 2, width // 2)
    return jnp.mean(halves, axis=(-4, -2))


def _smooth(values: Array, sides: tuple[int, int]) -> Array:
    """A Gaussian of the largest scale, sampled on the grid: two small matrix products."""
    down, across = (
        jnp.asarray(_window(side, side // length))
        for side, length in zip(sides, values.shape[-2:], strict=True)
    )
    return jnp.einsum("ip,...pq,jq->...ij", down, values, across)


@functools.cache
def _window(side: int, step: int) -> NDArray[np.float32]:
    """[side / GRID, side / step]: row i averages, on a circle, around pixel GRID * i."""
    sigma = 0.8 * 2 ** (SCALES - 1)
    apart = np.arange(0, side, step)[None] - np.arange(0, side, GRID)[:, None]
    nearest = (apart + side / 2) % side - side / 2
    weights = np.exp(-(nearest**2) / (2 * sigma**2))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


@functools.cache
def _bank(height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The wavelets' spectra, [8, H, W] for each scale."""
    angles = [np.pi * k / ANGLES for k in range(ANGLES)]
    fine, coarse = (
        np.stack([_morlet(height, width, scale, angle) for angle in angles])
        for scale in range(SCALES)
    )
    return fine, coarse


def _morlet(height: int, width: int, scale: int, angle: float) -> NDArray[np.float32]:
    """A Morlet wavelet's spectrum: a wave under a slanted Gaussian, with its mean removed.

    The constants are those of Kymatio (Andreux et al., 2020): sigma 0.8 2^j, frequency
    3/4 pi / 2^j, slant 4 / L.
    """
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / ANGLES
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    bell, wave = np.zeros((height, width)), np.zeros((height, width), complex)
    for down in range(-2, 3):  # wrapped around the image
        for across in range(-2, 3):
            y, x = np.mgrid[:height, :width] + np.reshape(
                [down * height, across * width], (2, 1, 1)
            )
            here = np.exp(
                -(shape[0, 0] * x * x + (shape[0, 1] + shape[1, 0]) * x * y + shape[1, 1] * y * y)
            )
            bell += here
            wave += here * np.exp(1j * frequency * (x * np.cos(angle) + y * np.sin(angle)))
    norm = 2 * np.pi * sigma**2 / slant
    wavelet = (wave - bell * (wave.sum() / bell.sum())) / norm
    return np.fft.fft2(wavelet).real.astype(np.float32)  # the imaginary part is rounding
