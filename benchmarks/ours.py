"""This project on the workloads: the program's own simulator, nothing built for the benchmark."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from benchmarks.data import CLASSES, Workload, join, load, split
from locksfl.algorithm import Method
from locksfl.engines.simulate import BlockLog, Simulator
from locksfl.local import LocalWork
from locksfl.plan import ArmPlan
from locksfl.randomness import Randomness
from locksfl.server import Server
from locksfl.tasks.models import mlp
from locksfl.tasks.population import Population

ROUNDS = 100_000  # a generator of blocks: the driver takes as many as it wants


class Ours:
    """One workload, ready to play blocks of rounds."""

    def __init__(self, workload: Workload, rule: str = "uniform") -> None:
        self.workload = workload
        self.pixels, self.labels = load(workload)
        self.model = mlp(self.pixels.shape[-1], CLASSES)
        self.work = LocalWork()
        if workload.batch is not None:
            self.work = LocalWork(
                "epochs", workload.epochs, workload.batch, step=workload.local_step
            )
        self.blocks = self._play(rule)

    def run(self, seconds: float) -> list[float]:
        """Seconds a round of some blocks, for about so long; compiling apart."""
        played: list[float] = []
        while sum(played) < seconds:
            block = next(self.blocks)
            if not block.compile_seconds:  # the first block also warms up
                played += [block.seconds / len(block.rounds)] * len(block.rounds)
        return played

    def mean_update(
        self, weights: np.ndarray, clients: Sequence[int], clip_norm: float
    ) -> np.ndarray:
        """The mean clipped update of these clients from these weights, by one whole round."""
        population = self._population(list(clients))
        n = population.clients
        plan = ArmPlan("check", Method("full", "capped", "none"), n, 1, n, n, clip_norm, 1.0)
        server = Server(schedule="constant", rounds=1)
        start = jnp.asarray(_turn(weights))
        state = server.init(start)
        simulator = Simulator(population, self.model)
        (block,) = simulator.play(plan, self.work, server, Randomness.seeded(0), state=state)
        return _turn_back(_turn(weights) - np.asarray(block.state.weights))

    def _play(self, rule: str) -> Iterator[BlockLog]:
        w = self.workload
        uploads = w.cohort if rule == "uniform" else 2 * w.cohort / 3
        plan = ArmPlan(
            "timed",
            Method(rule, "capped", "central"),
            clients=w.clients,
            rounds=ROUNDS,
            cohort=w.cohort,
            uploads=uploads,
            clip_norm=w.clip_norm,
            step=w.server_step,
            floor=0.0 if rule == "uniform" else 0.1,
            norm_low=1.0 if rule == "uniform" else 0.9,
            noise_multiplier=w.noise_multiplier,
            norm_multiplier=0.0 if rule == "uniform" else 10.0,
        )
        server = Server(schedule="constant", rounds=ROUNDS)
        simulator = Simulator(self._population(range(w.clients)), self.model)
        return simulator.play(plan, self.work, server, Randomness.seeded(0), evaluate_every=ROUNDS)

    def _population(self, clients: Sequence[int]) -> Population:
        whole = len(clients) == self.workload.clients
        pixels = self.pixels if whole else self.pixels[list(clients)]
        labels = self.labels if whole else self.labels[list(clients)]
        samples = pixels.shape[1]
        flat = pixels.reshape(-1, pixels.shape[-1])
        return Population(
            features=flat,
            labels=labels.reshape(-1).astype(np.int32),
            offsets=np.arange(len(clients) + 1) * samples,
            test_features=flat[:100],
            test_labels=labels.reshape(-1)[:100].astype(np.int32),
            classes=CLASSES,
            name="synthetic",
            scale=1 / 255,
        )


def _turn(flat: np.ndarray) -> np.ndarray:
    """The benchmark's layout (weight [in, out]) to the model's (weight [out, in])."""
    return join([(weight.T, bias) for weight, bias in split(flat)])


def _turn_back(flat: np.ndarray) -> np.ndarray:
    layers, start = [], 0
    for weight, bias in split(flat):
        middle, end = start + weight.size, start + weight.size + bias.size
        turned = flat[start:middle].reshape(weight.shape[::-1]).T
        layers.append((turned, flat[middle:end]))
        start = end
    return join(layers)


def peak_memory_mb() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
