"""Regression and multi-label data of a user, from a folder to the bundle; what a run tells."""

from __future__ import annotations

import functools
import io
import json
import tomllib
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from locksfl import Population, Task, train
from locksfl.arm import Arm
from locksfl.cli.main import example_config
from locksfl.experiment.config import parse_config
from locksfl.experiment.evaluate import evaluate_run, evaluation_tables
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.page import story as page_story
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Releases, Scores, SecretRound, metrics_of
from locksfl.experiment.records import few_uploads
from locksfl.experiment.report import metrics_line, notes, summary_table
from locksfl.experiment.run import run_experiment
from made_documents import made_run
from small_runs import copied, lines, new_path, saved, story, summary

CLIENTS, EACH, WIDTH = 300, 4, 3
EXPERIMENT = """
[data]
name = "{data}"
[train]
rounds = 20
clip_norm = 0.5
optimizer = {{ step = {step} }}
evaluate_every = 10
[privacy]
epsilon = 8.0
accountant = "rdp"
[[arm]]
name = "coin"
rule = "coin"
cohort = 150
"""


def records(kind, samples, rng):
    x = rng.normal(size=(samples, WIDTH)).astype(np.float32)
    if kind == "numbers":  # two targets in different units
        by = np.array([[3.0, 0], [-2, 40], [0, 30]])
        return x, [20, 500] + x @ by + rng.normal(size=(samples, 2)) * [1, 20]
    by = np.array([[2.0, 0, 1], [0, -2, 1], [1, 1, 0]])
    return x, (x @ by + rng.normal(size=(samples, 3)) > 1).astype(int)


TASKS = {"numbers": Task.numbers(low=[0, 0], high=[40, 1000]), "tags": Task("tags")}


def people(kind):
    """300 people with four records each, and 400 public records of others."""
    rng = np.random.default_rng(0)
    x, y = records(kind, CLIENTS * EACH, rng)
    test = records(kind, 400, rng)
    who = np.repeat(np.arange(CLIENTS), EACH)
    return Population.from_arrays(x, y, who, *test, task=TASKS[kind], name=kind, test_public=True)


@functools.cache
def played(kind):
    """A run at epsilon 8 on a folder of these people."""
    place = saved(new_path().parent / f"my {kind}", people(kind))
    step = {"numbers": 1.0, "tags": 4.0}[kind]
    config = parse_config(EXPERIMENT.format(data=place, step=step), seed=1)
    folder = RunFolder.create(new_path(), config)
    run_experiment(config, folder)
    return folder.path


def printed(*parts, width=80):
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", TASKS)
def test_a_users_numbers_and_tags_are_learnt_at_epsilon_8(kind):
    """Better than a constant answer outside the 95% interval, and the table says so."""
    told = summary(played(kind))
    (arm,) = told["arms"]
    spent = [c["epsilon"] for c in arm["privacy"] if c["observer"] == "PUBLIC"]
    assert min(spent) <= 8.0
    found = arm["metrics"]
    assert found["gain_low"] > 0.1
    seen = story(played(kind))
    text = printed(summary_table(seen), *notes(seen))
    assert f"own-data · my {kind}" in text
    assert "NOT SHOWN TO BE BETTER" not in text
    assert "tuned_without_privacy" not in text
    last = lines(played(kind))[-1]
    if kind == "numbers":
        assert found["rmse"] < 0.8 * found["baseline_rmse"]
        assert last["accuracy"] is None
        assert last["r2"] == pytest.approx(found["r2"], abs=1e-4)
        assert "R²" in text
        assert f"({found['baseline_rmse']:.3f})" in text
    else:
        assert found["f1_macro"] > 0.5
        assert found["exact_match"] > found["baseline_exact_match"]
        assert last["accuracy"] == pytest.approx(found["accuracy"], abs=1e-6)
        assert last["loss"] == pytest.approx(found["loss"], rel=1e-4)
        assert "always the more frequent" in text


@pytest.mark.parametrize("kind", TASKS)
def test_evaluate_computes_the_same_and_fits_a_terminal(kind):
    (again,) = evaluate_run(played(kind))
    told = summary(played(kind))["arms"][0]["metrics"]
    assert {name: again[name] for name in told} == {
        name: pytest.approx(value, rel=1e-6) for name, value in told.items()
    }
    assert again["by_client"]["clients"] == 100
    text = printed(*evaluation_tables([again]))
    assert "…" not in text
    assert ("RMSE" if kind == "numbers" else "F1 macro") in text


