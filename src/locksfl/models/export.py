"""A built-in model as an ONNX graph, which other programs run without JAX.

    records  float32 [N, *shape], as they are stored   ->   scores  float32 [N, classes]
                                                            (chars: [N, length, classes]),
                                                            or numbers [N, targets]

Scaling, and the features of an encoder whose weights are in a file, are part of the graph. What has
no graph is refused: a model or an encoder of the user's own, and scattering, whose wavelets are
applied by Fourier transforms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from locksfl._loading import optional
from locksfl.models.build import Blueprint
from locksfl.models.conv import image_shape

if TYPE_CHECKING:
    from locksfl.models.fitted import Fitted

OPSET = 21  # the first whose GroupNormalization has a scale for each channel
IR_VERSION = 10


class Graph:
    """Nodes in a row: each takes what the one before it gave."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self._helper, self._numpy_helper = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = "records"

    def constant(self, array: Any) -> str:
        """A tensor of the graph's own; its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(self._numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *others: Any, outputs: int = 1, **attributes: Any) -> None:
        """A node on the last value and some constants; the last of its outputs goes on."""
        inputs = [self.last, *(o if isinstance(o, str) else self.constant(o) for o in others)]
        names = [f"value{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(self._helper.make_node(kind, inputs, names, **attributes))
        self.last = names[-1]

    def linear(self, layer: Any) -> None:
        """An Equinox layer: x W^T + b."""
        self.add("MatMul", layer.weight.T)
        self.add("Add", layer.bias)

    def convolution(self, layer: Any) -> None:
        """Of [N, C, H, W], stride 1, "same" padding as in `conv.patches`."""
        size = len(layer.kernel)  # [size, size, in, out]
        before, after = (size - 1) // 2, size // 2
        pads = [before, before, after, after]
        self.add("Conv", layer.kernel.transpose(3, 2, 0, 1), layer.bias, pads=pads)

    def pool(self) -> None:
        """The largest of each 2x2 square."""
        self.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])

    def images(self, shape: tuple[int, int, int]) -> None:
        """Flat records as [N, C, H, W]."""
        self.add("Reshape", np.array([-1, *shape]))
        self.add("Transpose", perm=[0, 3, 1, 2])


def onnx_bytes(fitted: Fitted) -> bytes:
    """The file's content; checked by ONNX's own checker."""
    onnx = optional("onnx", "export")
    blueprint, encoding = fitted.model.blueprint, fitted.encoding
    write = WRITERS.get(blueprint.name) if blueprint is not None else None
    if blueprint is None or write is None:
        raise ValueError(
            f"model.name = {fitted.model.name!r}: ONNX has no graph of it; expected one of "
            f"{', '.join(WRITERS)}"
        )
    if encoding is not None and encoding.weights is None:
        raise ValueError(
            f"features.name = {encoding.name!r}: it has no ONNX graph; expected features of a file "
            "of weights, or none (a .npz or .safetensors file keeps them)"
        )
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = Graph(helper, onnx.numpy_helper)
    shape, scale = (encoding.shape, encoding.scale) if encoding else (blueprint.shape, fitted.scale)
    graph.add("Mul", np.float32(scale))
    graph.add("Flatten", axis=1)
    if encoding is not None and encoding.weights is not None:
        graph.add("MatMul", encoding.weights[0])
        graph.add("Add", encoding.weights[1])
        graph.add("Relu")
    write(graph, fitted.model.unravel(jnp.asarray(fitted.weights)), blueprint)
    task, output = fitted.model.task, "scores"
    if task.kind == "numbers":  # in the units of the targets
        graph.add("Mul", np.asarray(task.spread, np.float32))
        graph.add("Add", np.asarray(task.center, np.float32))
        output = "numbers"
    graph.nodes[-1].output[0] = output
    positions = blueprint.shape if blueprint.name == "chars" else ()
    made = helper.make_graph(
        graph.nodes,
        blueprint.name,
        [helper.make_tensor_value_info("records", kind, ["N", *shape])],
        [helper.make_tensor_value_info(output, kind, ["N", *positions, blueprint.classes])],
        graph.constants,
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        made, opset_imports=opset, ir_version=IR_VERSION, producer_name="locks-fl"
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _dense(graph: Graph, module: Any, _: Blueprint) -> None:
    for layer in module.layers[:-1]:
        graph.linear(layer)
        graph.add("Relu")
    graph.linear(module.layers[-1])


def _cnn(graph: Graph, module: Any, blueprint: Blueprint) -> None:
    graph.images(image_shape(blueprint.name, blueprint.shape, 0))
    for layer in module.convolutions:
        graph.convolution(layer)
        graph.pool()
        graph.add("Relu")
    graph.add("Transpose", perm=[0, 2, 3, 1])  # flat in the order that the dense layer knows
    graph.add("Flatten", axis=1)
    _dense(graph, module, blueprint)


def _cifar_cnn(graph: Graph, module: Any, blueprint: Blueprint) -> None:
    graph.images(image_shape(blueprint.name, blueprint.shape, 0))
    layers = zip(module.convolutions, module.scales, module.shifts, strict=True)
    for number, (layer, scale, shift) in enumerate(layers):
        graph.convolution(layer)
        groups = blueprint.options["groups"]
        graph.add("GroupNormalization", scale, shift, num_groups=groups, epsilon=1e-5)
        graph.add("Relu")
        if number % 2:
            graph.pool()
    graph.add("GlobalAveragePool")
    graph.add("Flatten", axis=1)
    graph.linear(module.last)


def _chars(graph: Graph, module: Any, _: Blueprint) -> None:
    graph.add("Cast", to=6)  # int32
    graph.add("Clip", np.int32(0), np.int32(len(module.table) - 1))
    ids, graph.last = graph.last, graph.constant(module.table)
    graph.add("Gather", ids)  # [N, L, embedding]
    graph.add("Transpose", perm=[1, 0, 2])  # [L, N, embedding]
    for layer in module.layers:
        hidden = len(layer.candidate_bias)

        def gates(array: Any, size: int = hidden) -> NDArray[Any]:
            """[reset, update, candidate] along the first axis, as ONNX has them."""
            return np.concatenate([array[size : 2 * size], array[:size], array[2 * size :]])[None]

        own = np.zeros(2 * hidden, np.float32)
        biases = (gates(layer.inputs.bias), gates(np.r_[own, layer.candidate_bias]))
        given = (gates(layer.inputs.weight), gates(layer.state.T), np.concatenate(biases, axis=1))
        graph.add("GRU", *given, hidden_size=hidden, linear_before_reset=1)
        graph.add("Squeeze", np.array([1]))  # of [L, directions, N, hidden]
    graph.add("Transpose", perm=[1, 0, 2])
    graph.linear(module.last)


WRITERS = {
    "softmax": _dense,
    "mlp": _dense,
    "cnn": _cnn,
    "cifar-cnn": _cifar_cnn,
    "chars": _chars,
}
