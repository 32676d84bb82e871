"""A command as a child process that ends with its parent, however the parent ends.

python -m locksfl.cli.as_child superlink GATE.json --isolation process ...
python -m locksfl.cli.as_child client --server localhost:8000 ...
"""

from __future__ import annotations

import signal
import sys

from locksfl.federation.child import end_with_parent


def main() -> None:
    """Run a SuperLink behind its gate, or `locks federation client`, with the arguments given."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    command, *arguments = sys.argv[1:]
    if command == "superlink":
        from locksfl.federation.server.gated import main as superlink

        superlink(arguments)
    else:
        from locksfl.cli.main import main as locks

        sys.argv = ["locks", "federation", command, *arguments]
        locks()


if __name__ == "__main__":
    main()
