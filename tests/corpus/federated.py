"""Federations in memory: devices with ledgers, data and known entropy of their own, one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from locksfl.experiment.config import Config, parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import open_task, run_experiment
from locksfl.federation.device import Policy, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.local_update import local_update
from locksfl.federation.server.serving import as_federation, federation_engine
from locksfl.round.client import LocalWork
from locksfl.round.noise import SystemNoise
from memory_network import MemoryNetwork
from small_runs import QUICK

WORK = LocalWork(max_samples=20)
POLICY = {"trust": "local", "epsilon": 1e5, "delta": 1e-5, "max_clip_norm": 1.0, "max_rounds": 50}
POLICY |= {"min_noise_multiplier": 0.01, "min_norm_multiplier": 0.01}
NORMS = '{name="n", rule="norm", cohort=6, uploads=3}'
LOCAL = ("privacy.trust=local", "privacy.epsilon=400.0", "privacy.filter=true")
TWO = f'arm=[{NORMS}, {{name="r", rule="coin", cohort=8, uploads=3}}]'  # rungs by a released count
FEDERATIONS: dict[str, tuple[int | None, tuple[str, ...]]] = {  # killed before a call; changes
    "federation": (None, (*LOCAL, "privacy.releases=3", f"arm=[{NORMS}]")),
    "federation-resumed": (6, (*LOCAL, "privacy.releases=3", f"arm=[{NORMS}]")),
    "federation-central": (None, ("privacy.epsilon=8.0", TWO)),
}


class Killed(BaseException):
    """The server's process is gone."""


class Network(MemoryNetwork):
    """Kills the server before one of its calls."""

    def __init__(self, devices: Any, killed: int | None) -> None:
        super().__init__(devices, "known")
        self.left = killed

    def ask(self, *question: Any) -> Any:
        self.left = None if self.left is None else self.left - 1
        if self.left == 0:
            raise Killed
        return super().ask(*question)


def policy_of(trust: str) -> Policy:
    """What the owners of all devices allow."""
    budget = ("epsilon", "delta") if trust == "central" else ()
    return Policy(**{k: v for k, v in {**POLICY, "trust": trust}.items() if k not in budget})


def devices(config: Config, folder: Path, entropy: Callable[..., Any]) -> dict[int, Device]:
    """A device for every client, with a ledger of its own in d-NUMBER."""
    population, model = open_task(config)
    policy, made = policy_of(config.privacy.trust), {}
    for i in range(population.clients):
        rows = slice(*population.offsets[i : i + 2])
        records = population.features[rows], population.labels[rows], population.scale
        key = jax.random.key(i)
        update = local_update(
            model, WORK, *records, lambda number, key=key: jax.random.fold_in(key, number)
        )
        home = folder / f"d-{i:02}"
        home.mkdir()
        ledger = Witness(home / "ledger.sqlite", home / "me.key")
        ledger.create()
        noise = SystemNoise(entropy("noise", i))
        made[i] = Device(update, policy, ledger, noise, entropy("coin", i))
    return made


def play_federation(name: str, folder: Path, entropy: Callable[..., Any]) -> Path:
    """Play one of FEDERATIONS into a folder, its devices' ledgers within it."""
    killed, changes = FEDERATIONS[name]
    config = as_federation(parse_config(QUICK, changes))
    run = RunFolder.create(folder, config)
    network = Network(devices(config, folder, entropy), killed)
    engine = federation_engine(config, run, 1.0, lambda size: network)
    try:
        run_experiment(config, run, engine=engine)
    except Killed:
        run_experiment(config, run, engine=engine, resume=True)
    return folder
