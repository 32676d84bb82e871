"""`locks data`: tables for people, JSON for programs, one line for what is wrong."""

from __future__ import annotations

import gzip
import json
from unittest import mock

import pytest

from cli_results import refused
from locksfl.data import datasets
from locksfl.data.catalogue import CATALOGUE, NAMES

CSV = "user_id,a,b,y\nann,1,2,0\nbob,3,4,1\nann,5,6,1\ncat,7,8,0\ndan,1,0,1\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    return path


def imported(locks, table, *options):
    done = locks("data", "import", table, "--client", "user_id", "--label", "y", *options)
    assert done.code == 0, done.err
    return table.with_suffix("")


def test_list(locks, tmp_path, monkeypatch):
    monkeypatch.delenv("LOCKS_DATA", raising=False)
    rows = json.loads(locks("data", "list", "--json").out)
    assert [row["name"] for row in rows] == list(NAMES)
    assert [row["name"] for row in rows if row["present"]] == ["mnist-embedded"]
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "shakespeare_roles.jsonl.xz").touch()
    rows = json.loads(locks("data", "list", "--json", "--data-dir", tmp_path).out)
    assert [row["name"] for row in rows if row["present"]] == ["mnist-embedded", "shakespeare"]
    shown = locks("data", "list").out
    assert all(name in shown for name in NAMES)


def test_describe_a_set_without_users(locks, tmp_path):
    done = locks("data", "describe", "mnist-embedded", "--picture", tmp_path / "digits.svg")
    assert "10000 samples, 2000 held out" in done.out
    assert "clients: none; use a split" in done.out
    assert "1000  held out 200" in done.out
    assert (tmp_path / "digits.svg").read_text("utf-8").count("<image") == 40


def test_only_a_file_of_its_own_is_declared_public(locks, table, tmp_path):
    words = ("data", "import", table, "--client", "user_id", "--label", "y", "--test-public")
    assert "--test-public: only with --test FILE" in refused(locks(*words))
    (tmp_path / "held.csv").write_text("a,b,y\n1,2,0\n3,4,1\n")
    folder = imported(locks, table, "--test", tmp_path / "held.csv", "--test-public")
    assert json.loads(locks("data", "describe", folder, "--json").out)["held_out_public"] is True
    assert "private" not in locks("data", "describe", folder).out


def test_import_describe_and_train(locks, table, tmp_path):
    folder = imported(locks, table, "--test-share", "0.25")
    told = json.loads(locks("data", "describe", folder, "--json").out)
    assert (told["clients"], told["held_out_clients"], told["classes"]) == (3, 1, 2)
    assert told["samples"] + told["held_out"] == 5
    assert told["feature_names"] == ["a", "b"]
    shown = locks("data", "describe", folder, "--picture", tmp_path / "rows.svg").out
    assert "clients: 3" in shown
    assert "held out (private: no figure on them is published)" in shown
    assert "samples per client: 1 to" in shown
    assert "#" * 40 in shown
    assert (tmp_path / "rows.svg").read_text("utf-8").count("<image") == 1
    config = tmp_path / "own.toml"
    config.write_text(
        f'data.name = "{folder}"\ntrain.rounds = 2\nprivacy.trust = "none"\n'
        'arm = [{ name = "all", rule = "full" }]\n'
    )
    done = locks("run", config, "--out", tmp_path / "run", "--seed", "0", "--json")
    assert done.code == 0, done.err
    rounds = json.loads(done.out)["secret"]["arms"][0]["rounds"]
    assert [one["counts"]["cohort"] for one in rounds] == [3, 3]
    assert "clients = 3" in (tmp_path / "run" / "config.toml").read_text()
    refusal = refused(locks("run", config, "--set", "data.clients=7", "--out", tmp_path / "no"))
    assert "data.clients = 7: expected 3, the users of" in refusal
    assert not (tmp_path / "no").exists()


