"""Models: functions of a flat vector of weights.

The interface has four fields. `init` returns the initial flat vector, `unravel` converts a flat
vector to whatever `apply` takes, and `apply` maps that and a batch of records to scores: one for
each class, target or tag. Anything with this interface can be trained; `dense` is a hint that lets
the simulator compute norms without gradients, `task` says what the scores mean (`models.losses`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from locksfl._validate import count, nearest, one_of
from locksfl.data.task import CLASSES, Task
from locksfl.models.conv import GroupedStack, TwoConvolutions, image_shape, widths
from locksfl.models.text import Characters

MOST_WEIGHTS = 10**9
Shape = int | tuple[int, ...]  # of a record; a number is the length of a flat record
Option = bool | int | float | str | list[Any] | None  # what a TOML file can say of one
Options = Mapping[str, Option]


class Blueprint(NamedTuple):
    """What it takes to build a model again (`own.make_model`)."""

    name: str  # one of MODELS, or "package.module:function"
    shape: tuple[int, ...]  # of a record
    classes: int  # scores of a record, or of a position of it
    options: Options  # what the function takes besides


@dataclass(frozen=True)
class Model:
    """A model on flat weights. Equal by identity: a compiled round belongs to one model."""

    name: str  # in reports
    size: int  # weights
    init: Callable[[Array], Array]  # a key -> the initial vector
    unravel: Callable[[Array], Any]  # a vector -> what `apply` takes
    apply: Callable[[Any, Array], Array]  # that, and a batch of records -> scores
    dense: bool = False  # a stack of Linear layers with ReLU between them, at `.layers`
    task: Task = CLASSES  # what the scores mean
    blueprint: Blueprint | None = None  # None: nobody but its maker can build it again

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        """Pickled as its blueprint; without one, as its functions, if these can be."""
        if self.blueprint is None:
            return Model, tuple(vars(self).values())
        return _built_again, (self.blueprint, self.task)


def _built_again(blueprint: Blueprint, task: Task) -> Model:
    from locksfl.models.own import make_model

    return with_task(make_model(*blueprint), task)


def from_equinox(
    name: str,
    build: Callable[[Array], eqx.Module],
    dense: bool = False,
    batches: bool = False,
    shape: tuple[int, ...] = (-1,),
) -> Model:
    """A model from a function that makes an Equinox module from a key.

    Args:
        name: the model's name in reports.
        build: makes the module.
        dense: whether it is a DenseStack, or has `layers` like one.
        batches: whether the module takes many records at once, [B, features] to [B, classes].
        shape: the shape in which the module takes a record; flat if not given.
    """
    shapes = jax.tree.leaves(eqx.filter_eval_shape(build, jax.random.key(0)))
    size = sum(math.prod(leaf.shape) for leaf in shapes if hasattr(leaf, "shape"))
    if size > MOST_WEIGHTS:
        raise ValueError(f"model.name = {name!r}: {size} weights; expected at most {MOST_WEIGHTS}")
    example = build(jax.random.key(0))
    arrays, static = eqx.partition(example, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)

    def init(key: Array) -> Array:
        arrays, _ = eqx.partition(build(key), eqx.is_inexact_array)
        return ravel_pytree(arrays)[0].astype(jnp.float32)

    def apply(weights: Any, records: Array) -> Array:
        module: Any = eqx.combine(weights, static)
        shaped = records.reshape(len(records), *shape)
        return (module if batches else jax.vmap(module))(shaped)

    return Model(name, int(flat.size), init, unravel, apply, dense)


class DenseStack(eqx.Module):
    """Linear layers with ReLU between them; one layer alone is softmax regression, or a linear or
    logistic one, by the task."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, widths: tuple[int, ...], key: Array) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        pairs = zip(widths[:-1], widths[1:], keys, strict=True)
        self.layers = tuple(eqx.nn.Linear(i, o, key=k) for i, o, k in pairs)

    def __call__(self, record: Array) -> Array:
        for layer in self.layers[:-1]:
            record = jax.nn.relu(layer(record))
        return self.layers[-1](record)


def softmax(shape: Shape, classes: int) -> Model:
    """A linear model, initialised at zero, so that all initial scores are equal: softmax
    regression; for numbers and tags, linear and logistic regression."""

    def build(key: Array) -> DenseStack:
        return jax.tree.map(jnp.zeros_like, DenseStack((_features(shape), classes), key))

    return from_equinox("softmax", build, dense=True)


def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (200,)) -> Model:
    """Dense layers with ReLU; 784-200-10 is the two-layer network of the federated literature."""
    for width in hidden:
        count(hidden=width)
    sizes = (_features(shape), *hidden, classes)
    return from_equinox("mlp", lambda key: DenseStack(sizes, key), dense=True)


def cnn(
    shape: tuple[int, ...], classes: int, filters: Sequence[int] = (32, 64), dense: int = 512
) -> Model:
    """Two 5x5 convolutions, each with pooling, and a dense layer (McMahan et al., 2017)."""
    image = image_shape("cnn", shape, 2)
    first, second = widths(filters, 2)
    count(**{"model.options.dense": dense})
    return from_equinox(
        "cnn",
        lambda key: TwoConvolutions(image, classes, (first, second), dense, key),
        batches=True,
    )


