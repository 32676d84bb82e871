"""Ctrl-C and SIGTERM for a command that has threads, connections and child processes to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from locksfl.cli.console import say_beside
from locksfl.federation.child import kill_all

SECONDS = 8.0  # for an orderly end
STOPPED = 130


def interrupt(number: int, frame: object) -> None:
    """SIGTERM is Ctrl-C: what was started is stopped."""
    del number, frame
    raise KeyboardInterrupt


@contextmanager
def stopping(last_line: Callable[[], str]) -> Iterator[None]:
    """Raise KeyboardInterrupt here on Ctrl-C and SIGTERM, and see that the process ends.

    If a call waits on, or a library drops the exception, the process ends after SECONDS, or at once
    on a second signal, with `last_line()` on stderr. Files are written atomically, so none is lost.

    A thread reads the signals too, from a pipe that is written when they arrive: Python's handlers
    wait for the main thread, and that is the one which may be stuck.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handlers = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    left = threading.Event()

    def end() -> None:
        kill_all()
        if not left.is_set():  # else the command has said so
            saying = threading.Thread(target=lambda: say_beside(last_line()), daemon=True)
            saying.start()
            saying.join(0.5)  # a terminal that takes no text must not keep the process
        os._exit(STOPPED)

    def watch() -> None:
        with open(reader, "rb", buffering=0) as signals:
            if signals.read(1):
                late = threading.Timer(SECONDS, end)
                late.daemon = True  # goes on beyond the command: a thread may keep Python waiting
                late.start()
                if signals.read(1):
                    end()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        left.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(writer)
