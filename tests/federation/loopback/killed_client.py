"""`locks federation client` that is killed with -9 in stage 2: after the debit, before the answer.

python killed_client.py UPLOADS client --server ...      dies in its so-manieth upload
"""

from __future__ import annotations

import os
import signal
import sys

from locksfl.cli.as_child import main
from locksfl.round.noise import SystemNoise

real, left = SystemNoise.steps, int(sys.argv.pop(1))


def steps(self: SystemNoise, std: float, grid: float, size: int) -> object:
    """The noise of an update is drawn when it is paid for: the last one never is."""
    global left
    left -= size > 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, std, grid, size)


SystemNoise.steps = steps  # type: ignore[assignment, method-assign]

if __name__ == "__main__":
    main()