def cifar_cnn(
    shape: tuple[int, ...], classes: int, filters: Sequence[int] = (32, 64, 128), groups: int = 8
) -> Model:
    """3x3 convolutions with group normalisation, which, unlike batch normalisation, looks at one
    record at a time and so mixes no clients."""
    sizes = widths(filters)
    image = image_shape("cifar-cnn", shape, len(sizes))
    count(**{"model.options.groups": groups})
    for width in sizes:
        if width % groups:
            raise ValueError(
                f"model.options.filters = {list(sizes)}: expected multiples of "
                f"model.options.groups = {groups}"
            )
    return from_equinox(
        "cifar-cnn", lambda key: GroupedStack(image, classes, sizes, groups, key), batches=True
    )


def chars(
    shape: tuple[int, ...],
    classes: int,
    embedding: int = 16,
    hidden: int = 256,
    layers: int = 1,
    symbols: int | None = None,
) -> Model:
    """Gated recurrent units over character ids; `symbols` ids, as many as classes if not given."""
    if len(shape) != 1:
        raise ValueError(
            f"model.name = 'chars': expected records of character ids, shape [length], got "
            f"{list(shape)}"
        )
    ids = classes if symbols is None else symbols
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers, "symbols": ids}
    count(**{f"model.options.{name}": size for name, size in sizes.items()})
    return from_equinox(
        "chars", lambda key: Characters(classes, embedding, hidden, layers, ids, key)
    )


MODELS: dict[str, Callable[..., Model]] = {
    "softmax": softmax,
    "mlp": mlp,
    "cnn": cnn,
    "cifar-cnn": cifar_cnn,
    "chars": chars,
}


def build_model(name: str, shape: Shape, classes: int, **options: Any) -> Model:
    """A model by name.

    Args:
        name: one of MODELS.
        shape: of a record; a single number means records with one axis.
        classes: how many there are.
        options: the other arguments of the model's function.

    >>> build_model("mlp", 784, 10, hidden=(200,)).size
    159010
    """
    one_of(MODELS, **{"model.name": name})
    takes = inspect.signature(MODELS[name]).parameters
    known = list(takes)[2:]
    for option, value in options.items():
        if option not in known:
            these = f"takes {', '.join(known)}" if known else "takes no options"
            raise ValueError(
                f"model.options.{option} = {value!r}: unknown setting"
                f"{nearest(option, known)}; model {name!r} {these}"
            )
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    given = {option: takes[option].default for option in known} | options
    return _built(name, shape, classes, _frozen(given))


@lru_cache(maxsize=64)
def _built(
    name: str, shape: tuple[int, ...], classes: int, options: tuple[tuple[str, Any], ...]
) -> Model:
    """One model for equal settings: a compiled round belongs to one model."""
    blueprint = Blueprint(name, shape, classes, dict(options))
    return replace(MODELS[name](shape, classes, **blueprint.options), blueprint=blueprint)


def _frozen(value: Any) -> Any:
    """Options as they can be compared: lists and tables as tuples."""
    if isinstance(value, dict):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=64)
def with_task(model: Model, task: Task) -> Model:
    """The model with the loss of a task: itself, if it has that, and one model for equal tasks."""
    return model if model.task == task else replace(model, task=task)


def activations(model: Model, shape: tuple[int, ...]) -> int:
    """About how many numbers the model holds between one record and its scores: the outputs of all
    operations. An upper bound, since a compiler keeps fewer."""
    weights = jax.eval_shape(model.unravel, jax.ShapeDtypeStruct((model.size,), jnp.float32))
    jaxprs = [
        jax.make_jaxpr(model.apply)(
            weights, jax.ShapeDtypeStruct((records, math.prod(shape)), jnp.float32)
        )
        for records in (1, 2)
    ]
    one, two = (_outputs(closed.jaxpr) for closed in jaxprs)
    return max(1, two - one)  # only what grows with the number of records


def _outputs(jaxpr: Any) -> int:
    held = 0
    for equation in jaxpr.eqns:
        inner = [_outputs(getattr(j, "jaxpr", j)) for j in _inside(equation)]
        repeats = equation.params.get("length", 1)  # of a scan
        held += sum(inner) * repeats if inner else sum(v.aval.size for v in equation.outvars)
    return held


def _inside(equation: Any) -> list[Any]:
    values = [equation.params.get(name) for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")]
    return [v for v in (*values, *equation.params.get("branches", ())) if v is not None]


def records_at_once(model: Model, shape: tuple[int, ...], floats: int) -> int:
    """How many records the model may take at a time without holding more than this many numbers; at
    least one."""
    return max(1, floats // activations(model, shape))


def scores_of(model: Model, weights: Array, features: Any, scale: float) -> Array:
    """The scores of stored records."""
    parts = list(score_parts(model, weights, features, scale))
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def score_parts(model: Model, weights: Array, features: Any, scale: float) -> Iterator[Array]:
    """The same, of as many records at a time as memory allows."""
    unpacked, shape = model.unravel(weights), features.shape[1:]
    rows = records_at_once(model, shape, 2**27)
    for start in range(0, len(features), rows):
        part = jnp.asarray(features[start : start + rows], jnp.float32) * scale
        yield model.apply(unpacked, part.reshape(len(part), -1))


def _features(shape: Shape) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)
