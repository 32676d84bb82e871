"""`train.stop_after`: a run ends on public records alone, where it would have ended without a kill;
the guarantee is the plan's, and journals are charged for the rounds that were played."""

from __future__ import annotations

import dataclasses
import math

import pytest

from locksfl.arm import Arm
from locksfl.experiment import coverage
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Line, PublicRound, Releases, Scores, SecretRound, read
from locksfl.experiment.records import stalled
from locksfl.experiment.report import notes
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.ledger import account_ledger, read_run
from locksfl.privacy.population import VARIABLE, PlannedArm, PopulationJournal, Run, Total, composed
from locksfl.privacy.rdp import composed_rdp
from small_runs import (
    QUICK,
    costs,
    imported,
    lines,
    new_path,
    over,
    play,
    run_experiment,
    story,
    summary,
)

ORDER, DELTA, PLANNED = 2.4, 1e-5, 40
# so much noise that accuracy stops rising soon
EARLY = (
    "train.stop_after=2",
    "train.evaluate_every=2",
    f"train.rounds={PLANNED}",
    "arm.locks.noise_multiplier=30.0",
    "arm.locks.norm_multiplier=30.0",
)


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "populations"))


def config_of(*changes, seed=None):
    return parse_config(QUICK, (*EARLY, *changes), seed)


def charged():
    with PopulationJournal.find("patients") as journal:
        return journal.charged, journal.runs


def line_of(score):
    scores = None if score is None else Scores(score=score, loss=None)
    public = PublicRound(epsilon=1.0, expected_cohort=1.0, upload_estimate=1.0, scores=scores)
    return Line(arm="a", round=1, public=public, secret=SecretRound(released=Releases()))


def test_it_stops_at_the_evaluation_that_is_no_better():
    found = list(map(line_of, (0.2, None, 0.3, 0.3, None, 0.25)))
    assert [stalled(found[:n], 2) for n in range(1, 7)] == [False] * 5 + [True]
    assert not stalled(found, None)
    assert not stalled([*found[:3], line_of(0.31)], 1)


def test_the_guarantee_is_the_plans_and_the_rounds_played_are_what_was_spent():
    run = play(config_of(seed=3))
    (arm,) = summary(run)["arms"]
    told = RunFolder.open(run).load_checkpoint()[2]["rounds.jsonl"]
    told = [read(Line, one) for one in told]
    played = arm["played_rounds"]
    assert played == len(told) < PLANNED == arm["rounds"]
    assert stalled(told, 2)
    assert not stalled(told[:-2], 2)  # not an evaluation later than it had to
    ((event, _),) = next(iter(read_run(run).planned.values())).terms["PUBLIC"]

    def epsilon(rounds):
        return epsilon_of([(event, rounds)], DELTA, accountant="rdp").epsilon

    seen = ("PUBLIC", "zero-out")
    assert costs(arm["privacy"])[seen] == pytest.approx(epsilon(PLANNED))
    assert costs(arm["spent_so_far"])[seen] == pytest.approx(epsilon(played))
    assert epsilon(played) < 0.9 * epsilon(PLANNED)  # so that the two can be told apart
    ledger = account_ledger(read_run(run)).arms[0]
    assert (ledger.rounds, ledger.rounds_played) == (PLANNED, played)
    said = " ".join(notes(story(run)))
    assert f"locks: {played} of {PLANNED} planned rounds, which have spent epsilon" in said
    publish_folder(run, bundle := new_path())
    text = (bundle / "STATEMENT.md").read_text("utf-8")
    assert f"locks: {played} of {PLANNED} planned rounds, which have spent epsilon" in text
    assert "the epsilons on this page are those of all planned rounds" in text


def test_the_journal_is_charged_for_the_rounds_played_and_for_no_more(monkeypatch):
    PopulationJournal.make("patients", Total(20.0, DELTA, order=ORDER)).close()
    config = config_of("privacy.population=patients")
    in_between = []
    real = coverage.settle
    monkeypatch.setattr(
        coverage, "settle", lambda *given: (in_between.append(charged()[0]), real(*given))[1]
    )
    run = play(config)
    played = summary(run)["arms"][0]["played_rounds"]
    event = next(iter(read_run(run).planned.values())).terms["PUBLIC"][0].event
    each = composed_rdp([(event, 1)], (ORDER,))[0]  # by hand, and not by way of the journal
    total, (entry,) = charged()
    assert in_between == [pytest.approx(PLANNED * each)]  # until it can play no more
    assert total == pytest.approx(played * each, rel=1e-12)
    assert entry.played == (played,)
    fixed = costs([cost.as_dict() for cost in composed([entry], DELTA)])["PUBLIC", "zero-out"]
    whole = epsilon_of([(event, PLANNED)], DELTA).epsilon  # nobody fixed less beforehand
    assert fixed == pytest.approx(whole)
    publish_folder(run, new_path())  # the head that it noted is that of the settled journal


