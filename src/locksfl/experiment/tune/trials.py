"""The trials: on public data by the runner of comparisons, or as the arms of one run, charged."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.experiment import coverage, run
from locksfl.experiment.comparison.runner import Cell, Run, play_grid
from locksfl.experiment.comparison.settings import FIRST_TUNING_SEED
from locksfl.experiment.comparison.tuning import Pair, edges, widen
from locksfl.experiment.config import Config, TrainConfig, located, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import calibrated, plan_arms
from locksfl.experiment.records import score_of
from locksfl.experiment.tune.task import Axes, Task, short
from locksfl.privacy.journal import experiment_id
from locksfl.simulate.simulator import Simulator

WIDEN = 2  # how often a public grid whose edge is best is widened
NAMED, TRIALS, RUN = "tune.json", "trials.jsonl", "run"


class Trial(NamedTuple):
    """One setting of one arm, and what it came to on public held-out records."""

    arm: str
    rounds: int
    clip_norm: float
    reach: float
    score: float | None  # `records.score_of`; None: not finite
    loss: float | None

    @property
    def rank(self) -> tuple[float, float]:
        """What the best is the largest of. Models that have learnt nothing are equally accurate,
        and the loss says on which side of the best their steps are."""
        loss = None if self.loss is None else -self.loss
        return _or_worst(self.score), _or_worst(loss)

    def told(self) -> Record:
        """For JSON."""
        return {**self._asdict(), "step": step_of(self.clip_norm, self.reach)}


def _or_worst(value: float | None) -> float:
    return -math.inf if value is None else value


def step_of(clip_norm: float, reach: float) -> float:
    """The server's step."""
    return short(reach / clip_norm)


class Watch(NamedTuple):
    """Who is told how it goes."""

    counted: Callable[[int, int], None]  # trials or rounds: how many more, how many done
    say: Callable[[str], None]  # what is about to take a while
    warn: Callable[[str], None]  # before any budget is spent


def begin(path: Path, task: Task) -> None:
    """A new folder, or the one that the same command began."""
    told = json.dumps({"sha256": task.identity, "version": metadata.version("locks-fl")}) + "\n"
    for left in path.glob(f".{NAMED}.*"):  # of a command that was killed
        left.unlink(missing_ok=True)
    named = path / NAMED
    if not named.is_file():
        RunFolder.make(path)
    elif (path / TRIALS).exists() or RunFolder(path / RUN).begun:
        if named.read_text("utf-8") == told:
            return
        raise ValueError(
            f"--out {path}: it holds another tuning, or one of another version; expected the same "
            "command, or a new folder"
        )
    write_atomically(named, told.encode())


def tune(task: Task, path: Path, watch: Watch) -> Record:
    """Play the trials that the folder does not have yet. Returns what was tried, what is best for
    each arm and what it cost."""
    cost: Record = {}
    if task.public is not None:
        trials = _publicly(task, task.public, path / TRIALS, watch)
    else:
        trials, cost = _privately(task, path / RUN, watch)
    rounds, best = chosen(trials)
    return {
        "experiment": task.config.name,
        "public": task.public and task.public.data.name,
        "tuned": f"clip_norm{', step and rounds' if task.axes.rounds else ' and step'}",
        "rounds": rounds,
        "arms": [_beside(trial, trials, task.config) for trial in best],
        "trials": [trial.told() for trial in trials],
        **cost,
    }


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


def _beside(best: Trial, trials: Sequence[Trial], config: Config) -> Record:
    """The best of an arm, with what the file's own setting came to, if it was tried, and the axes
    at an end of which the best lies."""
    mine = [trial for trial in trials if trial.arm == best.arm]
    arm = next(arm for arm in config.arms if arm.name == best.arm)
    own = (config.train.rounds, short(arm.clip_norm), short(arm.clip_norm * arm.step))
    before = [trial.score for trial in mine if trial[1:4] == own]
    alike = [(t.clip_norm, t.reach) for t in mine if t.rounds == best.rounds]
    axes = [sorted(set(values)) for values in zip(*alike, strict=True)]
    ends = edges((best.clip_norm, best.reach), axes)
    edge = [("clip norm", "reach")[axis] for axis in ends]
    return {**best.told(), "before": before[0] if before else None, "edge": edge}


def _publicly(task: Task, public: Config, file: Path, watch: Watch) -> list[Trial]:
    """Trials on public data with the cohorts and the noise of the experiment, and so with its noise
    on the mean update, however many clients the public data have."""
    watch.say("opening the public data")
    simulator = Simulator(*run.open_task(public))
    trials: list[Trial] = []
    for rounds in task.axes.rounds or (task.config.train.rounds,):
        watch.say(f"calibrating the noise of {rounds} rounds")
        planned = plan_arms(replace(task.config, train=_of_rounds(task.config.train, rounds)))
        here = replace(public, train=_of_rounds(public.train, rounds))
        for arm in planned:
            watch.say(f"{arm.name}, {rounds} rounds")
            alike = replace(arm, clients=public.clients)
            trials += _searched(simulator, here, alike, task.axes, file, watch)
    return trials


