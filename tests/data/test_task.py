"""What labels may be, and what is refused: numbers without a public scale, tags that are none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from locksfl import Population, Task
from locksfl.data import npy_folder
from locksfl.data.datasets import open_population
from locksfl.data.describe import description, lines
from locksfl.data.task import parse_task
from small_runs import saved

NUMBERS = Task.numbers(low=0, high=10)
X = np.arange(12, dtype=np.float32).reshape(6, 2)
WHO = [0, 0, 1, 1, 2, 2]


def made(labels, task, tests=None, **more):
    given = labels if tests is None else tests
    return Population.from_arrays(X, labels, WHO, X, given, task=task, **more)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4, 10], np.linspace(0, 10, 6)])
def test_one_target_a_sample_is_a_column_of_floats(labels):
    people = made(labels, NUMBERS)
    assert (people.labels.shape, people.labels.dtype, people.classes) == ((6, 1), np.float32, 1)
    np.testing.assert_allclose(people.labels[:, 0], labels)
    assert people.positions == ()


def test_several_targets_have_a_scale_each_or_one_for_all():
    rows = np.c_[np.linspace(0, 10, 6), np.linspace(-1, 1, 6)]
    people = made(rows, Task.numbers(low=[0, -1], high=[10, 1]))
    assert people.classes == 2
    scores = (people.labels - [5, 0]) / [5, 1]
    np.testing.assert_allclose(people.task.predict(scores), rows, atol=1e-6)
    assert made(rows, Task.numbers(low=-1, high=10)).classes == 2
    with pytest.raises(ValueError, match="3 targets a sample, but the task scales 2"):
        made(np.zeros((6, 3)), Task.numbers(low=[0, -1], high=[10, 1]))


def test_tags_are_a_matrix_of_0_and_1():
    rows = np.random.default_rng(0).integers(0, 2, (6, 3))
    for given in (rows, rows.astype(bool), rows.astype(float)):
        people = made(given, Task("tags"))
        assert (people.classes, people.labels.dtype) == (3, np.int32)
        np.testing.assert_array_equal(people.labels, rows)


@pytest.mark.parametrize(
    ("labels", "task", "said"),
    [
        ([0, 1, 2, 3, 4, 11], NUMBERS, r"labels\[5, 0\] = 11: expected a number in .* 0..10"),
        ([0, 1, 2, 3, 4, np.nan], NUMBERS, r"labels\[5, 0\] = nan: expected a number in the"),
        ([0, 1, 2, 3, 4, 1e39], Task.numbers(mean=0, std=1), r"\[5, 0\] = 1e\+39: expected a fin"),
        (np.zeros((6, 2, 2)), NUMBERS, r"one real number per sample, or a row, got float64 of"),
        (list("abcdef"), NUMBERS, "one real number per sample"),
        (np.full((6, 2), 2), Task("tags"), r"labels\[0, 0\] = 2: expected 0 or 1"),
        (np.zeros(6, int), Task("tags"), "expected a matrix of 0 and 1, got int64 of shape"),
        (np.zeros((6, 0)), Task("tags"), "expected at least one column"),
        (np.zeros((5, 2), int), Task("tags"), "lengths differ"),
    ],
)
def test_labels_of_another_kind_are_refused(labels, task, said):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=said):
        made(labels, task)


def test_the_held_out_labels_are_checked_too():
    with pytest.raises(ValueError, match=r"test_labels\[0, 0\] = 20"):
        made([1] * 6, NUMBERS, tests=[20] * 6)
    with pytest.raises(
        ValueError, match=r"test_labels: expected shape \(6, 2\), got int32 of shape \(6, 3\)"
    ):
        made(np.zeros((6, 2)), Task("tags"), tests=np.zeros((6, 3)))


def test_real_numbers_without_a_task_are_told_of_it():
    with pytest.raises(ValueError, match=r"real numbers are a task of their own, Task\.numbers"):
        made(np.linspace(0, 1, 6), Task(), classes=2)
    with pytest.raises(ValueError, match=r"several 0 or 1 a sample are Task\('tags'\)"):
        made(np.zeros((6, 3), int), Task(), classes=2)
    with pytest.raises(ValueError, match="classes is missing"):
        made(np.zeros(6, int), Task())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got nothing; expected low and high, or mean and std, which are public"),
        ({"low": 0}, "got low; expected"),
        ({"low": 0, "high": 1, "mean": 0, "std": 1}, "got high, low, mean, std"),
        ({"low": 1, "high": 1}, "expected finite numbers, low < high"),
        ({"mean": 0, "std": float("inf")}, "expected finite numbers"),
        ({"low": [0, 1], "high": 2}, "2 and 1 numbers; expected as many of both"),
        ({"low": "a", "high": "b"}, "low = 'a': expected a number"),
        ({"mean": 1.7e9, "std": 3600}, "float32 rounds the numbers; subtract a constant"),
        ({"low": 0, "high": 1, "loss": "hubber"}, "task.loss = 'hubber'.*huber"),
    ],
)
def test_a_scale_must_be_public_whole_and_fit_float32(given, said):
    with pytest.raises(ValueError, match=said):
        Task.numbers(**given)


def test_a_task_is_one_of_three():
    with pytest.raises(ValueError, match=r"task = 'tag'.*tags"):
        Task("tag")
    with pytest.raises(ValueError, match=r"release without noise"):
        Task("numbers")
    with pytest.raises(ValueError, match="task = 'tags': takes no loss"):
        Task("tags", loss="huber")


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("classes", Task()),
        ("tags", Task("tags")),
        ("numbers:0..10", NUMBERS),
        ("numbers:-1.5..1e2,0..1:huber", Task.numbers(low=[-1.5, 0], high=[100, 1], loss="huber")),
        ("numbers:5+-2", Task.numbers(mean=5, std=2)),
    ],
)
def test_a_task_as_an_option(text, task):
    assert parse_task(text) == task


@pytest.mark.parametrize(
    "text",
    ["numbers", "numbers:", "numbers:5", "numbers:a..b", "numbers:0..1..2", "numbers:0..1,2",
     "tags:3", "tag", "", "numbers:1..0", "numbers:0..1:cubic", "numbers:0..nan"],
)  # fmt: skip
def test_an_option_that_is_no_task_is_refused(text):
    with pytest.raises(ValueError, match="task"):
        parse_task(text)


@pytest.mark.parametrize("task", [NUMBERS, Task.numbers(mean=5, std=2, loss="huber"), Task("tags")])
def test_a_folder_keeps_the_task(tmp_path, task):
    labels = np.arange(6).reshape(6, 1) % 2
    place = saved(tmp_path / "people", made(labels, task))
    found = npy_folder.open_folder(place)
    assert found.task == task
    np.testing.assert_array_equal(found.labels, labels)
    dealt = open_population(str(place), 3, "iid", {}, 0)
    assert (dealt.task, sorted(dealt.labels.ravel())) == (task, sorted(labels.ravel()))
    with pytest.raises(ValueError, match=f"has {task.kind} instead of one class per sample"):
        open_population(str(place), 3, "shards", {"classes": 1}, 0)


def test_a_folder_of_an_earlier_version_has_classes(tmp_path):
    place = saved(tmp_path / "people", made([0, 1, 0, 1, 0, 1], Task(), classes=2))
    header = json.loads((place / "header.json").read_text())
    del header["task"]
    (place / "header.json").write_text(json.dumps(header))
    assert npy_folder.open_folder(place).task == Task()


def test_the_hash_of_data_moves_with_their_task():
    """A run that goes on under another scale would use its noise twice."""
    labels = [0, 1, 2, 3, 4, 5]
    digests = {made(labels, Task.numbers(low=0, high=top)).digest(bytes(32)) for top in (5, 6)}
    assert len(digests) == 2


def test_a_description_counts_tags_and_no_numbers(tmp_path):
    tags = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [0, 0], [0, 0]])
    about = description(str(saved(tmp_path / "tags", made(tags, Task("tags")))))
    assert (about.task, about.samples_of_class) == ("tags", [3, 1])
    assert "tags: 2" in lines(about)
    about = description(str(saved(tmp_path / "numbers", made([1.5] * 6, NUMBERS))))
    assert about.samples_of_class is None
    assert "numbers: 1" in lines(about)
