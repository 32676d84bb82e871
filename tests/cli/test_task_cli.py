"""Numbers of a user from `locks run` to `locks evaluate`, and what the example leaves behind."""

from __future__ import annotations

import json

import numpy as np

from locksfl import Population, Task
from small_runs import saved

CHANGES = (
    "train.rounds=2", "privacy.accountant=rdp", "arm=[{name='all', rule='full'}]", "seed=0",
)  # fmt: skip


def wages(place):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = 100 + 10 * x @ [1, -2, 3] + rng.normal(size=60)
    task = Task.numbers(low=0, high=200)
    who = np.arange(60) // 3
    people = Population.from_arrays(x[:45], y[:45], who[:45], x[45:], y[45:], task=task)
    return saved(place / "wages", people)


def test_numbers_from_the_command_line(locks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed = [f"data={{name='{wages(tmp_path)}'}}", *CHANGES]
    ran = locks("run", *(word for change in changed for word in ("--set", change)))
    assert ran.code == 0, ran.err
    assert "own-data · wages" in ran.out
    assert "R²" in ran.out
    assert "always the mean: 0.000" in ran.out
    assert "digits" not in ran.out
    assert "tuned_without_privacy" not in ran.out
    assert "R²: on people held out" in ran.out
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("own-data-")
    told = locks("evaluate", run, "--json")
    (found,) = json.loads(told.out)
    assert found["rmse"] > 0
    assert found["by_client"]["clients"] == 15
    table = locks("evaluate", run)
    assert "clients (secret)" in table.out
    assert "baseline RMSE" in table.out


def test_the_example_says_that_it_was_tuned_on_its_own_data(locks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed = [*CHANGES, "data.clients=5", "local.max_samples=5"]
    ran = locks("run", *(word for change in changed for word in ("--set", change)))
    assert ran.code == 0, ran.err
    assert "digits · mnist-embedded" in ran.out
    assert "tuned_without_privacy" in ran.out
