"""A command as a child process that ends with its parent, however the parent ends.

python -m locksfl.federation.child superlink --port 8000 ...
python -m locksfl.federation.child client --server localhost:8000 ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from locksfl.federation import settings

WATCH_SECONDS = 0.2
PARENT = "LOCKS_PARENT"  # in the environment: a parent may be gone before its child can ask for it


def start(
    command: list[str], home: Path, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command of this module, "superlink" or "client" with its options, as a child that
    ends with this process. Ctrl-C is for this process: it stops them."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "locksfl.federation.child", *command],
            env={**settings(home), **(environment or {}), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


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


def end_with_parent() -> None:
    """End this process at once when its parent is gone, kill -9 included."""
    parent = int(os.environ.get(PARENT) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run `flower-superlink`, or `locks federation client`, with the arguments given."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    command, *arguments = sys.argv[1:]
    if command == "superlink":
        from locksfl.federation.flower import run_superlink

        run_superlink(arguments)
    else:
        from locksfl.cli.main import main as locks

        sys.argv = ["locks", "federation", command, *arguments]
        locks()


if __name__ == "__main__":
    main()
