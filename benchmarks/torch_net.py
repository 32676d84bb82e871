"""The workloads' networks in PyTorch, for the three peers that are built on it."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d

from benchmarks.workloads import Conv, Dense, Network, Workload, join


class Net(torch.nn.Module):
    """Any `Network`, on images [batch, channels, height, width] or on flat records."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.layers = torch.nn.ModuleList(_module(layer) for layer in network.layers)
        self.flat = list(self.parameters())  # weight, bias, weight, ...
        self.set_weights(network.initial_weights())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Class scores. Past the modules and their hooks: 4% off a round of W1-MLP."""
        value, last = inputs, len(self.network.layers) - 1
        for number, layer in enumerate(self.network.layers):
            weight, bias = self.flat[2 * number : 2 * number + 2]
            if isinstance(layer, Conv):
                value = conv2d(value, weight, bias, padding=layer.size // 2)
                value = torch.relu(max_pool2d(value, 2) if layer.pool else value)
            else:
                value = linear(value.flatten(1), weight, bias)
                value = value if number == last else torch.relu(value)
        return value

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        return cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def set_weights(self, vector: np.ndarray) -> None:
        """Take the weights of a flat vector in the workloads' layout."""
        for number, (weight, bias) in enumerate(self.network.split(vector)):
            turned = self._turn(number, torch.from_numpy(weight))
            self.flat[2 * number].copy_(turned)
            self.flat[2 * number + 1].copy_(torch.from_numpy(bias))

    def to_vector(self, tensors: list[torch.Tensor]) -> np.ndarray:
        """Tensors shaped as the weights, as a flat vector in the workloads' layout."""
        arrays = []
        for number in range(len(self.network.layers)):
            weight, bias = (t.detach() for t in tensors[2 * number : 2 * number + 2])
            arrays += [self._turn_back(number, weight).numpy(), bias.numpy()]
        return join(arrays)

    def _image_before(self, number: int) -> tuple[int, ...] | None:
        """Height, width and channels that a dense layer takes as one row, after a convolution."""
        layers = self.network.layers
        if isinstance(layers[number], Dense) and number and isinstance(layers[number - 1], Conv):
            return (*self.network.sides()[number], layers[number - 1].outputs)
        return None

    def _turn(self, number: int, weight: torch.Tensor) -> torch.Tensor:
        if weight.ndim == 4:  # height, width, in, out -> out, in, height, width
            return weight.permute(3, 2, 0, 1)
        if (image := self._image_before(number)) is not None:
            return weight.reshape(*image, -1).permute(3, 2, 0, 1).reshape(weight.shape[1], -1)
        return weight.T

    def _turn_back(self, number: int, weight: torch.Tensor) -> torch.Tensor:
        if weight.ndim == 4:
            return weight.permute(2, 3, 1, 0)
        if (image := self._image_before(number)) is not None:
            height, width, channels = image
            turned = weight.reshape(-1, channels, height, width).permute(2, 3, 1, 0)
            return turned.reshape(-1, weight.shape[0])
        return weight.T


def _module(layer: Conv | Dense) -> torch.nn.Module:
    if isinstance(layer, Dense):
        return torch.nn.Linear(layer.inputs, layer.outputs)
    return torch.nn.Conv2d(layer.inputs, layer.outputs, layer.size, padding=layer.size // 2)


def to_tensors(
    network: Network, pixels: np.ndarray, labels: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels [..., features] as floats and labels; images as channels, height, width."""
    values = torch.from_numpy(pixels).to(torch.float32).div_(255)
    if isinstance(network.layers[0], Conv):
        values = values.reshape(*pixels.shape[:-1], *network.image)
        values = values.movedim(-1, -3).contiguous()
    return values, torch.from_numpy(labels).to(torch.int64)


def train_client(
    net: Net, inputs: torch.Tensor, labels: torch.Tensor, workload: Workload
) -> list[torch.Tensor]:
    """One client: SGD from the net's weights, which are changed; the clipped update."""
    start = [weight.detach().clone() for weight in net.flat]
    batch = workload.batch or len(labels)
    for _ in range(workload.epochs):
        if batch < len(labels):
            order = torch.randperm(len(labels))
            inputs, labels = inputs[order], labels[order]
        for first in range(0, len(labels), batch):
            loss = net.loss(inputs[first : first + batch], labels[first : first + batch])
            gradients = torch.autograd.grad(loss, net.flat)
            with torch.no_grad():
                torch._foreach_add_(net.flat, gradients, alpha=-workload.local_step)
    with torch.no_grad():
        update = [weight - old for weight, old in zip(net.flat, start, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(update)))
        torch._foreach_mul_(update, min(1.0, workload.clip_norm / max(float(norm), 1e-30)))
    return update


def use_one_thread() -> None:
    """Two OpenMP threads collapse when the machine does anything else: processes do not."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as XLA does
