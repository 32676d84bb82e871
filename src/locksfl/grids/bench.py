"""The data of a grid on the devices, opened once, and plays on them.

Every other held-out record is tuning's and in no report. Both halves share the clients' records and
the compiled programs.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from locksfl.arm import Arm, Noise
from locksfl.experiment.config import Config, PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.experiment.plan import calibrated, claimed_epsilon
from locksfl.experiment.record import Cost
from locksfl.experiment.records import round_record, score_of, totals
from locksfl.experiment.run import open_task, server_for
from locksfl.grids.drive import Executor, Half, Outcome, Play, Reported
from locksfl.grids.executors import Processes, Serial, Together
from locksfl.models.build import scores_of
from locksfl.round.client import PRECISIONS
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import RoundLog, Simulator
from locksfl.simulate.sweep import Setting, play_sweep

MANY = 16  # for fewer plays, one more program to compile would take longer than it saves


class Bench:
    """Simulators, made when they are first needed and kept compiled.

    shared: arms of similar cohorts share a program (see `Simulator.play`).
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._open: dict[str, dict[Half | None, Simulator]] = {}
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it opens data of its own."""
        return functools.partial(Bench, shared=self._shared), ()

    def simulator(self, config: Config, half: Half | None = None) -> Simulator:
        """The configured data and model, scored on half of the held-out records or on all."""
        name = repr((config.data, config.model, config.features))
        with self._opening:
            if name not in self._open:
                self._open[name] = {None: Simulator(*open_task(config))}
            mine = self._open[name]
            if half not in mine:
                mine["tuning"], mine["report"] = halves(mine[None])
            return mine[half]

    def __call__(self, plays: Sequence[Play]) -> list[Outcome]:
        """Play what has the data, the server and the half in common, and differs in its arms and
        seeds: one after another on a CPU, together on a GPU (simulate/sweep.py)."""
        config, half = plays[0].config, plays[0].half
        simulator = self.simulator(config, half)
        arms = [self.with_noise(play.arm, config.privacy) for play in plays]
        played = play_sweep(
            simulator,
            [Setting(a, Randomness.seeded(p.seed)) for a, p in zip(arms, plays, strict=True)],
            config.local.work(),
            server_for(config.train, arms[0].rounds),
            evaluate_every=config.train.evaluate_every,
            at_once=1 if len(plays) < MANY and not self._shared else None,
            brief=self._shared,
        )
        return [
            self._outcome(simulator, play, arm, *one)
            for play, arm, one in zip(plays, arms, played, strict=True)
        ]

    def with_noise(self, arm: Arm, privacy: PrivacyConfig) -> Arm:
        """The arm with the noise that the epsilon asks for, unless it has its own."""
        if not arm.private or arm.noise_multiplier:
            return arm
        privacy.check_noise(arm)
        return replace(arm, noise=noise_of(_plain(arm), privacy))

    def _outcome(
        self,
        simulator: Simulator,
        play: Play,
        arm: Arm,
        logs: Sequence[RoundLog],
        weights: np.ndarray,
    ) -> Outcome:
        """What came of an arm's rounds."""
        lines = [round_record(arm, log, simulator.model, None) for log in logs]
        took, last, reported = totals(lines), lines[-1], None
        if play.reported:
            right, answers = right_answers(simulator, weights)
            privacy = play.config.privacy
            costs, claimed = costs_of(_plain(arm), privacy), claimed_epsilon(arm, privacy)
            reported = Reported(costs, claimed, packed(right), answers)
        return Outcome(
            noise=arm.noise,
            scores=tuple(score for line in lines if (score := score_of(line)) is not None),
            score=score_of(last),
            loss=last["loss"],
            uploads=took["uploads"],
            bytes_up=took["bytes_up"],
            bytes_down=took["bytes_down"],
            reported=reported,
        )


def halves(simulator: Simulator) -> tuple[Simulator, Simulator]:
    """Two simulators on the same clients: one to tune on, one to report from. The halves are
    equally large, so that programs are shared."""
    half = len(simulator.population.test_labels) // 2
    if not half:
        raise ValueError("1 held-out record: expected 2 or more, half of them for tuning")
    return simulator.scoring(slice(0, 2 * half, 2)), simulator.scoring(slice(1, None, 2))


def right_answers(simulator: Simulator, weights: np.ndarray) -> tuple[np.ndarray, int]:
    """The right answers of a model on each held-out record, and the number of answers that it
    gives: one for each label."""
    population = simulator.population
    labels = population.test_labels
    with jax.default_matmul_precision(PRECISIONS["full"]):
        features = (population.test_features, population.scale)
        scores = scores_of(simulator.model, jnp.asarray(weights), *features)
        right = (np.asarray(jnp.argmax(scores, axis=-1)) == labels) & (labels >= 0)
    return right.reshape(len(labels), -1).sum(axis=1), int((labels >= 0).sum())


def packed(counts: np.ndarray) -> bytes:
    """Small counts in few bytes."""
    return zlib.compress(counts.astype("<u2").tobytes(), 9)


def unpacked(content: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The inverse of `packed`."""
    return np.frombuffer(zlib.decompress(content), "<u2").astype(np.int64)


def _plain(arm: Arm) -> Arm:
    """The arm without what neither its noise nor its costs depend on, apart from its name, which
    refusals say: one calibration serves a whole grid."""
    return replace(arm, clip_norm=1.0, step=1.0)


@functools.cache
def noise_of(arm: Arm, privacy: PrivacyConfig) -> Noise:
    """The noise that privacy.epsilon asks for."""
    return calibrated(arm, privacy).noise


@functools.cache
def costs_of(arm: Arm, privacy: PrivacyConfig) -> tuple[Cost, ...]:
    """What the arm's rounds cost, for each observer and relation."""
    return Cost.of(statement([arm], privacy))


@contextmanager
def executor_for(bench: Bench, processes: int = 1) -> Iterator[Executor]:
    """Who plays on this machine: so many processes if there are several, one device if it is a
    GPU, else this process."""
    on_cpu = jax.default_backend() == "cpu"
    if processes == 1:
        yield Serial(bench) if on_cpu else Together(bench)
        return
    if not on_cpu:
        raise ValueError(f"--processes {processes}: expected 1; a GPU plays them together")
    several = Processes(bench, processes)
    try:
        yield several
    finally:
        several.close()
