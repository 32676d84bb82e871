"""Models: functions of a flat vector of weights.

The seam is four fields. `init` gives the first flat vector, `unravel` turns a flat vector into
whatever `apply` takes, `apply` maps that and a batch of records to class scores. Anything that fits
can be trained; `dense` is a hint that lets the simulator find norms without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl._validate import count, one_of


@dataclass(frozen=True)
class Model:
    """A classifier on flat weights. Equal by identity: a compiled round belongs to one model."""

    name: str
    size: int
    init: Callable[[Array], Array]
    unravel: Callable[[Array], Any]
    apply: Callable[[Any, Array], Array]
    dense: bool = False  # a stack of Linear layers with ReLU between them, at `.layers`

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def from_equinox(name: str, build: Callable[[Array], eqx.Module], dense: bool = False) -> Model:
    """A model from a function that makes an Equinox module of one record from a key."""
    example = build(jax.random.key(0))
    arrays, static = eqx.partition(example, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)

    def init(key: Array) -> Array:
        arrays, _ = eqx.partition(build(key), eqx.is_inexact_array)
        return ravel_pytree(arrays)[0].astype(jnp.float32)

    def apply(weights: Any, records: Array) -> Array:
        module: Any = eqx.combine(weights, static)
        scores: Array = jax.vmap(module)(records.reshape(records.shape[0], -1))
        return scores

    return Model(name, int(flat.size), init, unravel, apply, dense)


class DenseStack(eqx.Module):
    """Linear layers with ReLU between them; one layer alone is softmax regression."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, widths: tuple[int, ...], key: Array) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        pairs = zip(widths[:-1], widths[1:], keys, strict=True)
        self.layers = tuple(eqx.nn.Linear(i, o, key=k) for i, o, k in pairs)

    def __call__(self, record: Array) -> Array:
        for layer in self.layers[:-1]:
            record = jax.nn.relu(layer(record))
        return self.layers[-1](record)


def softmax(features: int, classes: int) -> Model:
    """Softmax regression, started at zero: every first score is equal."""

    def build(key: Array) -> eqx.Module:
        stack = DenseStack((features, classes), key)
        arrays, static = eqx.partition(stack, eqx.is_inexact_array)
        zero: eqx.Module = eqx.combine(jax.tree.map(jnp.zeros_like, arrays), static)
        return zero

    return from_equinox("softmax", build, dense=True)


def mlp(features: int, classes: int, hidden: tuple[int, ...] = (200,)) -> Model:
    """Dense layers with ReLU; 784-200-10 is the two-layer network of the federated literature."""
    for width in hidden:
        count(hidden=width)
    return from_equinox(
        "mlp", lambda key: DenseStack((features, *hidden, classes), key), dense=True
    )


MODELS: dict[str, Callable[..., Model]] = {"softmax": softmax, "mlp": mlp}


def build_model(name: str, features: int, classes: int, **options: Any) -> Model:
    """The named model for records of `features` numbers."""
    one_of(MODELS, **{"model.name": name})
    return MODELS[name](features, classes, **options)
