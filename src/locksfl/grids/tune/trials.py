"""The trials: a grid on public data, or the arms of one run, which is charged."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from locksfl.arm import Arm
from locksfl.experiment import coverage, run
from locksfl.experiment.config import Config, TrainConfig, located, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import calibrated, plan_arms
from locksfl.experiment.record import Cost
from locksfl.grids import begun
from locksfl.grids.bench import Bench, executor_for
from locksfl.grids.comparison.settings import FIRST_TUNING_SEED
from locksfl.grids.drive import Case, Play, Plays, Watch, batches, drive
from locksfl.grids.search import NAMES, Pair, Searched, edges, searched
from locksfl.grids.tune.task import Axes, Task, short
from locksfl.privacy.journal import experiment_id

WIDEN = 2  # how often a public grid whose edge is best is widened
NAMED, TRIALS, RUN = "tune.json", "trials.jsonl", "run"


class Trial(msgspec.Struct, frozen=True):
    """One setting of one arm, and what it came to on public held-out records."""

    arm: str
    rounds: int
    clip_norm: float
    reach: float
    score: float | None  # accuracy or, for numbers, R^2; None: not finite
    loss: float | None
    step: float

    @property
    def rank(self) -> tuple[float, float]:
        """What the best is the largest of. Models that have learnt nothing are equally accurate,
        and the loss says on which side of the best their steps are."""
        score = -math.inf if self.score is None else self.score
        return score, -math.inf if self.loss is None else -self.loss


class Best(Trial, frozen=True):
    """The best trial of an arm."""

    before: float | None  # the score of the file's own setting, if that was tried
    edge: list[str]  # the axes at an end of which the best lies


class Tuning(msgspec.Struct, frozen=True, omit_defaults=True):
    """What comes of a tuning. Only private trials have a population, a run and costs."""

    experiment: str
    public: str | None  # the data that were declared public
    tuned: str  # what was tuned, in words
    rounds: int
    arms: list[Best]
    trials: list[Trial]
    population: str | None = None
    run: str | None = None
    privacy: tuple[Cost, ...] = ()  # of all trials together


def step_of(clip_norm: float, reach: float) -> float:
    """The server's step."""
    return short(reach / clip_norm)


class Begun(begun.Begun, frozen=True, kw_only=True):
    """What a tuning is begun with."""

    tuning: str  # a hash of its task


def begin(path: Path, task: Task) -> None:
    """A new folder, or the one that the same command began."""
    begun.begin(path, NAMED, Begun(tuning=task.identity), TRIALS, f"{RUN}/checkpoint.npz")


def tune(
    task: Task, path: Path, watch: Watch, warn: Callable[[str], None], processes: int = 1
) -> Tuning:
    """Play the trials that the folder does not have yet.

    Args:
        task: what is to be tuned.
        path: the folder.
        watch: hears of every public trial, or of every round of the private ones.
        warn: hears what to know before any budget is spent.
        processes: play public trials in so many.
    """
    if task.public is not None:
        trials = _publicly(task, task.public, path / TRIALS, watch, processes)
        charged = _Charged()
    else:
        trials, charged = _privately(task, path / RUN, watch, warn)
    rounds, best = chosen(trials)
    return Tuning(
        task.config.name,
        task.public.data.name if task.public else None,
        f"clip_norm{', step and rounds' if task.axes.rounds else ' and step'}",
        rounds,
        [_beside(trial, trials, task.config) for trial in best],
        list(trials),
        *charged,
    )


def chosen(trials: Sequence[Trial]) -> tuple[int, list[Trial]]:
    """The rounds, which all arms share, with the best mean score over the arms; and the best
    trial of each arm with them. The first of equals."""
    best: dict[int, dict[str, Trial]] = {}
    for trial in trials:
        mine = best.setdefault(trial.rounds, {})
        if trial.arm not in mine or trial.rank > mine[trial.arm].rank:
            mine[trial.arm] = trial
    rounds = max(best, key=lambda r: float(np.mean([t.rank[0] for t in best[r].values()])))
    return rounds, list(best[rounds].values())


def _beside(best: Trial, trials: Sequence[Trial], config: Config) -> Best:
    """The best of an arm, beside the file's own setting and the ends of the axes."""
    mine = [trial for trial in trials if trial.arm == best.arm]
    arm = next(arm for arm in config.arms if arm.name == best.arm)
    own = (config.train.rounds, short(arm.clip_norm), short(arm.clip_norm * arm.step))
    before = [t.score for t in mine if (t.rounds, t.clip_norm, t.reach) == own]
    alike = [(t.clip_norm, t.reach) for t in mine if t.rounds == best.rounds]
    axes = [sorted(set(values)) for values in zip(*alike, strict=True)]
    ends = edges((best.clip_norm, best.reach), axes)
    edge = [NAMES[axis].replace("_", " ") for axis in ends]
    fields = msgspec.structs.asdict(best)
    return Best(**fields, before=before[0] if before else None, edge=edge)


