"""An experiment's numbers add up, repeat with their seed, and survive a stop at any point."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import platform
import re
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import small_runs
from locksfl._arrays import flat_weights
from locksfl.arm import Arm
from locksfl.experiment import progress, resuming
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder, unpack_arrays
from locksfl.experiment.progress import Progress
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import plain
from locksfl.methods import ESTIMATORS, RULES
from locksfl.round import client
from locksfl.simulate import simulator as simulate
from small_runs import (
    CLIENTS,
    QUICK,
    ROUNDS,
    SIZE,
    copied,
    finished,
    lines,
    new_path,
    quick,
    run_experiment,
    summary,
)

EXACT = (
    "config.toml", "rounds.jsonl", "diagnostics.jsonl", "figure.svg", "report.html",
)  # fmt: skip


def without_seconds(run):
    told = summary(run)
    for arm in told["arms"]:
        del arm["seconds"], arm["compile_seconds"]
    return told


def test_a_run_of_two_arms_makes_its_arms_once(capsys, tmp_path, monkeypatch):
    """Twice each: as typed, and with their noise. The page, the statement and the folder take these
    (38 before). Only this test finds a view that asks the raw tables again."""
    made, check = [], Arm.__post_init__

    def counted(arm):
        made.append(arm.name)
        check(arm)

    monkeypatch.setattr(Arm, "__post_init__", counted)
    (tmp_path / "two.toml").write_text(small_runs.CENTRAL)
    small_runs.call_locks(capsys, "run", tmp_path / "two.toml", "--out", tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()
    assert len(made) <= 4, made


READ: list[str] = []  # what was opened to be read, while `watched` says so
watched: list[Path] = []


def hear(event, given):
    if event == "open" and watched and isinstance(given[0], str) and given[2] & 3 == os.O_RDONLY:
        READ.extend([given[0]] if given[0].startswith(str(watched[0])) else [])


def test_a_run_reads_nothing_back(capsys, tmp_path):
    """One file is opened, to hold the folder (12 were read before). Only this test finds a figure
    or a page that reads what its own process has written."""
    (tmp_path / "two.toml").write_text(small_runs.CENTRAL)
    sys.addaudithook(hear)
    watched.append(tmp_path / "run")
    try:
        small_runs.call_locks(capsys, "run", tmp_path / "two.toml", "--out", tmp_path / "run")
    finally:
        watched.clear()
    assert [Path(name).name for name in READ] == ["config.toml"]
    assert (tmp_path / "run" / "summary.json").is_file()


def same_files(one, two):
    """Which files of two runs are byte for byte the same; models too, summaries but for seconds."""
    models = sorted(path.name for path in one.glob("model-*.npz"))
    same = {
        name: (one / name).read_bytes() == (two / name).read_bytes() for name in [*EXACT, *models]
    }
    return {**same, "summary.json": without_seconds(one) == without_seconds(two)}


@pytest.mark.parametrize("trust", ["central", "local", "none"])
def test_bytes_are_float32_and_totals_are_sums_of_lines(trust):
    run = finished(trust)
    rounds = lines(run)
    assert [(line["arm"], line["round"]) for line in rounds] == [
        (arm, t) for arm in ("uniform", "locks") for t in range(1, ROUNDS + 1)
    ]
    for line in rounds:
        norms = 4 * line["cohort"] if line["arm"] == "locks" else 0
        assert line["bytes_up"] == norms + 4 * SIZE * line["uploads"]
        assert line["bytes_down"] == 4 * SIZE * line["cohort"]
        assert 0 <= line["uploads"] <= line["cohort"] <= CLIENTS
        if line["arm"] == "uniform":  # cohort = uploads: everybody who is asked uploads
            assert line["uploads"] == line["cohort"]
            assert line["released_norm_sum"] is line["used_norm_sum"] is None
        else:
            assert line["used_norm_sum"] == pytest.approx(
                np.clip(line["released_norm_sum"], 4.8, 6)
            )
    for arm in summary(run)["arms"]:
        mine = [line for line in rounds if line["arm"] == arm["name"]]
        for name in ("cohort", "uploads", "bytes_up", "bytes_down"):
            assert arm[name] == sum(line[name] for line in mine)
        assert (arm["accuracy"], arm["loss"]) == (mine[-1]["accuracy"], mine[-1]["loss"])
        assert arm["rounds"] == ROUNDS == len(mine)
        assert arm["seconds"] > 0


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_ledger_counts_what_the_rounds_say(trust):
    _, arrays = unpack_arrays(finished(trust) / "checkpoint.npz")
    for arm in summary(finished(trust))["arms"]:
        names = (f"ledger_{arm['name']}_{kind}" for kind in ("norms", "uploads"))
        norms, uploads = (arrays.get(name, np.zeros(CLIENTS, int)) for name in names)
        assert norms.shape == uploads.shape == (CLIENTS,)
        assert uploads.sum() == arm["uploads"]
        assert norms.sum() == (arm["cohort"] if arm["name"] == "locks" else 0)
        assert 0 <= uploads.min() <= uploads.max() <= ROUNDS
        if arm["name"] == "locks":
            assert (uploads <= norms).all()  # who uploads was asked for its norm


def test_the_same_seed_gives_the_same_files_and_another_others():
    same = same_files(quick(seed=3), quick(seed=3, copy=1))
    assert all(same.values()), same
    other = same_files(quick(seed=3), quick(seed=4))
    assert not any(other.values()), other


def test_without_a_seed_runs_differ_and_protect():
    one, two = quick(seed=None), quick(seed=None, copy=1)
    assert (one / "rounds.jsonl").read_bytes() != (two / "rounds.jsonl").read_bytes()
    assert (one / "model-locks.npz").read_bytes() != (two / "model-locks.npz").read_bytes()
    for run in (one, two):
        assert summary(run)["simulated"] is False
        assert parse_config((run / "config.toml").read_text()).seed is None
        assert unpack_arrays(run / "checkpoint.npz")[0]["entropy"] is None
    assert summary(quick(seed=3))["simulated"] is True


def test_accuracy_is_given_when_it_was_asked_for():
    accuracies = [line["accuracy"] for line in lines(quick())]
    assert [a is not None for a in accuracies] == [False, True, False, True]


def test_models_are_named_with_what_they_are():
    meta, arrays = unpack_arrays(finished() / "model-locks.npz")
    assert (meta["model"], meta["options"], meta["classes"]) == ("softmax", {}, 10)
    assert (meta["shape"], meta["scale"], meta["features"]) == ([28, 28], 1 / 255, None)
    assert meta["parameters"] == {"layers.0.weight": [10, 784], "layers.0.bias": [10]}
    for name, shape in meta["parameters"].items():
        assert arrays[name].shape == tuple(shape)
        assert arrays[name].dtype == np.float32
        assert np.abs(arrays[name]).max() > 0
    assert flat_weights(meta, arrays).shape == (SIZE,)


class Stop(KeyboardInterrupt):
    """A Ctrl-C at a chosen place."""


def stop_in_round(number):
    def on_round(line):
        if line.round == number:
            raise Stop

    return on_round


@pytest.fixture
def short_blocks(monkeypatch):
    """A checkpoint after every round."""
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("after", [1, 3])
def test_a_stopped_run_resumes_as_if_it_had_never_stopped(after):
    config = parse_config(QUICK, (), 3)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(after))
    assert not folder.finished
    assert len(lines(folder.path)) == after
    # what a kill in the middle of a write leaves: half a line, and a temporary file with secrets
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"arm": "lo')
    (folder.path / ".checkpoint.npz.x1b2c3d4").write_bytes(b"entropy")
    run_experiment(folder.config, folder, resume=True)
    same = same_files(quick(seed=3), folder.path)
    assert all(same.values()), same
    assert not list(folder.path.glob(".*"))
    _, mine = unpack_arrays(folder.path / "checkpoint.npz")
    _, theirs = unpack_arrays(quick(seed=3) / "checkpoint.npz")
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine)


@pytest.mark.usefixtures("short_blocks")
def test_secret_randomness_is_kept_in_the_checkpoint_until_the_end(monkeypatch):
    """Stopped and resumed without a seed, the run goes on with the draws that it began with."""
    config = parse_config(QUICK)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    path = folder.path / "checkpoint.npz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entropy = unpack_arrays(path)[0]["entropy"]
    assert int(entropy, 16) > 2**64  # of 128 bits: fails once in 2**64
    run_experiment(config, folder, resume=True)
    assert unpack_arrays(path)[0]["entropy"] is None
    for file in folder.path.iterdir():
        assert entropy[2:].encode() not in file.read_bytes()
        assert str(int(entropy, 16)).encode() not in file.read_bytes()
    # the same secret from the start gives the same run
    monkeypatch.setattr("locksfl.round.randomness.secrets.randbits", lambda bits: int(entropy, 16))
    whole = RunFolder.create(new_path(), config)
    run_experiment(config, whole)
    same = same_files(whole.path, folder.path)
    assert all(same.values()), same


def other_data(change):
    """The data that a run is resumed on, changed."""
    population, model = experiment.open_task(parse_config(QUICK))
    arrays = {name: np.array(getattr(population, name)) for name in ("features", "test_labels")}
    change(arrays)
    changed = dataclasses.replace(population, **arrays)
    return mock.patch.object(small_runs, "_task", return_value=(changed, model))


def one_record(arrays):
    arrays["features"][3] = 255 - arrays["features"][3]


def one_test_label(arrays):
    arrays["test_labels"][0] = (arrays["test_labels"][0] + 1) % 10


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir()}


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("change", [one_record, one_test_label])
def test_a_run_does_not_go_on_with_other_data(seed, change):
    """The attack: a copy of an unfinished run, resumed on data in which one record is another,
    would give a second model with the same noise, and their difference is that record."""
    config = parse_config(QUICK, (), seed)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    copy = RunFolder(copied(folder.path))
    before = contents(copy)
    with (
        other_data(change),
        pytest.raises(ValueError, match=r"twice: the data, or code of your own; exp") as caught,
    ):
        run_experiment(config, copy, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(copy) == before
    # on the same data it is one release, however often it is resumed
    for run in (folder, copy):
        run_experiment(config, run, resume=True)
    assert all(same_files(folder.path, copy.path).values())


OWN_MODEL = """
import jax.numpy as jnp

