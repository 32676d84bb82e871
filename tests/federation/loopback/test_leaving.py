"""Real processes over two runs: one device leaves, one joins, one has a new key."""

from __future__ import annotations

import json

import pytest
from loopback import EXPERIMENT, Loopback
from typer.testing import CliRunner

from locksfl.cli.main import app
from locksfl.experiment.folder import RunFolder
from locksfl.federation import certificates
from locksfl.federation.device import DeviceLedger, Policy
from locksfl.federation.device.view import ledger_view
from locksfl.federation.server.devices import status

pytestmark = pytest.mark.federation
FIRST, SECOND = 4, 3  # rounds of the two runs; every policy allows as many together, and no more


def view(files):
    return ledger_view(files.ledger, Policy.read(files.policy))


def played(files):
    """A device's entries: of each run, the rounds by kind."""
    with DeviceLedger.open(files.ledger) as ledger:
        rows = ledger.query("SELECT account, round, kind FROM entries ORDER BY number")
    runs: dict[str, list[tuple[int, str]]] = {}
    for run, number, kind in rows:
        runs.setdefault(run, []).append((number, kind))
    return list(runs.values())


def whole(rounds):
    """The entries of a run in which every update was released."""
    return [(number, kind) for number in range(1, rounds + 1) for kind in ("reserve", "commit")]


def locks(*words):
    done = CliRunner().invoke(app, ["federation", *map(str, words)])
    assert done.exit_code == 0, done.output


def lines(loop):
    path = loop.run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def leaves(loop, node):
    """`locks federation leave`, twice: it is told already the second time."""
    key, ca = loop.devices[node].key, loop.certs / certificates.CA
    for _ in range(2):
        locks("leave", "--server", loop.address, "--ca", ca, "--key", key)


def test_one_leaves_one_joins_and_one_has_a_new_key(tmp_path):
    """Clients are numbered anew in the second run; what they have spent is their own."""
    with Loopback(tmp_path, nodes=4, rounds=FIRST + SECOND) as loop:
        # nobody waits for who has left: this deadline is longer than the test's patience
        options = ("--seconds", "600", "--wait", "600")
        joins = (loop.keys / "node-003.pub").rename(tmp_path / "node-003.pub")
        loop.experiment.write_text(EXPERIMENT.format(nodes=3, rounds=FIRST))
        server = loop.server(*options)
        loop.client(0)
        leaver = loop.client(2)
        assert loop.doomed_client(1, uploads=2).wait(120) == -9  # the run stands still in round 2
        loop.until("its update", lambda: "round 2, update: answered" in loop.log("client-2.log"))
        leaves(loop, 2)
        assert leaver.wait(60) == 0
        assert "this device has left" in loop.log("client-2.log").splitlines()[-1]
        assert [path.name for path in (loop.keys / "left").iterdir()] == ["node-002.pub"]
        left = played(loop.devices[2]), view(loop.devices[2])
        assert left[0] == [whole(2)]

        stolen = loop.client(1)  # back, with its old key for the rest of this run
        assert server.wait(240) == 0, loop.log("server.log")
        norms = [line["secret"]["stages"]["norm"] for line in lines(loop)]
        assert [tally["answered"] for tally in norms] == [3, 3, 2, 2]
        assert [tally["missing"] for tally in norms] == [0, 0, 1, 1]
        gone = [device["gone"] for device in status(RunFolder.open(loop.run))["devices"]]
        assert gone == [None, None, "left"]

        new, files = tmp_path / "new" / "node-001.key", loop.devices[1]
        locks("certs", new.parent, "--node", "node-001")
        locks("ledger", files.ledger, "--policy", files.policy, "--key", new, "--accept")
        new.with_suffix(".pub").replace(loop.keys / "node-001.pub")
        joins.rename(loop.keys / "node-003.pub")
        loop.run = tmp_path / "second"
        loop.experiment.write_text(EXPERIMENT.format(nodes=3, rounds=SECOND))
        server = loop.server(*options)
        rejected = "the server rejected this node"  # while the server waits for the others
        loop.until("a rejection", lambda: rejected in loop.log("client-1.log"))
        assert stolen.poll() is None
        assert loop.client(2).wait(60) == 2
        assert "node-002.key.left: this device has left" in loop.log("client-2.log")
        loop.client(1, new)
        loop.client(3)
        assert server.wait(240) == 0, loop.log("server.log")
        answered = [line["secret"]["stages"]["update"]["answered"] for line in lines(loop)]
        assert answered == [3] * SECOND
    for stayed in loop.devices[:2]:
        assert played(stayed) == [whole(FIRST), whole(SECOND)]
        assert view(stayed)["rounds_left"] == 0
    assert (played(loop.devices[2]), view(loop.devices[2])) == left
    assert played(loop.devices[3]) == [whole(SECOND)]
    assert view(loop.devices[3])["rounds_left"] == FIRST
