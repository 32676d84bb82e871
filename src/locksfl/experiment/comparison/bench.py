"""The data of a comparison on the devices, and cases played on them.

Every other held-out record is tuning's and in no report. Both halves share the clients' records and
the compiled programs. Without tuning, a report uses all held-out records.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.data.task import CLASSES
from locksfl.experiment.comparison.grid import Case, Comparison
from locksfl.experiment.comparison.noise import Calibrations
from locksfl.experiment.comparison.runner import Run, halves, play_runs
from locksfl.experiment.comparison.settings import FIRST_TUNING_SEED
from locksfl.experiment.run import open_task
from locksfl.models.build import scores_of
from locksfl.round.client import PRECISIONS
from locksfl.simulate.simulator import Simulator


class Chosen(NamedTuple):
    """What is chosen for a case."""

    clip_norm: float
    step: float
    cohort: float


class Bench:
    """The data of one label, opened once."""

    def __init__(self, comparison: Comparison, label: str, noise: Calibrations) -> None:
        self.comparison, self.noise = comparison, noise
        self.stop = threading.Event()  # set: what is being played is the last
        self.tuning: Simulator | None = None
        population, model = open_task(comparison.configs[label])
        if population.task != CLASSES:
            raise ValueError(
                f"data.name = {population.name!r}: a comparison counts right answers; expected "
                f"data with classes, got {population.task.kind}"
            )
        self.report = Simulator(population, model)
        if comparison.axes.tuning is not None:
            self.tuning, self.report = halves(self.report)

    @property
    def on_cpu(self) -> bool:
        """Where cases are played one after another."""
        return self.report.on_cpu

    def play(
        self, case: Case, tries: Sequence[Chosen], seeds: Iterable[int], *, tuning: bool
    ) -> list[list[Run]]:
        """The runs of each try, one for each seed."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        configs = [self.comparison.config(case, **one._asdict()) for one in tries]
        arms = self.noise.added([config.arms[0] for config in configs], configs[0].privacy)
        seeds = list(seeds)
        simulator = self.tuning if tuning else self.report
        if simulator is None:
            raise AssertionError("a comparison without tuning")
        asked = [(arm, seed) for arm in arms for seed in seeds]
        runs = play_runs(simulator, configs[0], asked, brief=True)
        return [runs[i : i + len(seeds)] for i in range(0, len(runs), len(seeds))]

    def tuning_runs(self, case: Case, tries: Sequence[Chosen]) -> list[list[Run]]:
        """The runs of each try, on the half and with the seeds that no report uses."""
        grid = self.comparison.tuning(case.method)
        count = 0 if grid is None else grid.seeds
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)
        return self.play(case, tries, seeds, tuning=True)

    def report_line(self, case: Case, chosen: Chosen) -> Record:
        """A case with what was chosen for it, over the seeds of the report."""
        seeds = range(self.comparison.axes.seeds)
        (runs,) = self.play(case, [chosen], seeds, tuning=False)
        arm, outcomes = runs[0].arm, [run.outcome() for run in runs]
        privacy = self.comparison.config(case, **chosen._asdict()).privacy
        means = {name: _mean(outcomes, name) for name in ("cohort", "bytes_up", "bytes_down")}
        right, answers = right_answers(self.report, [run.weights for run in runs])
        return {
            "clip_norm": arm.clip_norm,
            "step": arm.step,
            "cohort": arm.cohort,
            "noise_multiplier": arm.noise.noise_multiplier,
            "norm_multiplier": arm.noise.norm_multiplier,
            "accuracy": [outcome["accuracy"][-1] for outcome in outcomes],
            "uploads_measured": [uploads_a_round(arm, outcome) for outcome in outcomes],
            "bytes_up": means["bytes_up"],
            "bytes_down": means["bytes_down"],
            "privacy": self.noise.costs(arm, privacy),
            "answers": answers,
            "right": packed(right),
        }


def uploads_a_round(arm: Arm, outcome: Record) -> float:
    """The mean uploads of a run's rounds."""
    return float(outcome["uploads"]) / arm.rounds


def _mean(outcomes: Sequence[Record], name: str) -> float:
    return float(np.mean([outcome[name] for outcome in outcomes]))


def right_answers(simulator: Simulator, models: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """For each held-out record the right answers of all models together, and the number of answers
    that one model gives: one for each label."""
    population = simulator.population
    labels = population.test_labels
    right = np.zeros(len(labels), np.uint16)
    with jax.default_matmul_precision(PRECISIONS["full"]):
        for weights in models:
            features = (population.test_features, population.scale)
            scores = scores_of(simulator.model, jnp.asarray(weights), *features)
            good = (np.asarray(jnp.argmax(scores, axis=-1)) == labels) & (labels >= 0)
            right += good.reshape(len(labels), -1).sum(axis=1).astype(np.uint16)
    return right, int((labels >= 0).sum())


def packed(counts: np.ndarray) -> str:
    """Small counts as text."""
    return base64.b64encode(zlib.compress(counts.astype("<u2").tobytes(), 9)).decode()


def unpacked(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The inverse of `packed`."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2").astype(np.int64)
