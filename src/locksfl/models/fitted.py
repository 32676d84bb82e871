"""A model with its weights: it predicts, and goes to a file and back.

The formats of a file, by its suffix:

    .npz           every parameter under its name (layers.0.weight), and a JSON header, "meta"
    .safetensors   the same, with the header as metadata (extra "export")
    .onnx          the scores as a graph (`export.py`; extra "export"), for other programs to run

The header says what it takes to build the model again: its name, options, the shape and scale of a
record, the number of classes, the features, and the recipe by which records were made of a raw
table. An encoder's weights are in the file too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from locksfl._arrays import flat_weights, pack_arrays, unpack_arrays
from locksfl._files import write_atomically
from locksfl._loading import optional
from locksfl._tables import Value
from locksfl._text import python_names
from locksfl.data import raw
from locksfl.data.origin import Encoding, Preparation
from locksfl.data.task import CLASSES, Task
from locksfl.models.build import Model, scores_of, with_task
from locksfl.models.own import make_model
from locksfl.models.public_features import encoded, read_weights

FORMAT = 2  # the first one had the weights as one vector, and no shapes
ENCODER = ("locks.encoder.W", "locks.encoder.b")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's file says besides its arrays; a file of version 0.1 has a name alone."""

    format: int = 1  # of the file
    model: str
    options: Any = None  # what its function takes; this and the next two: see `Blueprint`
    shape: tuple[int, ...] | None = None  # of a record
    classes: int | None = None  # how many scores
    task: Task = CLASSES  # what the scores mean
    scale: float = 1.0  # of a stored record
    features: Encoding | None = None  # without its weights; None: the records themselves
    recipe: Preparation | None = None  # from a raw table to records
    parameters: dict[str, tuple[int, ...]] = {}  # shapes, in the order of the vector


@dataclass(frozen=True)
class Fitted:
    """A model with its weights."""

    model: Model
    weights: NDArray[np.float32]  # one vector; `parameters` has them by name
    scale: float  # what a stored record is multiplied by before the model sees it
    encoding: Encoding | None  # the features that the model was trained on; None: the records
    recipe: Preparation | None = field(default=None, kw_only=True)  # from a raw table to records

    def __repr__(self) -> str:
        """Nothing that is private: of a trained one, no figure on held-out records."""
        return f"<{type(self).__name__} {self.model.name}: {self.weights.size} weights>"

    def scores(self, records: Any) -> np.ndarray:
        """A score for each class, target or tag of each record; for sequences, of each position.

        Args:
            records: an array of records as the model's population stores them, or a raw table like
                the one that it was imported from: of pandas, polars, Arrow or Hugging Face
                datasets, a list of dictionaries, or the path of a file.
        """
        weights = jnp.asarray(self.weights)
        if raw.is_table(records) and (self.recipe or not hasattr(records, "__array__")):
            with python_names():
                given = raw.records(records, self.recipe)
        else:
            given = np.asarray(records)
        if self.encoding is not None:
            given = encoded(given, self.encoding)
        blueprint = self.model.blueprint
        if blueprint is not None and math.prod(given.shape[1:]) != math.prod(blueprint.shape):
            raise ValueError(
                f"records of shape {given.shape[1:]}: expected {blueprint.shape}, as the model "
                "was trained on"
            )
        return np.asarray(scores_of(self.model, weights, given, self.scale))

    def predict(self, records: Any) -> np.ndarray:
        """The answers: the most likely class of each record, or of each position of each record;
        numbers in the units of the targets; 0 or 1 for each tag. `scores` says what it takes."""
        return self.model.task.predict(self.scores(records))

    @property
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The weights by name, in the order of the vector."""
        return parameters(self.model, self.weights)

    def header(self) -> Mapping[str, Value]:
        """What a file says of the model, as JSON has it."""
        blueprint, features = self.model.blueprint, self.encoding
        if features is not None:
            file = features.file and Path(features.file).name  # not where it lay
            features = structs.replace(features, file=file, weights=None)
        header = Header(
            format=FORMAT,
            model=blueprint.name if blueprint else self.model.name,
            options=blueprint and blueprint.options,
            shape=blueprint and blueprint.shape,
            classes=blueprint and blueprint.classes,
            task=self.model.task,
            scale=self.scale,
            features=features,
            recipe=self.recipe if self.recipe and self.recipe.order else None,
            parameters={name: array.shape for name, array in self.parameters.items()},
        )
        return msgspec.to_builtins(header)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """What a file has besides: the parameters, and an encoder's weights."""
        given = self.encoding.weights if self.encoding is not None else None
        return self.parameters | dict(zip(ENCODER, given or (), strict=False))

    def packed(self) -> bytes:
        """The content of a .npz file."""
        return pack_arrays(dict(self.header()), self.arrays())

    def save(self, path: str | Path) -> None:
        """Write the model to a .npz, .safetensors or .onnx file, in place of one that is there."""
        path = Path(path)
        if path.suffix == ".npz":
            content = self.packed()
        elif path.suffix == ".safetensors":
            library = optional("safetensors.numpy", "export")
            meta = {"locks": json.dumps(self.header())}
            content = library.save(self.arrays(), metadata=meta)
        elif path.suffix == ".onnx":
            from locksfl.models.export import onnx_bytes

            content = onnx_bytes(self)
        else:
            raise ValueError(f"{path}: expected a name that ends in .npz, .safetensors or .onnx")
        write_atomically(path, content)


