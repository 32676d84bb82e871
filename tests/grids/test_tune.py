"""`locks tune`: charged exactly or not at all, the same after a kill, and worth it."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from scipy.optimize import brentq

from locksfl.arm import Arm
from locksfl.data.catalogue import NAMES, same_records
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.grids import bench as benches
from locksfl.grids.drive import NOBODY, Play
from locksfl.grids.tune.report import report_text, tuned_text
from locksfl.grids.tune.task import Axes, private_task, public_task
from locksfl.grids.tune.trials import Trial, begin, chosen, step_of, trial_run, tune
from locksfl.methods.events import Sampled
from locksfl.privacy import calibrate
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total
from locksfl.privacy.rdp import ORDERS, composed_rdp
from made_tunings import COHORT, DELTA, EPSILON, PEOPLE, ROUNDS, people, text
from small_runs import new_path, shared, summary

ORDER = 3.0


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    """Journals of its own; runs on the same data share their compiled rounds."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "populations"))
    with shared():
        monkeypatch.setattr(benches, "Simulator", experiment.Simulator)
        monkeypatch.setattr(benches, "open_task", experiment.open_task)
        yield


def journal(total=60.0):
    PopulationJournal.make("folk", Total(total, DELTA, order=ORDER)).close()


def table(*args, **options):
    return tomllib.loads(text(*args, **options))


def played(task, path: Path, watch=NOBODY, warned=None):
    begin(path, task)
    return tune(task, path, watch, ([] if warned is None else warned).append)


def debited():
    with PopulationJournal.find("folk") as found:
        return found.charged, found.runs


class Killed(BaseException):
    """The process is gone."""


def killed_after(rounds):
    """A watch that kills when so many rounds were played."""
    seen = []

    def counted(more, done):
        del more
        seen.extend([1] * done)
        if len(seen) >= rounds:
            raise Killed

    return NOBODY._replace(counted=counted)


def test_private_trials_cost_what_their_rounds_cost_and_no_more_than_was_said():
    """The journal's charge and the printed total, by hand from the noise in the folder."""
    journal()
    task = private_task(table(people(1)), (), Axes(reach=(0.1, 1.0, 10.0)))
    path = new_path()
    found = played(task, path)
    arms = summary(path / "run")["arms"]
    assert [arm["step"] for arm in arms] == [0.1, 1.0, 10.0]
    assert len({arm["noise_multiplier"] for arm in arms}) == 1
    event = Sampled(COHORT / PEOPLE, arms[0]["noise_multiplier"])
    charge, (run,) = debited()
    assert charge == pytest.approx(composed_rdp([(event, 3 * ROUNDS)], (ORDER,))[0], rel=1e-12)
    together = epsilon_of([(event, 3 * ROUNDS)], DELTA, accountant="rdp").epsilon
    told = {(c.observer, c.relation): c.epsilon for c in found.privacy}
    assert told["PUBLIC", "zero-out"] == pytest.approx(together, rel=1e-9)
    assert 0.99 * EPSILON < together <= EPSILON
    assert told["SERVER", "zero-out"] is None
    one = epsilon_of([(event, ROUNDS)], DELTA, accountant="rdp").epsilon
    assert together > 1.2 * one  # what a tuning that charges one trial would claim
    assert run.name == "small-tuning"
    assert f"{together:.3f}"[:5] in report_text(found)


def test_a_total_that_does_not_pay_is_refused_and_one_that_pays_only_for_the_trials_is_said():
    journal(6.0)
    task = private_task(table(people(1)), (), Axes())
    with pytest.raises(ValueError, match=r"'small-tuning' would use .*\(nothing was debited\)"):
        played(task, new_path())
    assert debited() == (0, [])
    cheap = private_task(table(people(1)), (), Axes(reach=(1.0,)), 1.0)
    warned: list[str] = []
    played(cheap, new_path(), warned=warned)
    assert "does not pay for these trials and a run after them" in warned[-1]


def test_killed_at_any_round_it_is_debited_once_and_ends_alike():
    """A chain of kills, and the same folder copied in the middle: both copies end alike."""
    journal()
    task = private_task(table(people(1)), (), Axes(reach=(0.1, 1.0)))
    path = new_path()
    for rounds in (1, 4, 9):
        with pytest.raises(Killed):
            played(task, path, killed_after(rounds))
        assert len(debited()[1]) == 1
    charge = debited()[0]
    other = new_path()
    shutil.copytree(path, other)
    one, two = played(task, path), played(task, other)
    assert debited()[0] == charge
    assert structs.replace(one, run="") == structs.replace(two, run="")
    for number in (1, 2):
        models = [(p / "run" / f"model-uniform-{number}.npz").read_bytes() for p in (path, other)]
        assert models[0] == models[1]
    again = played(task, path)  # finished: nothing is played, nothing debited
    assert again == one
    assert debited()[0] == charge


def test_killed_before_its_first_checkpoint_it_begins_anew(monkeypatch):
    journal()
    task = private_task(table(people(1)), (), Axes(reach=(1.0,)))
    path = new_path()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            played(task, path)
    assert debited() == (0, [])
    assert played(task, path).arms[0].score > 0
    assert len(debited()[1]) == 1


