"""LOCKS as a library: train on your own arrays, in one call.

population = locksfl.Population.from_arrays(x, y, user, x_test, y_test, classes=10)
result = locksfl.train(population, rule="norm", cohort=30, uploads=20, epsilon=8.0)
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from locksfl._tables import Record, build_table
from locksfl._text import epsilon_text
from locksfl.arm import Arm, loss_bound_of
from locksfl.data.population import Population
from locksfl.experiment.config import Config, LocalConfig, OptimizerConfig
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.coverage import debit
from locksfl.experiment.metrics import held_out_metrics
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.records import round_record
from locksfl.experiment.run import model_for, server_for
from locksfl.methods.cyclic import check_secret
from locksfl.models.build import MODELS, Model, with_task
from locksfl.models.fitted import Fitted
from locksfl.models.own import check_model
from locksfl.privacy import Cost
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import RoundLog, Simulator
from locksfl.simulate.sweep import Setting, play_alone, play_sweep


@dataclass(frozen=True, repr=False)
class Trained(Fitted):
    """A trained model, how it came about, and what it cost.

    The caller is the server, and may see all of it. Showing the weights to others costs what
    `privacy` says. Accuracy and losses are exact functions of the held-out records, which no
    epsilon covers: show them, or choose models by them, only if these records are public. In
    central trust the counts in the history are secret too; those under "public" may be shown.
    """

    accuracy: float | None  # on the held-out records; None where the labels are numbers
    metrics: Record  # on the held-out records, with baselines; see experiment.metrics
    history: list[Record]  # one record per round
    privacy: list[Cost]
    simulated: bool  # a seed was given: the epsilon is what a secret seed would have cost
    population_id: str | None = None  # its journal was debited; None: other runs are not covered

    def __repr__(self) -> str:
        """What may be shown: the size of the model, its rounds, and what it cost."""
        costs = [
            f"{epsilon_text(cost.epsilon)} ({cost.observer}, {cost.relation})"
            for cost in self.privacy
            if math.isfinite(cost.epsilon)
        ]
        spent = f"{len(self.history)} rounds, epsilon {', '.join(costs) or epsilon_text(None)}"
        return f"{super().__repr__()[:-1]}, {spent}{', simulated' * self.simulated}>"

    def header(self) -> Record:
        """What a file says of the model: what it cost, too."""
        costs = [cost.as_dict() for cost in self.privacy]
        return {**super().header(), "privacy": costs, "simulated": self.simulated}


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
    on_round: Callable[[Record], None] | None = None,
    **settings: Any,
) -> Trained:
    """Train one arm. The settings are those of the TOML file, and are refused for the same reasons.

    Args:
        population: whose records, dealt to clients.
        model: a name of `locksfl.models`, "package.module:function", or a model.
        rounds: how many, T.
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
        on_round: called with the record of each round (`locksfl.experiment.writers` has some).
        settings: those of an [[arm]] table: rule ("norm" if not given), cohort, uploads,
            estimator, floor, norm_low, weights, loss_bound, gate, clip_norm, lengths, step,
            clip_quantile, clip_rate, noise_multiplier, norm_multiplier, clip_multiplier, sampling,
            separation, bands.

    Returns:
        The model, its history and what it cost.
    """
    (result,) = _train(
        population,
        [(seed, epsilon)],
        on_round,
        model=model,
        rounds=rounds,
        local=local,
        optimizer=optimizer,
        trust=trust,
        delta=delta,
        relation=relation,
        accountant=accountant,
        population_id=population_id,
        total=total,
        **settings,
    )
    return result


def train_many(
    population: Population,
    *,
    seeds: Sequence[int | None] = (None,),
    epsilons: Sequence[float | None] = (None,),
    **settings: Any,
) -> list[Trained]:
    """Train with every epsilon and seed; on a GPU, many at a time. Each result is what `train`
    gives for that epsilon and seed, up to float rounding.

    Every model is paid for: who sees several of them has seen what all cost together. With a
    `population_id` all are debited before the first one begins, or none.

    Args:
        population: whose records, dealt to clients.
        seeds: a simulation for each; None is a run without a seed.
        epsilons: of each model; None: the settings have a `noise_multiplier`.
        settings: the other arguments of `train`, without `on_round`.

    Returns:
        The results, all seeds of the first epsilon first.
    """
    runs = [(seed, epsilon) for epsilon, seed in itertools.product(epsilons, seeds)]
    if not runs:
        raise ValueError("seeds, epsilons: expected at least one of each")
    return _train(population, runs, None, **settings)


def _train(
    population: Population,
    runs: Sequence[tuple[int | None, float | None]],
    on_round: Callable[[Record], None] | None,
    /,
    *,
    model: str | Model = "softmax",
    **settings: Any,
) -> list[Trained]:
    """One result for each (seed, epsilon); `on_round` hears of one run only."""
    if not isinstance(model, str | Model):
        raise ValueError(
            f"model = {type(model).__name__}: expected one of {', '.join(MODELS)}, "
            '"package.module:function", whose function makes an Equinox module or a pair '
            "(init, apply), or a locksfl.Model"
        )
    configs = [_config(population, model, *run, **settings) for run in runs]
    config = configs[0]
    arms = [_planned(one, population) for one in configs]
    secret = [k for k, (seed, _) in enumerate(runs) if seed is None]
    check_secret([arms[k] for k in secret])
    if isinstance(model, str):
        built = model_for(config, population)
    else:
        built, shape = with_task(model, population.task), population.features.shape[1:]
        check_model(built, shape, population.classes, population.positions)
    sources = (Randomness.from_system() if s is None else Randomness.seeded(s) for s, _ in runs)
    plays = [Setting(*pair) for pair in zip(arms, sources, strict=True)]
    epsilons = [epsilon_so_far(arm, config.privacy) for arm in arms]
    histories: list[list[Record]] = [[] for _ in runs]

    def keep(number: int, log: RoundLog) -> None:
        record = round_record(arms[number], log, built, epsilons[number][log.round])
        if record["epsilon"] is None:  # as JSON has it
            record["epsilon"] = math.inf
        histories[number].append(record)
        if on_round is not None:
            on_round(record)

    work, server = config.local.work(), server_for(config.train)
    simulator, noted = Simulator(population, built), None
    if secret:
        due = [replace(arms[k], name=f"{arms[k].name}-{k + 1}") for k in secret]
        due = due if len(runs) > 1 else arms
        noted = debit(configs[secret[0]], due, secrets.token_hex(16), name=population.name)
    if len(runs) == 1:
        played = [play_alone(simulator, *plays[0], work, server, on_round=partial(keep, 0))]
    else:
        played = play_sweep(simulator, plays, work, server)
        for number, one in enumerate(played):
            for log in one.rounds:
                keep(number, log)
    return [
        Trained(
            model=built,
            weights=played[k].weights,
            scale=population.scale,
            encoding=population.encoding,
            recipe=population.recipe,
            accuracy=histories[k][-1]["accuracy"],
            metrics=held_out_metrics(built, played[k].weights, population),
            history=histories[k],
            privacy=statement([arms[k]], config.privacy),
            simulated=k not in secret,
            population_id=config.privacy.population if noted and k in secret else None,
        )
        for k in range(len(runs))
    ]


def _planned(config: Config, population: Population) -> Arm:
    """The arm with its noise; losses are bounded for as many classes as the population has."""
    (arm,) = plan_arms(config)
    if arm.parts.rule.accepts("loss_bound") and config.arm[0].loss_bound is None:
        arm = replace(arm, loss_bound=loss_bound_of(population.classes))
    return arm


def _config(
    population: Population,
    model: str | Model,
    seed: int | None,
    epsilon: float | None,
    **settings: Any,
) -> Config:
    """The arguments of `train` as an experiment of one arm."""

    def given(*names: str) -> Record:
        return {name: settings.pop(name) for name in names if name in settings}

    table = {
        "seed": seed,
        "data": {"name": population.name, "clients": population.clients},
        "model": {"name": model} if isinstance(model, str) else {},
        "local": settings.pop("local", None) or LocalConfig(),
        "train": {
            **given("rounds"),
            "optimizer": settings.pop("optimizer", None) or OptimizerConfig(),
        },
        "privacy": {
            "epsilon": epsilon,
            "population": settings.pop("population_id", None),
            **given("trust", "delta", "relation", "accountant", "total"),
        },
    }
    table["arm"] = [{"name": "model", "rule": "norm", **settings}]  # what no other table takes
    config: Config = build_table(Config, table, "")
    config.check_arms()
    return config