def parameters(model: Model, weights: ArrayLike) -> dict[str, NDArray[np.float32]]:
    """A vector of weights by name and shape, in its order; a model whose parts cannot be put
    together again keeps the vector, as "weights"."""
    flat = np.asarray(weights, np.float32)
    leaves = jax.tree_util.tree_flatten_with_path(model.unravel(jnp.asarray(flat)))[0]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    arrays = [np.asarray(leaf, np.float32) for _, leaf in leaves]
    joined = np.concatenate([a.ravel() for a in arrays]) if arrays else flat[:0]
    apart = len({"", "meta", *ENCODER, *names}) == len(names) + 4
    if not apart or not np.array_equal(joined, flat, equal_nan=True):
        return {"weights": flat}
    return dict(zip(names, arrays, strict=True))


def load(
    path: str | Path, *, model: Model | None = None, encoder: str | Path | None = None
) -> Fitted:
    """A model from its file: one of `Fitted.save`, of a run folder or of a published bundle.

    Args:
        path: a .npz or .safetensors file.
        model: that of the file, if the file cannot name it: one that was given as an object, or a
            file of version 0.1.
        encoder: the encoder's file, which a published bundle does not have.

    Returns:
        The model, with the predictions of the one that was saved.
    """
    path = Path(path)
    header, arrays = _read(path)
    if model is None:
        if header.shape is None:
            raise ValueError(
                f"{path}: it does not say how to build model {header.model!r}; expected "
                "load(path, model=...)"
            )
        model = make_model(header.model, header.shape, header.classes or 1, header.options or {})
    model = with_task(model, header.task)
    try:
        weights = flat_weights({"parameters": list(header.parameters) or ["weights"]}, arrays)
    except KeyError as error:
        raise ValueError(f"{path}: damaged or not written by this program ({error!r})") from None
    if weights.shape != (model.size,):
        raise ValueError(f"{path}: {weights.size} weights, expected the model's {model.size}")
    encoding = _encoding(path, header.features, arrays, encoder)
    return Fitted(model, weights, header.scale, encoding, recipe=header.recipe)


def _read(path: Path) -> tuple[Header, dict[str, NDArray[Any]]]:
    errors: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, msgspec.ValidationError)
    try:
        if path.suffix != ".safetensors":
            meta, arrays = unpack_arrays(path)
        else:
            library = optional("safetensors", "export")
            errors = (library.SafetensorError, *errors)
            with library.safe_open(path, "numpy") as file:
                meta = json.loads((file.metadata() or {})["locks"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return msgspec.convert(meta, Header), arrays
    except FileNotFoundError:
        raise
    except errors as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: damaged or not written by this program ({error})") from None


def _encoding(
    path: Path, stored: Encoding | None, arrays: dict[str, NDArray[Any]], encoder: str | Path | None
) -> Encoding | None:
    if stored is None:
        return None
    weights, file = None, str(encoder or stored.file)
    if encoder is None and ENCODER[0] in arrays:
        weights = (arrays[ENCODER[0]], arrays[ENCODER[1]])
    elif file.endswith((".npy", ".npz")):
        if encoder is None:
            raise ValueError(f"{path}: it has no encoder; expected load(path, encoder=FILE)")
        weights = read_weights(file, math.prod(stored.shape))
    return structs.replace(stored, file=stored.file and file, weights=weights)
