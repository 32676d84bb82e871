"""The rule of CONTRIBUTING.md, as a user would write it: run, charged, clamped, and on devices."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import locksfl
from locksfl.arm import Arm
from locksfl.audit.statements import broken_statements
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import run_experiment
from locksfl.federation.server.serving import as_federation
from locksfl.privacy import calibrate, guarantee
from locksfl.privacy.ledger import account_ledger, read_run

ROOT = Path(__file__).parents[2]
NAME = "own_rule:rule"
TEXT = """
name = "own"
[data]
clients = 12
[local]
max_samples = 40
[train]
rounds = 3
[privacy]
trust = "TRUST"
epsilon = EPSILON
accountant = "rdp"
[[arm]]
name = "own"
rule = "own_rule:rule"
cohort = 6
uploads = 3
norm_low = 0.8
"""


@pytest.fixture(autouse=True)
def in_the_folder_of_the_example(monkeypatch):
    monkeypatch.chdir(ROOT / "examples")


def config(trust: str, epsilon: float):
    return parse_config(TEXT.replace("TRUST", trust).replace("EPSILON", str(epsilon)), seed=1)


def test_contributing_shows_the_rule_that_is_run_here():
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    assert shown == (ROOT / "examples" / "own_rule.py").read_text()
    assert len(shown.splitlines()) <= 30


def test_it_keeps_its_statements():
    for clip_norm in (0.1, 1.0, 30.0):
        for trust in ("central", "local"):
            arm = Arm(
                "own", 100, 10, NAME, trust=trust, cohort=20, uploads=8, norm_low=0.7,
                clip_norm=clip_norm,
            )  # fmt: skip
            assert broken_statements(arm) == []
    assert arm.largest_probability == pytest.approx(8 / 20 / 0.7)


def test_its_norms_are_charged_like_those_of_the_rule_norm():
    numbers = {"trust": "local", "cohort": 20, "uploads": 8, "norm_low": 0.7}
    own, norm = (
        calibrate(Arm.of("a", 100, 10, rule, **numbers), 8.0, 1e-5) for rule in (NAME, "norm")
    )
    assert own.norm_multiplier == norm.norm_multiplier
    assert own.noise_multiplier == norm.noise_multiplier
    assert guarantee([own], 1e-5, "pld") == guarantee([norm], 1e-5, "pld")


@pytest.mark.parametrize(("trust", "epsilon"), [("central", 8.0), ("local", 300.0)])
def test_an_experiment_runs_it_and_its_ledger_says_what_it_cost(tmp_path, trust, epsilon):
    experiment = config(trust, epsilon)
    folder = RunFolder.create(tmp_path / "run", experiment)
    run = run_experiment(experiment, folder).public
    assert [arm.rule for arm in run.settings.arm] == [NAME]
    assert run.arms[0].noise.norm_multiplier > 0
    observer = "public" if trust == "central" else "server"
    cost = account_ledger(read_run(folder.path)).arms[0].guarantee[observer]
    assert cost.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert cost.epsilon <= epsilon


def test_the_library_takes_it():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    population = locksfl.Population.from_arrays(
        x, y, np.arange(60) % 6, test_features=x, test_labels=y, classes=2
    )
    trained = locksfl.train(population, rule=NAME, cohort=4, uploads=2, rounds=2, epsilon=8.0)
    assert len(trained.history) == 2
    assert {math.isinf(c.epsilon) for c in trained.privacy if c.observer == "PUBLIC"} == {False}


def test_a_federation_takes_it_because_the_server_alone_computes_it():
    (arm,) = as_federation(config("local", 300.0)).arms
    assert arm.releases_norms


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such:rule", "no module 'no_such'"),
        ("own_rule:rul", r"has no Rule 'rul' \(did you mean 'rule'\?\)"),
        ("own_rule:probability", "has no Rule 'probability'"),
        ("own rule:rule", "expected package.module:Rule"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_in_one_line(name, said):
    with pytest.raises(ValueError, match=said) as refusal:
        Arm("a", 10, 1, name, cohort=4)
    assert str(refusal.value).startswith(f"arm.a.rule = {name!r}: ")