def test_a_settlement_counts_once_and_raises_nothing():
    PopulationJournal.make("patients", Total(20.0, DELTA, order=ORDER)).close()
    arm = Arm.of("a", 100, 10, cohort=10, noise_multiplier=2.0)

    def run(rounds):
        return Run("x", "x", (PlannedArm.of(dataclasses.replace(arm, rounds=rounds)),))

    with PopulationJournal.find("patients") as journal:
        journal.debit(run(10))
        whole = journal.charged
        journal.settle(run(20))
        assert journal.charged == whole
        journal.settle(run(4))
        assert journal.charged == pytest.approx(0.4 * whole)
        journal.settle(run(1))
        assert journal.charged == pytest.approx(0.4 * whole)
        with pytest.raises(ValueError, match="a copy of its folder cannot go on"):
            journal.debit(run(10))
    with PopulationJournal.find("patients") as again:  # and the chain holds
        assert len(again.runs) == 1


class Killed(BaseException):
    """The process is gone."""


def test_killed_after_any_block_or_before_the_settlement_it_ends_alike(monkeypatch):
    """Every place where a run may die, in one chain: each resumes and dies at the next."""
    PopulationJournal.make("patients", Total(20.0, DELTA, order=ORDER)).close()
    config = config_of("privacy.population=patients")
    folder = RunFolder.create(new_path(), config)
    real = coverage.settle

    def killed(*_):
        raise Killed

    monkeypatch.setattr(coverage, "settle", killed)
    resume = False
    for _ in range(PLANNED):
        with pytest.raises(Killed):
            run_experiment(config, folder, resume=resume, on_round=killed)
        resume, done = True, lines(folder.path)
        if stalled(done, 2):
            break
    for _ in range(2):  # it has ended, and is killed before and after it is settled
        with pytest.raises(Killed):
            run_experiment(config, folder, resume=True, on_round=killed)
    monkeypatch.setattr(coverage, "settle", lambda *given: (real(*given), killed()))
    with pytest.raises(Killed):
        run_experiment(config, folder, resume=True)
    monkeypatch.setattr(coverage, "settle", real)
    told = run_experiment(config, folder, resume=True)
    played = told["arms"][0]["played_rounds"]
    assert played == len(done) == len(lines(folder.path))
    total, (entry,) = charged()
    assert entry.played == (played,)
    assert math.isclose(total, played / PLANNED * _planned_charge(folder.path))


def _planned_charge(run):
    event = next(iter(read_run(run).planned.values())).terms["PUBLIC"][0].event
    return composed_rdp([(event, PLANNED)], (ORDER,))[0]


def test_interrupted_or_not_a_run_with_a_seed_is_the_same():
    whole = play(config_of(seed=3))
    folder = RunFolder.create(new_path(), config_of(seed=3))

    def on_round(record):
        if record.round == 4:
            raise Killed

    with pytest.raises(Killed):
        run_experiment(folder.config, folder, on_round=on_round)
    run_experiment(folder.config, folder, resume=True)
    assert lines(folder.path) == lines(whole)
    model = "model-locks.npz"
    assert (folder.path / model).read_bytes() == (whole / model).read_bytes()


def test_it_is_refused_where_it_would_tell_of_people():
    people = over(imported(), "train.stop_after=1")
    folder = RunFolder.create(new_path(), people)
    with pytest.raises(ValueError, match=r"train\.stop_after = 1: the held-out records are people"):
        run_experiment(people, folder)
    assert not folder.begun
    public = over(imported(test=True, test_public=True), "train.stop_after=1")
    assert summary(play(public))["arms"][0]["played_rounds"] <= 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("train.average_last=2", r"train\.average_last = 2: .* train\.stop_after"),
        ("engine=flower", r"train\.stop_after = 2: not in a federation"),
        ("train.stop_after=0", r"train\.stop_after = 0: expected a whole number >= 1"),
    ],
)
def test_what_cannot_go_with_it_is_one_line(change, named):
    with pytest.raises(ValueError, match=named) as no:
        config_of(change)
    assert "\n" not in str(no.value)


def test_a_copy_that_played_for_longer_is_charged_for_that():
    """Both passed the debit before one of them ended; a shorter copy changes nothing."""
    arm = Arm.of("a", 100, PLANNED, cohort=20.0, noise_multiplier=2.0)

    def run(rounds):
        return Run("r", "run", (PlannedArm.of(dataclasses.replace(arm, rounds=rounds)),))

    with PopulationJournal.make("patients", Total(8.0, DELTA, order=ORDER)) as journal:
        journal.debit(run(PLANNED))
        whole = journal.charged
        journal.settle(run(10))
        assert journal.charged == pytest.approx(whole / 4)
        journal.settle(run(30))
        assert journal.charged == pytest.approx(whole * 3 / 4)
        journal.settle(run(20))
        journal.settle(run(PLANNED))
        assert journal.charged == pytest.approx(whole)
        assert len(journal.runs) == 1
