"""Peer: fedjax 0.0.17. The round is written as fedjax's own federated averaging is: its
`for_each_client` (backend jit; pmap needs functions that JAX 0.10 no longer has), its client data
sets and optimizers, the update clipped in `client_final`, noise on the sum once.

Not the same as ours, by fedjax's design: batches run on from one epoch into the next (94 full ones
where we take 95, five of them short)."""

from __future__ import annotations

import time
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peer import forget_peak, serve
from benchmarks.workloads import Conv, Network, Workload, join, load


def scores(network: Network, weights: list[Any], pixels: jax.Array) -> jax.Array:
    """Class scores of records [batch, features] of bytes."""
    value = pixels.astype(jnp.float32) / 255
    for number, (layer, (weight, bias)) in enumerate(zip(network.layers, weights, strict=True)):
        if isinstance(layer, Conv):
            if value.ndim == 2:
                value = value.reshape(-1, *network.image)
            value = jax.lax.conv_general_dilated(
                value, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            value = value + bias
            if layer.pool:
                window = (1, 2, 2, 1)
                value = jax.lax.reduce_window(value, -jnp.inf, jax.lax.max, window, window, "VALID")
            value = jax.nn.relu(value)
        else:
            value = value.reshape(value.shape[0], -1) @ weight + bias
            value = value if number == len(network.layers) - 1 else jax.nn.relu(value)
    return value


def trainer(workload: Workload) -> Any:
    """fedjax's loop over clients, whose output is the clipped update."""
    optimizer = fedjax.optimizers.sgd(workload.local_step)

    def loss(weights: Any, batch: Any) -> jax.Array:
        found = scores(workload.network, weights, batch["x"])
        right = jnp.take_along_axis(found, batch["y"][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(found, axis=-1) - right)

    def client_init(server: Any, _: Any) -> Any:
        return {"weights": server, "optimizer": optimizer.init(server)}

    def client_step(state: Any, batch: Any) -> Any:
        gradient = jax.grad(loss)(state["weights"], batch)
        inner, weights = optimizer.apply(gradient, state["optimizer"], state["weights"])
        return {"weights": weights, "optimizer": inner}

    def client_final(server: Any, state: Any) -> Any:
        update = jax.tree.map(jnp.subtract, state["weights"], server)
        return fedjax.tree_util.tree_clip_by_global_norm(update, workload.clip_norm)

    return fedjax.for_each_client(client_init, client_step, client_final)


class Program:
    """The workload as fedjax's client data sets, and its rounds."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        pixels, labels = load(workload)
        forget_peak()
        labels = labels.astype(np.int32)
        self.clients = [
            fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(pixels, labels, strict=True)
        ]
        self.train = trainer(workload)
        self.rng = np.random.default_rng(0)
        self.step = jax.jit(self._step)

    def run(self, rounds: int) -> list[float]:
        """Time rounds from the initial weights."""
        weights, seconds = self._start(), []
        for _ in range(rounds):
            began = time.perf_counter()
            cohort = self.rng.choice(self.workload.clients, self.workload.cohort, replace=False)
            key = jax.random.key(int(self.rng.integers(1 << 31)))
            weights = jax.block_until_ready(self.step(weights, self._sum(weights, cohort), key))
            seconds.append(time.perf_counter() - began)
        return seconds

    def mean_update(self) -> np.ndarray:
        """Of all clients, from the initial weights."""
        total = self._sum(self._start(), np.arange(self.workload.clients))
        mean = [np.asarray(part) / self.workload.clients for pair in total for part in pair]
        return join(mean)

    def _start(self) -> list[Any]:
        work = self.workload.network
        return [tuple(map(jnp.asarray, pair)) for pair in work.split(work.initial_weights())]

    def _sum(self, weights: Any, cohort: np.ndarray) -> Any:
        work, total = self.workload, jax.tree.map(jnp.zeros_like, weights)
        asked = []
        for client in cohort.tolist():
            seed, data = int(self.rng.integers(1 << 31)), self.clients[client]
            batch = work.batch or work.samples
            # shuffling is nothing but a cost where a client is one batch
            batches = data.shuffle_repeat_batch(
                batch_size=batch, num_epochs=work.epochs, seed=seed, skip_shuffle=not work.batch
            )
            asked.append((client, batches, ()))
        for _, update in self.train(weights, asked):
            total = fedjax.tree_util.tree_add(total, update)
        return total

    def _step(self, weights: Any, total: Any, key: Any) -> Any:
        std = self.workload.noise_multiplier * self.workload.clip_norm
        leaves, tree = jax.tree.flatten(total)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            part + std * jax.random.normal(k, part.shape)
            for part, k in zip(leaves, keys, strict=True)
        ]
        mean = [part / self.workload.cohort for part in noisy]
        return jax.tree.map(jnp.add, weights, jax.tree.unflatten(tree, mean))


if __name__ == "__main__":
    serve(Program)