def make(shape, classes):
    return lambda key: jnp.zeros((784, classes)), lambda w, x: {} * x.reshape(-1, 784) @ w
"""


@pytest.mark.usefixtures("short_blocks")
def test_a_run_does_not_go_on_with_other_code(tmp_path, monkeypatch):
    """The same attack through a model of one's own: one that ignores its records leaves the noise
    alone, and the difference of the two models was the sum without it."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "model_that_changes.py"
    module.write_text(OWN_MODEL.format(1.0))
    config = parse_config(QUICK, ('model.name="model_that_changes:make"',))
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    module.write_text(OWN_MODEL.format(0.0))
    with pytest.raises(ValueError, match="the data, or code of your own"):
        run_experiment(config, folder, resume=True)
    module.write_text(OWN_MODEL.format(1.0))
    run_experiment(config, folder, resume=True)


@pytest.mark.usefixtures("short_blocks")
def test_a_run_does_not_go_on_with_a_rule_that_states_something_else(monkeypatch):
    """Its ledger charges what was stated when it began. With a seed, only this finds it."""
    config = parse_config(QUICK, seed=3)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    with monkeypatch.context() as patched:
        sure = dataclasses.replace(RULES["norm"], largest_probability=lambda arm: 1.0)
        patched.setitem(RULES, "norm", sure)
        with pytest.raises(ValueError, match="no longer states what it did when the run began"):
            run_experiment(config, folder, resume=True)
    run_experiment(config, folder, resume=True)


