"""The program `locks`: a thin file for each group of commands.

In: the words of a command line.
Out: text or JSON for people and programs, one line on standard error, and an exit code.
May not import: nothing is out of bounds here, but no room imports this one.
"""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType

SOON = 0.02  # seconds


def start() -> None:
    """The console script: Ctrl-C is heard from here on, while everything else is still imported."""
    hear_ctrl_c()
    try:
        from locksfl.cli.main import main

        main()
    except KeyboardInterrupt:
        print("locks: stopped", file=sys.stderr)
        sys.exit(130)


def hear_ctrl_c() -> None:
    """The first Ctrl-C stops a command. Later ones change nothing: they would hit files that are
    being written, and computations that must end before their process does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else not ours to hear
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    del number
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not hasattr(signal, "setitimer") or not _would_be_lost(frame):  # Windows has none
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SOON)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception here would be printed and dropped, as in what Python calls when it
    collects garbage, or would end the process, as in the midst of importing compiled code."""
    dropped = {getattr(called, "__code__", None) for called in gc.callbacks}
    while frame is not None:
        code = frame.f_code
        if code in dropped or code.co_name == "__del__" or "importlib" in code.co_filename:
            return True
        frame = frame.f_back
    return False
