"""Real processes on loopback, with TLS and node keys."""

from __future__ import annotations

import json

import pytest
from loopback import Loopback, kill, processes_with

from locksfl.device import DeviceLedger, Policy
from locksfl.device.view import ledger_view
from locksfl.engines.flower import certificates
from locksfl.runfolder import RunFolder

pytestmark = pytest.mark.federation


def entries(path):
    """What a device's ledger says, kind by kind: (run, round)."""
    ledger = DeviceLedger.open(path)
    rows = ledger._journal.query("SELECT run, round, kind FROM entries ORDER BY number")
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
        server = loop.server("--seconds", "30")
        for node in (0, 1, 3):
            loop.client(node)
        doomed = loop.doomed_client(2, uploads=2)
        loop.until("a first round", lambda: lines(loop))
        certificates.make_node(tmp_path, "stranger", days=1)
        stranger = loop.client(0, tmp_path / "stranger.key")
        assert stranger.wait(120) == 2
        told = [line for line in loop.log("client-0.log").splitlines() if "locks:" in line]
        assert len(told) == 1
        assert "turned this node away" in told[0]
        assert doomed.wait(120) == -9
        loop.client(2)
        assert server.wait(240) == 0, loop.log("server.log")
        rounds = lines(loop)
        summary = RunFolder.open(loop.run).summary()
    tallies = [line["stages"]["update"] for line in rounds]
    assert [tally["asked"] for tally in tallies] == [4, 4, 4]
    assert [tally["answered"] for tally in tallies] == [4, 3, 4]
    assert tallies[1]["missing"] == 1
    assert summary["simulated"] is False
    for i, files in enumerate(loop.devices):  # every release once, the one that was lost too
        kinds = [kind for _, _, kind in entries(files.ledger)]
        assert kinds == ["reserve", "commit"] * 3, i
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
        loop.until("the SuperLink's end", lambda: not processes_with("superlink.secret"))
        assert not RunFolder.open(loop.run).finished
        resumed = loop.server("--seconds", "30", "--resume")
        assert resumed.wait(240) == 0, loop.log("server.log")
        rounds = lines(loop)
        assert [line["round"] for line in rounds] == [1, 2, 3]
    for files in loop.devices:
        runs = {run for run, _, _ in entries(files.ledger)}
        rounds = [number for _, number, kind in entries(files.ledger) if kind == "reserve"]
        assert len(runs) <= 2
        assert sorted(rounds) == sorted(set(rounds))  # nobody was asked twice in one round
    assert_within_budget(loop)
    assert processes_with(str(tmp_path)) == []
