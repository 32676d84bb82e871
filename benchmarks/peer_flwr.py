"""Peer: Flower 1.41, its simulation on Ray with one actor of one thread a core. The round is
Flower's own: FedAvg under `DifferentialPrivacyClientSideFixedClipping`, clients clip in PyTorch
(quicker than Flower's own modifier). `run_simulation` is deprecated, but the only way to keep a
simulation in one process; what it runs is what `flwr run` runs.

Not the same as ours, by Flower's design: the cohort has a fixed size."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from benchmarks.peer import forget_peak, serve
from benchmarks.torch_net import Net, to_tensors, train_client, use_one_thread
from benchmarks.workloads import WORKLOADS, Workload, load

client_app = ClientApp()


@functools.lru_cache(maxsize=2)
def opened(fields: str) -> tuple[Workload, Net, np.ndarray, np.ndarray]:
    """A workload in an actor: its network and everybody's data, as bytes."""
    use_one_thread()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    workload = Workload(**json.loads(fields))
    return workload, Net(workload.network), *load(workload)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's clipped update, added to the weights that came."""
    config = message.content["config"]
    workload, net, pixels, labels = opened(str(config["workload"]))
    client = int(config.get("client", context.node_config["partition-id"]))
    inputs, targets = to_tensors(workload.network, pixels[client], labels[client])
    start = message.content["arrays"].to_torch_state_dict()
    net.load_state_dict(start)
    update = train_client(net, inputs, targets, workload)
    arrays = {name: start[name] + part for name, part in zip(start, update, strict=True)}
    metrics = MetricRecord({"num-examples": 1})  # every client counts the same
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Numbered(FedAvg):
    """Tells each node which client it is, for checks on fewer clients than there are nodes."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flower's own, a message with its own number to each node."""
        messages = super().configure_train(server_round, arrays, config, grid)
        for client, message in enumerate(messages):
            own = ConfigRecord({**config, "client": client})
            message.content = RecordDict({"arrays": arrays, "config": own})
            yield message


class Timed(DifferentialPrivacyClientSideFixedClipping):
    """Flower's own, with a stopwatch: from the draw of the cohort to the new weights."""

    seconds: list[float]
    began = 0.0

    def configure_train(self, *arguments: Any, **named: Any) -> Any:
        """Start the watch."""
        self.began = time.perf_counter()
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, *arguments: Any, **named: Any) -> Any:
        """Stop it."""
        result = super().aggregate_train(*arguments, **named)
        self.seconds.append(time.perf_counter() - self.began)
        if result[0] is None:
            raise RuntimeError("Flower: some clients failed")
        return result


class Program:
    """The workload on a grid of nodes."""

    def __init__(self, grid: Grid, workload: Workload) -> None:
        self.workload, self.grid = workload, grid
        self.net = Net(workload.network)
        forget_peak()

    def run(self, rounds: int) -> list[float]:
        """Time rounds from the initial weights."""
        return self._play(FedAvg, rounds)[1].seconds

    def mean_update(self) -> np.ndarray:
        """Of all clients, from the initial weights."""
        found, _ = self._play(Numbered, 1)
        arrays = found.to_torch_state_dict().values()
        pairs = zip(arrays, self.net.state_dict().values(), strict=True)
        return self.net.to_vector([after - before for after, before in pairs])

    def _play(self, kind: type[FedAvg], rounds: int) -> tuple[ArrayRecord, Timed]:
        work = self.workload
        inner = kind(
            fraction_train=1e-9,
            min_train_nodes=work.cohort,
            fraction_evaluate=0.0,
        )
        strategy = Timed(inner, work.noise_multiplier, work.clip_norm, work.cohort)
        strategy.seconds = []
        result = strategy.start(
            self.grid,
            ArrayRecord(self.net.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": json.dumps(dataclasses.asdict(work))}),
        )
        return result.arrays, strategy


def main() -> None:
    """The server waits for commands; Ray and its actors stay."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cores = len(os.sched_getaffinity(0))
    server_app = ServerApp()

    @server_app.main()
    def server(grid: Grid, context: Context) -> None:
        del context
        serve(functools.partial(Program, grid))

    run_simulation(
        server_app,
        client_app,
        num_supernodes=WORKLOADS[sys.argv[1]].clients,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    from benchmarks import peer_flwr  # by its name, so that actors import it and share its cache

    peer_flwr.main()
