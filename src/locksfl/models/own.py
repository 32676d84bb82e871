"""A user's own model, "package.module:function", and the rules that every model must follow.

The function is called with (shape, classes) and the settings of [model.options]. It returns

    an Equinox module that maps one record of that shape to its scores, or
    (init, apply): init(key) returns a pytree of float32 weights, from any JAX library, and
    apply(weights, records) the scores of a batch [B, *shape].

The scores of a record must depend on that record alone. Batch statistics break this: a client's
update would contain means over other records, and the model state that collects them is released
without noise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl._loading import in_one_line, load
from locksfl.models.build import Blueprint, Model, Options, build_model, from_equinox

STATISTICS = (
    "batch statistics mix records and clients, and are kept without noise; "
    "use group or layer normalisation"
)


def make_model(name: str, shape: tuple[int, ...], classes: int, options: Options) -> Model:
    """A model by its name: one of the program's, or "package.module:function"."""
    if ":" not in name:
        return build_model(name, shape, classes, **options)
    blueprint = Blueprint(name, shape, classes, options)
    return replace(own_model(*blueprint), blueprint=blueprint)


def own_model(name: str, shape: tuple[int, ...], classes: int, options: Options) -> Model:
    """The model that a user's function makes.

    Args:
        name: "package.module:function". If it takes `key`, it is called again for every
            initialisation; a module made without a key starts the same in every run.
        shape: of a record.
        classes: how many scores a record, or a position of it, has.
        options: the settings of [model.options].

    Returns:
        The model; see `check_model` for what is still to be checked.
    """
    where = f"model.name = {name!r}"
    function = load("model.name", name)
    takes_key = "key" in inspect.signature(function).parameters

    def make(key: Array) -> Any:
        given = {**options, "key": key} if takes_key else options
        try:
            return function(shape, classes, **given)
        except Exception as error:
            raise ValueError(f"{where}: calling it failed: {in_one_line(error)}") from error

    made = make(jax.random.key(0))
    if isinstance(made, Model):
        return made
    _refuse_state(where, made)
    if isinstance(made, eqx.Module) and callable(made):
        _float32(where, eqx.filter(made, eqx.is_inexact_array))
        return from_equinox(name, make, shape=shape)
    if isinstance(made, tuple) and len(made) == 2 and all(callable(part) for part in made):
        return _from_pair(name, where, *made, shape)
    raise ValueError(
        f"{where}: returns {type(made).__name__}, expected an Equinox module that takes one "
        "record, or a pair of functions (init, apply)"
    )


def _from_pair(
    name: str,
    where: str,
    init: Callable[[Array], Any],
    apply: Callable[[Any, Array], Array],
    shape: tuple[int, ...],
) -> Model:
    try:
        example = init(jax.random.key(0))
    except Exception as error:
        raise ValueError(f"{where}: init(key) failed: {in_one_line(error)}") from error
    _refuse_state(where, example)
    _float32(where, example)
    flat, unravel = ravel_pytree(example)
    return Model(
        name,
        int(flat.size),
        lambda key: ravel_pytree(init(key))[0],
        unravel,
        lambda weights, records: apply(weights, records.reshape(-1, *shape)),
    )


def _refuse_state(where: str, made: Any) -> None:
    """Equinox state (such as BatchNorm's), or Flax's collection of batch statistics."""

    def holds_state(part: Any) -> bool:
        return isinstance(part, (eqx.nn.State, eqx.nn.StateIndex, eqx.nn.BatchNorm))

    for path, leaf in jax.tree_util.tree_flatten_with_path(made, is_leaf=holds_state)[0]:
        if holds_state(leaf) or any(getattr(key, "key", None) == "batch_stats" for key in path):
            raise ValueError(f"{where}: it keeps batch statistics or other state: {STATISTICS}")


def _float32(where: str, weights: Any) -> None:
    leaves = jax.tree.leaves(weights)
    if not leaves:
        raise ValueError(f"{where}: it has no weights to train")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        if kind != jnp.float32:
            raise ValueError(f"{where}: weights of type {kind}, expected float32 arrays only")


@lru_cache(maxsize=16)
def check_model(
    model: Model, shape: tuple[int, ...], classes: int, positions: tuple[int, ...] = ()
) -> None:
    """Refuse scores whose shape does not match the labels, and scores of one record that depend on
    another.

    Args:
        model: any model.
        shape: of a record.
        classes: how many there are.
        positions: (L,) if every position of a record has a label.
    """
    where = f"model.name = {model.name!r}"
    batch = 3
    flat = jax.ShapeDtypeStruct((model.size,), jnp.float32)
    records = jax.ShapeDtypeStruct((batch, int(np.prod(shape))), jnp.float32)
    wanted = (batch, *positions, classes)
    try:
        scores = jax.eval_shape(lambda w, x: model.apply(model.unravel(w), x), flat, records)
    except Exception as error:
        raise ValueError(
            f"{where}: it fails on records of shape {list(shape)}: {in_one_line(error)}"
        ) from error
    if not isinstance(scores, jax.ShapeDtypeStruct):
        raise ValueError(
            f"{where}: returns {type(scores).__name__}, expected one array of scores (state cannot "
            f"be kept: {STATISTICS})"
        )
    if scores.shape != wanted or not jnp.issubdtype(scores.dtype, jnp.floating):
        what = "[records, positions, classes]" if positions else "[records, classes]"
        raise ValueError(
            f"{where}: scores of {scores.dtype} and shape {list(scores.shape)} for {batch} "
            f"records, expected floats of shape {list(wanted)}, {what}"
        )
    key = jax.random.key(1)
    near = model.init(key) + 0.05 * jax.random.normal(key, (model.size,))  # not all scores equal
    weights = model.unravel(near)
    if mixes_records(lambda values: model.apply(weights, values), records.shape):
        raise ValueError(f"{where}: scores of a record change with other records: {STATISTICS}")


def mixes_records(function: Callable[[Array], Any], shape: tuple[int, ...]) -> bool:
    """Whether the result of `function` for some record of a batch depends on another record.

    Values in 0..4 serve both as pixels and as character ids. The first and the last record are
    reversed and scaled up in turn, so that means, extremes and neighbours all change.
    """
    values = np.random.default_rng(0).uniform(0, 4, shape).astype(np.float32)
    call = jax.jit(function)
    before = np.asarray(call(jnp.asarray(values)))
    size = np.abs(before[np.isfinite(before)]).max(initial=1e-30)
    for record in (0, shape[0] - 1):
        for change in (4 - values[record], 3 * values[record] + 1):
            other = values.copy()
            other[record] = change
            after = np.asarray(call(jnp.asarray(other)))
            kept, now = (np.delete(a, record, axis=0) for a in (before, after))
            if not np.allclose(kept, now, rtol=1e-4, atol=1e-5 * size, equal_nan=True):
                return True
    return False
