"""Play every case that a folder does not have yet: tune it, then report it.

On a CPU, cases are played one after another. On a GPU several threads play cases at the same time:
while one compiles or draws cohorts, another has the device. A case is the same either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import zip_longest

import jax

from locksfl.experiment.comparison.bench import Bench, Chosen
from locksfl.experiment.comparison.folder import REPORT, TUNING, Folder
from locksfl.experiment.comparison.grid import Case, Comparison
from locksfl.experiment.comparison.noise import Calibrations
from locksfl.experiment.comparison.tuning import tune

MOST_THREADS = 8
OnStage = Callable[[str, Case], None]


def play(folder: Folder, on_stage: OnStage, say: Callable[[str], None]) -> None:
    """Play what is missing; a case that fails is noted, and the others go on.

    Args:
        folder: what is finished, and where to put the rest.
        on_stage: called with every stage of a case when it is finished.
        say: called with what is about to take a while.
    """
    comparison = folder.comparison
    folder.forget_failures()
    missing = folder.missing
    labels = list(dict.fromkeys(case.data for case in missing))
    with Calibrations() as noise:
        for case in missing:  # in other processes, while the data are opened
            noise.ask(comparison.arm(case), comparison.privacy(case))
        for label, bench in _opened(comparison, labels, noise, say):
            mine = [case for case in missing if case.data == label]
            if bench.on_cpu:
                for case in mine:
                    _one(folder, bench, case, on_stage)
            else:
                _in_threads(folder, bench, mine, on_stage)


def _opened(
    comparison: Comparison, labels: Sequence[str], noise: Calibrations, say: Callable[[str], None]
) -> Iterator[tuple[str, Bench]]:
    """The data of each label; on a GPU the next ones are opened while these are played."""
    ahead = jax.default_backend() != "cpu"
    with ThreadPoolExecutor(1) as opener:
        coming: Future[Bench] | None = None
        for label, following in zip_longest(labels, labels[1:]):
            say(f"opening the data {label}".strip())
            bench = Bench(comparison, label, noise) if coming is None else coming.result()
            if ahead and following is not None:
                coming = opener.submit(Bench, comparison, following, noise)
            yield label, bench


def _in_threads(folder: Folder, bench: Bench, cases: Sequence[Case], on_stage: OnStage) -> None:
    """Ctrl-C takes effect when the runs that are being played end."""
    methods = folder.comparison.methods
    longest_first = sorted(cases, key=lambda case: not methods[case.method].uploads_follow_data)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        played = [pool.submit(_one, folder, bench, case, on_stage) for case in longest_first]
        try:
            wait(played)
        except BaseException:
            bench.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        for one in played:
            one.result()


def _one(folder: Folder, bench: Bench, case: Case, on_stage: OnStage) -> None:
    """Both stages of a case, unless they are there."""
    try:
        chosen = _chosen(folder, bench, case, on_stage)
        folder.add(REPORT, case, bench.report_line(case, chosen))
        on_stage(REPORT, case)
    except Exception as error:
        folder.fail(case, error)


def _chosen(folder: Folder, bench: Bench, case: Case, on_stage: OnStage) -> Chosen:
    if bench.tuning is None:
        arm = bench.comparison.arm(case)
        return Chosen(arm.clip_norm, arm.step, arm.cohort)
    line = folder.line(TUNING, case)
    if line is None:
        line = folder.add(TUNING, case, tune(bench, case))
        on_stage(TUNING, case)
    return Chosen(**line["chosen"])
