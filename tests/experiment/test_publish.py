"""The bundle shows what may be shown: nothing in it moves with a secret."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
import typing
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from locksfl import load
from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._text import epsilon_text
from locksfl.data.importing import Request, import_table
from locksfl.experiment import publish as publishing
from locksfl.experiment.arm_config import SETTINGS
from locksfl.experiment.config import Config, PlanConfig, config_of, parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Statement, Tally
from locksfl.experiment.records import round_line
from locksfl.experiment.run import run_experiment
from locksfl.experiment.verify import verify
from locksfl.simulate.simulator import RoundLog
from made_documents import KINDS, made_config
from small_runs import (
    QUICK,
    call_locks,
    copied,
    finished,
    lines,
    new_path,
    over,
    patients,
    play,
    quick,
    summary,
)

SECRETS = (
    "cohort", "uploads", "bytes_up", "bytes_down", "bytes", "ledger", "seed", "entropy", "seconds",
    "compile_seconds", "released_norm_sum", "norm_quantiles", "signal", "nan_clients",
    "clipped_fraction", "signal_to_noise", "expected_weight", "dir",
)  # fmt: skip
BUNDLE = {
    "STATEMENT.md", "config.toml", "model-locks.npz", "model-uniform.npz", "report.html",
    "statement.json",
}  # fmt: skip


def bundle(run):
    target = new_path()
    publish_folder(run, target)
    return target


def checked(run):
    """The bundle of a run that was not tampered with: `locks verify` finds it right."""
    target = bundle(run)
    assert verify(target).faults == []
    return target


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def keys(value):
    """Every key in nested tables."""
    if isinstance(value, dict):
        return set(value).union(*(keys(v) for v in value.values()))
    return set().union(*(keys(v) for v in value)) if isinstance(value, list) else set()


def statement(folder):
    return json.loads((folder / "statement.json").read_text())


def shown(folder):
    """The keys of every file of a bundle but its configuration."""
    told = statement(folder)
    del told["settings"]
    found = keys(told)
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
    told = json.loads((run / "summary.json").read_text())
    for arm in told["secret"]["arms"]:
        arm |= {"seconds": 17.0, "compile_seconds": 18.0}
        for one in arm["rounds"]:
            one["counts"] = {"cohort": int(rng.integers(999)), "uploads": int(rng.integers(999))}
            one["released"] = {"norm_sum": 5.5, "uploads": 3.0}
    told["secret"]["all_arms_spent"] = []
    (run / "summary.json").write_text(json.dumps(told))
    for name in ("rounds.jsonl", "config.toml", "checkpoint.npz", "environment.json"):
        (run / name).write_bytes(b"other")
    assert contents(bundle(run)) == before

    # the test can fail: what is public does show
    told["public"]["arms"][0]["rounds"][0]["upload_estimate"] += 1.0
    (run / "summary.json").write_text(json.dumps(told))
    assert contents(bundle(run)) != before


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_releases_with_other_secrets_give_the_same_public_round(kind):
    """Finds a public number that is made of what was never released."""
    for arm in plan_arms(made_config(kind)):
        log = RoundLog(
            round=0,
            released_norm_sum=7.0,
            used_norm_sum=8.0,
            noise=0.0,
            accuracy=0.5,
            loss=1.0,
            cohort=np.arange(6),
            uploaded=np.ones(6, bool),
            released_count=5.5,
            expected_cohort=9.0,
            clip_norm=2.0,
        )
        secrets = {"norms": np.ones(4), "signal": 9.0, "noise": 3.0, "expected_weight": 0.1}
        stages = {
            "update": structs.asdict(Tally(asked=9, answered=1, refused={}, rejected=1, missing=7))
        }
        other = replace(
            log, cohort=np.arange(4), uploaded=np.arange(4) > 1, **secrets, stages=stages
        )
        one, two = (round_line(arm, each, 1.0, True) for each in (log, other))
        exact = arm.parts.trust.guards_server  # there the counts are released, one by one
        assert (one.public == two.public) != exact
        assert one.secret != two.secret
        assert round_line(arm, log, 1.0, False).public.scores is None
        if not exact and not arm.counts:
            moved = replace(log, released_norm_sum=1.0)
            shown = round_line(arm, moved, 1.0, True).public
            moves = arm.releases_norms and arm.parts.rule.estimated_uploads is not None
            assert (shown != one.public) == moves  # a release does show


def written_types(kind, seen):
    """Every type in a record, with the place where it stands."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        yield from inner_types(hint, f"{kind.__name__}.{name}", seen)


