"""Client work: the update u_i and its norm.

All functions take a leading axis of clients: a chunk of a simulated cohort, or one device. A chunk
does two things: `measure` returns |u_i| of every client and a trace; `combine` returns the sum of
coefficient_i u_i, computed from that trace. A trace holds the updates themselves or, for dense
networks in gradient mode, activations and errors, so that no client's gradient is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl.models.build import Model
from locksfl.models.losses import errors, losses


@dataclass(frozen=True)
class LocalWork:
    """How a client makes its update.

    "gradient": the mean gradient of its samples. "epochs": w - w_i after some epochs of SGD.
    Weight "size" multiplies it by K_i / K_ref, K_i the samples that the client uses and K_ref
    `reference_samples` or `max_samples`: before clipping, so that a client's bound stays C.
    Precision "reduced" lets a GPU round the factors of products on the way to an update: to TF32,
    in convolutions to 16 bits. Norms, clipping and sums are exact to float32 in either.
    `proximal` is FedProx's mu (`epochs_update`), `control` a control variate (control.py).
    """

    update: str = "gradient"
    epochs: int = 1
    batch: int = 32
    step: float = 0.05
    min_samples: int = 1
    max_samples: int | None = None
    precision: str = "full"
    weight: str = "equal"
    reference_samples: int | None = None
    proximal: float = 0.0
    control: str | None = None
    anchor_every: int = 2
    anchor_ratio: float = 0.5

    @property
    def counts_once(self) -> int | None:
        """K_ref, a public number; None if all clients count alike."""
        if self.weight != "size":
            return None
        if not (unit := self.reference_samples or self.max_samples):
            raise ValueError("weight = 'size': expected reference_samples or max_samples")
        return unit


class Records(NamedTuple):
    """Every client's samples, flat: client i owns rows starts[i] to starts[i] + sizes[i]."""

    features: Array  # as they are stored
    labels: Array  # as in data.population
    starts: Array
    sizes: Array
    scale: Array  # what stored features are multiplied by (1/255 for pixels)


@dataclass(frozen=True)
class SizeClass:
    """Clients of about one size, whose samples fit a rectangle without much padding."""

    rows: int  # the most samples that one of them uses in a round
    subsample_from: int  # the most samples that one of them has, if some must leave samples out
    repeats: bool  # some must repeat samples to reach min_samples


class Chunk(NamedTuple):
    """Some clients at work: which rows each uses this round."""

    rows: Array  # [c, rows] row numbers in Records
    used: Array  # [c, rows] False is padding: rows of the same client once more
    keys: Array  # [c] each client's key of the round


class Asked(NamedTuple):
    """What a round asks of all its clients."""

    work: LocalWork
    t: Array  # the round, counted from 0
    model: Model
    weights: Array  # w_t
    records: Records


NO_LIMIT = 2**31 - 1
# Clipping is exact: some GPUs would keep 10 bits of each factor of a product.
HIGHEST = jax.lax.Precision.HIGHEST
PRECISIONS = {"full": "highest", "reduced": "default"}  # as JAX calls them


def used_samples(sizes: Any, work: LocalWork) -> Any:
    """How many samples a client of each size uses in a round: K_i limited to [K_min, K_max]."""
    return sizes.clip(work.min_samples, work.max_samples or NO_LIMIT)


def size_weight(used: Any, work: LocalWork) -> Any:
    """What multiplies the update of a client that uses so many samples: K_i / K_ref, or 1."""
    return used / (work.counts_once or used)


