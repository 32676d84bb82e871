"""LOCKS as a library: train on your own arrays, in one call.

population = locksfl.Population.from_arrays(x, y, user, x_test, y_test, classes=10)
result = locksfl.train(population, rule="norm", cohort=30, uploads=20, epsilon=8.0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from locksfl.data.population import Population
from locksfl.experiment.config import (
    ArmConfig,
    Config,
    DataConfig,
    LocalConfig,
    ModelConfig,
    OptimizerConfig,
    PrivacyConfig,
    TrainConfig,
)
from locksfl.experiment.costs import Cost, epsilon_so_far, statement
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.records import round_record
from locksfl.experiment.run import local_work, model_for, server_for
from locksfl.models.build import Model, scores_of
from locksfl.models.own import check_model
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import RoundLog, Simulator
from locksfl.simulate.sweep import play_alone


@dataclass(frozen=True)
class Trained:
    """A trained model, how it came about, and what it cost."""

    model: Model
    weights: np.ndarray
    scale: float
    accuracy: float  # on the held-out records
    history: list[
        dict[str, Any]
    ]  # one record per round; cohort and uploads are the server's secret
    privacy: list[Cost]
    simulated: bool  # a seed was given: the epsilon is what a secret seed would have cost

    def scores(self, records: ArrayLike) -> np.ndarray:
        """A score for each class and record; for sequences, for each position too."""
        weights = jnp.asarray(self.weights)
        return np.asarray(scores_of(self.model, weights, np.asarray(records), self.scale))

    def predict(self, records: ArrayLike) -> np.ndarray:
        """The most likely class of each record, or of each position of each record."""
        return np.argmax(self.scores(records), axis=-1)


def train(
    population: Population,
    *,
    rule: str = "norm",
    cohort: float | None = None,
    uploads: float | None = None,
    estimator: str | None = None,
    floor: float | None = None,
    norm_low: float | None = None,
    weights: list[float] | None = None,
    model: str | Model = "softmax",
    rounds: int = 100,
    clip_norm: float = 1.0,
    step: float | None = None,
    local: LocalConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    trust: str = "central",
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    norm_multiplier: float | None = None,
    relation: Any = "zero-out",
    accountant: Any = "pld",
    seed: int | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Trained:
    """Train one arm. The settings are those of the TOML file, and are refused for the same reasons.

    population: the records of every client, and the held-out ones.
    model: the name of one of ours, or a `Model` of your own.
    local, optimizer: the clients' work and the server's step, with more settings than fit here.
    seed: for a simulation. Without one the randomness comes from the operating system and is
        forgotten.
    on_round: called with the record of each round as soon as it is there.

    Returns the model with its weights, one record per round, and what it cost.
    """
    arm = ArmConfig(
        "model", rule, estimator, cohort, uploads, floor, norm_low, weights,
        noise_multiplier, norm_multiplier, clip_norm, step,
    )  # fmt: skip
    config = Config(
        seed=seed,
        data=DataConfig(population.name, population.clients),
        model=ModelConfig(model) if isinstance(model, str) else ModelConfig(),
        local=local or LocalConfig(),
        train=TrainConfig(rounds, clip_norm, optimizer or OptimizerConfig()),
        privacy=PrivacyConfig(trust, epsilon, delta, accountant, relation),
        arm=[arm],
    )
    (plan,) = plan_arms(config)
    if isinstance(model, str):
        built = model_for(config, population)
    else:
        built, shapes = model, (population.features.shape[1:], population.labels.shape[1:])
        check_model(built, shapes[0], population.classes, shapes[1])
    source = Randomness.from_system() if seed is None else Randomness.seeded(seed)
    server, epsilons = server_for(config.train), epsilon_so_far(plan, config.privacy)
    history: list[dict[str, Any]] = []

    def keep(log: RoundLog) -> None:
        history.append(round_record(plan, log, built.size, epsilons[log.round]))
        if on_round is not None:
            on_round(history[-1])

    work, simulator = local_work(config.local), Simulator(population, built)
    played = play_alone(simulator, plan, source, work, server, on_round=keep)
    return Trained(
        model=built,
        weights=played.weights,
        scale=population.scale,
        accuracy=history[-1]["accuracy"],
        history=history,
        privacy=statement([plan], [rounds], config.privacy),
        simulated=seed is not None,
    )
