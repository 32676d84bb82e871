"""The bundle shows what may be shown: nothing in it moves with a secret."""

from __future__ import annotations

import json
import os
import tomllib

import numpy as np
import pytest

from locksfl.experiment import publish as publishing
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder, unpack_arrays
from locksfl.experiment.publish import publish
from small_runs import QUICK, copied, finished, lines, new_path, quick, summary

SECRETS = (
    "cohort", "uploads", "bytes_up", "bytes_down", "bytes", "ledger", "seed", "entropy", "seconds",
    "compile_seconds", "released_norm_sum", "norm_quantiles", "signal", "nan_clients",
    "clipped_fraction", "signal_to_noise", "expected_weight", "dir",
)  # fmt: skip
BUNDLE = {
    "STATEMENT.md", "config.toml", "model-locks.npz", "model-uniform.npz", "rounds.jsonl",
    "statement.json",
}  # fmt: skip


def bundle(run):
    target = new_path()
    publish(run, target)
    return target


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def keys(value):
    """Every key in nested tables."""
    if isinstance(value, dict):
        return set(value).union(*(keys(v) for v in value.values()))
    return set().union(*(keys(v) for v in value)) if isinstance(value, list) else set()


def shown(folder):
    """The keys of every file of a bundle but its configuration."""
    found = keys(lines(folder)) | keys(json.loads((folder / "statement.json").read_text()))
    for path in folder.glob("*.npz"):
        meta, arrays = unpack_arrays(path)
        found |= keys(meta) | set(arrays)
    return found


def edit_lines(path, change):
    told = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in told))


def test_central_trust_shows_no_secret():
    folder = bundle(finished())
    assert {path.name for path in folder.iterdir()} == BUNDLE
    assert not shown(folder) & set(SECRETS)
    config = tomllib.loads((folder / "config.toml").read_text())
    assert "seed" not in config
    assert "dir" not in config["data"]
    # cohort and uploads in a configuration are what was planned, not what came out
    assert keys(config) & set(SECRETS) == {"cohort", "uploads"}
    assert [arm["cohort"] for arm in config["arm"]] == [4, 6]


def test_secrets_can_change_and_the_bundle_does_not():
    """The same releases with other cohorts, uploads, ledgers, seed and timing: the same bytes."""
    run = copied(finished())
    before = contents(bundle(run))
    rng = np.random.default_rng(0)

    def other(table):
        for name in ("cohort", "uploads", "bytes_up", "bytes_down", "seconds", "compile_seconds"):
            if name in table:
                table[name] = int(rng.integers(1000, 9000))
        return table

    edit_lines(run / "rounds.jsonl", other)
    told = summary(run)
    told["arms"] = [other(arm) for arm in told["arms"]]
    (run / "summary.json").write_text(json.dumps(told))
    (run / "checkpoint.npz").write_bytes(b"other")
    (run / "diagnostics.jsonl").write_text('{"norms": [1, 2, 3]}\n')
    (run / "environment.json").unlink()
    text = (run / "config.toml").read_text()
    assert "seed = 7\n" in text
    text = text.replace("seed = 7\n", "seed = 8\n", 1)
    (run / "config.toml").write_text(text.replace("[data]\n", '[data]\ndir = "/srv/x"\n'))
    assert contents(bundle(run)) == before

    # the test can fail: a release, which is public, does show
    edit_lines(
        run / "rounds.jsonl",
        lambda line: line | {"released_norm_sum": 5.5} if line["arm"] == "locks" else line,
    )
    assert contents(bundle(run)) != before


def test_local_trust_shows_exact_counts():
    run = finished("local")
    public = lines(bundle(run))
    for theirs, ours in zip(public, lines(run), strict=True):
        for name in ("arm", "round", "cohort", "uploads", "bytes_up", "bytes_down", "accuracy"):
            assert theirs[name] == ours[name]
    hidden = {"ledger", "seed", "entropy", "norm_quantiles", "signal", "nan_clients"}
    assert not shown(bundle(run)) & hidden


def test_the_upload_estimate_is_made_of_released_values():
    """(1 - lambda) b K~ / K' + lambda b, with lambda = 0.1 and b = 4; b where no norm is asked."""
    run = finished()
    folder = bundle(run)
    totals = {"uniform": 0.0, "locks": 0.0}
    for theirs, ours in zip(lines(folder), lines(run), strict=True):
        expected = 4.0
        if ours["arm"] == "locks":
            ratio = max(0.0, ours["released_norm_sum"]) / ours["used_norm_sum"]
            expected = 0.9 * 4 * ratio + 0.1 * 4
        assert theirs["upload_estimate"] == pytest.approx(expected)
        assert theirs["expected_cohort"] == {"uniform": 4, "locks": 6}[ours["arm"]]
        totals[ours["arm"]] += expected
    for arm in json.loads((folder / "statement.json").read_text())["arms"]:
        assert arm["upload_estimate"] == pytest.approx(totals[arm["name"]])


def test_models_and_accuracies_are_those_of_the_run():
    run = finished()
    folder = bundle(run)
    for name in ("model-locks.npz", "model-uniform.npz"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()
    public = json.loads((folder / "statement.json").read_text())
    for theirs, ours in zip(public["arms"], summary(run)["arms"], strict=True):
        for name in ("name", "accuracy", "privacy", "noise_multiplier"):
            assert theirs[name] == ours[name]
    assert parse_config((folder / "config.toml").read_text()).seed is None


def test_the_statement_names_observers_relations_and_reservations():
    text = (bundle(finished()) / "STATEMENT.md").read_text()
    told = summary(finished())
    for arm in told["arms"]:
        for cost in arm["privacy"]:
            epsilon = "infinite" if cost["epsilon"] is None else f"{cost['epsilon']:.3f}"
            row = f"| {arm['name']} | {cost['observer']} | {cost['relation']} | {epsilon} | 1e-05 |"
            assert row in text
    assert "| all arms together | PUBLIC | replace |" in text
    assert "simulated: a seed was given" in text
    assert "tuned_without_privacy:" in text
    assert "trusted with raw updates" in text
    honest = (bundle(quick(seed=None)) / "STATEMENT.md").read_text()
    assert "simulated" not in honest
    assert "tuned_without_privacy" not in honest
    assert "no privacy guarantee" in (bundle(finished("none")) / "STATEMENT.md").read_text()


def test_an_unfinished_run_is_not_published():
    folder = RunFolder.create(new_path(), parse_config(QUICK))
    target = new_path()
    with pytest.raises(ValueError, match="not finished"):
        publish(folder.path, target)
    assert not target.exists()


def test_an_existing_target_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="already exists"):
            publish(finished(), target)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failure_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "statement_text", full)
    with pytest.raises(OSError, match="No space left"):
        publish(finished(), tmp_path / "bundle")
    assert os.listdir(tmp_path) == []
    run = copied(quick())
    (run / "model-locks.npz").unlink()
    with pytest.raises(OSError, match="No such file"):
        publish(run, tmp_path / "bundle")
    assert os.listdir(tmp_path) == []