def inner_types(hint, where, seen):
    if typing.get_origin(hint) is typing.Annotated:
        base, *checks = typing.get_args(hint)
        if base is str:
            yield where, "text", any(getattr(one, "pattern", None) for one in checks)
            return
        hint = base
    if dataclasses.is_dataclass(hint) or (
        isinstance(hint, type) and hint.__doc__ and hasattr(hint, "__struct_fields__")
    ):
        if hint not in seen and not issubclass(hint, Config):
            seen.add(hint)
            yield from written_types(hint, seen)
    elif hint in (str, dict, typing.Any, object):
        yield where, getattr(hint, "__name__", "Any"), False
    elif typing.get_origin(hint) is not typing.Literal:
        for inner in typing.get_args(hint):
            yield from inner_types(inner, where, seen)


def test_no_public_type_has_a_text_without_a_check_or_a_dictionary_of_anything():
    """Finds a new field that could carry what nobody has decided to show. Settings are apart: the
    list of them is below."""
    loose = [
        (where, kind) for where, kind, checked in written_types(Statement, set()) if not checked
    ]
    assert loose == []
    assert any(where == "Signature.signature" for where, _, _ in written_types(Statement, set()))


MARK = "planted"
OWN_MODEL = """
from locksfl.models.build import softmax
def model(shape, classes, where, width):
    return softmax(shape, classes)
"""


def found_in(folder):
    """The files with the mark in their names, their bytes, or the members of an archive."""
    found = set()
    for path in folder.rglob("*"):
        parts = [path.name.encode(), path.read_bytes() if path.is_file() else b""]
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                parts += [archive.read(name) + name.encode() for name in archive.namelist()]
        # a text of an array is in UTF-32
        if any(MARK.encode() in part.lower().replace(b"\0", b"") for part in parts):
            found.add(path.name)
    return found


@pytest.fixture
def marked(tmp_path, monkeypatch):
    """A run with marked strings everywhere: of the machine, of the data, and in its own files."""
    for name in ("USER", "LOGNAME", "HOME", "HOSTNAME", "LOCKS_DATA", "LOCKS_MARK"):
        monkeypatch.setenv(name, f"/srv/{MARK}")
    monkeypatch.setattr("platform.node", lambda: MARK)
    monkeypatch.setattr("platform.platform", lambda: MARK)
    place = tmp_path / f"of-{MARK}"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    (place / "own_marked_code.py").write_text(OWN_MODEL)
    head, *rows = patients(prefix=f"{MARK}-")
    head = ",".join(f"{column}_{MARK}" for column in head.split(","))
    rows = [f"{row.rpartition(',')[0]},{MARK}-{row[-1]}" for row in rows]
    (place / "table.csv").write_text("\n".join([head, *rows]))
    names = tuple(f"{MARK}-{label}" for label in range(3))
    request = Request(f"patient_{MARK}", f"y_{MARK}", classes=names)
    import_table(place / "table.csv", place / f"people-{MARK}", request)
    np.savez(place / f"{MARK}.npz", W=np.eye(4, dtype=np.float32), b=np.ones(4, np.float32))
    config = over(
        place / f"people-{MARK}",
        f'data={{name="people-{MARK}", dir="{place}"}}',
        f'features={{name="encoder", file="{place / MARK}.npz"}}',
        'model={name="own_marked_code:model"}',
        f'model.options={{where="{place}", width=3}}',
    )
    run = place / f"run-{MARK}"
    run_experiment(config, RunFolder.create(run, config))
    plant(run)
    return run


def plant(run):
    """Marks in every file of a run folder that a bundle is made from, and beside them."""
    told = json.loads((run / "summary.json").read_text())
    told["secret"] |= {"data": MARK, "experiment": MARK}
    (run / "summary.json").write_text(json.dumps(told))
    for path in run.glob("*.npz"):
        meta, arrays = unpack_arrays(path)
        more = {MARK: MARK, "note": MARK, "ids": [MARK], "path": f"/srv/{MARK}"}
        path.write_bytes(pack_arrays(meta | more, {**arrays, MARK: np.ones(2), "ids": [MARK]}))
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = MARK.encode()
    (run / "environment.json").write_text(json.dumps({MARK: MARK}))
    for name in ("rounds.jsonl", "diagnostics.jsonl", f"{MARK}.txt"):
        (run / name).write_text(MARK)
    text = (run / "config.toml").read_text("utf-8")
    (run / "config.toml").write_text(f"# {MARK}\n{text}", "utf-8")