def choose_rows(
    records: Records, clients: Array, keys: Array, shape: SizeClass, work: LocalWork
) -> Chunk:
    """The rows that each client uses: more than max_samples are subsampled without replacement,
    fewer than min_samples are repeated with replacement, fresh each round.

    Padding repeats the client's own rows. A model may be singular at a row of zeros, and 0 times
    NaN is NaN: then whoever is padded would be lost, which depends on others' sizes.
    """
    present = clients >= 0
    sizes = jnp.where(present, records.sizes[clients], 0)
    counts = jnp.where(present, used_samples(sizes, work), 0)
    position = jnp.arange(shape.rows)

    def one(size: Array, key: Array) -> Array:
        rows = position
        if shape.subsample_from:
            picked = permutation(jax.random.fold_in(key, 0), size, shape.subsample_from)
            picked = jnp.pad(picked, (0, max(0, shape.rows - shape.subsample_from)))
            rows = jnp.where(size > (work.max_samples or NO_LIMIT), picked[: shape.rows], rows)
        if shape.repeats:
            uniform = jax.random.uniform(jax.random.fold_in(key, 1), (shape.rows,))
            again = jnp.minimum((uniform * size).astype(jnp.int32), size - 1)
            rows = jnp.where(position < size, rows, again)
        return rows

    rows = jax.vmap(one)(sizes, keys)
    used = position < counts[:, None]
    again = position % jnp.maximum(counts, 1)[:, None]
    rows = jnp.where(used, rows, jnp.take_along_axis(rows, again, axis=1))
    starts = jnp.where(present, records.starts[clients], 0)
    return Chunk(jnp.where(present[:, None], starts[:, None] + rows, 0), used, keys)


def permutation(key: Array, size: Array, length: int) -> Array:
    """A random order of 0..size-1 in the first `size` places, whatever the padded length.

    Element i of a uniform draw depends on its key and on i only, so padding changes nothing.
    """
    draws = jax.random.uniform(key, (length,))
    return jnp.argsort(jnp.where(jnp.arange(length) < size, draws, 2.0))


def take(records: Records, rows: Array) -> tuple[Array, Array]:
    """Features, as they are stored, and labels of some rows."""
    return records.features[rows], records.labels[rows]


def scaled(records: Records, features: Array, labels: Array) -> tuple[Array, Array]:
    """Stored features as floats, one flat row per record."""
    features = features.astype(jnp.float32) * records.scale
    return features.reshape(
        *features.shape[: features.ndim - records.features.ndim + 1], -1
    ), labels


def read(records: Records, rows: Array) -> tuple[Array, Array]:
    """Features, as floats, and labels of some rows."""
    return scaled(records, *take(records, rows))


def mean_loss(model: Model, weights: Any, features: Array, labels: Array, used: Array) -> Array:
    """The mean loss over the used records; 0 if there are none."""
    each = losses(model, model.apply(weights, features), labels)
    return jnp.sum(jnp.where(used, each, 0.0)) / jnp.maximum(1, jnp.sum(used))


def gradient_update(model: Model, weights: Array, records: Records, chunk: Chunk) -> Array:
    """u_i for each client: the mean gradient of its rows. [c, size]"""
    unpacked = model.unravel(weights)

    def one(rows: Array, used: Array) -> Array:
        features, labels = read(records, rows)
        gradient = jax.grad(mean_loss, argnums=1)(model, unpacked, features, labels, used)
        return ravel_pytree(gradient)[0]

    return _each(one, chunk.rows, chunk.used)


