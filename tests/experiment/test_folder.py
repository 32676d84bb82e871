"""A run folder is whole, is never written over, and says when it is damaged."""

from __future__ import annotations

import json
import os
import stat
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w

from locksfl._files import write_atomically
from locksfl.experiment.config import parse_config, read_config, to_table
from locksfl.experiment.folder import (
    RunFolder,
    default_path,
    newest_unfinished,
    pack_arrays,
    unpack_arrays,
)
from locksfl.experiment.records import DIAGNOSTICS_NOTE
from locksfl.grids.comparison.folder import Folder
from locksfl.grids.tune import trials
from locksfl.paper.reproduce import runs as reproduction
from locksfl.paper.reproduce.settings import QUICK as QUICK_SCALE
from small_runs import QUICK, ROUNDS, copied, finished, lines, new_path, quick, summary

FILES = {
    "config.toml", "rounds.jsonl", "diagnostics.jsonl", "summary.json", "environment.json",
    "checkpoint.npz", "figure.svg", "report.html", "model-uniform.npz",
    "model-locks.npz",
}  # fmt: skip


def test_a_finished_run_has_every_file_and_no_other():
    assert {path.name for path in finished().iterdir()} == FILES
    assert "<svg" in (finished() / "figure.svg").read_text()


def test_summary_has_the_documented_fields():
    told = summary(finished())
    assert told["simulated"] is True
    assert told["tuned_without_privacy"] is True
    needed = {
        "name",
        "accuracy",
        "rounds",
        "uploads",
        "bytes_up",
        "bytes_down",
        "seconds",
        "privacy",
    }
    for arm in told["arms"]:
        assert needed <= arm.keys()
    for table in (*[arm["privacy"] for arm in told["arms"]], told["all_arms_composed"]):
        assert [(c["observer"], c["relation"]) for c in table] == [
            (o, r) for o in ("SERVER", "PUBLIC") for r in ("zero-out", "replace")
        ]
        for cost in table:
            assert cost.keys() == {"observer", "relation", "epsilon", "delta", "accountant"}
            assert cost["delta"] == 1e-5


def test_diagnostics_begin_with_what_they_are():
    note, *rest = lines(finished(), "diagnostics.jsonl")
    assert note == DIAGNOSTICS_NOTE
    assert "no privacy guarantee" in note["note"]
    assert [line["round"] for line in rest] == [*range(1, ROUNDS + 1)] * 2
    for line in rest:
        quantiles = list(line["norm_quantiles"].values())
        assert quantiles == sorted(quantiles)
        assert line["nan_clients"] == 0
    secrets = {"norm_quantiles", "signal", "clipped_fraction", "nan_clients"}
    assert not secrets & lines(finished())[0].keys()


def test_environment_names_versions_and_devices():
    told = json.loads((finished() / "environment.json").read_text())
    assert told["packages"]["jax"]
    assert len(told["devices"]) == 2


def test_the_resolved_configuration_reads_back():
    path = finished() / "config.toml"
    config = read_config(path)
    assert config.seed == 7
    assert tomli_w.dumps(to_table(config)) == path.read_text()


def test_only_the_checkpoint_is_secret(tmp_path):
    old = os.umask(0o022)
    try:
        write_atomically(tmp_path / "open", b"1")
        write_atomically(tmp_path / "closed", b"1", secret=True)
    finally:
        os.umask(old)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "closed")]
    assert modes == [0o644, 0o600]
    assert stat.S_IMODE((finished() / "checkpoint.npz").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_there_is_never_written_over(tmp_path):
    config = parse_config(QUICK)
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="already exists"):
            RunFolder.create(path, config)
    assert os.listdir(tmp_path) == ["file"]
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", config).config == config


def test_a_folder_that_cannot_be_made_whole_is_not_made(monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = new_path()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        RunFolder.create(path, parse_config(QUICK))
    assert not path.exists()


def test_discarding_spares_what_has_begun_and_what_is_not_ours():
    begun = copied(quick())
    RunFolder(begun).discard_unless_begun()
    assert len(list(begun.iterdir())) == len(FILES) - 1
    fresh = RunFolder.create(new_path(), parse_config(QUICK))
    (fresh.path / "notes.txt").write_text("mine")
    fresh.discard_unless_begun()
    assert os.listdir(fresh.path) == ["notes.txt"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"not a checkpoint",
        lambda content: content[: len(content) // 2],
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content: pack_arrays({}, {}),
    ],
    ids=["empty", "text", "half", "bit", "foreign"],
)
def test_a_damaged_checkpoint_is_one_clear_line(damage):
    run = copied(quick())
    path = run / "checkpoint.npz"
    before = (run / "rounds.jsonl").read_bytes()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"checkpoint\.npz: damaged") as caught:
        RunFolder(run).load_checkpoint()
    assert "\n" not in str(caught.value)
    assert (run / "rounds.jsonl").read_bytes() == before


