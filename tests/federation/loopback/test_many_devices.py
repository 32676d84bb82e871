"""Many light devices against one server, each with its own key, connection with TLS and thread."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(50, marks=pytest.mark.federation),
        pytest.param(1000, marks=pytest.mark.long),
    ],
)
def test_none_is_missing(devices):
    command = [sys.executable, "-m", "benchmarks.many_devices", "--devices", str(devices)]
    run = subprocess.run([*command, "--rounds", "2"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout)
    print(run.stdout)
    assert told["missing"] == 0
    # a norm stage and an update stage in each round, and the end
    stages = {name: len(seconds) for name, seconds in told["seconds a stage"].items()}
    assert stages == {"norm": 2, "update": 2, "end": 1}
