"""The synthetic workloads that this project and its peers are timed on: numpy only.

Pixels are MNIST-shaped: 784 bytes a sample, mean 72 and, over 255, an L2 norm of about 9. A pixel
is noise in 0..127 plus a class prototype in 0..15: no pixel tells the class, all together nearly
do (a linear model can reach some 95%). Labels are skewed: each client draws its class shares
from Dirichlet(.5). The same name gives the same bytes on every machine and in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEATURES, HIDDEN, CLASSES = 784, 200, 10
LAYERS = ((FEATURES, HIDDEN), (HIDDEN, CLASSES))  # a ReLU between them
PARAMETERS = sum(inputs * outputs + outputs for inputs, outputs in LAYERS)


@dataclass(frozen=True)
class Workload:
    """A round: `cohort` clients take `epochs` passes of SGD from the server's weights.

    The update (new weights - server's weights) is clipped to L2 norm `clip_norm`; Gaussian noise of
    standard deviation `noise_multiplier * clip_norm` is added to the sum once; the server adds
    `server_step` times the noisy sum over `cohort`.

    `batch = None` is the whole client at once: with `epochs = 1` and `local_step = 1` the update is
    minus the client's mean gradient.
    """

    clients: int
    samples: int
    cohort: int
    epochs: int
    batch: int | None
    local_step: float
    server_step: float = 1.0
    clip_norm: float = 1.0
    noise_multiplier: float = 1.32
    seed: int = 2026


WORKLOADS = {
    "W1-MLP": Workload(clients=100, samples=600, cohort=20, epochs=5, batch=32, local_step=0.05),
    "W2": Workload(clients=10_000, samples=20, cohort=1_000, epochs=1, batch=None, local_step=1.0),
}


def load(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8[clients, samples, 784] and labels uint8[clients, samples]."""
    rng = np.random.default_rng(workload.seed)
    shape = (workload.clients, workload.samples)
    prototypes = rng.integers(0, 16, (CLASSES, FEATURES), dtype=np.uint8)
    shares = rng.dirichlet(np.full(CLASSES, 0.5), workload.clients)
    # Inverse of each client's distribution function; the last edge is left out, so that rounding
    # in the sum of the shares cannot give a class 10.
    edges = np.cumsum(shares, axis=1)[:, None, :-1]
    labels = (rng.random(shape)[..., None] >= edges).sum(axis=-1, dtype=np.uint8)
    pixels = rng.integers(0, 128, (*shape, FEATURES), dtype=np.uint8)
    for client in range(workload.clients):  # a client at a time: no second copy of the pixels
        pixels[client] += prototypes[labels[client]]
    return pixels, labels


def initial_weights(seed: int = 7) -> np.ndarray:
    """The flat float32 vector that every timed block and parity check starts from.

    He-scaled normal weights, zero biases. Layout: for each layer the weight [in, out], row-major,
    then the bias.
    """
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs)), np.zeros(outputs))
        for inputs, outputs in LAYERS
    ]
    return join(layers)


def split(flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The (weight [in, out], bias [out]) of each layer, from a flat vector."""
    if flat.shape != (PARAMETERS,):
        raise ValueError(f"flat.shape = {flat.shape}: expected ({PARAMETERS},)")
    layers, start = [], 0
    for inputs, outputs in LAYERS:
        middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
        layers.append((flat[start:middle].reshape(inputs, outputs), flat[middle:end]))
        start = end
    return layers


def join(layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The flat float32 vector of (weight [in, out], bias [out]) pairs: the inverse of `split`."""
    parts = [part for weight, bias in layers for part in (weight.reshape(-1), bias)]
    return np.concatenate(parts).astype(np.float32)
