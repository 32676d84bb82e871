"""The built wheel in clean environments: with the newest and with the oldest versions that
pyproject.toml allows, the program works and a wrong command line is one line.

No constraints.txt here: that is how a user installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from locksfl.privacy.calibration import calibrate_central

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[1]
UV = (sys.executable, "-m", "uv")
CALIBRATE = ("privacy", "calibrate", "--epsilon", "3", "--rounds", "10")
ENOUGH = ("--clients", "1000", "--cohort", "50")


def call(*command, **options):
    """Run it to its end; what it printed, and its exit code."""
    command = [str(word) for word in command]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def succeed(*command, **options):
    done = call(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lower_bounds():
    """For each dependency in pyproject.toml, the oldest version that it allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {}
    for requirement in map(Requirement, project["dependencies"]):
        (bound,) = (Version(s.version) for s in requirement.specifier if s.operator == ">=")
        found[requirement.name] = bound
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    succeed(*UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["highest", "lowest-direct"])
def locks(request, wheel, tmp_path_factory):
    """The program of a fresh environment, called in an empty folder."""
    home = tmp_path_factory.mktemp(request.param)
    python = home / "venv" / "bin" / "python"
    succeed(*UV, "venv", "--quiet", "--python", sys.executable, home / "venv")
    # pyproject.toml beside the wheel: of a wheel alone every dependency is indirect, so the newest
    wanted = ("--resolution", request.param, "-r", ROOT / "pyproject.toml", wheel)
    succeed(*UV, "pip", "install", "--quiet", "--python", python, *wanted)
    listed = succeed(*UV, "pip", "list", "--quiet", "--python", python, "--format", "json")
    installed = {one["name"]: Version(one["version"]) for one in json.loads(listed)}
    print("\n".join(f"{name}=={version}" for name, version in installed.items()))  # pytest -rP
    if request.param == "lowest-direct":
        assert {name: installed[name] for name in lower_bounds()} == lower_bounds()
    # XLA_FLAGS: those of the tests are for the jaxlib of the tests
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PYTHONPATH")}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "LOCKS_CACHE": "off"}
    return lambda *words: call(home / "venv/bin/locks", *words, cwd=home, env=environment)


@pytest.mark.parametrize("words", [["--help"], [], ["run", "--help"], ["privacy", "--help"]])
def test_help(locks, words):
    done = locks(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: locks" in done.stdout


def test_a_group_without_a_command_shows_its_help(locks):
    done = locks("privacy")
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: locks privacy" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--wrong"], "--wrong"),
        (["rn"], "No such command 'rn'"),
        (["run", "--seed", "one"], "Invalid value for '--seed'"),
        (["run", "--seed"], "--seed"),
        (["run", "a.toml", "b.toml"], "unexpected extra argument"),
        (["run", "missing.toml"], "missing.toml: No such file"),
        (["run", "--set", "train.ronds=2"], "did you mean 'rounds'?"),
        (["privacy", "wrong"], "No such command 'wrong'"),
        ([*CALIBRATE, *ENOUGH, "--wrong"], "--wrong"),
        ([*CALIBRATE, *ENOUGH, "--trust", "wrong"], "--trust = 'wrong': expected one of"),
        ([*CALIBRATE], "--clients, --cohort: missing"),
        (["privacy", "calibrate"], "Missing option '--epsilon'"),
        (["privacy", "account", "run", "--delta", "0.1"], "expected no --delta"),
        (["federation", "demo", "--nodes", "1"], "--nodes"),
    ],
)
def test_a_wrong_command_line_is_one_line(locks, words, expected):
    done = locks(*words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("locks: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_it_calibrates(locks):
    found = json.loads(locks(*CALIBRATE, *ENOUGH, "--json").stdout)
    ours = calibrate_central(3.0, 1e-5, 10, 50 / 1000, accountant="pld")
    assert found["noise_multiplier"] == pytest.approx(ours.noise_multiplier, rel=1e-6)


def test_it_trains_and_reads_what_it_wrote(locks):
    done = locks("run", "--seed", "0", "--set", "train.rounds=2", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert [len(arm["rounds"]) for arm in json.loads(done.stdout)["public"]["arms"]] == [2, 2]
    for words in (["evaluate", "run"], ["privacy", "account", "run"], ["publish", "run", "public"]):
        done = locks(*words)
        assert (done.returncode, done.stderr) == (0, ""), words
