"""A command as a child process that ends with its parent, however the parent ends.

python -m locksfl.federation.child superlink --port 8000 ...
python -m locksfl.federation.child client --server localhost:8000 ...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

WATCH_SECONDS = 0.2
PARENT = "LOCKS_PARENT"  # in the environment: a parent may be gone before its child can ask for it


def child_of_this() -> dict[str, str]:
    """For the environment of a child: the process that it ends with."""
    return {PARENT: str(os.getpid())}


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
