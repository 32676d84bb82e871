"""A federation's run at the server: SuperLink up, nodes known, the experiment played."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import Prepared, run_experiment
from locksfl.federation import certificates, settings
from locksfl.federation.server.engine import Federation
from locksfl.federation.wire import Network
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.models.build import Model
from locksfl.privacy.journal import experiment_id

Say = Callable[[str], None]
OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Place:
    """Where a server listens, which clients it knows, and how long it waits."""

    certs: Path
    keys: Path  # a folder of public keys, one per client, numbered by the order of their names
    port: int = 8000
    host: str = "127.0.0.1"
    seconds: float = 60.0  # the deadline of a stage
    wait: float = 60.0  # for nodes to connect, before the first round
    exclude: bool = False  # flagged devices are asked no more

    def public_keys(self, clients: int | None) -> list[bytes]:
        """Every client's key; n is fixed, so there must be as many keys as clients."""
        certificates.check_server(self.certs)
        paths = sorted(self.keys.glob("*.pub"))
        if len(paths) != clients:
            raise ValueError(
                f"--keys {self.keys}: {len(paths)} public keys (*.pub), expected one for each of "
                f"data.clients = {clients}"
            )
        found = [certificates.read_public_key(path) for path in paths]
        for i, (key, path) in enumerate(zip(found, paths, strict=True)):
            if key in found[:i]:
                raise ValueError(
                    f"{path}: the same key as {paths[found.index(key)].name}; expected a different "
                    "key per client"
                )
        return found


def as_federation(config: Config, engine: str = "flower") -> Config:
    """The experiment, marked as one with real devices: a client that is asked may not answer."""
    trust = config.privacy.trust
    if not TRUSTS[trust].private:
        private = " or ".join(repr(name) for name, known in TRUSTS.items() if known.private)
        raise ValueError(
            f"privacy.trust = {trust!r}: expected {private}; no device answers without noise"
        )
    if config.privacy.accounting == "as-printed":
        raise ValueError("privacy.accounting = 'as-printed': expected 'sound' in a federation")
    for arm in config.arms():
        rule, _, _ = arm.parts
        if rule.asks is not None and not rule.released and arm.rule not in RULES:
            raise ValueError(
                f"arm.{arm.name}.rule = {arm.rule!r}: a device would decide by it, and runs no "
                f"code that a server names; expected a rule that releases the {rule.asks.name}"
            )
        if arm.estimator not in ESTIMATORS:
            raise ValueError(
                f"arm.{arm.name}.estimator = {arm.estimator!r}: a device runs no code that a "
                f"server names; expected one of {', '.join(ESTIMATORS)}"
            )
    return dataclasses.replace(config, engine=engine)


def federation_engine(
    config: Config,
    folder: RunFolder,
    seconds: float,
    network: Callable[[int], Network],
    exclude: bool = False,
) -> Callable[[Population, Model, list[Arm]], Federation]:
    """What `run_experiment` takes; `network` is called with the number of parameters."""

    def build(population: Population, model: Model, plans: list[Arm]) -> Federation:
        return Federation(
            population,
            model,
            network(model.size),
            plans,
            folder=folder.path,
            experiment=experiment_id(to_table(config)),
            privacy=config.privacy,
            seconds=seconds,
            exclude=exclude,
        )

    return build


def serve(
    config: Config,
    folder: RunFolder,
    place: Place,
    *,
    prepared: Prepared | None = None,
    resume: bool = False,
    on_round: OnRound = lambda record: None,
    say: Say = lambda text: None,
    started: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Play the experiment on the registered nodes. `started` is called when nodes can connect."""
    keys = place.public_keys(config.data.clients)
    home = folder.path / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    os.environ.update(settings(home))
    from locksfl.federation.server.grid import GridNetwork
    from locksfl.federation.server.superlink import SuperLink

    say("starting the SuperLink")
    with SuperLink(home, place.certs, place.port, place.host) as link:
        nodes = link.register(keys)
        started()
        _wait_for(nodes, link.online, place.wait, say)
        with link.run() as grid:
            engine = federation_engine(
                config,
                folder,
                place.seconds,
                lambda size: GridNetwork(grid, nodes, size, check=link.check),
                place.exclude,
            )
            return run_experiment(
                config,
                folder,
                prepared=prepared,
                resume=resume,
                on_round=on_round,
                say=say,
                engine=engine,
            )


def _wait_for(nodes: list[int], online: Callable[[], set[int]], wait: float, say: Say) -> None:
    """Wait until all are connected or the time is up: a round continues with those that answer."""
    ends = time.monotonic() + wait
    while (missing := len(set(nodes) - online())) and time.monotonic() < ends:
        say(f"waiting for {missing} of {len(nodes)} nodes")
        time.sleep(0.3)