@pytest.mark.parametrize("kind", TASKS)
def test_a_bundle_has_public_metrics_and_nothing_of_clients(kind, tmp_path):
    """The spread over clients is in the run folder; planted anywhere in it, it does not leave."""
    run = copied(played(kind))
    spread = lines(run, "diagnostics.jsonl")[-1]["by_client"]
    assert spread["0.1"] <= spread["0.5"] <= spread["0.9"]
    told = summary(run)
    planted = {"by_client": {"0.1": 0.123456789}, "accuracy_by_client": [0.123456789]}
    for table in (told, told["arms"][0], told["arms"][0]["metrics"], told["held_out"]):
        table |= planted
    (run / "summary.json").write_text(json.dumps(told))
    other = [line | planted for line in lines(run)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in other))
    publish_folder(run, tmp_path / "bundle")
    text = "".join(path.read_text("latin-1") for path in (tmp_path / "bundle").iterdir())
    for secret in ("0.123456789", "by_client", repr(spread["mean"]), f"my {kind}"):
        assert secret not in text
    public = json.loads((tmp_path / "bundle" / "statement.json").read_text())
    found = summary(played(kind))["arms"][0]["metrics"]
    for name in ("baseline", "gain_low", "rmse" if kind == "numbers" else "f1_macro"):
        assert public["arms"][0]["metrics"][name] == found[name]
    assert tomllib.loads((tmp_path / "bundle" / "config.toml").read_text())["name"] == "own-data"

    # the metrics themselves stay where the held-out records are somebody's own
    told["held_out"]["public"] = False
    (run / "summary.json").write_text(json.dumps(told))
    publish_folder(run, tmp_path / "private")
    text = (tmp_path / "private" / "statement.json").read_text()
    assert "metrics" not in text
    assert "baseline" not in text


def test_no_spread_is_kept_where_privacy_is_real(monkeypatch):
    """Without a seed nothing that only a simulation can see is computed, let alone written."""
    from locksfl.experiment import run as module

    def refuse(*_):
        raise AssertionError("a secret run looked at its clients")

    monkeypatch.setattr(module, "score_by_client", refuse)
    place = saved(new_path().parent / "people", people("tags"))
    changes = ("train.rounds=1", "privacy.epsilon=100")
    config = parse_config(EXPERIMENT.format(data=place, step=1.0), changes)
    folder = RunFolder.create(new_path(), config)
    run_experiment(config, folder)
    assert lines(folder.path, "diagnostics.jsonl") == []
    assert summary(folder.path)["arms"][0]["metrics"]["baseline"] > 0.5


def test_the_library_predicts_in_the_units_of_the_targets():
    population = people("numbers")
    result = train(population, rule="uniform", cohort=150, noise_multiplier=0.05, rounds=15,
                   clip_norm=0.5, step=1.0, seed=0, accountant="rdp")  # fmt: skip
    assert result.accuracy is None
    off = result.predict(population.test_features) - population.test_labels
    assert result.metrics["mae"] == pytest.approx(np.abs(off).mean(), rel=1e-5)
    assert result.metrics["gain_low"] > 0.1


def line_with(**metrics):
    usual = {"accuracy": 0.87, "baseline": 0.87, "balanced_accuracy": 0.5, "auc": None, "f1": 0.0}
    interval = {"gain_low": 0.0, "gain_high": 0.0, "calibration_error": 0.1}
    (arm,) = story(made_run("uniform")).arms
    measured = metrics_of("classes", {**usual, **interval, **metrics})
    (last,) = {measured.accuracy}
    rounds = (structs.replace(arm.public.rounds[0], scores=Scores(score=last, loss=None)),)
    public = structs.replace(arm.public, name="locks", rounds=rounds)
    return metrics_line(replace(arm, public=public, secret=None), measured)


def test_the_baseline_stands_beside_the_accuracy():
    said = line_with()
    assert "accuracy 0.870 (always the most frequent: 0.870)" in said
    assert "balanced 0.500, AUC -, F1 0.000" in said
    assert "NOT SHOWN TO BE BETTER than a constant answer (95%: +0.000 to +0.000)" in said
    better = line_with(accuracy=0.92, gain_low=0.02, gain_high=0.07)
    assert "NOT SHOWN TO BE BETTER" not in better
    told = summary(played("tags"))
    text = printed(summary_table(story(played("tags"))))
    (row,) = [line for line in text.splitlines() if "baseline" in line]
    assert row.split() == ["baseline", f"{told['arms'][0]['metrics']['baseline']:.3f}"]


