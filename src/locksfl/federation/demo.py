"""A whole federation on one machine, in a temporary folder: certificates, keys, and for every node
its own data file, policy, ledger and process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tomli_w

from locksfl.experiment.config import Config, to_table
from locksfl.experiment.run import Prepared
from locksfl.federation import certificates, child
from locksfl.federation.device.files import DeviceFiles
from locksfl.federation.server.allowed import policy_for

EXPERIMENT = """
name = "federation"
[data]
name = "mnist-embedded"
clients = {nodes}
split = {{ kind = "iid" }}
[train]
rounds = {rounds}
optimizer = {{ name = "sgd", step = 1.2, schedule = "inverse-sqrt" }}
[privacy]
trust = "{trust}"
epsilon = {epsilon}
[[arm]]
name = "uniform"
rule = "uniform"
cohort = {half}
[[arm]]
name = "locks"
rule = "norm"
cohort = {nodes}
uploads = {half}
norm_low = 0.9
"""


def experiment_text(nodes: int, rounds: int, trust: str, epsilon: float) -> str:
    """The demo's experiment: half of the nodes per round, at random and by their norms."""
    values = {"nodes": nodes, "rounds": rounds, "trust": trust, "epsilon": epsilon}
    return EXPERIMENT.format(half=max(1, nodes // 2), **values)


def make_devices(folder: Path, config: Config, prepared: Prepared, keys: Path) -> list[DeviceFiles]:
    """A folder for each client: its part of the data, a policy whose budget covers this run, and a
    new ledger, whose head is noted in `keys`."""
    keys.mkdir(exist_ok=True)
    population = prepared.population
    experiment = folder / "experiment.toml"
    experiment.write_text(tomli_w.dumps(to_table(config)), "utf-8")
    policy = tomli_w.dumps(policy_for(config, prepared.arms))
    made = []
    for i in range(population.clients):
        place = folder / f"node-{i:03d}"
        place.mkdir(mode=0o700)
        rows = slice(*population.offsets[i : i + 2])
        np.savez(
            place / "data.npz",
            features=population.features[rows],
            labels=population.labels[rows],
            classes=population.classes,
            task=json.dumps(population.task.as_dict()),
        )
        (place / "policy.toml").write_text(policy, "utf-8")
        files = DeviceFiles(
            place / "policy.toml",
            place / "ledger.sqlite",
            keys / f"node-{i:03d}.key",
            place / "data.npz",
            experiment,
        )
        files.witness.create()
        made.append(files)
    return made


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client_command(files: DeviceFiles, address: str, ca: Path) -> list[str]:
    """The options of `locks federation client` for one device."""
    options = {
        "--server": address,
        "--ca": ca,
        "--key": files.key,
        "--policy": files.policy,
        "--ledger": files.ledger,
        "--data": files.data,
        "--experiment": files.experiment,
    }
    return [str(part) for option in options.items() for part in option]


@contextmanager
def running_clients(
    devices: list[DeviceFiles], address: str, certs: Path, home: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process for each device; all of them are ended afterwards, whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for files in devices:
            options = client_command(files, address, certs / certificates.CA)
            processes.append(start_client(options, home, files.policy.parent / "client.log"))
        yield processes
    finally:
        child.stop(processes)


def start_client(options: list[str], home: Path, log: Path) -> subprocess.Popen[bytes]:
    """`locks federation client` as a child that ends with this process."""
    return child.start(["client", *options], home, log, _one_core())


def _one_core() -> dict[str, str]:
    """The environment of many small processes on one machine: each needs only one thread."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        "XLA_FLAGS": f"{flags} --xla_cpu_multi_thread_eigen=false".strip(),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