def test_an_array_file_in_place_of_a_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="damaged"):
        unpack_arrays(path)


def test_lost_lines_are_noticed_and_extra_ones_dropped():
    run = copied(quick())
    path = run / "rounds.jsonl"
    content = path.read_bytes()
    path.write_bytes(content + b'{"half": ')
    RunFolder(run).load_checkpoint()
    assert path.read_bytes() == content
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="shorter than its checkpoint"):
        RunFolder(run).load_checkpoint()
    path.unlink()
    with pytest.raises(ValueError, match="shorter than its checkpoint"):
        RunFolder(run).load_checkpoint()


def test_folders_that_are_not_runs(tmp_path):
    with pytest.raises(ValueError, match="not a run folder"):
        RunFolder.open(tmp_path)
    folder = RunFolder.create(new_path(), parse_config(QUICK))
    with pytest.raises(ValueError, match="not finished"):
        folder.run()
    with pytest.raises(ValueError, match="nothing to resume"):
        folder.load_checkpoint()
    (folder.path / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json: damaged"):
        folder.run()


def test_arrays_and_their_header_come_back(tmp_path):
    arrays = {"a": np.arange(3, dtype=np.int32), "b": np.zeros((2, 0), np.float32)}
    (tmp_path / "x.npz").write_bytes(pack_arrays({"k": [1, None, "é"]}, arrays))
    meta, back = unpack_arrays(tmp_path / "x.npz")
    assert meta == {"k": [1, None, "é"]}
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_names_of_new_runs_and_the_newest_unfinished(tmp_path):
    first = default_path("digits", tmp_path)
    assert first.name.startswith("digits-")
    for path in [first, *(tmp_path / f"{first.name}-{k}" for k in range(2, 5))]:
        path.mkdir()
    assert not default_path("digits", tmp_path).exists()
    with pytest.raises(ValueError, match="no unfinished run"):
        newest_unfinished(tmp_path)
    for age, name in enumerate(["new", "old", "done"]):
        (tmp_path / name).mkdir()
        for file in ("checkpoint.npz", "rounds.jsonl"):
            (tmp_path / name / file).write_bytes(b"")
            os.utime(tmp_path / name / file, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "done" / "checkpoint.npz", (2e9, 2e9))
    (tmp_path / "done" / "summary.json").write_text("{}")
    assert newest_unfinished(tmp_path).name == "new"
    killed = RunFolder.create(tmp_path / "killed", parse_config(QUICK))  # before its checkpoint
    assert newest_unfinished(tmp_path) == killed.path


def test_two_processes_never_run_in_one_folder(tmp_path):
    RunFolder.create(tmp_path / "run", parse_config(QUICK))
    folder, other = RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "run")
    refused = pytest.raises(ValueError, match="another process is running it")
    with folder.held(), refused, other.held():
        pass
    with other.held():  # free again
        pass


def test_a_run_folder_is_for_its_owner_alone(tmp_path):
    folder = RunFolder.create(tmp_path / "some" / "run", parse_config(QUICK))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "begin",
    [
        lambda path: RunFolder.create(path, parse_config(QUICK)),
        lambda path: Folder(path, SimpleNamespace(text="", quick=False)),
        lambda path: trials.begin(path, SimpleNamespace(identity="one")),
        lambda path: reproduction.begin(path, QUICK_SCALE),
    ],
    ids=["run", "compare", "tune", "reproduce"],
)
def test_an_empty_folder_is_closed_and_one_with_files_is_refused(begin, tmp_path):
    """The fault: secrets in a folder that was there, empty, and stays open to everybody; or a
    hidden file of the user's own that is taken for one half written, and removed."""
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    begin(tmp_path / "empty")
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
    (tmp_path / "full" / ".notes.original").write_text("mine")
    with pytest.raises(ValueError, match="full: already exists; expected a new folder") as no:
        begin(tmp_path / "full")
    assert "\n" not in str(no.value)
    assert [file.name for file in (tmp_path / "full").iterdir()] == [".notes.original"]
    assert stat.S_IMODE((tmp_path / "full").stat().st_mode) == 0o755  # as it was
