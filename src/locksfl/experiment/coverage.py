"""Which runs a statement covers: the journal of the population, debited before the first draw.

A run with a seed is a simulation: it debits nothing. A run without a seed and without a population
is charged by nobody, and says that other runs over the same people are not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from locksfl._text import epsilon_text
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.record import Cost, Covers, Debit, JournalRun, PublicRun
from locksfl.experiment.record import Run as RunRecord
from locksfl.methods import TRUSTS
from locksfl.privacy.population import (
    VARIABLE,
    PopulationJournal,
    Run,
    best_order,
    journal_path,
    planned_arm,
    promise,
)


def check(config: Config, arms: Sequence[Arm], name: str | None = None) -> None:
    """Refuse a run that its population's journal could not pay for; nothing is written."""
    if _debits(config):
        if config.data.cuts_people:
            raise ValueError(
                f"data.unit = {config.data.unit!r}: the journal of population "
                f"{config.privacy.population!r} is about people; expected unit 'client'"
            )
        run = _planned(config, arms, "", name)
        with _journal(config, run) as journal:
            journal.check(run)


def debit(
    config: Config,
    arms: Sequence[Arm],
    run_id: str,
    noted: str | None = None,
    name: str | None = None,
) -> str | None:
    """Debit the population's journal with all that a run plans to release, unless it has been.

    Args:
        config: the experiment.
        arms: its arms, with their noise.
        run_id: what the run is known by, from its first checkpoint to its end.
        noted: a head of the journal that the run has seen: an older copy is refused.
        name: of the run, if not the experiment's.

    Returns:
        The head of the journal, to be noted; None if nothing is to be debited.
    """
    if not _debits(config):
        return None
    run = _planned(config, arms, run_id, name)
    with _journal(config, run) as journal:
        if noted is not None:
            journal.check_noted(noted)
        return journal.debit(run)


def settle(config: Config, arms: Sequence[Arm], played: Sequence[int], debit: Debit) -> Debit:
    """Charge a run that may end early (train.stop_after) for the rounds that it played, once it can
    play no more. Returns the debit with the head of the journal that says so."""
    if config.train.stop_after is None:
        return debit
    run = _planned(config, ended(arms, played), debit.run, None)
    with _journal(config, run) as journal:
        journal.check_noted(debit.head)
        return structs.replace(debit, head=journal.settle(run))


def ended(arms: Sequence[Arm], played: Sequence[int]) -> list[Arm]:
    """The arms with the rounds that they played."""
    return [replace(arm, rounds=rounds) for arm, rounds in zip(arms, played, strict=True)]


def _debits(config: Config) -> bool:
    return config.seed is None and config.privacy.population is not None


def _planned(config: Config, arms: Sequence[Arm], run_id: str, name: str | None) -> Run:
    return Run(run_id, name or config.name, tuple(map(planned_arm, arms)))


def _journal(config: Config, run: Run) -> PopulationJournal:
    """The journal, with the total that the experiment expects of it."""
    privacy, population = config.privacy, str(config.privacy.population)
    path = journal_path(population)
    if not path.is_file():
        total, order = "EPSILON", ""
        if privacy.total is not None:
            total = f"{privacy.total:g}"
            if TRUSTS[privacy.trust].amplified:  # an order that suits runs like this one
                best = best_order(privacy.total, privacy.delta, privacy.relation, run.arms)
                order = f" --order {best:.4g}"
        raise ValueError(
            f"privacy.population = {population!r}: no journal {path}; expected {VARIABLE} to name "
            f"its folder, or make it once: locks privacy population {population} --total {total} "
            f"--delta {privacy.delta:g} --relation {privacy.relation} --trust {privacy.trust}"
            f"{order}"
        )
    journal = PopulationJournal.find(population)
    if privacy.total not in (None, fixed := journal.total.epsilon):
        journal.close()
        raise ValueError(
            f"privacy.total = {privacy.total:g}: the journal of {population!r} was made with "
            f"{fixed:g}; expected that, or no privacy.total"
        )
    return journal


def covered(run: RunRecord) -> PublicRun:
    """The public run, with what the journal of its population says of other runs as of now."""
    debit, public = run.secret.population, run.public
    if debit is None:
        return public
    with PopulationJournal.find(debit.id) as journal:
        journal.check_noted(debit.head)
        account = journal.account()
        others = (
            JournalRun(run=one["run"], epsilon=one["epsilon"], share=one["share"])
            for one in account["runs"]
        )
        covers = Covers(
            run=Run(debit.run, public.settings.name, ()).label,
            population=journal.population,
            total=journal.total,
            spent_so_far=account["spent_so_far"],
            share=account["share"],
            runs=tuple(others),
            composed=tuple(Cost(**cost) for cost in account["composed"]),
        )
    return structs.replace(public, covers=covers)


def covered_text(covers: Covers | None) -> str:
    """The same in words, for STATEMENT.md."""
    if covers is None:
        return "This page covers this run only: no other run, and no tuning."
    total, names = covers.total, ", ".join(run.run for run in covers.runs)
    terms = f"delta {total.delta:g}, {total.relation}"
    both = "; ".join(
        f"{cost.observer} {cost.relation} {epsilon_text(cost.epsilon, 3, 'infinite')}"
        for cost in covers.composed
    )
    return (
        f"The table covers the run {covers.run} alone. A journal adds up all runs on the "
        f"population {covers.population}. It allows them epsilon {total.epsilon:g} in total "
        f"against {total.observer} ({terms}, {total.filter}). The runs so far ({names}) have "
        f"together spent {covers.share:.1%} of that. A run that would exceed the total is "
        f"refused before it starts. The guarantee: {promise(covers.share)}. If all these runs "
        f"were chosen in advance, their epsilons together are: {both} (delta {total.delta:g}). "
        "Runs that are not in the journal are not covered."
    )