def test_a_users_run_has_the_name_of_its_data_and_no_note_of_the_examples_tuning(tmp_path):
    """What `locks init` writes, with the data changed: nothing of the digits is left in it."""
    place = saved(tmp_path / "hearts", people("tags"))
    text = example_config().replace('"mnist-embedded"', f'"{place}"')
    kept = [line for line in text.splitlines() if not line.startswith(("clients =", "split ="))]
    config = parse_config("\n".join(kept))
    assert (config.name, config.privacy.tuned_without_privacy) == ("own-data", False)
    assert parse_config(example_config()).name == "digits"
    assert parse_config('data.name = "mnist"\n[[arm]]\nname = "a"\ncohort = 2').name == "mnist"


SMALL = "a client uploads in proportion to its norm, and most are small beside clip_norm = 2; "


@pytest.mark.parametrize(
    ("rule", "uploads", "exhausted", "said"),
    [
        ("norm", 39, 0, f"{SMALL}a smaller clip_norm, or norm_low below 0.9, brings more."),
        ("coin", 39, 0, None),  # nobody asked for a number
        ("norm", 39, 7, "7 clients have spent their budget."),
        ("norm", 80, 0, None),
        ("uniform", 39, 0, None),  # by chance
    ],
)
def test_far_fewer_uploads_than_asked_are_explained(rule, uploads, exhausted, said):
    """From what may be shown: the true count of a trusted server is another."""
    more = {"norm": {"uploads": 8, "norm_low": 0.9}, "coin": {}, "uniform": {"uploads": 8}}[rule]
    cohort = 8 if rule == "coin" else 12
    arm = Arm.of("a", 50, 20, rule, cohort=cohort, clip_norm=2.0, **more)
    rounds = [SecretRound(released=Releases())] * 20
    found = few_uploads(arm, uploads, exhausted, rounds)
    begin = f"about {uploads / 160:.0%} of the 160 uploads asked for came: "
    assert found == (said and begin + said)


def test_a_run_tells_of_it():
    told = summary(played("tags"))
    (arm,) = told["arms"]
    assert arm["asked_uploads"] == 150 * 20
    assert arm["few_uploads"] is None  # of a coin
    here = story(played("tags"))
    before = set(notes(here))
    with mock.patch.object(page_story, "few_uploads", return_value="few uploads came."):
        assert set(notes(here)) - before == {"coin: few uploads came."}


def test_a_device_trains_on_numbers(tmp_path):
    """Its update at zero weights is the gradient by hand: -(y - center) / spread / targets, times
    the record."""
    from locksfl.federation.device.files import built_in_update

    x, y = records("numbers", 5, np.random.default_rng(3))
    task = json.dumps(TASKS["numbers"].as_dict())
    np.savez(tmp_path / "data.npz", features=x, labels=y, classes=2, task=task)
    (tmp_path / "experiment.toml").write_text('[model]\nname = "softmax"\n')
    update = built_in_update(tmp_path / "data.npz", tmp_path / "experiment.toml")
    errors = -(y - [20, 500]) / [20, 500] / 2
    wanted = np.concatenate([(errors.T @ x / 5).ravel(), errors.mean(axis=0)])
    np.testing.assert_allclose(update(np.zeros(8, np.float32), 0), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", TASKS)
def test_a_federations_server_scores_as_the_simulator_does(kind):
    from locksfl.experiment.metrics import held_out_metrics
    from locksfl.federation.server.engine import _scorer
    from locksfl.models.build import softmax, with_task

    population = people(kind)
    model = with_task(softmax(WIDTH, population.classes), population.task)
    weights = np.random.default_rng(0).normal(size=model.size).astype(np.float32) * 0.1
    score, loss = _scorer(model, population)(weights)
    found = held_out_metrics(model, weights, population)
    assert float(score) == pytest.approx(found[population.task.score], rel=1e-4)
    assert float(loss) > 0


def test_a_comparison_counts_right_answers():
    """So numbers and tags have none, and are refused before anything is played."""
    from locksfl.grids.comparison.cases import parse_comparison
    from locksfl.grids.comparison.folder import Folder

    place = saved(new_path().parent / "people", people("numbers"))
    text = (
        EXPERIMENT.format(data=place, step=1.0).partition("[[arm]]")[0].replace("epsilon = 8.0", "")
    )
    text += '[compare]\nepsilons = [8.0]\nuploads = [3]\n[[compare.method]]\nname = "a"\n'
    folder = Folder(new_path(), parse_comparison(text))
    with pytest.raises(ValueError, match="expected data with classes, got numbers"):
        folder.play()
