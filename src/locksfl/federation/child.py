"""Child processes that end with their parent, however the parent ends (cli/as_child.py is one)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from locksfl.federation import settings

WATCH_SECONDS = 0.2
PARENT = "LOCKS_PARENT"  # in the environment: a parent may end before its child can ask for its id

_started: list[subprocess.Popen[bytes]] = []


def start(
    command: list[str],
    home: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    sockets: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command of this module, "superlink" or "client" with its options, as a child that
    ends with this process. Ctrl-C is for this process: it stops them."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "locksfl.cli.as_child", *command],
            env={**settings(home), **(environment or {}), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=sockets,
        )
    _started.append(process)
    return process


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End these processes, by force after a while."""
    waiting = list(processes)
    for process in waiting:
        process.terminate()
    for process in waiting:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_all() -> None:
    """End whatever was started here and still runs, even what hangs or was paused."""
    for process in _started:
        if process.returncode is None:
            process.kill()


def end_with_parent() -> None:
    """End this process at once when its parent has ended, even by kill -9."""
    parent = int(os.environ.get(PARENT) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
