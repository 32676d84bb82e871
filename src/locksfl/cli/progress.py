"""Progress of long work: bars in a terminal; elsewhere, as in a log file, a line now and then."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

EVERY = 10.0  # seconds from one line to the next


class Bars(Progress):
    """Rich's bars or, where there is no terminal, lines without any control code.

    Args:
        columns: of the bars.
        console: where they are shown.
        quiet: show nothing at all unless it is a terminal.
    """

    def __init__(self, *columns: str | ProgressColumn, console: Console, quiet: bool = False):
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._lines = not console.is_terminal and not quiet
        self._last = time.monotonic()
        self._finished: set[TaskID] = set()

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
            line = f"{task.description}{done or ''}{f', {status}' if status else ''}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        (self._finished.add if task.finished else self._finished.discard)(task_id)
