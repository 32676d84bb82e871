"""The noise of many arms: each found once, and in parallel where there are cores for it.

Noise depends neither on the clip norm nor on the step, so one calibration serves a whole grid.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Self

from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.experiment.plan import calibrated

ENOUGH_CORES = 4  # with fewer, other processes would take them from the training


class Calibrations:
    """Calibrations and costs, kept by what they depend on."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        if cores >= ENOUGH_CORES:  # a new interpreter each: a process that runs JAX must not fork
            context = multiprocessing.get_context("spawn")
            quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
            self._pool = ProcessPoolExecutor(
                cores - 2, mp_context=context, initializer=signal.signal, initargs=quiet
            )
        self._found: dict[Any, Future[Any]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, arm: Arm, privacy: PrivacyConfig) -> None:
        """Begin a calibration that will be needed."""
        if arm.private and self._pool is not None:
            self._ask(calibrated, _plain(arm), privacy)

    def added(self, arms: Sequence[Arm], privacy: PrivacyConfig) -> list[Arm]:
        """The arms with the noise that the epsilon asks for."""
        if not arms or not arms[0].private:
            return list(arms)
        for arm in arms:
            privacy.check_noise(arm)
        asked = [self._ask(calibrated, _plain(arm), privacy) for arm in arms]
        return [
            replace(arm, noise=one.result().noise) for arm, one in zip(arms, asked, strict=True)
        ]

    def costs(self, arm: Arm, privacy: PrivacyConfig) -> list[dict[str, Any]]:
        """What the arm's rounds cost, for each observer and relation."""
        return self._ask(_costs, _plain(arm), privacy).result()

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        key = (function.__name__, *arguments)
        with self._lock:
            if key in self._found:
                return self._found[key]
            if self._pool is not None:
                self._found[key] = self._pool.submit(function, *arguments)
                return self._found[key]
            asked: Future[Any] = Future()
            self._found[key] = asked
        try:
            asked.set_result(function(*arguments))
        except BaseException as error:
            asked.set_exception(error)
        return asked


def _plain(arm: Arm) -> Arm:
    """The arm without what noise does not depend on, apart from the name that refusals say."""
    return replace(arm, clip_norm=1.0, step=1.0)


def _costs(arm: Arm, privacy: PrivacyConfig) -> list[dict[str, Any]]:
    return [cost.as_dict() for cost in statement([arm], privacy)]