@pytest.mark.usefixtures("short_blocks")
def test_a_run_does_not_go_on_with_an_estimator_that_is_credited_no_more(monkeypatch):
    """Its terms are the same; what was spent would be charged with a credit that does not hold."""
    config = parse_config(QUICK, ("privacy.trust=local",), seed=3)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    bounded = dataclasses.replace(ESTIMATORS["capped"], credited=False)
    monkeypatch.setitem(ESTIMATORS, "capped", bounded)
    with pytest.raises(ValueError, match="no longer states what it did when the run began"):
        run_experiment(config, folder, resume=True)


@pytest.mark.usefixtures("short_blocks")
def test_a_run_does_not_go_on_where_an_update_is_rounded_otherwise(monkeypatch):
    """The same attack through rounding. The fault that only this finds: the update is not computed
    anew, so that versions and flags are the same and its last bits are not."""
    config = parse_config(QUICK)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    before, real = contents(folder), client.gradient_update

    def other(*given):
        return real(*given) * np.float32(1 + 2**-23)

    monkeypatch.setattr(client, "gradient_update", other)
    with pytest.raises(ValueError, match="an update of made-up records") as caught:
        run_experiment(config, folder, resume=True)
    assert re.fullmatch(
        r"[^\n]*twice: an update of made-up records \(was \w{16}, is \w{16}\); expected all as it "
        "was, or a new run",
        str(caught.value),
    )
    assert contents(folder) == before
    monkeypatch.setattr(client, "gradient_update", real)
    for name, was in folder.load_checkpoint()[0]["machine"].items():  # each of them is compared
        here = {"machine_of": lambda *given, n=name: {**resuming.machine_of(*given), n: "other"}}
        with mock.patch.multiple(progress, **here), pytest.raises(ValueError, match="is other"):
            run_experiment(config, folder, resume=True)
        assert was or name == "XLA_FLAGS"