def _publicly(task: Task, public: Config, file: Path, watch: Watch, processes: int) -> list[Trial]:
    """Trials on public data with the cohorts and the noise of the experiment, and so with its noise
    on the mean update, however many clients the public data have."""
    arms: list[tuple[Config, Arm]] = []
    for rounds in task.axes.rounds or (task.config.train.rounds,):
        watch.say(f"calibrating the noise of {rounds} rounds")
        here = replace(public, train=_of_rounds(public.train, rounds))
        own = replace(task.config, train=_of_rounds(task.config.train, rounds))
        arms += [(here, replace(arm, clients=public.clients)) for arm in plan_arms(own)]
    watch.say("opening the public data")
    bench = Bench()
    bench.simulator(public)  # once: what is wrong with them is wrong for every trial
    cases = {
        number: Case(f"{arm.name}, {arm.rounds} rounds", partial(_search, here, arm, task.axes))
        for number, (here, arm) in enumerate(arms)
    }
    with executor_for(bench, processes) as executor:
        driven = drive(cases, executor, file, watch)
    return [trial for one in driven.whole() for trial in one.tried.values()]


def _of_rounds(train: TrainConfig, rounds: int) -> TrainConfig:
    """As many rounds, evaluated after the last."""
    last = min(train.average_last, rounds)
    return replace(train, rounds=rounds, average_last=last, evaluate_every=rounds)


def _search(config: Config, arm: Arm, axes: Axes) -> Plays[Searched[Trial]]:
    """The grid of an arm, widened where its edge is best. A trial is the mean over its seeds."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + axes.seeds)

    def tries(pairs: list[Pair], _: Trial | None) -> Plays[list[Trial]]:
        arms = [replace(arm, clip_norm=clip, step=step_of(clip, reach)) for clip, reach in pairs]
        outcomes = yield [Play(config, one, seed) for one in arms for seed in seeds]
        trials = []
        for pair, mine in zip(pairs, batches(outcomes, len(seeds)), strict=True):
            means = (_mean([o.score for o in mine]), _mean([o.loss for o in mine]))
            trials.append(Trial(arm.name, config.train.rounds, *pair, *means, step_of(*pair)))
        return trials

    return (yield from searched(axes.of(arm, private=False), tries, lambda t: t.rank, WIDEN, short))


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return float(np.mean(finite)) if len(finite) == len(values) else None


def _pairs(task: Task) -> Iterator[tuple[Arm, list[Pair]]]:
    """The private trials of each arm."""
    for arm in task.config.arms:
        clips, reaches = task.axes.of(arm, private=True)
        yield arm, list(itertools.product(clips, reaches))


def trial_run(task: Task) -> Config:
    """All private trials as the arms of one run. Those of an arm have the noise with which as many
    times its rounds cost epsilon: noise depends neither on the clip norm nor on the step."""
    privacy, tables = replace(task.config.privacy, epsilon=task.epsilon), []
    for (arm, pairs), table in zip(_pairs(task), task.config.arm, strict=True):
        noisy = calibrated(replace(arm, rounds=len(pairs) * arm.rounds), privacy)
        noise = {name: value for name, value in vars(noisy.noise).items() if value}
        for number, (clip, reach) in enumerate(pairs, 1):
            name, step = f"{arm.name[:95]}-{number}", step_of(clip, reach)
            tables.append(replace(table, name=name, clip_norm=clip, step=step, **noise))
    return replace(
        task.config,
        name=f"{task.config.name[:93]}-tuning",
        privacy=replace(privacy, epsilon=None),
        plan=None,
        arm=tables,
    )


class _Charged(NamedTuple):
    """What private trials were charged to, and the run that has them."""

    population: str | None = None
    run: str | None = None
    privacy: tuple[Cost, ...] = ()


def _privately(
    task: Task, path: Path, watch: Watch, warn: Callable[[str], None]
) -> tuple[list[Trial], _Charged]:
    """The trials as a run that is resumed, debited and closed as any other."""
    watch.say("calibrating the noise of all trials")
    config, folder = located(trial_run(task)), RunFolder(path)
    watch.counted(len(config.arm) * config.train.rounds, 0)
    if not folder.begun:  # nothing was debited
        shutil.rmtree(path, ignore_errors=True)
        prepared = _prepared(task, config, watch, warn)
        folder = RunFolder.create(path, config)
    elif experiment_id(to_table(folder.config)) != experiment_id(to_table(config)):
        raise ValueError(f"{path}: not the trials of this tuning; expected a new --out")
    else:
        prepared = None
    played = (
        folder.run()
        if folder.finished
        else run.run_experiment(
            config,
            folder,
            prepared=prepared,
            resume=prepared is None,
            on_round=lambda line: watch.counted(0, 1),
            on_past=lambda line: watch.counted(0, 1),
            say=watch.say,
        )
    )
    tried = ((arm, pair) for arm, pairs in _pairs(task) for pair in pairs)
    trials = []
    for (arm, pair), one in zip(tried, played.public.arms, strict=True):
        last = one.rounds[-1].scores  # on public records
        scores = (None, None) if last is None else (last.score, last.loss)
        trials.append(Trial(arm.name, arm.rounds, *pair, *scores, step_of(*pair)))
    paid = played.secret.population
    return trials, _Charged("" if paid is None else paid.id, str(path), played.public.all_arms)


def _prepared(
    task: Task, config: Config, watch: Watch, warn: Callable[[str], None]
) -> run.Prepared:
    """All that can be refused, and what to hear before any budget is spent."""
    prepared = run.prepare(config, watch.say)
    if not prepared.population.test_public:
        raise ValueError(
            "--private: the held-out records are people's, and a score on them would be a release "
            "that nobody is charged for; expected a public test set (locks data import --test FILE "
            "--test-public)"
        )
    for line in prepared.warnings():
        warn(line)
    try:
        coverage.check(task.config, [*prepared.arms, *plan_arms(task.config)])
    except ValueError:
        warn("warning: the journal does not pay for these trials and a run after them")
    return prepared