def _of_rounds(train: TrainConfig, rounds: int) -> TrainConfig:
    """As many rounds, evaluated after the last."""
    last = min(train.average_last, rounds)
    return replace(train, rounds=rounds, average_last=last, evaluate_every=rounds)


def _searched(
    simulator: Simulator, config: Config, arm: Arm, axes: Axes, file: Path, watch: Watch
) -> list[Trial]:
    """The grid of an arm, widened where its edge is best; what the file has is not played again."""
    grid, rounds = axes.of(arm, private=False), config.train.rounds
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + axes.seeds)
    tried: dict[Pair, Trial] = {}

    def cell(clip: float, reach: float) -> Cell:
        key = {"arm": arm.name, "rounds": rounds, "clip_norm": clip, "reach": reach}
        one = replace(arm, clip_norm=clip, step=step_of(clip, reach))
        return Cell(key, [(one, seed) for seed in seeds])

    for widened in range(WIDEN + 1):
        new = [(c, r) for c in grid[0] for r in grid[1] if (c, r) not in tried]
        watch.counted(len(new), 0)
        cells = [cell(*pair) for pair in new]
        done = lambda cell: watch.counted(0, 1)  # noqa: E731
        lines = play_grid(simulator, config, cells, file, line=_outcome, on_cell=done)
        for pair, line in zip(new, lines, strict=True):
            tried[pair] = Trial(arm.name, rounds, *pair, line["score"], line["loss"])
        best = max(tried, key=lambda pair: tried[pair].rank)
        at_the_end = edges(best, grid)
        if not at_the_end or widened == WIDEN:
            break
        for axis in at_the_end:
            widen(grid[axis], best[axis])
            grid[axis] = [short(value) for value in grid[axis]]
    return list(tried.values())


def _outcome(runs: Sequence[Run]) -> Record:
    """Means over the seeds."""
    last = [played.rounds[-1] for played in runs]
    found = {"score": list(map(score_of, last)), "loss": [line["loss"] for line in last]}
    return {name: None if None in each else float(np.mean(each)) for name, each in found.items()}


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
            own: Record = {"clip_norm": clip, "step": step_of(clip, reach), **noise}
            tables.append(replace(table, name=f"{arm.name[:95]}-{number}", **own))
    return replace(
        task.config,
        name=f"{task.config.name[:93]}-tuning",
        privacy=replace(privacy, epsilon=None),
        plan=None,
        arm=tables,
    )


def _privately(task: Task, path: Path, watch: Watch) -> tuple[list[Trial], Record]:
    """The trials as a run that is resumed, debited and closed as any other."""
    watch.say("calibrating the noise of all trials")
    config, folder = located(trial_run(task)), RunFolder(path)
    watch.counted(len(config.arm) * config.train.rounds, 0)
    if not folder.begun:  # nothing was debited
        shutil.rmtree(path, ignore_errors=True)
        prepared = _prepared(task, config, watch)
        folder = RunFolder.create(path, config)
    elif experiment_id(to_table(folder.config)) != experiment_id(to_table(config)):
        raise ValueError(f"{path}: not the trials of this tuning; expected a new --out")
    else:
        prepared = None
        folder.load_checkpoint()  # drops lines that do not count
        watch.counted(0, len(folder.lines("rounds.jsonl")))
    summary = (
        folder.summary()
        if folder.finished
        else run.run_experiment(
            config,
            folder,
            prepared=prepared,
            resume=prepared is None,
            on_round=lambda record: watch.counted(0, 1),
            say=watch.say,
        )
    )
    tried = ((arm, pair) for arm, pairs in _pairs(task) for pair in pairs)
    trials = [
        Trial(arm.name, arm.rounds, *pair, score_of(one), one["loss"])
        for (arm, pair), one in zip(tried, summary["arms"], strict=True)
    ]
    told = {"population": summary["population"]["id"], "run": str(path)}
    return trials, {**told, "privacy": summary["all_arms_composed"]}


def _prepared(task: Task, config: Config, watch: Watch) -> run.Prepared:
    """All that can be refused, and what to hear before any budget is spent."""
    prepared = run.prepare(config, watch.say)
    if not prepared.population.test_public:
        raise ValueError(
            "--private: the held-out records are people's, and a score on them would be a release "
            "that nobody is charged for; expected a public test set (locks data import --test FILE "
            "--test-public)"
        )
    for line in prepared.warnings():
        watch.warn(line)
    try:
        coverage.check(task.config, [*prepared.arms, *plan_arms(task.config)])
    except ValueError:
        watch.warn("warning: the journal does not pay for these trials and a run after them")
    return prepared