@pytest.mark.usefixtures("short_blocks")
def test_a_run_goes_on_with_other_devices_but_not_with_other_instructions():
    """In processes of their own. With other instructions a run gave other whole numbers under the
    same noise. The fault that only this finds: the number of devices is compared."""
    config = parse_config(QUICK)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    machine = folder.load_checkpoint()[0]["machine"]

    def resumed(flags, threads=machine["threads (NPROC)"]):
        run = copied(folder.path)
        command = [sys.executable, "-m", "locksfl", "run", "--resume", "--out", str(run)]
        flags = f"{machine['XLA_FLAGS']} {flags}"
        place = {**os.environ, "XLA_FLAGS": flags, "NPROC": threads}
        return run, subprocess.run(command, env=place, capture_output=True, text=True, check=False)

    _, alone = resumed("--xla_force_host_platform_device_count=1")
    assert (alone.returncode, alone.stderr) == (0, "")
    kept, refused = resumed("--xla_cpu_max_isa=SSE4_2", "64")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1
    assert "XLA_FLAGS (was nothing, is --xla_cpu_max_isa=SSE4_2); threads" in refused.stderr
    assert ("made-up records" in refused.stderr) == (platform.machine() == "x86_64")
    assert contents(RunFolder(kept)) == contents(folder)


@pytest.mark.usefixtures("short_blocks")
def test_the_key_of_the_datas_hash_stays_in_the_checkpoint():
    config = parse_config(QUICK)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    meta, _ = unpack_arrays(folder.path / "checkpoint.npz")
    assert [len(bytes.fromhex(secret)) for secret in meta["data"]] == [32, 32]
    assert not any(secret in json.dumps(meta["ledger"]) for secret in meta["data"])
    run_experiment(config, folder, resume=True)
    publish_folder(folder.path, bundle := new_path())
    for file in (*folder.path.iterdir(), *bundle.iterdir()):
        assert not any(secret.encode() in file.read_bytes() for secret in meta["data"]), file


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("seed", [None, 3])
def test_a_checkpoint_of_0_1_that_does_not_know_its_data(seed):
    """Its noise may have been used on other data; a simulation's protects nobody anyway."""
    config = parse_config(QUICK, (), seed)
    folder = RunFolder.create(new_path(), config)
    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=stop_in_round(2))
    meta, arrays, _ = folder.load_checkpoint()
    new = ("data", "run", "noted", "machine")
    folder.save_checkpoint({k: v for k, v in meta.items() if k not in new}, arrays)
    if seed is None:
        with pytest.raises(ValueError, match="does not say on which data"):
            run_experiment(config, folder, resume=True)
    else:
        run_experiment(config, folder, resume=True)
        assert all(same_files(quick(seed=3), folder.path).values())


