"""Real processes: devices that are stopped, keys that cannot be read, spent budgets."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from loopback import Loopback

from locksfl.experiment.folder import RunFolder

pytestmark = pytest.mark.federation

STOPPED = 4.0  # seconds; a server that plays with nobody plays ten rounds a second


def tallies(loop):
    """Of each round played: how many answered its norms."""
    path = loop.run / "rounds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rounds = [json.loads(line)["secret"] for line in lines if line.endswith("}")]
    return [one["stages"]["norm"]["answered"] for one in rounds]


def test_with_nobody_there_no_round_is_played(tmp_path):
    """Finds rounds played, and charged, with devices that are all stopped, or with none because the
    keys cannot be read; a device that ends with its server; and a run of refusals taken for one."""
    with Loopback(tmp_path, nodes=2, rounds=15) as loop:
        options = ("--seconds", "1", "--wait", "120")
        server = loop.server(*options)
        devices = [loop.light_client(i) for i in range(2)]
        loop.until("a first round", lambda: tallies(loop))
        for device in devices:
            os.kill(device.pid, signal.SIGSTOP)
        time.sleep(STOPPED)  # nothing is timed: however long this is, the server waits
        for device in devices:
            os.kill(device.pid, signal.SIGCONT)
        played = len(tallies(loop))
        loop.until("a round of both", lambda: 2 in tallies(loop)[played:])
        # at most the one that had begun, and one for which they still seemed to wait
        assert tallies(loop).count(0) <= 2

        loop.keys.rename(tmp_path / "elsewhere")
        assert server.wait(60) == 2
        told = loop.log("server.log").splitlines()[-1]
        assert f"--keys: {loop.keys} cannot be read (No such file or directory); exp" in told
        assert f"--resume --out {loop.run}" in told
        assert all(device.poll() is None for device in devices)
        (tmp_path / "elsewhere").rename(loop.keys)
        assert loop.server(*options, "--resume").wait(120) == 0, loop.log("server.log")
        found = tallies(loop)
        assert len(found) == 15
        assert found.count(0) <= 3  # and the round in which the keys were lost

        # their policies allow one run: the same experiment again
        loop.run = tmp_path / "again"
        assert loop.server(*options).wait(120) == 3
        assert "every device refuses (BUDGET 2)" in loop.log("server.log").splitlines()[-1]
        assert not RunFolder.open(loop.run).finished
        assert all(device.poll() is None for device in devices)
