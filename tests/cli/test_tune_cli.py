"""`locks tune`: what it refuses, in one line; what it writes, and never over anything."""

from __future__ import annotations

import io
import json
import shutil
import tomllib

import pytest
from rich.console import Console

from cli_results import refused
from locksfl.cli.progress import Bars
from locksfl.experiment.config import parse_config
from locksfl.grids import bench
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total
from made_tunings import DELTA, people, text
from small_runs import new_path


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "populations"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text(people(1)))
    return path


def test_its_progress_names_no_total_before_there_is_one(monkeypatch):
    monkeypatch.setattr("locksfl.cli.progress.EVERY", 0.0)
    told = io.StringIO()
    with Bars(Console(file=told), stopped=str) as bar:
        line = bar.add_task("", total=None)
        bar.update(line, description="opening the public data")
        bar.update(line, description="uniform", total=1)
        bar.update(line, advance=1)
        bar.update(line, total=2)
        bar.update(line, advance=1)
    assert told.getvalue().splitlines() == [
        "opening the public data", "uniform: 0 of 1", "uniform: 1 of 1", "uniform: 1 of 2",
        "uniform: 2 of 2",
    ]  # fmt: skip


QUICK = ("--clip-norm", "1", "--reach", "0.1,1", "--seeds", "1")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "expected either --public DATA (nothing is charged) or --private"),
        (("--public", "mnist", "--private"), "expected either --public DATA"),
        (("--public", "no-such-data"), "--public = 'no-such-data': expected one of"),
        (("--public", "mnist", "--epsilon", "2"), "--epsilon 2: only with --private"),
        (("--private", "--public-set", "data.clients=3"), "only with --public"),
        (("--private", "--set", "seed=3"), "seed = 3: a simulation is charged to nobody"),
        (("--private", "--rounds", "3,4"), "--rounds 3,4: private trials are arms of one run"),
        (("--private", "--set", "privacy.trust=none", "--set", "privacy.epsilon=inf"), "arm.uni"),
        (("--private", "--set", "privacy.trust=local", "--set", "privacy.filter=true"), "filter"),
        (("--private", "--reach", "1,x"), "--reach 1,x: expected numbers such as 1,2,4"),
        (("--private", "--reach", "0"), "--reach = 0.0: expected a number > 0"),
        (("--private", "--set", "engine=flower"), "engine = 'flower': expected none"),
        (("--private",), "privacy.population = 'folk': no journal"),
    ],
)
def test_a_third_way_is_refused_in_one_line(locks, file, flags, said):
    refused(locks("tune", file, *flags), said)
    assert not file.with_name("mine-tuned.toml").exists()


def test_private_trials_without_a_population_are_refused(locks, file):
    file.write_text(text(people(1), population=None))
    refused(locks("tune", file, "--private"), "privacy.population is missing")


def test_a_score_on_held_out_people_is_refused_before_anything_is_debited(locks, file):
    PopulationJournal.make("folk", Total(60.0, DELTA, order=3.0)).close()
    file.write_text(text(people(1, public_test=False)))
    said = "a score on them would be a release that nobody is charged for"
    refused(locks("tune", file, "--private"), "the held-out records are people's", said)
    with PopulationJournal.find("folk") as journal:
        assert journal.runs == []
    # public data are scored on their own records
    assert locks("tune", file, "--public", people(2), *QUICK).code == 0


def test_the_experiments_own_data_or_a_copy_are_not_public(locks, file):
    said = "these are the experiment's own records"
    refused(locks("tune", file, "--public", people(1)), said)
    shutil.copytree(people(1), copy := new_path())
    refused(locks("tune", file, "--public", copy), said)
    changed = f"data.name={people(1)}"
    refused(locks("tune", file, "--public", people(2), "--public-set", changed), said)
    file.write_text('[data]\nname = "mnist-embedded"\n[[arm]]\nname = "a"\nrule = "full"\n')
    refused(locks("tune", file, "--public", "mnist"), said)


def test_it_writes_beside_the_file_never_over_one_and_goes_on(locks, file, monkeypatch):
    command = ("tune", file, "--public", people(2), *QUICK)
    real, played = bench.play_sweep, []

    def tired(*arguments, **options):
        if played:
            raise KeyboardInterrupt
        played.append(arguments)
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(bench, "play_sweep", tired)
        stopped = locks(*command)
    assert stopped.code == 130
    assert "and the same command goes on" in " ".join(stopped.out.split())
    tuned = file.with_name("mine-tuned.toml")
    assert not tuned.exists()
    done = locks(*command)
    assert done.code == 0
    assert "nothing was charged" in done.out
    before = text(people(1))
    assert file.read_text() == before
    (arm,) = parse_config(tuned.read_text()).arms
    assert (arm.clip_norm, arm.step) in ((1.0, 0.1), (1.0, 1.0))
    assert "declared public; nothing was charged" in tuned.read_text().splitlines()[0]
    told = json.loads(locks(*command, "--json").out)  # again: the same
    assert told["arms"][0]["step"] == arm.step
    first, other = tomllib.loads(before), tomllib.loads(tuned.read_text())
    assert other.pop("arm") == [{**first.pop("arm")[0], "clip_norm": 1.0, "step": arm.step}]
    assert other == first
    refused(locks(*command, "--out", "elsewhere"), "mine-tuned.toml: already exists")
    tuned.write_text(before)
    refused(locks(*command), "it was changed, and stays as it is")
    assert tuned.read_text() == before


def test_private_trials_say_what_they_cost(locks, file):
    PopulationJournal.make("folk", Total(60.0, DELTA, order=3.0)).close()
    done = locks("tune", file, "--private", "--reach", "1", "--epsilon", "2")
    assert done.code == 0, done.err
    assert "1 trials, charged to population folk: together epsilon" in " ".join(done.out.split())
    assert "(zero-out)" in done.out
    head = file.with_name("mine-tuned.toml").read_text().splitlines()[0]
    assert "charged to population folk: together epsilon 1.9" in head or "epsilon 2.0000" in head