def test_nothing_enters_a_bundle_but_what_is_listed(marked):
    """The bundle of a run that has the mark in all its files has it in none."""
    assert {path.name for path in marked.iterdir()} - found_in(marked) <= {
        "figure.svg", "report.html"
    }  # fmt: skip
    folder = bundle(marked)
    assert found_in(folder) == set()
    assert verify(folder).faults == []
    config = tomllib.loads((folder / "config.toml").read_text("utf-8"))
    assert config["data"]["name"] == "own-data"
    assert config["features"] == {"name": "encoder", "file": "encoder.npz"}
    # the user's own words that do leave: names of code, options that are numbers
    assert config["model"] == {"name": "own_marked_code:model", "options": {"width": 3}}
    meta, arrays = unpack_arrays(folder / "model-locks.npz")
    assert (meta["model"], meta["options"]) == ("own_marked_code:model", {"width": 3})
    assert meta["data"] == "own-data"
    records = {"shape": [4], "scale": 1.0}
    assert meta["features"] == {"name": "encoder", "file": "encoder.npz", **records}
    assert arrays.keys() == meta["parameters"].keys()  # nothing of the encoder


def test_a_text_in_place_of_a_number_is_refused(tmp_path):
    run = copied(quick())
    told = json.loads((run / "summary.json").read_text())
    told["public"]["arms"][0]["rounds"][1]["epsilon"] = "ann"
    (run / "summary.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"summary.json: damaged .*arms\[0\].rounds\[1\].epsilon"):
        publish_folder(run, tmp_path / "bundle")
    assert os.listdir(tmp_path) == []


def test_another_model_than_that_of_the_run_is_not_published(tmp_path):
    run = copied(quick())
    meta, arrays = unpack_arrays(run / "model-locks.npz")
    arrays = {name: array + 1 for name, array in arrays.items()}
    (run / "model-locks.npz").write_bytes(pack_arrays(meta, arrays))
    with pytest.raises(ValueError, match=r"model-locks.npz: edited since the run wrote it"):
        publish_folder(run, tmp_path / "bundle")


def test_the_settings_that_leave():
    """A new setting shows in this list, and with it the decision that anybody may know it."""

    def names(kind, where=""):
        for item in dataclasses.fields(kind):
            inner = typing.get_type_hints(kind)[item.name]
            path = f"{where}{item.name}"
            yield from names(inner, f"{path}.") if dataclasses.is_dataclass(inner) else [path]

    listed = (Path(__file__).parent / "public_settings.txt").read_text().split()
    private = {"seed", "data.dir", "plan"}  # of a plan: the numbers that came of it
    arms = {f"arm.{name}" for name in SETTINGS}
    assert (set(names(Config)) - private - {"arm"}) | arms == set(listed)
    config = config_of({"seed": 1, "arm": [{"name": "a", "cohort": 5}]})
    secret = {"seed": 1, "plan": PlanConfig(), "data": replace(config.data, dir="/srv/x")}
    assert replace(config, **secret).public() == config.public()
    assert config.public().public() == config.public()


def test_a_run_of_version_0_1_is_refused_by_name(tmp_path, capsys):
    """Only a document that lacks whose the held-out records are would tell them without saying."""
    old = Path(__file__).parents[1] / "old" / "run"
    for command in (["publish", old, tmp_path / "bundle"], ["report", old], ["evaluate", old]):
        said = call_locks(capsys, *command, code=2)
        assert "summary.json: of version 0.1, for it has no held_out; expected" in said
    assert not (tmp_path / "bundle").exists()
    assert "locks" in call_locks(capsys, "privacy", "account", old)  # the ledger is read for ever


def test_local_trust_shows_exact_counts():
    run = finished("local")
    told = statement(checked(run))
    public = [line for arm in told["arms"] for line in arm["rounds"]]
    for theirs, ours in zip(public, lines(run), strict=True):
        for name in ("cohort", "uploads"):
            assert theirs["counts"][name] == ours[name]
        assert theirs["scores"]["score"] == ours["accuracy"]
    hidden = {"ledger", "seed", "entropy", "norm_quantiles", "signal", "nan_clients"}
    assert not shown(bundle(run)) & hidden


def test_the_upload_estimate_is_made_of_released_values():
    """(1 - lambda) b K~ / K' + lambda b, with lambda = 0.1 and b = 4; b where no norm is asked."""
    run = finished()
    folder = bundle(run)
    arms = {arm["name"]: iter(arm["rounds"]) for arm in statement(folder)["arms"]}
    for ours in lines(run):
        theirs = next(arms[ours["arm"]])
        expected = 4.0
        if ours["arm"] == "locks":
            ratio = max(0.0, ours["released_norm_sum"]) / ours["used_norm_sum"]
            expected = 0.9 * 4 * ratio + 0.1 * 4
        assert theirs["upload_estimate"] == pytest.approx(expected)
        assert theirs["expected_cohort"] == {"uniform": 4, "locks": 6}[ours["arm"]]
    assert not any(list(rest) for rest in arms.values())


def test_models_and_accuracies_are_those_of_the_run():
    run = finished()
    folder = checked(run)
    for name in ("model-locks.npz", "model-uniform.npz"):
        (_, theirs), (_, ours) = (unpack_arrays(place / name) for place in (folder, run))
        assert theirs.keys() == ours.keys() == {"layers.0.weight", "layers.0.bias"}
        for parameter in theirs:
            np.testing.assert_array_equal(theirs[parameter], ours[parameter])
        records = np.random.default_rng(0).integers(0, 255, (20, 28, 28)).astype(np.uint8)
        mine, shown = (load(place / name).scores(records) for place in (run, folder))
        np.testing.assert_array_equal(mine, shown)
    for theirs, ours in zip(statement(folder)["arms"], summary(run)["arms"], strict=True):
        assert theirs["name"] == ours["name"]
        assert theirs["privacy"] == ours["privacy"]
        assert theirs["rounds"][-1]["scores"]["score"] == ours["accuracy"]
        assert theirs["noise"]["noise_multiplier"] == ours["noise_multiplier"]
    assert parse_config((folder / "config.toml").read_text()).seed is None


def test_the_statement_names_observers_relations_and_reservations():
    text = (bundle(finished()) / "STATEMENT.md").read_text()
    told = summary(finished())
    for arm in told["arms"]:
        for cost in arm["privacy"]:
            epsilon = epsilon_text(cost["epsilon"], 3, "infinite")
            row = f"| {arm['name']} | {cost['observer']} | {cost['relation']} | {epsilon} | 1e-05 |"
            assert row in text
    assert "| all arms together | PUBLIC | replace |" in text
    assert "simulated: a seed was given" in text
    assert "tuned_without_privacy:" in text
    assert "trusted with raw updates" in text
    honest = (checked(quick(seed=None)) / "STATEMENT.md").read_text()
    assert "simulated" not in honest
    assert "tuned_without_privacy" not in honest
    assert "no privacy guarantee" in (checked(finished("none")) / "STATEMENT.md").read_text()


def test_an_unfinished_run_is_not_published():
    folder = RunFolder.create(new_path(), parse_config(QUICK))
    target = new_path()
    with pytest.raises(ValueError, match="not finished"):
        publish_folder(folder.path, target)
    assert not target.exists()


def test_an_existing_target_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="already exists"):
            publish_folder(finished(), target)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failure_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "statement_text", full)
    with pytest.raises(OSError, match="No space left"):
        publish_folder(finished(), tmp_path / "bundle")
    assert os.listdir(tmp_path) == []
    run = copied(quick())
    (run / "model-locks.npz").unlink()
    with pytest.raises(OSError, match="No such file"):
        publish_folder(run, tmp_path / "bundle")
    assert os.listdir(tmp_path) == []


def test_a_run_nearly_without_noise_comes_to_its_end_and_is_not_published():
    """An accountant's arithmetic fails beyond some noise: said when it is published, not when all
    rounds have been played."""
    run = play(parse_config(QUICK, ("train.rounds=1", "arm.locks.noise_multiplier=1e-7"), 3))
    assert RunFolder.open(run).finished
    with pytest.raises(ValueError, match=r"noise_multiplier = 1e-07: expected 1e-06 to 1e\+09"):
        publish_folder(run, new_path())