@pytest.mark.usefixtures("short_blocks")
def test_a_disk_that_fills_up_loses_nothing(monkeypatch):
    """Whichever write fails, there is no summary, and the run can be resumed once there is room."""
    config = parse_config(QUICK, (), 3)
    real = os.fsync
    for room in (0, 3, 4, 5, 9, 16):
        left = [room]

        def full(handle, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        folder = RunFolder.create(new_path(), config)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            run_experiment(config, folder)
        assert str(folder.path) in str(caught.value.filename)
        monkeypatch.setattr(os, "fsync", real)
        assert not folder.finished
        assert not list(folder.path.glob(".*"))
        if room < 3:  # before the first checkpoint
            assert not folder.begun
        elif room in (4, 16):
            run_experiment(config, folder, resume=True)
            same = same_files(quick(seed=3), folder.path)
            assert all(same.values()), same


def test_a_stop_between_the_last_round_and_the_summary_can_be_resumed(monkeypatch):
    """Also when the finished checkpoint has already given up its secret."""
    config = parse_config(QUICK)
    folder = RunFolder.create(new_path(), config)
    write = RunFolder.write_json

    def stop(self, name, value):
        if name == "summary.json":
            raise Stop
        write(self, name, value)

    monkeypatch.setattr(RunFolder, "write_json", stop)
    with pytest.raises(Stop):
        run_experiment(config, folder)
    assert not folder.finished
    assert (folder.path / "figure.svg").is_file()
    monkeypatch.undo()
    told = run_experiment(config, folder, resume=True)
    assert told == summary(folder.path)
    assert len(lines(folder.path)) == 4


def test_a_lost_secret_is_said():
    run = copied(quick(seed=None))
    folder = RunFolder(run)
    meta, arrays, _ = folder.load_checkpoint()
    folder.save_checkpoint({**meta, "arms": []}, arrays)
    with pytest.raises(ValueError, match="has no random state"):
        Progress.load(folder, folder.config, *experiment.open_task(folder.config))


def test_progress_is_told_for_every_round():
    seen, said = [], []
    config = parse_config(QUICK, ("train.rounds=2",), 1)
    folder = RunFolder.create(new_path(), config)
    run_experiment(config, folder, on_round=seen.append, say=said.append)
    assert list(map(plain, seen)) == folder.lines("rounds.jsonl")
    assert said[:2] == ["calibrating the noise", "opening the data"]


def test_arms_start_from_one_model_and_share_no_noise():
    """Two arms that differ in name alone differ in cohorts, and in noise."""
    text = QUICK + QUICK[QUICK.index("[[arm]]") :].replace('"locks"', '"twin"')
    config = parse_config(text, ("train.rounds=2",), 5)
    folder = RunFolder.create(new_path(), config)
    run_experiment(config, folder)
    one, two = (
        flat_weights(*unpack_arrays(folder.path / f"model-{n}.npz")) for n in ("locks", "twin")
    )
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.5  # noise dominates; the same noise would give 1
    assert experiment.open_task(config)[1].size == one.size == SIZE


def test_lines_are_json_that_any_reader_takes():
    def refuse(word):
        raise AssertionError(word)

    for run in (finished("none"), finished("local")):
        for file in (*run.glob("*.json"), *run.glob("*.jsonl")):
            for line in (
                [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
            ):
                json.loads(line, parse_constant=refuse)


def test_a_run_without_a_seed_tells_nothing_before_its_noise():
    """No diagnostics, no true counts in its log, its summary or its checkpoint; a simulation has
    them all."""
    secret, simulated = quick(seed=None), quick(seed=3)
    assert (simulated / "diagnostics.jsonl").stat().st_size
    assert not (secret / "diagnostics.jsonl").stat().st_size
    (arm,) = RunFolder.open(secret).config.arm
    for line in lines(secret):
        assert line["cohort"] == arm.cohort
        assert line["uploads"] == line["public"]["uploads"]
    assert {line["cohort"] for line in lines(simulated)} != {arm.cohort}
    for run, told in ((secret, False), (simulated, True)):
        _, arrays = unpack_arrays(run / "checkpoint.npz")
        assert any(name.startswith("ledger_") for name in arrays) == told
    assert summary(secret)["arms"][0]["cohort"] == ROUNDS * arm.cohort


def test_diagnostics_need_a_simulation():
    config = parse_config(QUICK + "\n[diagnostics]\nevery = 2\n", (), None)
    with pytest.raises(ValueError, match=r"diagnostics.every = 2: .* expected 0, or a simulation"):
        experiment.prepare(config)
    experiment.prepare(parse_config(QUICK + "\n[diagnostics]\nevery = 2\n", (), 1))
