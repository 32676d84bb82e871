"""LOCKS as a library: train on your own arrays, in one call.

population = locksfl.Population.from_arrays(x, y, user, x_test, y_test, classes=10)
result = locksfl.train(population, rule="norm", cohort=30, uploads=20, epsilon=8.0)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from locksfl._tables import build_table
from locksfl.arm import loss_bound_of
from locksfl.data.population import Population
from locksfl.experiment.config import Config, LocalConfig, OptimizerConfig
from locksfl.experiment.costs import epsilon_so_far
from locksfl.experiment.coverage import debit
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.records import round_record
from locksfl.experiment.run import local_work, model_for, server_for
from locksfl.methods.cyclic import check_secret
from locksfl.models.build import Model, scores_of
from locksfl.models.own import check_model
from locksfl.privacy import Cost, guarantee
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import RoundLog, Simulator
from locksfl.simulate.sweep import play_alone


@dataclass(frozen=True)
class Trained:
    """A trained model, how it came about, and what it cost.

    All of it belongs to the caller, who is the server. The weights may be shown for the cost in
    `privacy`. Accuracy and losses are exact functions of the held-out records, whom no epsilon
    covers: show them, or choose by them, only if these records are public. In central trust the
    history's counts are secret too; its "public" ones may be shown.
    """

    model: Model
    weights: np.ndarray
    scale: float
    accuracy: float  # on the held-out records
    history: list[dict[str, Any]]  # one record per round
    privacy: list[Cost]
    simulated: bool  # a seed was given: the epsilon is what a secret seed would have cost
    population_id: str | None = None  # its journal was debited; None: other runs are not covered

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
    model: str | Model = "softmax",
    rounds: int = 100,
    local: LocalConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    trust: str = "central",
    epsilon: float | None = None,
    delta: float = 1e-5,
    relation: Any = "zero-out",
    accountant: Any = "pld",
    seed: int | None = None,
    population_id: str | None = None,
    total: float | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Trained:
    """Train one arm. The settings are those of the TOML file, and are refused for the same reasons.

    Args:
        population: whose records, dealt to clients.
        model: a name of `locksfl.models`, "package.module:function", or a model.
        rounds: T.
        local: each client's work in a round.
        optimizer: the server's step.
        trust: who adds the noise.
        epsilon: the total, norms included; or give `noise_multiplier`.
        delta: well below 1 / clients.
        relation: what epsilon is for: "zero-out" (one client's contribution present or absent) or
            "replace" (its data exchanged for any other).
        accountant: "pld" or "rdp".
        seed: repeats a run, and makes it a simulation. Without one the randomness comes from the
            operating system and is forgotten.
        population_id: the population whose journal a run without a seed debits before its first
            draw (`locks privacy population` makes it).
        total: what the journal was made with: the most that all runs on it may cost.
        on_round: called with the record of each round.
        settings: those of an [[arm]] table: rule ("norm" if not given), cohort, uploads,
            estimator, floor, norm_low, weights, loss_bound, gate, clip_norm, lengths, step,
            clip_quantile, clip_rate, noise_multiplier, norm_multiplier, clip_multiplier, sampling,
            separation, bands.

    Returns:
        The model, its history and what it cost.
    """
    privacy = {"trust": trust, "epsilon": epsilon, "delta": delta}
    table = {
        "seed": seed,
        "data": {"name": population.name, "clients": population.clients},
        "model": {"name": model} if isinstance(model, str) else {},
        "local": local or LocalConfig(),
        "train": {"rounds": rounds, "optimizer": optimizer or OptimizerConfig()},
        "privacy": {
            **privacy,
            "relation": relation,
            "accountant": accountant,
            "population": population_id,
            "total": total,
        },
        "arm": [{"name": "model", "rule": "norm", **settings}],
    }
    config: Config = build_table(Config, table, "")
    (arm,) = plan_arms(config)
    if arm.parts[0].accepts("loss_bound") and settings.get("loss_bound") is None:
        arm = replace(arm, loss_bound=loss_bound_of(population.classes))
    if seed is None:
        check_secret([arm])
    if isinstance(model, str):
        built = model_for(config, population)
    else:
        built, positions = model, population.labels.shape[1:]
        check_model(built, population.features.shape[1:], population.classes, positions)
    source = Randomness.from_system() if seed is None else Randomness.seeded(seed)
    server, epsilons = server_for(config.train), epsilon_so_far(arm, config.privacy)
    history: list[dict[str, Any]] = []

    def keep(log: RoundLog) -> None:
        history.append(round_record(arm, log, built.size, epsilons[log.round]))
        if on_round is not None:
            on_round(history[-1])

    work, simulator = local_work(config.local), Simulator(population, built)
    noted = debit(config, [arm], secrets.token_hex(16), name=population.name)
    played = play_alone(simulator, arm, source, work, server, on_round=keep)
    return Trained(
        model=built,
        weights=played.weights,
        scale=population.scale,
        accuracy=history[-1]["accuracy"],
        history=history,
        privacy=guarantee([arm], delta, accountant),
        simulated=seed is not None,
        population_id=noted and population_id,
    )
