"""Seconds a stage with many devices against one server, all on this machine.

    .venv/bin/python -m benchmarks.many_devices --devices 1000 --rounds 3
    .venv/bin/python -m benchmarks.many_devices --devices 1000 --rounds 3 --guards

Every device has its own key, connection with TLS, thread and run of `Node`; none of them trains.
With --guards each answers through its guard, with a ledger on disk and noise; without, it only
answers, which shows what the server and the transport cost. Devices share this machine's cores with
the server, where real ones would have their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.federation import megabytes_of
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import prepare
from locksfl.federation import certificates, demo
from locksfl.federation.device import Policy, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.client_app import client_app
from locksfl.federation.device.node import Node
from locksfl.federation.device.update import Declared
from locksfl.federation.server import grid, superlink
from locksfl.federation.server.allowed import policy_text
from locksfl.federation.server.place import Place
from locksfl.federation.server.serving import as_federation, serve
from locksfl.federation.wire import Answer, Question

PROCESSES = 2
stages: list[tuple[str, int, int, float]] = []  # stage, asked, answered, seconds
EXPERIMENT = """
name = "many-devices"
[data]
clients = {devices}
split = {{ kind = "iid" }}
[train]
rounds = {rounds}
[privacy]
trust = "local"
epsilon = 1000.0
[[arm]]
name = "locks"
rule = "norm"
cohort = {devices}
uploads = {devices}
norm_low = 1.0
floor = 0.5
"""


class Timed(grid.GridNetwork):
    """The network, with a watch."""

    def ask(self, questions: dict[int, Question], *given: object) -> dict[int, Answer]:
        """As the real one."""
        began = time.perf_counter()
        answers = super().ask(questions, *given)
        stage = next((q.stage for q in questions.values()), "none")
        answered = sum(answer.released is not None for answer in answers.values())
        stages.append((stage, len(questions), answered, time.perf_counter() - began))
        return answers


def answer_at_once(run: str, question: Question, kept: object) -> Answer:
    """A device without data, guard and ledger."""
    del run, kept
    if question.stage == "norm":
        return Answer(released=np.zeros(1))
    return Answer(released=np.zeros(SIZE if question.stage == "update" else 0, np.float32))


SIZE = 7850


def be_devices(names: list[str], folder: Path, address: str, guards: bool) -> None:
    """A process with many devices, each in its thread."""
    policy = Policy.read(folder / "policy.toml")
    for name in names:
        key = folder / "keys" / f"{name}.key"
        device = answer_at_once
        if guards:
            ledger = Witness(folder / "ledgers" / f"{name}.sqlite", key)
            ledger.create()
            nothing = Declared(lambda weights, number: np.zeros_like(weights), SIZE, None)
            device = Device(nothing, policy, ledger)
        app = client_app(lambda context, device=device: device)
        node = Node(address, folder / "certs" / certificates.CA, key, app)
        threading.Thread(target=node.serve, args=(lambda told: None,), daemon=True).start()
    threading.Event().wait()


@contextmanager
def devices(count: int, folder: Path, address: str, guards: bool):
    """Processes that together are so many devices."""
    names = [f"node-{i:05d}" for i in range(count)]
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=be_devices, args=(names[i::PROCESSES], folder, address, guards))
        for i in range(PROCESSES)
    ]
    for process in started:
        process.start()
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def processor_seconds(process: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guards", action="store_true")
    options = parser.parse_args()
    grid.GridNetwork = Timed
    links: list[superlink.SuperLink] = []

    class Known(superlink.SuperLink):
        def __enter__(self):
            links.append(self)
            return super().__enter__()

    superlink.SuperLink = Known
    config = as_federation(parse_config(EXPERIMENT.format(**vars(options))))
    prepared = prepare(config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates.make_server(folder / "certs", ["127.0.0.1"], days=1)
        for i in range(options.devices):
            certificates.make_node(folder / "keys", f"node-{i:05d}", days=1)
        (folder / "ledgers").mkdir()
        (folder / "policy.toml").write_text(policy_text(config, prepared.arms))
        place = Place(
            folder / "certs", folder / "keys", demo.free_port(), seconds=600.0, wait=600.0
        )
        run, memory, rounds = RunFolder.create(folder / "run", config), {}, [time.perf_counter()]
        where = (options.devices, folder, f"127.0.0.1:{place.port}", options.guards)
        work: list[tuple[float, ...]] = []  # questions, and seconds of the SuperLink and the server

        def ours() -> tuple[int, int]:
            return links[0]._process.pid, os.getpid()

        with devices(*where) as processes:

            def after(record: object) -> None:
                del record
                rounds.append(time.perf_counter())
                work.append(
                    (sum(asked for _, asked, _, _ in stages), *map(processor_seconds, ours()))
                )
                memory["the SuperLink"], memory["the server"] = map(megabytes_of, ours())
                each = sum(megabytes_of(process.pid) for process in processes) / options.devices
                memory["a device"] = each

            serve(config, run, place, prepared=prepared, on_round=after)
    seconds = {
        stage: [taken for name, _, _, taken in stages if name == stage]
        for stage in ("norm", "update", "end")
    }
    told = {
        "devices": options.devices,
        "guards": options.guards,
        "seconds a stage": {k: [round(t, 2) for t in v] for k, v in seconds.items() if v},
        "milliseconds a device and stage": round(
            1000 * statistics.median([t / asked for _, asked, _, t in stages if asked]), 1
        ),
        "processor milliseconds a question": {
            name: round((last - first) * 1000 / (work[-1][0] - work[0][0]), 2)
            for name, first, last in zip(
                ("the SuperLink", "the server"), work[0][1:], work[-1][1:], strict=True
            )
        },
        "missing": sum(asked - answered for _, asked, answered, _ in stages),
        "seconds a round": [round(b - a, 1) for a, b in itertools.pairwise(rounds)][1:],
        "memory, MB": {k: round(v, 1) for k, v in memory.items()},
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
