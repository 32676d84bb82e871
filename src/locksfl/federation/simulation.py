"""The same federation on Flower's own simulation engine (Ray), for users who already have it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from locksfl.experiment.config import Config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.record import Run
from locksfl.experiment.run import run_experiment
from locksfl.federation import settings
from locksfl.federation.device.files import DeviceFiles
from locksfl.federation.server.serving import federation_engine


def simulate(
    config: Config,
    folder: RunFolder,
    devices: list[DeviceFiles],
    home: Path,
    seconds: float,
    **options: Any,
) -> Run:
    """Play the experiment on virtual nodes; each answers through a guard with its own files."""
    os.environ.update(settings(home))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from locksfl.federation.device.client_app import client_app, device_of
    from locksfl.federation.server.grid import GridNetwork

    def device(context: Context) -> Any:
        return device_of(devices[int(context.node_config["partition-id"])])

    server_app, summaries, errors = ServerApp(), [], []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        nodes = _all_nodes(grid, len(devices))
        network = federation_engine(
            config, folder, seconds, lambda size: GridNetwork(grid, nodes, size)
        )
        try:
            summaries.append(run_experiment(config, folder, engine=network, **options))
        except BaseException as error:  # Flower would swallow its type
            errors.append(error)
            raise

    cores = os.cpu_count() or 1
    resources = {"num_cpus": 1.0, "num_gpus": 0.0}
    backend: dict[str, Any] = {"client_resources": resources, "init_args": {"num_cpus": cores}}
    try:
        run_simulation(server_app, client_app(device), len(devices), backend_config=backend)
    except Exception:
        if not errors:
            raise
    if errors:
        raise errors[0]
    return summaries[0]


def _all_nodes(grid: Any, count: int) -> list[int]:
    while len(nodes := sorted(grid.get_node_ids())) < count:
        time.sleep(0.1)
    return nodes
