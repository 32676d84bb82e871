"""A federation of real processes on loopback, for the tests: files, commands, and an end to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from locksfl.experiment.config import parse_config
from locksfl.experiment.run import prepare
from locksfl.federation import certificates, settings
from locksfl.federation.child import stop
from locksfl.federation.demo import client_command, free_port, make_devices, start_client
from locksfl.federation.server.serving import as_federation

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
PATIENCE = 120.0  # seconds until a test gives up: nothing is timed, this is for what never comes

# the norms' noise is next to nothing, and K' = m C: everybody is drawn in every round
EXPERIMENT = """
name = "loopback"
[data]
clients = {nodes}
split = {{ kind = "iid" }}
max_samples = 50
[train]
rounds = {rounds}
clip_norm = 0.01
[privacy]
trust = "local"
relation = "zero-out"
[[arm]]
name = "locks"
rule = "norm"
cohort = {nodes}
uploads = {nodes}
noise_multiplier = 5.0
norm_multiplier = 0.001
"""


class Loopback:
    """Use as a context manager: whatever was started is stopped."""

    def __init__(
        self, folder: Path, nodes: int = 4, rounds: int = 3, experiment: str = EXPERIMENT
    ) -> None:
        self.folder, self.nodes, self.port = folder, nodes, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.certs, self.keys, self.run = folder / "certs", folder / "keys", folder / "run"
        self.home = folder / "home"
        self.home.mkdir()
        self.experiment = folder / "loopback.toml"
        self.experiment.write_text(experiment.format(nodes=nodes, rounds=rounds))
        certificates.make_server(self.certs, ["127.0.0.1", "localhost"], days=1)
        for i in range(nodes):
            certificates.make_node(self.keys, f"node-{i:03d}", days=1)
        self.config = as_federation(parse_config(self.experiment.read_text()))
        self.devices = make_devices(folder, self.config, prepare(self.config), self.keys)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        stop([p for p in self.processes if p.poll() is None])

    def options(self, node: int, key: Path | None = None) -> list[str]:
        """The options of a node's client; with another key, its ledger is accepted there."""
        files = self.devices[node]
        if key is not None:
            files = replace(files, key=key)
            files.witness.accept()
        return client_command(files, self.address, self.certs / certificates.CA)

    def client(self, node: int, key: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a node."""
        log = self.folder / f"client-{node}.log"
        self.processes.append(start_client(self.options(node, key), self.home, log))
        return self.processes[-1]

    def light_client(self, node: int) -> subprocess.Popen[bytes]:
        """Start a node that trains with examples/numpy_client.py: without JAX it is up sooner."""
        files = self.devices[node]
        options = {
            "--server": self.address,
            "--ca": self.certs / certificates.CA,
            "--key": files.key,
            "--policy": files.policy,
            "--ledger": files.ledger,
            "--update": "numpy_client:update",
        }
        given = [str(part) for pair in options.items() for part in pair]
        command = [sys.executable, "-m", "locksfl.cli.as_child", "client", *given]
        training = {"MY_DATA": str(files.data), "PYTHONPATH": str(EXAMPLES)}
        return self._start(command, f"client-{node}.log", training)

    def doomed_client(self, node: int, uploads: int) -> subprocess.Popen[bytes]:
        """Start a node that is killed in that upload."""
        command = [sys.executable, str(HERE / "killed_client.py"), str(uploads), "client"]
        return self._start([*command, *self.options(node)], f"client-{node}.log")

    def stock_supernode(self, node: int) -> subprocess.Popen[bytes]:
        """Start a node as Flower does: another process for every message."""
        names = ("policy", "ledger", "key", "data", "experiment")
        files = {name: getattr(self.devices[node], name) for name in names}
        start = "from flwr.supernode.cli.flower_supernode import flower_supernode as f; f()"
        options = {
            "--superlink": self.address,
            "--root-certificates": self.certs / certificates.CA,
            "--auth-supernode-private-key": self.keys / f"node-{node:03d}.key",
            "--port": free_port(),
            "--node-config": " ".join(f'{name}="{path}"' for name, path in files.items()),
        }
        given = [str(part) for pair in options.items() for part in pair]
        return self._start([sys.executable, "-c", start, *given], f"client-{node}.log")

    def superlink(self) -> int | None:
        """The number of the SuperLink's process, if there is one."""
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    command = (place / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if str(self.run / "flower" / "gate.json").encode() in command:
                    return int(place.name)
        return None

    def server(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the server, on the experiment or, with --resume, on the run."""
        command = [sys.executable, "-m", "locksfl.cli.as_child", "server"]
        if "--resume" not in options:
            command.append(str(self.experiment))
        where = {"--certs": self.certs, "--keys": self.keys, "--port": self.port, "--out": self.run}
        command += [str(part) for pair in where.items() for part in pair]
        return self._start([*command, "--wait", "60", "--json", *options], "server.log")

    def _start(
        self, command: list[str], log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            started = subprocess.Popen(
                command,
                env={**self._environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes.append(started)
        return started

    def _environment(self) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)  # a stock SuperNode starts others by their names
        path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
        quick = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PATH": path}
        return {**settings(self.home), **quick}

    def log(self, name: str) -> str:
        """What a process printed."""
        return (self.folder / name).read_text("utf-8", errors="replace")

    def until(self, what: str, happened: object) -> None:
        """Wait for something, and say what never came."""
        ends = time.monotonic() + PATIENCE
        while not happened():  # type: ignore[operator]
            if time.monotonic() > ends:
                raise AssertionError(f"{what} never came; server: {self.log('server.log')[-2000:]}")
            time.sleep(0.1)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def processes_with(word: str) -> list[str]:
    """The command lines of all processes whose command or environment holds a word."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            command = (place / "cmdline").read_bytes()
            if word.encode() in command + (place / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # gone meanwhile, or another user's
    return found
