"""A run as its server has it, made of what its rounds left: settings, ledger, lines and models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.experiment.config import Config
from locksfl.experiment.costs import statement
from locksfl.experiment.metrics import held_out_metrics
from locksfl.experiment.plan import claimed_epsilon
from locksfl.experiment.public import packed_model
from locksfl.experiment.record import (
    FORMAT,
    Cost,
    Debit,
    Finished,
    HeldOut,
    Line,
    PublicArm,
    PublicRun,
    Run,
    SecretArm,
    SecretRun,
    metrics_of,
)
from locksfl.models.build import Model
from locksfl.models.fitted import Fitted
from locksfl.privacy import spent
from locksfl.privacy.journal import Books
from locksfl.privacy.terms import terms_of, with_strategy


@dataclass(frozen=True)
class Facts:
    """What may be known of the data and the model."""

    held_out: HeldOut
    classes_public: bool
    released_statistics: tuple[str, ...]  # of the data, charged to a journal
    parameters: int  # of the model

    @classmethod
    def of(cls, population: Population, model: Model) -> Facts:
        """Those of an open data set."""
        held_out = HeldOut(public=population.test_public, clients=population.test_clients)
        recipe = population.recipe
        released = tuple(recipe.released) if recipe else ()
        return cls(held_out, population.classes_public, released, model.size)


def finished(
    arm: Arm, made: Fitted, population: Population, config: Config, times: Mapping[str, float]
) -> Finished:
    """What is kept of an arm after its last round. `config`: the public settings."""
    measured = held_out_metrics(made.model, np.asarray(made.weights), population)
    return Finished(
        name=arm.name,
        model=hashlib.sha256(packed_model(made.header(), made.arrays(), config)).hexdigest(),
        metrics=metrics_of(made.model.task.kind, measured),
        **times,
    )


def run_of(
    config: Config,
    arms: Sequence[Arm],
    books: Books,
    lines: Sequence[Line],
    done: Sequence[Finished],
    facts: Facts,
    debit: Debit | None,
) -> Run:
    """The run.

    Args:
        config: the experiment.
        arms: its arms, with the noise that they had.
        books: the ledger.
        lines: the rounds that were played.
        done: what its last round left of each arm.
        facts: of the data and the model.
        debit: of the population's journal, if one paid.
    """
    public, secret = [], []
    for arm, end in zip(arms, done, strict=True):
        mine = [line for line in lines if line.arm == arm.name]
        so_far = _spent([arm], books, config)
        public.append(_public_arm(config, arm, end, mine, so_far, facts))
        facts_of = {name: getattr(end, name) for name in Finished.__struct_fields__}
        rounds = tuple(line.secret for line in mine)
        secret.append(SecretArm(**facts_of, spent=so_far, rounds=rounds))
    return Run(
        public=PublicRun(
            format=FORMAT,
            version=metadata.version("locks-fl"),
            simulated=config.seed is not None,
            settings=config.public(),
            parameters=facts.parameters,
            held_out=facts.held_out,
            classes_public=facts.classes_public,
            released_statistics=facts.released_statistics,
            arms=tuple(public),
            all_arms=Cost.of(statement(arms, config.privacy)),
        ),
        secret=SecretRun(
            experiment=books.header.experiment,
            data=Path(config.data.name).name,
            arms=tuple(secret),
            all_arms_spent=_spent(arms, books, config),
            population=debit,
        ),
    )


def _public_arm(
    config: Config,
    arm: Arm,
    end: Finished,
    lines: Sequence[Line],
    so_far: tuple[Cost, ...],
    facts: Facts,
) -> PublicArm:
    return PublicArm(
        name=arm.name,
        planned=arm.rounds,
        noise=arm.noise,
        terms=dict(with_strategy(terms_of(arm), arm)),
        privacy=Cost.of(statement([arm], config.privacy)),
        model=end.model,
        rounds=tuple(line.public for line in lines),
        metrics=end.metrics if facts.held_out.public else None,
        claimed_epsilon=claimed_epsilon(arm, config.privacy),
        spent_so_far=None if config.train.stop_after is None else so_far,
    )


def _spent(arms: Sequence[Arm], books: Books, config: Config) -> tuple[Cost, ...]:
    counts = [books.counts(arm.name) for arm in arms]
    return Cost.of(spent(counts, config.privacy.delta, config.privacy.accountant))
