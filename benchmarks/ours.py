"""This project on the workloads: the program's own simulator, nothing built for the benchmark.

python -m benchmarks.ours W2 uniform full     (or norm: LOCKS, two stages, the same cohort)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peer import forget_peak, serve
from benchmarks.workloads import CLASSES, Network, Workload, join, load
from locksfl._arrays import aligned
from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.models.build import Model, cnn, from_equinox, mlp
from locksfl.models.conv import Convolution, max_pool
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import BlockLog, Simulator

ROUNDS = 1_000_000  # a generator of blocks: the harness takes as many as it wants
SAME_WORK = 0.05  # a block is timed when it asks as many clients as the peers do, within this


class CifarNet(eqx.Module):
    """3x3x32, 3x3x64, pool, 128, 10: a model of one's own, as docs/models.md says."""

    convolutions: tuple[Convolution, Convolution]
    layers: tuple[eqx.nn.Linear, eqx.nn.Linear]

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.convolutions = (Convolution(3, 3, 32, keys[0]), Convolution(3, 32, 64, keys[1]))
        self.layers = (
            eqx.nn.Linear(16384, 128, key=keys[2]),
            eqx.nn.Linear(128, CLASSES, key=keys[3]),
        )

    def __call__(self, records: jax.Array) -> jax.Array:
        images = jax.nn.relu(self.convolutions[0](records.reshape(-1, 32, 32, 3)))
        images = jax.nn.relu(max_pool(self.convolutions[1](images)))
        hidden = jax.nn.relu(jax.vmap(self.layers[0])(images.reshape(len(images), -1)))
        return jax.vmap(self.layers[1])(hidden)


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: mlp(784, CLASSES),
    "cnn": lambda: cnn((28, 28), CLASSES),
    "cifar": lambda: from_equinox("cifar", CifarNet, batches=True),
}


class Program:
    """A workload in the simulator, by one rule."""

    def __init__(self, rule: str, precision: str, workload: Workload) -> None:
        self.workload, self.rule = workload, rule
        self.population = population(workload)
        self.model = MODELS[workload.network_name]()
        self.simulator = Simulator(self.population, self.model)
        self.work = LocalWork(precision=precision)
        if workload.batch is not None or workload.epochs > 1:
            batch = workload.batch or workload.samples
            self.work = replace(
                self.work,
                update="epochs",
                epochs=workload.epochs,
                batch=batch,
                step=workload.local_step,
            )
        self.blocks = self._play()

    def run(self, rounds: int) -> list[float]:
        """Wall-clock seconds a round of compiled blocks, drawing the cohorts and reading the log
        included; a block that was compiled is not counted.

        A Poisson cohort is larger or smaller than the peers', which is fixed. Blocks of another
        size are played and not counted, since of few clients an odd one leaves a core without
        work; seconds are taken over the clients asked, times the workload's cohort.
        """
        played: list[float] = []
        while len(played) < rounds:
            began = time.perf_counter()
            block = next(self.blocks)
            seconds = time.perf_counter() - began
            if not np.isfinite(np.asarray(block.state.weights)).all():
                raise AssertionError("the weights are no numbers any more")
            asked = np.mean([len(log.cohort) for log in block.rounds]) / self.workload.cohort
            if abs(asked - 1) <= SAME_WORK and not block.compile_seconds:
                played += [seconds / len(block.rounds) / asked] * len(block.rounds)
        return played

    def mean_update(self) -> np.ndarray:
        """Of all clients, from the initial weights, by one whole round."""
        network, n = self.workload.network, self.workload.clients
        clip_norm = self.workload.clip_norm
        arm = Arm("check", n, 1, rule="full", trust="none", clip_norm=clip_norm)
        server = Server(schedule="constant", rounds=1)
        start = to_model(network, network.initial_weights())
        (block,) = self.simulator.play(
            arm, self.work, server, Randomness.seeded(0), state=server.init(jnp.asarray(start))
        )
        return from_model(network, np.asarray(block.state.weights) - start)

    def _play(self) -> Iterator[BlockLog]:
        work, uniform = self.workload, self.rule == "uniform"
        arm = Arm.of(
            "timed",
            work.clients,
            ROUNDS,
            self.rule,
            trust="central",
            cohort=work.cohort,
            uploads=work.cohort if uniform else 2 * work.cohort / 3,
            clip_norm=work.clip_norm,
            step=1.0,
            floor=0.0 if uniform else 0.1,
            norm_low=1.0 if uniform else 0.9,
            noise_multiplier=work.noise_multiplier,
            norm_multiplier=0.0 if uniform else 10.0,
        )
        server = Server(schedule="constant", rounds=ROUNDS)
        start = jnp.asarray(to_model(work.network, work.network.initial_weights()))
        return self.simulator.play(
            arm,
            self.work,
            server,
            Randomness.seeded(0),
            evaluate_every=ROUNDS,
            state=server.init(start),
        )


