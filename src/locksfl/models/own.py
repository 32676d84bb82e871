"""A user's own model, "package.module:function", and what any model must keep to.

The function is called with (shape, classes) and the settings of [model.options]. It gives

    an Equinox module that maps one record of that shape to its scores, or
    (init, apply): init(key) gives a pytree of float32 weights, in any JAX library, and
    apply(weights, records) the scores of a batch [B, *shape].

Scores of one record depend on that record alone. Batch statistics break this: a client's update
would hold other records' means, and the model state that collects them is released without noise.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl._validate import nearest
from locksfl.models.build import Model

STATISTICS = (
    "batch statistics mix records and clients, and are kept outside of the noise; "
    "use group or layer normalisation"
)


def load_function(setting: str, name: str) -> Callable[..., Any]:
    """What "package.module:function" names; modules of the current directory are found too."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise ValueError(f"{setting} = {name!r}: expected package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if missing and f"{module_name}.".startswith(f"{error.name}."):  # type: ignore[attr-defined]
            raise ValueError(
                f"{setting} = {name!r}: no module {module_name!r} in the current directory or "
                "among the installed packages"
            ) from None
        raise ValueError(f"{setting} = {name!r}: importing it failed: {told(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, value in vars(module).items() if callable(value)]
        raise ValueError(
            f"{setting} = {name!r}: module {module_name!r} has no function {function_name!r}"
            f"{nearest(function_name, names)}"
        )
    found: Callable[..., Any] = function
    return found


def own_model(name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> Model:
    """The model that a user's function makes. If it takes `key`, it is called again for a start;
    a module made without a key starts the same in every run."""
    where = f"model.name = {name!r}"
    function = load_function("model.name", name)
    takes_key = "key" in inspect.signature(function).parameters

    def make(key: Array) -> Any:
        given = {**options, "key": key} if takes_key else options
        try:
            return function(shape, classes, **given)
        except Exception as error:
            raise ValueError(f"{where}: calling it failed: {told(error)}") from error

    made = make(jax.random.key(0))
    if isinstance(made, Model):
        return made
    _refuse_state(where, made)
    if isinstance(made, eqx.Module) and callable(made):
        return _from_module(name, where, make, made, shape)
    if isinstance(made, tuple) and len(made) == 2 and all(callable(part) for part in made):
        return _from_pair(name, where, *made, shape)
    raise ValueError(
        f"{where}: gives {type(made).__name__}, expected an Equinox module of one record or a "
        "pair of functions (init, apply)"
    )


def _from_module(
    name: str, where: str, make: Callable[[Array], Any], example: Any, shape: tuple[int, ...]
) -> Model:
    weights, static = eqx.partition(example, eqx.is_inexact_array)
    _float32(where, weights)
    flat, unravel = ravel_pytree(weights)

    def init(key: Array) -> Array:
        return ravel_pytree(eqx.filter(make(key), eqx.is_inexact_array))[0]

    def apply(weights: Any, records: Array) -> Array:
        module: Any = eqx.combine(weights, static)
        scores: Array = jax.vmap(module)(records.reshape(-1, *shape))
        return scores

    return Model(name, int(flat.size), init, unravel, apply)


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
        raise ValueError(f"{where}: init(key) failed: {told(error)}") from error
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
    """Equinox state (BatchNorm and its kind), or Flax's collection of batch statistics."""
    stateful = (eqx.nn.State, eqx.nn.StateIndex, eqx.nn.BatchNorm)

    def holds_state(part: Any) -> bool:
        return isinstance(part, stateful)

    leaves = jax.tree.leaves(made, is_leaf=holds_state)
    paths = jax.tree_util.tree_flatten_with_path(made, is_leaf=holds_state)[0]
    named = any(getattr(key, "key", None) == "batch_stats" for path, _ in paths for key in path)
    if named or any(holds_state(leaf) for leaf in leaves):
        raise ValueError(f"{where}: it keeps batch statistics or other state: {STATISTICS}")


def _float32(where: str, weights: Any) -> None:
    leaves = jax.tree.leaves(weights)
    if not leaves:
        raise ValueError(f"{where}: it has no weights to train")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        if kind != jnp.float32:
            raise ValueError(f"{where}: weights of type {kind}, expected float32 arrays only")


def check_model(
    model: Model, shape: tuple[int, ...], classes: int, positions: tuple[int, ...] = ()
) -> None:
    """Refuse scores of another shape than the labels need, and scores of one record that depend
    on another one. `positions`: (L,) where every position of a record has a label."""
    where = f"model.name = {model.name!r}"
    batch = 3
    flat = jax.ShapeDtypeStruct((model.size,), jnp.float32)
    records = jax.ShapeDtypeStruct((batch, int(np.prod(shape))), jnp.float32)
    wanted = (batch, *positions, classes)
    try:
        scores = jax.eval_shape(lambda w, x: model.apply(model.unravel(w), x), flat, records)
    except Exception as error:
        raise ValueError(
            f"{where}: it fails on records of shape {list(shape)}: {told(error)}"
        ) from error
    if not isinstance(scores, jax.ShapeDtypeStruct):
        raise ValueError(
            f"{where}: gives {type(scores).__name__}, expected one array of scores (state cannot "
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
    """Whether what `function` gives for some record of a batch changes with another one.

    Values in 0..4 serve as pixels and as character ids alike. The first and the last record are
    turned over and blown up in turn, so that means, extremes and neighbours all change.
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


def told(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
