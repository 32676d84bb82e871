"""Every metric against the value that scikit-learn 1.7 gives, written down here."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl import Task
from locksfl.experiment.metrics import auc, calibration_error, metrics_of

SCORES = np.array(
    [[2, 1, 0], [.5, 1.5, .2], [0, .3, 1], [1, 0, .9], [.2, 2, 1], [1.5, 1.4, 0], [0, 0, 3],
     [1, 2, .5], [2.5, 0, 1], [.3, .1, .2]]
)  # fmt: skip
LABELS = np.array([0, 1, 2, 2, 1, 1, 2, 0, 0, 1])


def near(told):
    return {name: pytest.approx(value, rel=1e-9) for name, value in told.items()}


def test_three_classes():
    found = metrics_of(Task(), [SCORES[:4], SCORES[4:]], LABELS)
    wanted = {
        "accuracy": 0.6, "baseline": 0.4, "gain": 0.2, "loss": 0.6756615653709453,
        "balanced_accuracy": 0.611111111111111, "auc": 0.9107142857142857,
        "f1": 0.6238095238095238, "calibration_error": 0.2509536462223211,
        "accuracy_by_class": [2 / 3, 1 / 2, 2 / 3],
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == near(wanted)
    assert found["confusion"] == [[2, 1, 0], [2, 2, 0], [1, 0, 2]]


def test_f1_of_two_classes_is_that_of_the_second():
    chance = np.array([0.1, 0.4, 0.35, 0.8, 0.2, 0.7, 0.6, 0.3])
    scores = np.c_[np.zeros(8), np.log(chance / (1 - chance))]
    found = metrics_of(Task(), [scores], np.array([0, 0, 1, 1, 0, 1, 0, 0]))
    wanted = {"accuracy": 0.75, "balanced_accuracy": 11 / 15, "auc": 13 / 15, "f1": 2 / 3}
    assert {name: found[name] for name in wanted} == near(wanted)


def test_a_model_that_never_says_yes_is_seen_as_one():
    """13% positives: accuracy looks fine alone."""
    labels = (np.arange(100) < 13).astype(int)
    found = metrics_of(Task(), [np.tile([1.0, -1.0], (100, 1))], labels)
    assert (found["accuracy"], found["baseline"]) == (0.87, 0.87)
    assert (found["balanced_accuracy"], found["f1"], found["auc"]) == (0.5, 0.0, 0.5)
    assert (found["gain_low"], found["gain_high"]) == (0.0, 0.0)


def test_labels_at_some_positions():
    """Only labelled positions count; the interval is over records."""
    labels = np.array([[0, 1, -1], [2, -1, -1], [-1, -1, -1]])
    scores = np.zeros((3, 3, 3))
    scores[0, 0, 0] = scores[0, 1, 2] = scores[1, 0, 2] = 1.0
    found = metrics_of(Task(), [scores[:1], scores[1:]], labels)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["confusion"] == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert found["accuracy_by_class"] == [1.0, 0.0, 1.0]


def test_a_class_that_is_nowhere_counts_for_nothing():
    found = metrics_of(Task(), [np.c_[SCORES, np.full(10, -9.0)]], LABELS)
    assert found["accuracy_by_class"][3] is None
    assert found["balanced_accuracy"] == pytest.approx(0.611111111111111)
    assert found["f1"] == pytest.approx(0.6238095238095238)


def test_numbers_in_their_own_units():
    truth = np.array([[3, 10], [-0.5, 20], [2, 30], [7, 25]])
    answers = np.array([[2.5, 11], [0, 18], [2, 33], [8, 24]])
    task = Task.numbers(low=[-10, 0], high=[10, 50])
    found = metrics_of(task, [(answers - [0, 25]) / [10, 25]], truth)
    wanted = {
        "mae": 1.125, "rmse": 1.2744320543997514, "r2": 0.9400183542367697,
        "baseline_rmse": 5.0481862884981545, "baseline_mae": 4.1875,
        "r2_by_target": [0.9486081370449679, 0.9314285714285714], "gain": 0.9400183542367697,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == near(wanted)
    assert found["baseline"] == 0
    constant = metrics_of(task, [np.zeros((4, 2))], np.tile([1.0, 2.0], (4, 1)))
    assert constant["r2"] == 0  # nothing to explain


def test_tags():
    truth = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]])
    scores = np.array(
        [[2, -1, -.5], [-1, .5, -2], [.3, -.2, .4], [-.7, -.3, 1.5], [-1, .1, -.6]]
    )  # fmt: skip
    found = metrics_of(Task("tags"), [scores], truth)
    wanted = {
        "accuracy": 11 / 15, "baseline": 9 / 15, "exact_match": 0.4, "baseline_exact_match": 0.2,
        "f1_micro": 2 / 3, "f1_macro": 2 / 3, "f1_by_tag": [1.0, 0.5, 0.5], "auc": 8 / 9,
        "loss": 0.48320957340980614,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == near(wanted)


def test_what_cannot_be_said_is_none():
    one = metrics_of(Task(), [SCORES], np.zeros(10, int))
    assert one["auc"] is None
    broken = metrics_of(Task(), [np.full((4, 3), np.nan)], np.array([0, 1, 2, 2]))
    assert [broken[name] for name in ("auc", "loss", "calibration_error")] == [None] * 3
    lost = metrics_of(Task.numbers(low=0, high=1), [np.full((4, 1), np.inf)], np.zeros((4, 1)))
    assert lost["rmse"] is None


def test_ties_count_half():
    assert auc(np.array([1.0, 1.0, 0.0, 2.0]), np.array([True, False, False, True])) == 0.875


def test_calibration_is_the_gap_between_what_is_said_and_what_is_right():
    right = np.arange(1000) < 700
    assert calibration_error(np.full(1000, 0.7), right) == pytest.approx(0, abs=1e-12)
    assert calibration_error(np.full(1000, 1.0), right) == pytest.approx(0.3)


def test_the_interval_covers_the_true_gain():
    """1,000 tests of 200 records, with a true gain of 0.1: 95% of the intervals have it, up to 4.9
    standard errors (false alarms: 1e-6); a gain of 0.25 is in few of them."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(1000):
        labels = (rng.random(200) < 0.35).astype(int)
        answers = np.where(rng.random(200) < 0.75, labels, 1 - labels)
        found = metrics_of(Task(), [np.eye(2)[answers]], labels)
        covered.append([found["gain_low"] < gain < found["gain_high"] for gain in (0.1, 0.25)])
    share, wrong = np.mean(covered, axis=0)
    assert abs(share - 0.95) < 4.9 * np.sqrt(0.95 * 0.05 / 1000)
    assert wrong < 0.3
