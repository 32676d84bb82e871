"""Every run without a seed is in the journal of its population, once, before its first draw; and
its statement names the runs that it covers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from locksfl import Population, train
from locksfl.experiment import coverage
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Debit
from locksfl.experiment.report import notes
from locksfl.experiment.verify import verify
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total, composed
from small_runs import QUICK, copied, costs, new_path, play, quick, run_experiment, story, summary

PATIENTS = ("privacy.population=patients", "train.rounds=2", "arm.locks.noise_multiplier=3.0")
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "populations"))


def make(total=20.0, order: float | None = 2.4):
    PopulationJournal.make("patients", Total(total, DELTA, order=order)).close()


def config_of(*changes, seed=None):
    return parse_config(QUICK, (*PATIENTS, *changes), seed)


def journal():
    return PopulationJournal.find("patients")


def runs():
    with journal() as found:
        return found.runs


def test_two_runs_compose_and_a_third_is_refused_before_anything_starts():
    make(9.5)
    one, two = (play(config_of(f"name={name}")) for name in ("first", "second"))
    found = runs()
    assert [run.name for run in found] == ["first", "second"]
    assert [run.id for run in found] == [summary(run)["population"]["run"] for run in (one, two)]
    epsilon = costs([cost.as_dict() for cost in composed(found, DELTA)])
    alone = costs(summary(one)["all_arms_composed"])
    assert alone["PUBLIC", "zero-out"] < epsilon["PUBLIC", "zero-out"]
    assert epsilon["SERVER", "zero-out"] is None
    folder = RunFolder.create(new_path(), config_of("name=third"))
    with pytest.raises(
        ValueError, match=r"the run 'third' would use .*\(nothing was debited\)"
    ) as no:
        run_experiment(folder.config, folder)
    assert "\n" not in str(no.value)
    assert not folder.begun
    with journal() as kept:
        assert kept.charged <= kept.total.limit


def test_a_seeded_run_debits_nothing_and_needs_no_journal():
    told = play(config_of(seed=3))
    assert summary(told)["population"] is None
    make()
    play(config_of(seed=3))
    assert runs() == []


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before the debit", "after the debit", "in the first round"])
def test_a_run_that_was_killed_and_goes_on_is_debited_once(when):
    make()
    config = config_of()
    folder = RunFolder.create(new_path(), config)
    real = coverage.debit

    def debit(*arguments, **options):
        if when == "after the debit":
            real(*arguments, **options)
        raise Killed

    def on_round(record):
        del record
        raise Killed

    if when == "in the first round":
        with pytest.raises(Killed):
            run_experiment(config, folder, on_round=on_round)
    else:
        with mock.patch.object(coverage, "debit", debit), pytest.raises(Killed):
            run_experiment(config, folder)
    assert len(runs()) == (0 if when == "before the debit" else 1)
    told = run_experiment(folder.config, folder, resume=True)
    (debited,) = runs()
    assert debited.id == told["population"]["run"]


def test_it_is_debited_before_the_first_draw_and_after_all_that_can_be_refused():
    make()
    config = config_of()
    with (
        mock.patch.object(experiment, "open_task", side_effect=ValueError("bad data")),
        pytest.raises(ValueError, match="bad data"),
    ):
        experiment.prepare(config)
    assert runs() == []
    seen = []
    real = experiment._run_arm

    def spy(*arguments):
        seen.append(len(runs()))
        return real(*arguments)

    with mock.patch.object(experiment, "_run_arm", spy):
        play(config)
    assert seen == [1]


def test_an_old_copy_of_the_journal_is_refused_by_the_run(tmp_path):
    make()
    config = config_of()
    path = tmp_path / "populations"
    shutil.copytree(path, tmp_path / "old")
    run = play(config)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "old", path)
    with pytest.raises(ValueError, match="head was noted, or an old copy"):
        publish_folder(run, new_path())
    shutil.rmtree(path)
    with pytest.raises(ValueError, match=r"population 'patients': no journal"):
        publish_folder(run, new_path())


def test_an_ended_run_is_settled_in_the_journal_that_it_noted():
    """An older copy, which has the run and not what came after it, is refused; and what the run
    notes is the head that says what it was charged. (Nothing else sees an old copy at the end.)"""
    with (
        tempfile.TemporaryDirectory() as root,
        mock.patch.dict(os.environ, {VARIABLE: f"{root}/populations"}),
    ):
        check_a_settlement(Path(root))


def check_a_settlement(root):
    make()
    config = config_of("train.stop_after=1", "train.rounds=5")
    arms, played, run = config.arms, [2] * len(config.arms), "ab" * 16
    coverage.debit(config, arms, run)
    journals = root / "populations"
    shutil.copytree(journals, root / "old")
    noted = coverage.debit(config, arms, "y")
    debit = Debit(id="patients", run=run, head=noted)
    with journal() as kept:
        planned = kept.charged
    shutil.move(journals, root / "new")
    shutil.copytree(root / "old", journals)
    with pytest.raises(ValueError, match="head was noted, or an old copy"):
        coverage.settle(config, arms, played, debit)
    with journal() as kept:
        assert kept.runs[0].played is None, "it was charged there all the same"
    shutil.rmtree(journals)
    shutil.move(root / "new", journals)
    settled = coverage.settle(config, arms, played, debit)
    with journal() as kept:
        assert settled.head == kept.head != noted
        assert kept.charged == pytest.approx(planned * (0.4 + 1) / 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), r"no journal .*privacy population patients --total EPSILON --delta 1e-05"),
        (("privacy.total=20",), r"make it once: .* --total 20 .* --trust central --order 2\.\d+$"),
    ],
)
def test_a_missing_journal_is_said_with_the_command_that_makes_it(changes, expected):
    with pytest.raises(ValueError, match=expected):
        experiment.prepare(config_of(*changes))


def test_settings_that_do_not_fit_are_refused():
    make()
    with pytest.raises(ValueError, match=r"privacy.total = 30: .* was made with 20"):
        experiment.prepare(config_of("privacy.total=30"))
    coverage.check(config_of("privacy.total=20"), [])
    with pytest.raises(ValueError, match=r"privacy.total = 20.0: only with privacy.population"):
        parse_config(QUICK, ("privacy.total=20",))
    with pytest.raises(ValueError, match=r"privacy.population = 'a b': expected up to 100 letters"):
        parse_config(QUICK, ("privacy.population=a b",))


def test_a_statement_names_the_runs_that_it_covers():
    make()
    one = play(config_of("name=first"))
    play(config_of("name=second"))
    publish_folder(one, bundle := new_path())
    told = json.loads((bundle / "statement.json").read_text())["covers"]
    names = [run.label for run in runs()]
    assert [run["run"] for run in told["runs"]] == names
    assert told["total"]["epsilon"] == 20.0
    text = (bundle / "STATEMENT.md").read_text()
    assert f"covers the run {names[0]} alone" in text
    assert f"so far ({', '.join(names)}) have together spent" in text
    assert "population patients: debited" in "\n".join(notes(story(one)))
    assert verify(bundle).faults == []
    # the head of the journal is nobody's business
    head = summary(one)["population"]["head"].partition(" ")[2]
    assert not any(head.encode() in file.read_bytes() for file in bundle.iterdir())


def test_a_run_without_a_population_says_that_others_are_not_covered():
    publish_folder(quick(seed=None), bundle := new_path())
    assert (
        "covers this run only: no other run, and no tuning" in (bundle / "STATEMENT.md").read_text()
    )
    assert json.loads((bundle / "statement.json").read_text()).get("covers") is None
    assert any("other runs over the same people" in line for line in notes(story(quick(None))))
    publish_folder(quick(seed=3), bundle := new_path())  # it protects nobody, and says that
    assert "THIS RUN PROTECTS NOBODY" in (bundle / "STATEMENT.md").read_text()
    old = copied(quick(seed=3))  # as version 0.1 wrote it
    rest = {k: v for k, v in summary(old).items() if k != "population"}
    (old / "summary.json").write_text(json.dumps(rest))
    with pytest.raises(ValueError, match="has no population"):
        publish_folder(old, new_path())


def test_the_library_debits_too():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    people = Population.from_arrays(x, y, np.arange(40) % 8, x, y, classes=2, name="mine")
    options = {"rule": "uniform", "cohort": 4, "rounds": 2, "population_id": "patients"}
    options |= {"noise_multiplier": 3.0, "accountant": "rdp", "total": 20.0}
    with pytest.raises(ValueError, match="no journal"):
        train(people, **options)
    make()
    assert train(people, **options).population_id == "patients"
    assert train(people, seed=1, **options).population_id is None
    (run,) = runs()
    assert (run.name, [arm.name for arm in run.arms]) == ("mine", ["model"])
    with pytest.raises(ValueError, match="nothing was debited"):
        train(people, **{**options, "noise_multiplier": 0.1})
    assert len(runs()) == 1
