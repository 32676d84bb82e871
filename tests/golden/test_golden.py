"""Runs come out as version 0.1 played them, whatever its methods are called.

values.json was recorded by version 0.1 with `locks run golden.toml --seed 7` and the changes below,
before the first file moved. Coins are compared exactly, floats to what another processor rounds.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import numpy as np
import pytest

from locksfl import load, methods
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import run_experiment
from run_tables import line_tables, run_table

HERE = Path(__file__).parent
VALUES = json.loads((HERE / "values.json").read_text())
LOCAL = ["privacy.trust=local", "privacy.epsilon=400"]
CHANGES = {
    "central": [],
    "filter": [*LOCAL, "privacy.filter=true", "privacy.releases=3"],
    "ht": [*LOCAL, "arm.locks.estimator=horvitz-thompson"],
    "none": ['privacy={trust="none"}'],
}
PLACES = [100, 2000, 4321, 7849]


def play(name: str, folder: Path, rename=lambda text: text):
    text = rename((HERE / "golden.toml").read_text())
    config = parse_config(text, [rename(change) for change in CHANGES[name]], seed=7)
    run = RunFolder.create(folder, config)
    return run, run_table(run_experiment(config, run), config)


def compare(name: str, run: RunFolder, summary) -> None:
    wanted = VALUES[name]
    lines = line_tables(run.path)
    assert [arm["name"] for arm in summary["arms"]] == list(wanted["arms"])
    for arm in summary["arms"]:
        golden = wanted["arms"][arm["name"]]
        mine = [line for line in lines if line["arm"] == arm["name"]]
        for what in ("cohort", "uploads"):
            assert [line[what] for line in mine] == golden[what]
        sums = [line["released_norm_sum"] for line in mine]
        assert sums == [near(s, 1e-4) for s in golden["released_norm_sum"]]
        for what in ("noise_multiplier", "norm_multiplier"):
            assert arm[what] == near(golden[what])
        assert costs(arm["privacy"]) == {k: near(v) for k, v in golden["epsilon"].items()}
        assert costs(arm["spent_so_far"]) == {k: near(v) for k, v in golden["spent"].items()}
        assert arm["loss"] == pytest.approx(golden["loss"], rel=1e-3)
        weights = load(run.path / f"model-{arm['name']}.npz").weights.astype(float)
        found = [np.linalg.norm(weights), *weights[PLACES]]
        assert found == pytest.approx(golden["weights"], rel=1e-3, abs=1e-4 * found[0])
    composed = {k: near(v) for k, v in wanted["composed"].items()}
    assert costs(summary["all_arms_composed"]) == composed


def near(value, rel=1e-9):
    return value if value is None else pytest.approx(value, rel=rel)


def costs(rows):
    return {f"{row['observer']} {row['relation']}": row["epsilon"] for row in rows}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_comes_out_as_before(tmp_path, name):
    compare(name, *play(name, tmp_path / "run"))


@pytest.fixture
def names():
    """Every method under a random name, in a random order; the old names with the new ones."""
    registries, names = (methods.RULES, methods.ESTIMATORS, methods.TRUSTS), {}
    kept = [dict(registry) for registry in registries]
    for registry in registries:
        names |= {old: f"x{secrets.token_hex(4)}" for old in registry}
        renamed = sorted((names[old], method) for old, method in registry.items())
        registry.clear()
        registry.update(renamed)
    yield names
    for registry, old in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(old)


@pytest.mark.parametrize("name", ["central", "filter"])
def test_no_name_of_a_method_decides_anything(tmp_path, name, names):
    """Every method registered under a random name: the same coins, models and epsilons."""

    def rename(text: str) -> str:
        words = r'((?:rule|estimator|trust) ?= ?"?)([\w-]+)'
        return re.sub(words, lambda m: m[1] + names.get(m[2], m[2]), text)

    compare(name, *play(name, tmp_path / "run", rename))
