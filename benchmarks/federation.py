"""Seconds a round of a federation on this machine, and what they are made of.

    .venv/bin/python -m benchmarks.federation --nodes 20 --rounds 5

All nodes run here: their work shares this machine's cores, where real devices would have their own.
An empty question (the device opens its ledger, checks it, and answers) shows what the transport
costs: push, the device's poll, TLS, the ledger, pull.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import prepare
from locksfl.federation import certificates, demo
from locksfl.federation.server import grid
from locksfl.federation.server.place import Place
from locksfl.federation.server.serving import as_federation, serve
from locksfl.federation.wire import Answer, Question

EMPTY = 5
asked: list[tuple[str, float, float]] = []  # stage, seconds to push, seconds in all
Network = grid.GridNetwork


class Timed(Network):
    """The network, with a watch."""

    def ask(self, questions: dict[int, Question], seconds: float, number: int) -> dict[int, Answer]:
        """As the real one; before the first round, a few empty questions to all."""
        if not asked:
            terms = next(iter(questions.values())).terms
            for _ in range(EMPTY):
                everyone = range(len(self._nodes))
                self._timed({i: Question("end", terms) for i in everyone}, seconds, number)
        return self._timed(questions, seconds, number)

    def _timed(self, questions: dict[int, Question], seconds: float, number: int) -> dict:
        began = time.perf_counter()
        answers = super().ask(questions, seconds, number)
        stage = next((q.stage for q in questions.values()), "none")
        asked.append((stage, self.pushed - began, time.perf_counter() - began))
        if len(answers) < len(questions):
            raise SystemExit(f"{len(questions) - len(answers)} answers are missing")
        return answers

    def _push(self, *arguments: object) -> dict[str, int]:
        ids = super()._push(*arguments)
        self.pushed = time.perf_counter()
        return ids


def megabytes_of(process: int) -> float:
    """The memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    grid.GridNetwork = Timed
    text = demo.experiment_text(options.nodes, options.rounds, "local", 10.0)
    config = parse_config(text[: text.index("[[arm]]")] + text[text.rindex("[[arm]]") :])
    config = as_federation(config)
    prepared = prepare(config)
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        certs, keys, home = folder / "certs", folder / "keys", folder / "home"
        home.mkdir()
        certificates.make_server(certs, ["127.0.0.1"], days=1)
        for i in range(options.nodes):
            certificates.make_node(keys, f"node-{i:03d}", days=1)
        devices = demo.make_devices(folder, config, prepared, keys)
        place = Place(certs, keys, demo.free_port(), seconds=120.0, wait=300.0)
        began, rounds, nodes = time.perf_counter(), [], []

        def started() -> None:
            times["the SuperLink's start"] = time.perf_counter() - began
            address = f"127.0.0.1:{place.port}"
            running = demo.running_clients(devices, address, certs, home)
            nodes.extend(stack.enter_context(running))

        def say(told: str) -> None:
            if told.startswith("waiting for"):  # the last time: for the last node
                start = times["the SuperLink's start"] + began
                times["the nodes' start, all at once"] = time.perf_counter() - start

        def after(record: object) -> None:
            del record
            rounds.append(time.perf_counter())
            megabytes = [megabytes_of(process.pid) for process in nodes]
            times["memory of a node, MB"] = statistics.median(megabytes)

        run = RunFolder.create(folder / "run", config)
        serve(config, run, place, prepared=prepared, started=started, say=say, on_round=after)
        totals = [b - a for a, b in itertools.pairwise(rounds)]
    of = {stage: [t for s, _, t in asked if s == stage] for stage in ("end", "norm", "update")}
    times["a round"] = statistics.median(totals)
    times["- norm stage"] = statistics.median(of["norm"][1:])
    times["- update stage"] = statistics.median(of["update"][1:])
    times["- server: sum, step, score, checkpoint, ledger"] = times["a round"] - (
        times["- norm stage"] + times["- update stage"]
    )
    times["an empty question to all nodes"] = statistics.median(of["end"][:EMPTY])
    times["of it, to push"] = statistics.median([p for s, p, _ in asked if s == "end"][:EMPTY])
    print(json.dumps({k: round(v, 2) for k, v in times.items()}, indent=2))


if __name__ == "__main__":
    main()
