"""Who plays the cells of a grid: one process, several, or one device. An executor writes nothing:
`drive` does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)

from locksfl.grids.drive import Cell, Failed, Outcome, Play, Row
from locksfl.simulate.cache import keep_compiled

MOST_THREADS = 8
Work = Callable[[Sequence[Play]], list[Outcome]]  # plays what belongs together; a `Bench` is one
Results = Iterator[Row | Failed]


class Serial:
    """One play after another, and one case after another, in this process."""

    cases: int | None = 1

    def __init__(self, work: Work) -> None:
        self._work = work

    def run(self, cells: Sequence[Cell]) -> Results:
        """In the order of the cells."""
        for cell in cells:
            yield from _played(self._work, [cell])


class Together:
    """On one device, a GPU: the plays of a case at once, and several cases at a time, so that one
    has the device while another compiles or draws its cohorts. Ctrl-C takes effect when the plays
    that are on the device end."""

    cases: int | None = None

    def __init__(self, work: Work) -> None:
        self._work = work

    def run(self, cells: Sequence[Cell]) -> Results:
        """Case by case, as they are finished."""
        cases: dict[int, list[Cell]] = {}
        for cell in cells:
            cases.setdefault(cell.case, []).append(cell)
        pool = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))
        try:
            for one in as_completed(pool.submit(_played, self._work, c) for c in cases.values()):
                yield from one.result()
        finally:
            pool.shutdown(cancel_futures=True)


class Processes:
    """Several processes of this machine, each with data and compiled programs of its own."""

    cases: int | None = None

    def __init__(self, work: Work, count: int) -> None:
        self._work, self._count = work, count
        self._pool: ProcessPoolExecutor | None = None

    def run(self, cells: Sequence[Cell]) -> Results:
        """Each cell in the next process that is free. One that dies takes all that wait with it:
        these are played again one by one, so that only the cell that it died of fails."""
        try:
            for lost in (yield from self._tried(cells)):
                for cell in (yield from self._tried([lost])):
                    error = RuntimeError("its process died: out of memory, or killed")
                    yield Failed(cell.case, cell.number, error)
        except BaseException:  # Ctrl-C, or nobody wants the rest
            self.close()
            raise

    def _tried(self, cells: Sequence[Cell]) -> Generator[Row | Failed, None, list[Cell]]:
        """Returns the cells that are lost because a process died."""
        if self._pool is None:  # a new interpreter each: a process that runs JAX must not fork
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, context, _begin, (self._work,))
        asked, lost = {}, []
        for cell in cells:
            try:
                asked[self._pool.submit(_play_here, cell)] = cell
            except BrokenExecutor:  # a process died while it had nothing to play
                lost.append(cell)
        for one in as_completed(asked):
            try:
                yield from one.result()
            except BrokenExecutor:
                lost.append(asked[one])
        if lost:
            self.close()
        return sorted(lost)

    def close(self) -> None:
        """Let the processes end with what they are playing."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _played(work: Work, cells: Sequence[Cell]) -> list[Row | Failed]:
    """What comes of cells that are played together."""
    try:
        outcomes = work([cell.play for cell in cells])
    except Exception as error:
        return [Failed(cell.case, cell.number, error) for cell in cells]
    named = zip(cells, outcomes, strict=True)
    return [Row(cell.case, cell.number, cell.play.name, outcome) for cell, outcome in named]


_work: Work  # of this process, if `Processes` began it


def _begin(work: Work) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that drives
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_compiled()
    _work = work


def _end_with_parent() -> None:
    """However the driver ended: what is played would be heard by nobody."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _play_here(cell: Cell) -> list[Row | Failed]:
    return _played(_work, [cell])
