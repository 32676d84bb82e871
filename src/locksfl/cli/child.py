"""A command as a child process that ends with its parent, however the parent ends.

python -m locksfl.cli.child superlink --port 8000 ...
python -m locksfl.cli.child client --server localhost:8000 ...
"""

from __future__ import annotations

import signal
import sys

from locksfl.federation.child import end_with_parent


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