def epochs_update(
    model: Model,
    weights: Array,
    records: Records,
    chunk: Chunk,
    work: LocalWork,
    drift: Array | None = None,
) -> Array:
    """u_i = w - w_i after `epochs` passes of SGD over the client's rows, reshuffled in each pass.

    A client takes as many steps as its own rows need; the last batch of a pass may be short. A
    step, with g the mean gradient of its batch at y, is

        y <- y - eta (g + mu (y - w) + drift_i)

    mu = `proximal` is the gradient of mu/2 |y - w|^2, which holds a client near the model that it
    was sent: FedProx (Li et al. 2020), and FedAvg (McMahan et al. 2017) if it is 0. w is released
    and u_i is clipped like any update, so it costs no privacy. `drift` [c, size]: see scaffold.py.
    """
    start = model.unravel(weights)
    length = chunk.rows.shape[-1]
    batch = min(work.batch, length)
    padding = -length % batch
    alone = chunk.rows.shape[0] == 1

    def one(rows: Array, used: Array, key: Array, *drift: Array) -> Array:
        drifts = [model.unravel(vector) for vector in drift]
        count = jnp.sum(used)
        # All take as many steps as the largest client: a step without rows changes nothing, and a
        # loop of known length spares a GPU from waiting for the host in every iteration.
        steps = -(-count // batch) if alone else (length + padding) // batch

        def epoch(e: Array, local: Any) -> Any:
            order = permutation(jax.random.fold_in(key, 2 + e), count, length)
            shuffled = jnp.pad(rows[order], (0, padding), mode="edge")
            valid = jnp.pad(used[order], (0, padding))
            stored = take(records, shuffled)

            def step(s: Array, local: Any) -> Any:
                *batch_of, mask = _slice((*stored, valid), s * batch, batch)
                features, labels = scaled(records, *batch_of)
                gradient = jax.grad(mean_loss, argnums=1)(model, local, features, labels, mask)
                if work.proximal or drifts:
                    there = jnp.any(mask)  # a step without rows changes nothing
                    gradient = jax.tree.map(
                        lambda g, y, w, *d: g + there * (work.proximal * (y - w) + sum(d)),
                        gradient,
                        local,
                        start,
                        *drifts,
                    )
                return jax.tree.map(lambda w, g: w - work.step * g, local, gradient)

            return jax.lax.fori_loop(0, steps, step, local)

        end = jax.lax.fori_loop(0, work.epochs, epoch, start)
        return ravel_pytree(jax.tree.map(jnp.subtract, start, end))[0]

    return _each(one, chunk.rows, chunk.used, chunk.keys, *([] if drift is None else [drift]))


def _slice(arrays: Any, start: Array, length: int) -> Any:
    return [jax.lax.dynamic_slice_in_dim(array, start, length) for array in arrays]


def _each(function: Any, *arrays: Array) -> Array:
    """vmap over clients; a chunk of one is not batched, which is faster on a CPU."""
    if arrays[0].shape[0] == 1:
        return function(*(a[0] for a in arrays))[None]
    return jax.vmap(function)(*arrays)


class Visit(NamedTuple):
    """The result of a chunk of clients: |u_i|, whether u_i is finite, the trace, and the facts that
    a rule asks for (facts.py)."""

    norms: Array
    finite: Array
    trace: Any
    facts: Any = None


def measure(
    model: Model,
    weights: Array,
    records: Records,
    chunk: Chunk,
    work: LocalWork,
    norms_of: Callable[[Array], Array] | None = None,
    updates_of: Callable[[], Array] | None = None,
) -> Visit:
    """Compute every client's update and its norm, with `norms_of` if given; then the trace is the
    updates themselves. `updates_of`: other updates than those of `work` alone (control.py).

    A client whose update has NaN or Inf, or a norm that float32 cannot hold, counts as zero: its
    norm is 0 and its trace is zeroed, so that it cannot reach the model through 0 times NaN.
    """
    with jax.default_matmul_precision(PRECISIONS[work.precision]):
        if norms_of is None and uses_errors(model, chunk.rows.shape[-1], work):
            return _measure_dense(model, weights, records, chunk, work)
        if updates_of is not None:
            updates = updates_of()
        elif work.update == "gradient":
            updates = gradient_update(model, weights, records, chunk)
        else:
            updates = epochs_update(model, weights, records, chunk, work)
    if work.counts_once:
        updates *= size_weight(jnp.sum(chunk.used, axis=1, keepdims=True), work)
    if norms_of is None:
        return _visit(_root(jnp.sum(jnp.square(updates), axis=-1)), updates)
    return _visit(norms_of(updates), updates)


def _root(squared_norms: Array) -> Array:
    return jnp.sqrt(jnp.maximum(squared_norms, 0.0))


def _visit(norms: Array, trace: Any) -> Visit:
    finite = jnp.isfinite(norms)

    def clear(values: Array) -> Array:
        return jnp.where(finite.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)

    return Visit(clear(norms), finite, jax.tree.map(clear, trace))


def combine(trace: Any, coefficients: Array) -> Array:
    """Sum of coefficient_i u_i over the chunk, from the trace of `measure`."""
    return flat(combine_parts(trace, coefficients))


def combine_parts(trace: Any, coefficients: Array) -> list[Array]:
    """The same, as parts of the flat vector: callers that add up many chunks concatenate once, at
    the end."""
    if isinstance(trace, DenseTrace):
        return _combine_dense(trace, coefficients)
    return [jnp.matmul(coefficients, trace, precision=HIGHEST)]


def flat(parts: list[Array]) -> Array:
    """Concatenate parts that are in the order of a flat vector."""
    return jnp.concatenate([part.ravel() for part in parts])


# --- Dense networks in gradient mode: norms first, then one weighted backward pass. ---------------


ROUNDING = 2.0**-18  # 64 units of float32's rounding; dot products of 20,000 terms lost at most 2


class DenseTrace(NamedTuple):
    """For each layer, its input and the derivative of the loss by its output. [c, rows, width]"""

    inputs: tuple[Array, ...]  # of each layer
    errors: tuple[Array, ...]  # the derivative of the loss by each layer's output


def uses_errors(model: Model, rows: int, work: LocalWork) -> bool:
    """Whether Gram matrices of a client's rows are cheaper than the client's gradient."""
    if not (model.dense and work.update == "gradient") or work.control is not None:
        return False
    shapes = [layer.weight.shape for layer in _layers(model)]
    return rows * sum(i + o for o, i in shapes) < sum(i * o for o, i in shapes)


def _layers(model: Model) -> Any:
    return jax.eval_shape(model.unravel, jax.ShapeDtypeStruct((model.size,), jnp.float32)).layers


def _measure_dense(
    model: Model, weights: Array, records: Records, chunk: Chunk, work: LocalWork
) -> Visit:
    """|sum_s x_s e_s^T|^2 = sum over pairs of (x_s . x_t)(e_s . e_t): no gradient is formed."""
    layers = model.unravel(weights).layers
    features, labels = read(records, chunk.rows)
    features = jnp.where(chunk.used[..., None], features, 0.0)
    inputs, value = [features], features
    for layer in layers[:-1]:
        value = jax.nn.relu(value @ layer.weight.T + layer.bias)
        inputs.append(value)
    scores = value @ layers[-1].weight.T + layers[-1].bias
    count: Any = jnp.maximum(1, jnp.sum(chunk.used, axis=1, keepdims=True))
    count = work.counts_once or count  # the mean times K_i / K_ref is the sum over K_ref
    error = errors(model, scores, labels)
    error = error * (chunk.used / count)[..., None]
    backwards = [error]
    for layer, value in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        error = (error @ layer.weight) * (value > 0)
        backwards.append(error)
    by_layer = tuple(reversed(backwards))

    squared = jnp.zeros(chunk.rows.shape[0])
    for value, error in zip(inputs, by_layer, strict=True):
        pairs_in = jnp.einsum("csi,cti->cst", value, value, precision=HIGHEST) + 1.0  # 1: the bias
        pairs_out = jnp.einsum("cso,cto->cst", error, error, precision=HIGHEST)
        squared += jnp.sum(pairs_in * pairs_out, axis=(1, 2)) + _rounding(pairs_in, pairs_out)
    return _visit(_root(squared), DenseTrace(tuple(inputs), by_layer))


def _rounding(pairs_in: Array, pairs_out: Array) -> Array:
    """An upper bound on float32's error in |sum_s x_s e_s^T|^2: a fraction of
    (sum_s |x_s| |e_s|)^2. When rows cancel, the norm is small but this is not; without it, a
    client's norm could be underestimated by any factor and escape clipping."""
    lengths = jnp.sqrt(jnp.diagonal(pairs_in * pairs_out, axis1=1, axis2=2))
    return ROUNDING * jnp.square(jnp.sum(lengths, axis=1))


def _combine_dense(trace: DenseTrace, coefficients: Array) -> list[Array]:
    """One weighted backward pass: the layers' inputs against the weighted errors."""
    parts = []
    for value, error in zip(trace.inputs, trace.errors, strict=True):
        rows = error.shape[0] * error.shape[1]
        weighted = (error * coefficients[:, None, None]).reshape(rows, -1)
        product = jnp.matmul(weighted.T, value.reshape(rows, -1), precision=HIGHEST)
        parts += [product, jnp.sum(weighted, axis=0)]
    return parts
