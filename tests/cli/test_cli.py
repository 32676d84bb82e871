"""The program: one line for what is wrong, nothing half done, and Ctrl-C costs nothing."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli_results import refused
from locksfl.audit.attacks import Finding
from locksfl.audit.properties import Check
from locksfl.audit.suite import Report
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.simulate import simulator as simulate
from small_runs import (
    CENTRAL,
    QUICK,
    call_locks,
    copied,
    finished,
    imported,
    lines,
    play,
    quick,
    stopped_after,
    summary,
)

PROGRAM = [sys.executable, "-c", "from locksfl.cli import start; start()"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


LIGHT = """
import sys
from locksfl.cli.main import main
def call(*words):
    sys.argv = ["locks", *words]
    try: main()
    except SystemExit as ended: assert not ended.code, words
for words in ("--help", "--version", "run --help", "", "data --help"):
    call(*words.split())
print({"jax", "numpy", "matplotlib", "scipy", "pyarrow", "pooch"} & set(sys.modules))
for words in ("optimal --norms 1,2 --uploads 1", "composition", "rounds --parameters 10"):
    call("theory", *words.split())
print({"jax"} & set(sys.modules))
"""


def test_help_and_version_import_nothing_large_and_formulas_no_jax():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines().count("set()") == 2
    assert done.stdout.count("Usage: locks") == 4
    assert "locks 0." in done.stdout
    assert all(word in done.stdout for word in ("list", "describe", "fetch", "import"))
    assert done.stderr == ""


BAD = [
    (["run", "{missing}"], "No such file"),
    (["run", "{folder}"], "directory"),
    (["run", "{binary}"], "not valid TOML"),
    (["run", "{broken}"], "not valid TOML"),
    (["run", "{file}", "--set", "train.ronds=3"], "did you mean 'rounds'?"),
    (["run", "{file}", "--set", "train.rounds"], "expected key=value"),
    (["run", "{file}", "--set", "train.rounds=0"], "train.rounds = 0: expected"),
    (["run", "{file}", "--set", "arm.locks.uploads=7"], "expected at most the cohort, 6"),
    (["run", "{file}", "--set", "privacy.epsilon=8"], "already fixes it"),
    (["run", "{file}", "--set", "data.name=mnst"], "data.name = 'mnst'"),
    (["run", "{file}", "--seed", "-1"], "seed = -1"),
    (["run", "{file}", "--seed", "one"], "'one' is not a valid integer"),
    (["run", "{file}", "--sed", "1"], "No such option"),
    (["run", "{file}", "more"], "unexpected extra argument"),
    (["rn", "{file}"], "No such command 'rn'"),
    (["run", "{file}", "--resume"], "--resume continues a run unchanged"),
    # numbers that nothing can count, hold or wait for
    (["run", "{file}", "--set", f"train.rounds={2**31}"], "expected at most 1000000"),
    (["run", "{file}", "--set", f"train.rounds={10**9}"], "expected at most 1000000"),
    (["run", "{file}", "--set", f"train.evaluate_every={10**22}"], "expected at most"),
    (["run", "{file}", "--set", f"data.min_samples={10**40}"], "expected at most"),
    (["run", "{file}", "--set", f"local.min_samples={10**9}"], "expected at most 10000"),
    (["run", "{file}", "--set", f"arm.locks.uploads={10**400}"], "expected a number"),
    (
        ["run", "{file}", "--set", "model.name=mlp", "--set", "model.hidden=[1000000000]"],
        "weights; expected at most",
    ),
    # found only once the data are open, or the noise is calibrated
    (["run", "{file}", "--set", "data.name=mnist"], "LOCKS_DATA"),
    (["run", "{file}", "--set", "data.clients=20000"], "expected at most 10000"),
    (
        ["run", "{central}", "--set", "arm.locks.norm_multiplier=0.01"],
        "norm releases alone cost",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "expected", "json_too"),
    [(*case, number % 2 == 1) for number, case in enumerate(BAD)],
)
def test_bad_input_is_one_line_and_no_folder(
    locks, file, tmp_path, monkeypatch, arguments, expected, json_too
):
    monkeypatch.delenv("LOCKS_DATA", raising=False)
    paths = {name: tmp_path / name for name in ("missing", "folder", "binary", "broken", "central")}
    paths["folder"].mkdir()
    paths["binary"].write_bytes(b"\xff\x00")
    paths["broken"].write_text("[data\nclients = 3")
    paths["central"].write_text(CENTRAL)
    out = tmp_path / "out"
    filled = [a.format(file=file, **paths) for a in arguments]
    result = locks(*filled, "--out", out, *["--json"] * json_too)
    assert expected in refused(result)
    assert not out.exists()
    if json_too:
        assert result.out == ""


def test_an_existing_folder_is_not_written_over(locks, file, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    assert "already exists" in refused(locks("run", file, "--out", out))
    assert os.listdir(out) == ["mine"]


def test_a_folder_that_cannot_be_made_is_one_line(locks, file):
    for out in (file / "run", Path("/proc/locks/run"), Path("/dev/full/run")):
        assert str(out) in refused(locks("run", file, "--out", out))


@pytest.fixture
def file_size_limit():
    """The kernel itself refuses to make a file longer, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_and_the_run_resumes(locks, file, tmp_path, file_size_limit):
    out = tmp_path / "out"
    file_size_limit(20_000)  # too little for the weights
    result = locks("run", file, "--out", out, "--seed", 3)
    file_size_limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert f"cannot write {out}/checkpoint.npz: File too large" in refused(result)
    assert not (out / "summary.json").exists()
    assert not list(out.glob(".*"))
    assert locks("run", "--resume", "--out", out).code == 0
    assert (out / "rounds.jsonl").read_bytes() == (quick(seed=3) / "rounds.jsonl").read_bytes()


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(locks, file, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    line = refused(locks("run", file, "--out", tmp_path / "out"))
    assert f"cannot write {tmp_path}/out/rounds.jsonl: No space left on device" in line
    assert not (tmp_path / "out").exists()


def test_a_run_prints_its_table_and_where_it_is(locks, file, tmp_path):
    out = tmp_path / ("a-folder-whose-path-is-longer-than-a-line-" * 2 + "[red]")
    result = locks("run", file, "--out", out, "--seed", 3)
    assert result.code == 0
    assert result.err == ""
    assert f"run folder: {out}  (page: {out}/report.html)\n" in result.out
    assert f"{summary(out)['arms'][0]['accuracy']:.3f}" in result.out
    assert "simulated" in result.out


def test_json_is_all_that_stdout_gets(locks, file, tmp_path):
    result = locks("run", file, "--out", tmp_path / "out", "--seed", 3, "--json")
    assert json.loads(result.out) == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert result.err == ""  # nobody watches: stderr is not a terminal
    assert (tmp_path / "out" / "figure.svg").is_file()


def test_without_out_a_run_has_a_folder_of_its_own(locks, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locks("run", file, "--set", "train.rounds=1").code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("quick-")
    assert summary(run)["simulated"] is False
    assert "no unfinished run in runs/" in refused(locks("run", "--resume"))


def test_init_writes_a_file_that_run_accepts(locks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "locks run experiment.toml" in locks("init").out
    assert "already exists" in refused(locks("init"))
    small = {
        "train.rounds": 1, "data.clients": 12, "arm.uniform.cohort": 4, "arm.locks.cohort": 6,
        "arm.locks.uploads": 4, "local.max_samples": 40, "privacy.accountant": "rdp",
    }  # fmt: skip
    changes = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    result = locks("run", "experiment.toml", *changes, "--out", "out", "--json")
    assert [arm["name"] for arm in json.loads(result.out)["public"]["arms"]] == ["uniform", "locks"]
    assert "No such file" in refused(locks("init", "no/where.toml"))


def test_evaluate_agrees_with_the_summary(locks):
    for run in (finished(), finished("local")):
        result = locks("evaluate", run, "--json")
        for told, arm in zip(json.loads(result.out), summary(run)["arms"], strict=True):
            assert told["name"] == arm["name"]
            assert told["accuracy"] == pytest.approx(arm["accuracy"], abs=1e-6)
            assert told["loss"] == pytest.approx(arm["loss"], rel=1e-5)
            by_class = told["accuracy_by_class"]  # 200 held-out records of each class
            assert sum(by_class) / len(by_class) == pytest.approx(told["accuracy"], abs=1e-6)
    assert "class 9" in locks("evaluate", finished()).out


def test_a_run_on_a_folder_is_evaluated_from_anywhere(locks, tmp_path, monkeypatch):
    """Found alone here: the run folder had the data's path as typed, and a bundle may have none."""
    shutil.copytree(imported(), tmp_path / "data" / "people")
    (tmp_path / "quick.toml").write_text(QUICK)
    monkeypatch.chdir(tmp_path)
    np.savez("encoder.npz", W=np.eye(4, dtype=np.float32))
    for number, name in enumerate(('"people", dir="data"', '"data/people"')):
        changes = (f"data={{name={name}}}", "arm.locks.cohort=5", "train.rounds=1")
        changes += ('features={name="encoder",file="encoder.npz"}',)
        words = [word for change in changes for word in ("--set", change)]
        assert locks("run", "quick.toml", *words, "--seed", "1", "--out", f"run{number}").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for run in ("run0", "run1"):
        assert locks("evaluate", f"../{run}").code == 0
        assert locks("publish", f"../{run}", run).code == 0
        for file in (tmp_path / "elsewhere" / run).iterdir():
            assert str(tmp_path).encode() not in file.read_bytes(), file


def test_a_run_on_a_folder_goes_on_from_anywhere(capsys, tmp_path, monkeypatch):
    """Found alone here: a path as typed in the identity of a run, and as it is in its folder."""
    shutil.copytree(imported(), tmp_path / "people")
    (tmp_path / "quick.toml").write_text(QUICK)
    monkeypatch.chdir(tmp_path)
    changes = ("--set", 'data={name="people"}', "--set", "arm.locks.cohort=5")
    with stopped_after(tmp_path / "run", 1):
        call_locks(capsys, "run", "quick.toml", *changes, "--out", "run", code=130)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    call_locks(capsys, "run", "--resume", "--out", "../run")


def test_evaluate_and_publish_refuse_what_is_not_a_finished_run(locks, tmp_path):
    unfinished = copied(quick())
    (unfinished / "summary.json").unlink()
    for command in (["evaluate"], ["publish"]):
        more = [tmp_path / "bundle"] if command == ["publish"] else []
        assert "not a run folder" in refused(locks(*command, tmp_path, *more))
        assert "not finished" in refused(locks(*command, unfinished, *more))
    assert not (tmp_path / "bundle").exists()
    damaged = copied(quick())
    (damaged / "model-locks.npz").write_bytes(b"PK\x03\x04")
    assert "model-locks.npz: damaged" in refused(locks("evaluate", damaged))


def test_publish_prints_its_files(locks, tmp_path):
    result = locks("publish", quick(), tmp_path / "bundle")
    printed = {Path(line).name for line in result.out.split()}
    assert printed == set(os.listdir(tmp_path / "bundle"))
    assert "STATEMENT.md" in printed


def test_resume_refuses_a_finished_run_and_spares_what_is_not_one(locks, tmp_path):
    run = copied(quick())
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "finished, nothing to resume" in refused(locks("run", "--resume", "--out", run))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert "not a run folder" in refused(locks("run", "--resume", "--out", tmp_path))
    (tmp_path / "config.toml").write_text(QUICK)
    assert "nothing to resume" in refused(locks("run", "--resume", "--out", tmp_path))
    assert (tmp_path / "config.toml").read_text() == QUICK


def test_a_run_killed_before_its_first_checkpoint_simply_starts(locks, file, tmp_path):
    killed = RunFolder.create(tmp_path / "killed", parse_config(QUICK, (), 3)).path
    (killed / ".environment.json.abcdefgh").write_text("{")
    assert "or --resume" in refused(locks("run", file, "--out", killed))
    assert locks("run", "--resume", "--out", killed).code == 0
    assert (killed / "rounds.jsonl").read_bytes() == (quick() / "rounds.jsonl").read_bytes()
    assert not list(killed.glob(".*"))
    sooner = tmp_path / "sooner"  # not even its configuration is whole
    sooner.mkdir()
    (sooner / "rounds.jsonl").touch()
    (sooner / ".config.toml.abcdefgh").write_text("name = ")
    assert locks("run", file, "--seed", 3, "--out", sooner).code == 0
    assert not list(sooner.glob(".*"))
    lost = copied(quick())  # rounds were played: they are not to be drawn again
    for name in ("summary.json", "checkpoint.npz"):
        (lost / name).unlink()
    assert "nothing to resume" in refused(locks("run", "--resume", "--out", lost))


def test_resume_of_a_damaged_checkpoint_is_one_line(locks):
    run = copied(quick())
    (run / "summary.json").unlink()
    path = run / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-100])
    assert "checkpoint.npz: damaged" in refused(locks("run", "--resume", "--out", run))


def test_resume_takes_the_newest_unfinished_run(locks, file, tmp_path, monkeypatch):
    """Stopped after its first round, without a seed; half a line is no obstacle."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)
    saved = experiment.Progress.save

    def stop(self, *arguments, **options):
        saved(self, *arguments, **options)
        if self.rounds_done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(experiment.Progress, "save", stop)
        result = locks("run", file)
    assert result.code == 130
    (run,) = (tmp_path / "runs").iterdir()
    assert f"continue with: locks run --resume --out runs/{run.name}\n" in result.out
    with (run / "rounds.jsonl").open("a") as lines_file:
        lines_file.write('{"arm": ')
    assert locks("run", "--resume").code == 0
    assert [line["round"] for line in lines(run)] == [1, 2, 3, 4]
    assert summary(run)["simulated"] is False


def test_a_stop_before_the_first_round_leaves_nothing(locks, file, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(experiment, "plan_arms", stop)
        result = locks("run", file, "--out", tmp_path / "out")
    assert result.code == 130
    assert "stopped before the first round" in result.out
    assert not (tmp_path / "out").exists()


def wait_for_lines(process, path, least=1):
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= least:
            return
        time.sleep(0.02)
    raise AssertionError(f"the run ended on its own: {process.communicate()}")


def test_ctrl_c_in_the_middle_costs_nothing(tmp_path):
    """Two real signals to a real process; the resumed run is, byte for byte, the uninterrupted
    one."""
    rounds = 400
    changes = (f"train.rounds={rounds}", "train.evaluate_every=100", "local.max_samples=5")
    config = tmp_path / "long.toml"
    config.write_text(QUICK)
    out = tmp_path / "out"
    options = [word for change in changes for word in ("--set", change)]
    process = subprocess.Popen(
        [*PROGRAM, "run", config, *options, "--seed", "3", "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_lines(process, out / "rounds.jsonl")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)  # a second one that arrives with the first would be one
    told, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (told, errors)
    assert errors == ""
    assert not list(out.glob(".*"))
    assert f"continue with: locks run --resume --out {out}" in told
    assert not (out / "summary.json").exists()
    assert 1 <= len(lines(out)) < rounds

    again = [*PROGRAM, "run", "--resume", "--out", out, "--json"]
    done = subprocess.run(again, capture_output=True, text=True, check=True)
    whole = play(parse_config(QUICK, changes, 3))
    for name in ("rounds.jsonl", "diagnostics.jsonl", "model-locks.npz", "figure.svg"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = json.loads(done.stdout)["public"]["arms"], summary(whole)["arms"]
    scores = [arm["rounds"][-1]["scores"]["score"] for arm in ours]
    assert scores == [arm["accuracy"] for arm in theirs]


CTRL_C = """
import gc, os, signal, time
from locksfl.cli import hear_ctrl_c
hear_ctrl_c()
def press():
    os.kill(os.getpid(), signal.SIGINT)
{place}
time.sleep(10)
"""


@pytest.mark.parametrize(
    "place",
    [
        "gc.callbacks.append(lambda phase, info: phase == 'start' and press())\ngc.collect()",
        "class Gone:\n    def __del__(self): press()\nGone()",
        "press()",
    ],
)
def test_no_ctrl_c_is_lost(place):
    """Python prints what is raised while it collects garbage, and goes on."""
    code = CTRL_C.format(place=place)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("Traceback") == 1
    assert "Exception ignored" not in done.stderr


def test_a_second_ctrl_c_does_not_reach_what_is_being_written():
    code = CTRL_C.format(place="try: press()\nexcept KeyboardInterrupt: press()\nos._exit(7)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_a_terminal(locks, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    what = ("central-uniform", "PUBLIC", "zero-out", "repeated rounds", 4, 50_000, 1e-3)
    attack = Finding(*what, claimed=7.59, lower=3.25, largest=8.03)
    check = Check("central-uniform", "coins", True, "as charged " * 9)
    unseen = ("other ways out " * 9,)
    report = Report(True, 0.99, None, [attack] * 2, [check], ["a server"], unseen, note="")
    monkeypatch.setattr("locksfl.audit.suite.run_audit", lambda **_: report)
    listed, audited = locks("data", "list").out, locks("privacy", "audit").out
    for line in (listed + audited).splitlines():
        assert len(line.rstrip()) <= max(width, 73), line  # one heading is a sentence
        assert "…" not in line
    assert "MNIST by writer of the digit" in listed
    assert "7.59     3.25    8.03" in audited
    assert "PUBLIC   zero-out repeated" in audited


def test_progress_without_a_terminal_is_plain_lines(locks, file, tmp_path, monkeypatch):
    done = locks("run", file, "--seed", 3, "--out", tmp_path / "out").out
    assert done.startswith("locks: 4 of 4, 0.")
    assert "\x1b" not in done
    monkeypatch.setattr("locksfl.cli.progress.EVERY", 0.0)
    every = locks("run", file, "--seed", 3, "--out", tmp_path / "again").out.splitlines()
    assert [line[:13] for line in every if " of 4" in line][-2:] == [
        "locks: 3 of 4",
        "locks: 4 of 4",
    ]


def test_a_hopeless_run_is_told_before_it_spends_anything(locks, file, tmp_path):
    loud = ("--set", "arm.locks.noise_multiplier=5.0", "--out", tmp_path / "out")
    told = locks("run", file, *loud)
    assert told.code == 0
    assert "locks: training will fail: the noise of a round is" in told.err
    assert locks("run", file, "--out", tmp_path / "quiet").err == ""


def test_a_setting_is_named_as_it_was_typed(locks, file):
    asked = {
        "data.clients": "data.clients=20000",
        "arm.locks.floor": "arm.locks.floor=.2x",
        "train.clip_norm": "train.clip_norm=1e40",
    }
    for name, change in asked.items():
        assert f"locks: {name} = " in refused(locks("run", file, "--set", change))
    assert locks("run", file, "--set", "arm.locks.floor=.2", "--set", "data.clients=0").code == 2
