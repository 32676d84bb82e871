"""Real processes on loopback, with TLS and node keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from loopback import PATIENCE, Loopback, kill, processes_with

from locksfl.experiment.folder import RunFolder
from locksfl.federation import certificates
from locksfl.federation.device import DeviceLedger, Policy
from locksfl.federation.device.view import ledger_view

pytestmark = pytest.mark.federation


START = "from locksfl.cli.main import main; main()"


def entries(path):
    """What a device's ledger says, kind by kind: (run, round)."""
    ledger = DeviceLedger.open(path)
    rows = ledger.query("SELECT account, round, kind FROM entries ORDER BY number")
    ledger.close()
    return [tuple(row) for row in rows]


def assert_within_budget(loop):
    for files in loop.devices:
        view = ledger_view(files.ledger, Policy.read(files.policy))
        assert view["spent_epsilon"] <= view["budget"]["epsilon"]
        rows = entries(files.ledger)
        assert len(rows) == len(set(rows))


def test_four_nodes_three_rounds_and_one_is_killed(tmp_path):
    with Loopback(tmp_path) as loop:
        server = loop.server("--seconds", "30", "--wait", "120")
        certificates.make_node(tmp_path, "stranger", days=1)
        stranger = loop.client(0, tmp_path / "stranger.key")
        for node in (0, 1, 3):
            loop.client(node)
        rejected = "rejected this node"
        loop.until("a rejection", lambda: rejected in loop.log("client-0.log"))
        doomed = loop.doomed_client(2, uploads=1)
        assert doomed.wait(120) == -9
        loop.client(2)
        assert server.wait(240) == 0, loop.log("server.log")
        assert stranger.poll() is None  # it waits: the server may yet take it
        rounds = lines(loop)
        run = RunFolder.open(loop.run).run()
    assert loop.log("client-0.log").count(rejected) == 1  # the unregistered key: one line
    tallies = [line["secret"]["stages"]["update"] for line in rounds]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    # asked again when it is back, it says that its update was paid for, and is not released twice
    assert (tallies[0]["asked"], tallies[0]["answered"]) == (4, 3)
    assert tallies[0]["refused"] == {"REPEATED": 1}
    assert tallies[2]["answered"] == 4  # it is back
    assert run.public.simulated is False
    for i, files in enumerate(loop.devices):
        found = entries(files.ledger)
        rounds = [number for _, number, kind in found if kind == "reserve"]
        assert rounds == [1, 2, 3] if i != 2 else rounds in ([1, 3], [1, 2, 3])
        # every release once, the one that was paid for and lost too
        assert [kind for _, _, kind in found] == ["reserve", "commit"] * len(rounds), i
    assert_within_budget(loop)
    assert processes_with(str(tmp_path)) == []


def lines(loop):
    path = loop.run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_server_is_resumed(tmp_path):
    with Loopback(tmp_path, nodes=3) as loop:
        server = loop.server("--seconds", "30")
        for node in range(3):
            loop.client(node)
        loop.until("a first round", lambda: lines(loop))
        kill(server)
        loop.until("the SuperLink's end", lambda: not processes_with(str(loop.run / "flower")))
        assert not RunFolder.open(loop.run).finished
        resumed = loop.server("--seconds", "30", "--resume")
        assert resumed.wait(240) == 0, loop.log("server.log")
        rounds = lines(loop)
        assert [line["round"] for line in rounds] == [1, 2, 3]
        answered = [line["secret"]["stages"]["update"]["answered"] for line in rounds]
        assert answered[0] == answered[2] == 3  # the nodes came back to the new server
    for files in loop.devices:
        runs = {run for run, _, _ in entries(files.ledger)}
        rounds = [number for _, number, kind in entries(files.ledger) if kind == "reserve"]
        assert len(runs) <= 2
        assert sorted(rounds) == sorted(set(rounds))  # nobody was asked twice in one round
    assert_within_budget(loop)
    assert processes_with(str(tmp_path)) == []


def test_a_stock_supernode_can_take_part(tmp_path):
    """Flower's own SuperNode loads the app that the bundle names, from the installed package."""
    with Loopback(tmp_path, nodes=2, rounds=1) as loop:
        server = loop.server("--seconds", "100", "--stock")
        loop.client(0)
        loop.until("the first node", lambda: "waiting for 1 of 2" in loop.log("server.log"))
        stock = loop.stock_supernode(1)
        try:
            assert server.wait(240) == 0, loop.log("server.log")
        finally:
            os.killpg(stock.pid, signal.SIGKILL)  # it, and what it started
            stock.wait()
        (line,) = lines(loop)
    stages = line["secret"]["stages"]
    assert {stage: t["answered"] for stage, t in stages.items()} == {"norm": 2, "update": 2}
    assert [kind for _, _, kind in entries(loop.devices[1].ledger)] == ["reserve", "commit"]
    assert_within_budget(loop)


@pytest.mark.parametrize("ending", [None, signal.SIGINT, signal.SIGKILL])
def test_the_demo_leaves_no_process_behind(tmp_path, ending):
    mark, run = f"mark-{uuid.uuid4()}", tmp_path / "run"
    rounds = 1 if ending is None else 1000
    options = ["--nodes", "2", "--rounds", str(rounds), "--epsilon", "1e6", "--out", str(run)]
    locks = [sys.executable, "-c", START, "federation", "demo"]
    environment = {**os.environ, "LOCKS_TEST": mark, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [*locks, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if ending is not None:
        played = run / "rounds.jsonl"  # made after its folder
        wait_for(lambda: played.exists() and played.read_text())
        assert len(processes_with(mark)) >= 4  # the demo, a SuperLink, two nodes
        demo.send_signal(ending)
    told = demo.communicate(timeout=240)[0].decode()
    untrained = 3 if "no device sent an update" in told else 0  # as the coins of its round fell
    ends = {None: untrained, signal.SIGINT: 130, signal.SIGKILL: -9}
    assert demo.returncode == ends[ending], told
    wait_for(lambda: not processes_with(mark))  # who is killed tells nobody: they see it
    if ending is None:
        assert "ε SERVER" in told
        assert RunFolder.open(run).run().public.settings.engine == "flower"
    if ending != signal.SIGKILL:
        assert list(tmp_path.glob("locks-federation-*")) == []


def wait_for(happened):
    ends = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.1)