def test_a_folder_by_its_name_in_the_data_directory(locks, table, tmp_path):
    imported(locks, table)
    done = locks("data", "describe", "table", "--data-dir", tmp_path)
    assert "clients: 3" in done.out or "clients: 4" in done.out
    with mock.patch.dict("os.environ", {"LOCKS_DATA": str(tmp_path)}):
        assert datasets.natural_clients("table") == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--client", "user", "--label", "y"], "no column 'user' (--client); it has user_id, a, b"),
        (["--client", "user_id", "--label", "z"], "no column 'z' (--label)"),
        (["--client", "user_id"], "--label is missing"),
        (["--label", "y"], "--client is missing"),
        (["--client", "user_id", "--label", "y", "--test-share", "2"], "--test-share = 2.0"),
        (["--client", "user_id", "--label", "y", "--text", "a", "--image", "b"], "only one of"),
        (["--client", "user_id", "--label", "y", "--test", "none.csv"], "none.csv: no such file"),
        (["--client", "user_id", "--label", "a", "--classes", "1,2"], "expected one of 1, 2"),
        (["--client", "user_id", "--label", "y", "--features", "y,a"], "the label column"),
    ],
)
def test_import_refusals(locks, table, tmp_path, arguments, expected):
    assert expected in refused(locks("data", "import", table, *arguments))
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_other_refusals(locks, table, tmp_path):
    assert "did you mean 'mnist'?" in refused(locks("data", "describe", "mnst"))
    assert "did you mean 'cifar10'?" in refused(locks("data", "fetch", "cifar"))
    assert "expected FILE=URL" in refused(
        locks("data", "fetch", "mnist", "--data-dir", tmp_path, "--address", "x")
    )
    shakespeare = refused(locks("data", "fetch", "shakespeare", "--data-dir", tmp_path))
    assert "it has no public address" in shakespeare
    place = tmp_path / "shakespeare"
    place.mkdir(exist_ok=True)
    (place / CATALOGUE["shakespeare"].files[0].name).write_bytes(b"another file")
    wrong = refused(locks("data", "describe", "shakespeare", "--data-dir", tmp_path))
    assert "has sha256" in wrong
    assert "expected 12a06852" in wrong
    folder = imported(locks, table)
    (folder / "features.npy").write_bytes(bytes((folder / "features.npy").stat().st_size))
    assert "features.npy has sha256" in refused(locks("data", "describe", folder))


def test_fetch_says_what_it_did(locks, tmp_path, monkeypatch):
    monkeypatch.delenv("LOCKS_DATA", raising=False)
    assert "nothing to fetch" in locks("data", "fetch", "mnist-embedded").out
    assert "no folder to look in; expected --data-dir" in refused(locks("data", "fetch", "mnist"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    nowhere = [f"--address={file.name}=http://127.0.0.1:9/x" for file in CATALOGUE["mnist"].files]
    said = refused(locks("data", "fetch", "mnist", "--data-dir", tmp_path, *nowhere))
    assert "no connection" in said
    assert list((tmp_path / "mnist").iterdir()) == []


def test_ctrl_c_during_an_import(locks, table, tmp_path):
    with mock.patch("locksfl.data.npy_folder.finish", side_effect=KeyboardInterrupt):
        done = locks("data", "import", table, "--client", "user_id", "--label", "y")
    assert done.code == 130
    assert "Traceback" not in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_folder_that_is_no_data(locks, tmp_path):
    refused(locks("data", "import", "/", "--client", "user_id", "--label", "y"))
    (tmp_path / "empty").mkdir()
    told = refused(locks("data", "import", tmp_path / "empty"))
    assert "empty: a folder without data; expected files that end in .csv, .tsv" in told
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_numbers_and_tags_are_imported(locks, table, tmp_path):
    words = ("data", "import", table, "--client", "user_id", "--features", "a")
    for label, task, options in (
        ("b", "numbers", ("--numbers", "0,10")),
        ("y", "tags", ("--tags",)),
    ):
        done = locks(*words, "--label", label, *options, "--out", tmp_path / task)
        assert done.code == 0, done.err
        assert json.loads(locks("data", "describe", tmp_path / task, "--json").out)["task"] == task
    assert "--numbers 5: expected LOW,HIGH" in refused(locks(*words, "--numbers", "5"))
    assert "in the public range, 0..3" in refused(
        locks(*words, "--label", "b", "--numbers", "0,3", "--out", tmp_path / "no")
    )


def test_a_recipe_is_kept_and_shown(locks, tmp_path):
    table = tmp_path / "people.csv.gz"
    with gzip.open(table, "wt") as file:
        file.write("user_id;age;city;y\nann;30;Rome;0\nbob;;Oslo;1\ncat;50;Rome;1\n")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "[columns.age]\nmissing = 'flag'\nmean = 40\nstd = 10\n"
        "[columns.city]\ncategories = ['Oslo', 'Rome']\n"
    )
    words = ("data", "import", table, "--client", "user_id", "--label", "y", "--recipe", recipe)
    assert locks(*words, "--classes", "2").code == 0
    shown = locks("data", "describe", tmp_path / "people").out
    assert "recipe:\n  age: missing flag, mean 40, std 10\n  city: categories Oslo/Rome\n" in shown
    told = json.loads(locks("data", "describe", tmp_path / "people", "--json").out)
    assert told["feature_names"] == ["age", "age=missing", "city=Oslo", "city=Rome"]
    assert told["recipe"]["columns"]["age"] == {"missing": "flag", "mean": 40.0, "std": 10.0}