def test_public_trials_are_the_same_after_a_kill_and_debit_nothing():
    journal()
    axes = Axes(clip_norm=(1.0,), reach=(0.1, 1.0), rounds=(3, 6), seeds=1)
    task = public_task(table(people(1)), (), axes, str(people(2)), ())
    whole, path = played(task, new_path()), new_path()
    for cells in (1, 3):
        with pytest.raises(Killed):
            played(task, path, killed_after(cells))
    assert report_text(played(task, path)) == report_text(whole)
    assert tuned_text(task, played(task, path)) == tuned_text(task, whole)
    assert debited() == (0, [])
    assert {trial.rounds for trial in whole.trials} == {3, 6}


def test_public_trials_have_the_experiments_noise_on_the_mean(monkeypatch):
    """However many clients the public data have: the cohort and the multiplier are the same."""
    seen = []
    real = benches.play_sweep

    def spy(simulator, settings, *rest, **options):
        seen.extend(arm for arm, _ in settings)
        return real(simulator, settings, *rest, **options)

    monkeypatch.setattr(benches, "play_sweep", spy)
    fewer = (f"data.clients={PEOPLE // 2}", 'data.split={kind="iid"}', "data.unit=record")
    task = public_task(table(people(1)), (), Axes(seeds=1), str(people(2)), fewer)
    played(task, new_path())
    (mine,) = plan_arms(task.config)
    assert {(arm.clients, arm.cohort) for arm in seen} == {(PEOPLE // 2, COHORT)}
    assert {arm.noise_multiplier for arm in seen} == {mine.noise_multiplier}


def test_a_tuned_run_is_better_than_the_default():
    """On the private people, whom no trial has seen; 8 seeds, simulated. The file's step is
    far too small, and the search has to leave its first grid."""
    task = public_task(table(people(1)), (), Axes(seeds=1), str(people(2)), ())
    found = played(task, new_path())
    (arm,) = found.arms
    assert arm.score > arm.before + 0.1

    def accuracy(toml):
        config = parse_config(toml)
        bench = benches.Bench()
        (arm,) = plan_arms(config)
        return np.array([one.score for one in bench([Play(config, arm, s) for s in range(8)])])

    gain = accuracy(tuned_text(task, found)) - accuracy(text(people(1)))
    assert gain.mean() > 5 * gain.std(ddof=1) / np.sqrt(8)
    assert gain.mean() > 0.1


def trial(arm, rounds, reach, score, loss):
    return Trial(arm, rounds, 1.0, reach, score, loss, step_of(1.0, reach))


def test_the_best_rounds_are_the_best_for_all_arms_together():
    found = [
        trial("a", 10, 1.0, 0.5, 1.0),
        trial("a", 20, 1.0, 0.8, 1.0),
        trial("b", 10, 1.0, 0.9, 1.0),
        trial("b", 20, 1.0, 0.5, 1.0),
        trial("b", 20, 2.0, 0.55, 1.0),
        trial("b", 20, 3.0, 0.55, 1.0),
    ]
    rounds, best = chosen(found)
    assert rounds == 10
    assert [(t.arm, t.reach) for t in chosen(found[1:2] + found[4:])[1]] == [("a", 1.0), ("b", 2.0)]
    assert len(best) == 2


def test_among_models_that_learnt_nothing_the_loss_decides():
    """Steps that are far too small are all equally accurate; so are those far too large."""
    small = [trial("a", 1, reach, 0.1, 2.3 - reach) for reach in (0.01, 0.03)]
    large = [trial("a", 1, 1e3, 0.1, None), trial("a", 1, 1e2, 0.1, 50.0)]
    assert chosen(small)[1] == small[1:]
    assert chosen(large)[1] == large[1:]


def test_trials_keep_all_else_of_their_arm():
    journal()
    arms = [{"name": "locks", "rule": "norm", "cohort": 30, "uploads": 10, "floor": 0.1}]
    given = {**table(people(1)), "arm": arms}
    config = trial_run(private_task(given, (), Axes(clip_norm=(1.0, 2.0))))
    assert len(config.arm) == 6
    for trial in config.arms:
        assert (trial.rule, trial.uploads, trial.floor, trial.rounds) == ("norm", 10, 0.1, ROUNDS)
        assert trial.norm_multiplier > 0


def test_what_composition_costs_beside_private_selection():
    """The figures of docs/accounting.md. Selection is charged by Theorem 2 of Papernot and Steinke
    (2022), the number of trials being logarithmic (eta = 0) with mean 9."""
    arm, orders = Arm("a", 1000, 100, cohort=200), np.array(ORDERS)

    def multiplier(trials):
        return calibrate(replace(arm, rounds=100 * trials), 8.0, 1e-5).noise_multiplier

    assert [round(multiplier(k), 2) for k in (1, 3, 9)] == [1.44, 2.24, 3.7]
    gamma = brentq(lambda g: (1 / g - 1) / np.log(1 / g) - 9, 1e-6, 0.999)

    def selected(noise):
        one = composed_rdp([(Sampled(0.2, noise), 100)], ORDERS)
        more = np.min((1 - 1 / orders) * one - np.log(gamma) / orders) + np.log(9) / (orders - 1)
        return np.min(one + more + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1))

    assert round(brentq(lambda noise: selected(noise) - 8.0, 1.0, 5.0), 2) == 2.07


def test_sets_that_share_records_are_known():
    assert {name for name in NAMES if same_records("mnist", name)} == {
        "mnist", "mnist-embedded", "mnist-writers",
    }  # fmt: skip
