"""Who is timed, and where each lives: ours in this environment, a peer in `.venv-NAME`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer import HERE, Peer

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Contender:
    """A program that plays the workloads."""

    about: str
    environment: str | None  # the NAME of its virtual environment; None is this one
    processes: int = 1
    rule: str = ""  # ours only
    precision: str = "full"  # ours only

    @property
    def python(self) -> Path:
        """What runs it."""
        if self.environment is None:
            return Path(sys.executable)
        return HERE / f".venv-{self.environment}" / "bin" / "python"

    @property
    def installed(self) -> bool:
        """Whether its environment is there."""
        return self.python.exists()

    def start(self, workload: str) -> Peer:
        """Its processes, loaded and warmed up."""
        if self.environment is None:
            environment = {
                # as the program sets it: each core is a device
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}",
                # several contenders share a GPU: none may take all of its memory at the start
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                **os.environ,
            }
            command = [str(self.python), "-m", "benchmarks.ours", workload, self.rule]
            command.append(self.precision)
            return Peer(command, environment=environment)
        environment = {**os.environ, "PFL_PYTORCH_DEVICE": "cpu"}
        environment.pop("PYTHONPATH", None)  # this project's packages are not the peer's
        if self.environment != "fedjax":  # PyTorch: one thread a process, or an actor
            environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [str(self.python), "-m", f"benchmarks.peer_{self.environment}", workload]
        return Peer(command, self.processes, environment, watch_tree=self.environment == "flwr")


OURS = {
    "ours": Contender("this project, uniform", None, rule="uniform"),
    "locks": Contender("this project, LOCKS", None, rule="norm"),
}
PEERS = {
    # for a GPU: a CPU computes in full precision either way
    "reduced": Contender("this project, reduced precision", None, 1, "uniform", "reduced"),
    "pfl": Contender(f"pfl 0.6, {CORES} processes", "pfl", CORES),
    "pfl-1": Contender("pfl 0.6, 1 process", "pfl"),
    "flwr": Contender(f"Flower 1.41, Ray, {CORES} actors", "flwr"),
    "fedjax": Contender("fedjax 0.0.17", "fedjax"),
    "torch": Contender(f"PyTorch loop, {CORES} processes", "torch", CORES),
    "torch-1": Contender("PyTorch loop, 1 process", "torch"),
}
DEFAULT_PEERS = ("pfl", "flwr", "fedjax", "torch", "torch-1")
