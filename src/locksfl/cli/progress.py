"""Progress of long work: bars in a terminal; elsewhere, as in a log file, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

if TYPE_CHECKING:
    from locksfl.grids.drive import Watch

EVERY = 10.0  # seconds from one line to the next


class Bars(Progress):
    """Rich's bars or, where there is no terminal, lines without any control code.

    Args:
        console: where they are shown.
        stopped: the last line of a command that Ctrl-C stops under these bars.
        more: columns besides the description, the bar, the count and the time that is left.
        width: of the description.
        quiet: show no progress at all unless it is a terminal.
    """

    def __init__(
        self,
        console: Console,
        stopped: Callable[[], str],
        *more: str,
        width: int = 40,
        quiet: bool = False,
    ):
        super().__init__(
            f"{{task.description:<{width}}}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            *more,
            console=console,
            disable=not console.is_terminal,
        )
        self._stopped = stopped
        self._lines = not console.is_terminal and not quiet
        self._last = time.monotonic()
        self._finished: set[TaskID] = set()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Take the bars away; Ctrl-C ends the command."""
        super().__exit__(kind, *rest)
        if kind is KeyboardInterrupt:
            self._print(self._stopped())
            raise typer.Exit(130) from None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As rich's; the end of a task has a line of its own. A task of which nobody knows yet how
        long it is has no total."""
        super().update(task_id, **changes)
        task, now = self._tasks[task_id], time.monotonic()
        ended = task.finished and task_id not in self._finished
        if self._lines and (ended or now - self._last >= EVERY):
            self._last = now
            status = task.fields.get("status")
            done = task.total is not None and f": {task.completed:g} of {task.total:g}"
            self._print(f"{task.description}{done or ''}{f', {status}' if status else ''}")
        (self._finished.add if task.finished else self._finished.discard)(task_id)

    def _print(self, line: str) -> None:
        print(line, file=self.console.file, flush=True)


@contextmanager
def watching(stopped: Callable[[], str], as_json: bool) -> Iterator[Watch]:
    """The progress of a grid, or of a tuning's charged run: plays that are done, of those that are
    known to be asked for by now. Nothing but JSON is to come on stdout if that is asked for."""
    from locksfl.grids.drive import Watch

    with Bars(Console(stderr=as_json), stopped, quiet=as_json) as bars:
        line = bars.add_task("", total=None)

        def counted(more: int, done: int) -> None:
            bars.update(line, total=(bars.tasks[0].total or 0) + more, advance=done)

        yield Watch(counted, lambda text: bars.update(line, description=text))