def population(workload: Workload) -> Population:
    """The workload's clients; bytes stay bytes."""
    pixels, labels = load(workload)
    flat = aligned(pixels.reshape(-1, pixels.shape[-1]))  # as data are that the program opens
    numbers = aligned(labels.reshape(-1).astype(np.int32))
    del pixels, labels
    forget_peak()
    return Population(
        features=flat,
        labels=numbers,
        offsets=np.arange(workload.clients + 1) * workload.samples,
        test_features=flat[:100],
        test_labels=numbers[:100],
        classes=CLASSES,
        name="synthetic",
        scale=1 / 255,
    )


def to_model(network: Network, flat: np.ndarray) -> np.ndarray:
    """The workloads' layout to the model's, whose dense weights are [out, in]."""
    return join([part for w, b in network.split(flat) for part in (w.T if w.ndim == 2 else w, b)])


def from_model(network: Network, flat: np.ndarray) -> np.ndarray:
    """The inverse of `to_model`."""
    parts, start = [], 0
    for weight, bias in network.split(flat):
        part = flat[start : start + weight.size]
        parts.append(part.reshape(weight.shape[::-1]).T if weight.ndim == 2 else part)
        start += weight.size + bias.size
        parts.append(flat[start - bias.size : start])
    return join(parts)


def gemm(seconds: float = 0.3) -> dict[str, Any]:
    """FLOP/s of square matrix products on the device: float32, and on a GPU also TF32 and
    bfloat16. On a CPU by numpy's BLAS on every core."""
    if jax.default_backend() == "cpu":
        a = np.random.default_rng(0).random((2048, 2048), np.float32)
        return {"gemm": {"float32": _rate(lambda: a @ a, a.shape[0], seconds)}}
    rates = {}
    for name, kind, precision in (
        ("float32", jnp.float32, "highest"),
        ("tf32", jnp.float32, "tensorfloat32"),
        ("bfloat16", jnp.bfloat16, "default"),
    ):
        b = jax.random.normal(jax.random.key(0), (8192, 8192), kind)
        product = jax.jit(lambda x, precision=precision: jnp.matmul(x, x, precision=precision))
        rates[name] = _rate(lambda: product(b).block_until_ready(), b.shape[0], seconds)  # noqa: B023
    return {"gemm": rates}


def _rate(product: Callable[[], Any], side: int, seconds: float) -> float:
    product()
    times: list[float] = []
    while sum(times) < seconds:
        began = time.perf_counter()
        product()
        times.append(time.perf_counter() - began)
    return 2 * side**3 / float(np.median(times))


def device() -> dict[str, Any]:
    """What the rounds run on, and the most of a GPU's memory that was in use."""
    first = jax.devices()[0]
    found: dict[str, Any] = {"platform": first.platform, "device": first.device_kind}
    if stats := first.memory_stats():
        found["device_peak_mb"] = round(stats.get("peak_bytes_in_use", 0) / 2**20)
    return found


if __name__ == "__main__":
    rule, precision = sys.argv[2:]
    serve(lambda workload: Program(rule, precision, workload), gemm=gemm, device=device)
