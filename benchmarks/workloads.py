"""What is timed: networks, workloads, their data and their FLOPs. numpy only, for every contender.

Pixels are bytes: noise in 0..127 plus a class prototype in 0..15, so that no pixel tells the class
and all together nearly do. Labels are skewed: each client draws its class shares from
Dirichlet(.5). The same workload gives the same bytes on every machine and in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

CLASSES = 10


@dataclass(frozen=True)
class Conv:
    """size x size, "same" padding, a ReLU; with `pool`, the largest of each 2x2 square."""

    size: int
    inputs: int
    outputs: int
    pool: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights: height, width, inputs, outputs."""
        return (self.size, self.size, self.inputs, self.outputs)


@dataclass(frozen=True)
class Dense:
    """A matrix and a bias; a ReLU follows unless it is the last layer."""

    inputs: int
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights: inputs, outputs. Images come flattened as height, width, channels."""
        return (self.inputs, self.outputs)


Layer = Conv | Dense


@dataclass(frozen=True)
class Network:
    """Layers on images, and their weights as one flat float32 vector: weight, bias, weight, ..."""

    image: tuple[int, int, int]  # height, width, channels
    layers: tuple[Layer, ...]

    @property
    def features(self) -> int:
        """Numbers in a record."""
        return int(np.prod(self.image))

    @property
    def size(self) -> int:
        """Weights and biases."""
        return sum(int(np.prod(layer.shape)) + layer.outputs for layer in self.layers)

    def sides(self) -> list[tuple[int, int]]:
        """Height and width of the image that each layer takes."""
        height, width, _ = self.image
        found = []
        for layer in self.layers:
            found.append((height, width))
            if isinstance(layer, Conv) and layer.pool:
                height, width = height // 2, width // 2
        return found

    def flops_a_sample(self) -> int:
        """Multiplications and additions of the matrix products in one training step, a sample.

        Forwards, the weights' gradient and the inputs' gradient cost the same each; nobody needs
        the gradient of the first layer's input.
        """
        total = 0
        for number, (layer, (height, width)) in enumerate(
            zip(self.layers, self.sides(), strict=True)
        ):
            places = height * width if isinstance(layer, Conv) else 1
            products = 2 if number == 0 else 3
            total += products * 2 * places * int(np.prod(layer.shape))
        return total

    def initial_weights(self, seed: int = 7) -> np.ndarray:
        """Where every timed block and check starts: He-scaled normal weights, zero biases."""
        rng = np.random.default_rng(seed)
        arrays = []
        for layer in self.layers:
            inputs = int(np.prod(layer.shape[:-1]))
            arrays += [rng.normal(0.0, np.sqrt(2.0 / inputs), layer.shape), np.zeros(layer.outputs)]
        return join(arrays)

    def split(self, flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The (weight, bias) of each layer, from a flat vector."""
        if flat.shape != (self.size,):
            raise ValueError(f"flat.shape = {flat.shape}: expected ({self.size},)")
        found, start = [], 0
        for layer in self.layers:
            middle = start + int(np.prod(layer.shape))
            end = middle + layer.outputs
            found.append((flat[start:middle].reshape(layer.shape), flat[middle:end]))
            start = end
        return found


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Weights and biases in their order as one flat float32 vector."""
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in arrays])


NETWORKS = {
    "mlp": Network((28, 28, 1), (Dense(784, 200), Dense(200, CLASSES))),
    "cnn": Network(
        (28, 28, 1),
        (Conv(5, 1, 32, True), Conv(5, 32, 64, True), Dense(3136, 512), Dense(512, CLASSES)),
    ),
    "cifar": Network(
        (32, 32, 3),
        (Conv(3, 3, 32, False), Conv(3, 32, 64, True), Dense(16384, 128), Dense(128, CLASSES)),
    ),
}


@dataclass(frozen=True)
class Workload:
    """A round: `cohort` clients take `epochs` passes of SGD from the server's weights.

    The update (new weights - server's weights) is clipped to L2 norm `clip_norm`; Gaussian noise of
    standard deviation `noise_multiplier * clip_norm` is added to the sum once; the server adds the
    noisy sum over `cohort`.

    `batch = None` is the whole client at once: with `epochs = 1` and `local_step = 1` the update is
    minus the client's mean gradient.
    """

    about: str
    network_name: str
    clients: int
    samples: int
    cohort: int
    epochs: int = 1
    batch: int | None = None
    local_step: float = 1.0
    clip_norm: float = 1.0
    noise_multiplier: float = 1.32
    check_clips: tuple[float, ...] = ()  # in each of `checks` about half of the clients are clipped
    tolerance: float = 1e-4  # of |difference| / |mean update|: two correct float32 programs differ
    repeated: bool = False  # every sample of a client is its first one: their order says nothing
    seed: int = 2026

    @property
    def network(self) -> Network:
        """What is trained."""
        return NETWORKS[self.network_name]

    @property
    def flops(self) -> int:
        """Of a round: what its gradients need at least. Clipping and noise are not counted."""
        return self.cohort * self.samples * self.epochs * self.network.flops_a_sample()

    @property
    def data_bytes(self) -> int:
        """Pixels as bytes, labels as 32-bit numbers."""
        return self.clients * self.samples * (self.network.features + 4)


# The convolutional networks have a million weights and more: at noise multiplier 1.32 on so few
# clients the weights would overflow within rounds. Time does not depend on the size of the noise.
QUIET = 0.01

WORKLOADS = {
    "W1-MLP": Workload(
        "100 clients x 600, 20 a round, 5 epochs of batch 32, MLP 784-200-10",
        "mlp", 100, 600, 20, 5, 32, 0.05, check_clips=(0.265, 0.626),
    ),
    "W1-CNN": Workload(
        "100 clients x 600, 4 a round, 5 epochs of batch 32, CNN 5x5x32, 5x5x64, 512, 10",
        "cnn", 100, 600, 4, 5, 32, 0.05,
        noise_multiplier=QUIET, check_clips=(0.53, 1.03), tolerance=1e-3,
    ),
    "W2": Workload(
        "10,000 clients x 20, 1,000 a round, one gradient each, MLP 784-200-10",
        "mlp", 10_000, 20, 1_000, check_clips=(3.53,),
    ),
    "C10": Workload(
        "1,000 clients x 50 colour images, 50 a round, 1 epoch of batch 10, CNN 3x3x32, 3x3x64, "
        "128, 10",
        "cifar", 1_000, 50, 50, 1, 10, 0.05,
        noise_multiplier=QUIET, check_clips=(1.02, 1.55), tolerance=1e-3,
    ),
}  # fmt: skip
SCALING = {
    f"S-{n:.0e}".replace("+0", ""): Workload(
        f"{n:,} clients x 2, 1,000 a round, one gradient each, MLP 784-200-10",
        "mlp", n, 2, 1_000,
    )
    for n in (1_000, 10_000, 100_000, 1_000_000)
}  # fmt: skip


def checks(workload: Workload) -> list[Workload]:
    """Small workloads without noise, all clients in the cohort, on which the order of a client's
    samples says nothing: every contender must find the same mean update.

    One takes whole clients at once; the other takes batches, the last one short, of one sample
    repeated. Few steps: rounding grows with them.
    """
    few = replace(workload, clients=16, cohort=16, noise_multiplier=0.0)
    if few.batch is None:
        found = [few]
    else:
        whole = replace(few, samples=2 * few.batch, batch=None, epochs=2)
        short_last = 2 * few.batch + few.batch * 3 // 4
        found = [whole, replace(few, samples=short_last, epochs=2, repeated=True)]
    clips = workload.check_clips
    return [replace(one, clip_norm=clip) for one, clip in zip(found, clips, strict=True)]


def load(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8[clients, samples, features] and labels uint8[clients, samples]."""
    rng = np.random.default_rng(workload.seed)
    shape, features = (workload.clients, workload.samples), workload.network.features
    prototypes = rng.integers(0, 16, (CLASSES, features), dtype=np.uint8)
    shares = rng.dirichlet(np.full(CLASSES, 0.5), workload.clients)
    # Inverse of each client's distribution function; the last edge is left out, so that rounding
    # in the sum of the shares cannot give a class 10.
    edges = np.cumsum(shares, axis=1)[:, None, :-1]
    labels = (rng.random(shape)[..., None] >= edges).sum(axis=-1, dtype=np.uint8)
    pixels = rng.integers(0, 128, (*shape, features), dtype=np.uint8)
    if workload.repeated:
        labels[:], pixels[:] = labels[:, :1], pixels[:, :1]
    for start in range(0, workload.clients, 256):  # some at a time: no second copy of the pixels
        some = slice(start, start + 256)
        pixels[some] += prototypes[labels[some]]
    return pixels, labels
