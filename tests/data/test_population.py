"""A population keeps every sample with its owner, and refuses data that do not fit together."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from locksfl.data.population import Population

IDS = ["zoë", "a", "longer-id", "a", "zoë", "a", "b"]
TEST: dict[str, Any] = {
    "test_features": np.zeros((2, 3), np.float32),
    "test_labels": [0, 1],
    "classes": 4,
}


def arrays(samples: int = 7) -> tuple[np.ndarray, np.ndarray]:
    features = np.arange(samples * 3, dtype=np.float32).reshape(samples, 3)
    return features, np.arange(samples) % 4


def pixels(samples: int) -> np.ndarray:
    return np.zeros((samples, 2, 2), np.uint8)


def test_round_trip_with_ragged_string_ids():
    features, labels = arrays()
    population = Population.from_arrays(features, labels, IDS, **TEST, name="names")
    assert (population.clients, population.samples, population.name) == (4, 7, "names")
    assert population.sizes.tolist() == [3, 1, 1, 2]
    for index, name in enumerate(np.unique(IDS)):
        rows = [row for row, owner in enumerate(IDS) if owner == name]
        mine, targets = population.client(index)
        np.testing.assert_array_equal(mine, features[rows])
        np.testing.assert_array_equal(targets, labels[rows])


@pytest.mark.parametrize(
    "ids",
    [
        [30, -5, 12, -5, 30, -5, 20],
        np.array([30, 1, 12, 1, 30, 1, 20], np.uint8),
        np.array(IDS, dtype=object),
        tuple(IDS),
    ],
)
def test_ids_may_be_any_integers_or_strings(ids):
    features, labels = arrays()
    population = Population.from_arrays(features, labels, ids, **TEST)
    assert sorted(population.sizes) == [1, 1, 2, 3]
    expected = features[np.argsort(np.array(ids), kind="stable")]
    np.testing.assert_array_equal(population.features, expected)


def test_from_split_and_from_arrays_agree():
    features, labels = arrays()
    owner = [3, 0, 2, 0, 3, 0, 1]
    one = Population.from_split(features, labels, owner, **TEST, clients=4)
    two = Population.from_arrays(features, labels, owner, **TEST)
    for field in ("features", "labels", "offsets"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def test_types_and_scale():
    made = {
        kind: Population.from_split(
            np.ones((2, 3), kind), [0, 1], [0, 1], np.ones((1, 3), kind), [1], classes=2
        )
        for kind in ("uint8", "float16", "float64", "int32")
    }
    for kind, population in made.items():
        assert population.features.dtype == kind
        assert population.labels.dtype == population.test_labels.dtype == np.int32
        assert population.offsets.dtype == np.int64
        assert population.scale == (1 / 255 if kind == "uint8" else 1.0)
    # Bytes that are not pixels, such as characters, say so.
    tokens = Population.from_split(
        pixels(1), [0], [0], pixels(1), [0], classes=1, scale=1.0, name="characters"
    )
    assert tokens.scale == 1.0


def test_nan_is_the_engines_to_handle():
    features, labels = arrays()
    features[2] = np.nan
    features[3] = np.inf
    population = Population.from_split(features, labels, np.zeros(7, int), **TEST)
    assert np.isnan(population.features).sum() == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39, -1e300])
def test_what_a_user_gives_is_finite_in_float32(value):
    features, labels = arrays()
    features = features.astype(np.float64)
    features[2, 1] = value
    with pytest.raises(ValueError, match=r"^features\[2, 1\] = .*: expected finite numbers that"):
        Population.from_arrays(features, labels, IDS, **TEST)
    with pytest.raises(ValueError, match=r"classes = 1000000001: expected at most 1048576$"):
        Population.from_arrays(arrays()[0], labels, IDS, **{**TEST, "classes": 10**9 + 1})


def test_read_only_and_without_a_copy_when_sorted():
    features, labels = arrays()
    population = Population.from_split(features, labels, [0, 0, 1, 1, 1, 2, 3], **TEST)
    assert np.shares_memory(population.features, features)
    with pytest.raises(ValueError, match="read-only"):
        population.features[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        population.name = "other"  # type: ignore[misc]
    features[0] = 7  # the caller's own array stays writeable


def test_a_million_clients_cost_their_bytes():
    clients = 1_000_000
    features = np.zeros((clients, 1), np.uint8)
    labels = np.zeros(clients, np.int32)
    population = Population.from_split(
        features, labels, np.arange(clients), features[:1], [0], classes=1
    )
    assert population.clients == clients
    held = population.features.nbytes + population.labels.nbytes + population.offsets.nbytes
    assert held == clients * (1 + 4 + 8) + 8


def split_with(**changed: Any) -> Population:
    features, labels = arrays()
    given = {"features": features, "labels": labels, "owner": [0, 0, 1, 1, 2, 2, 3], **TEST}
    return Population.from_split(**(given | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": [0, 1]}, "lengths differ: .* features 7, labels 2, clients_of_samples 7"),
        ({"owner": [0, 1]}, "lengths differ: .* clients_of_samples 2"),
        ({"labels": [0, 1, 2, 3, 4, 0, 0]}, r"labels\[4\] = 4: expected a class in 0\.\.3"),
        ({"labels": [0, -1, 2, 3, 0, 0, 0]}, r"labels\[1\] = -1: expected a class in 0\.\.3"),
        ({"labels": np.zeros(7)}, "labels: expected one whole number per sample, got float64"),
        ({"test_labels": [0, 9]}, r"test_labels\[1\] = 9: expected a class in 0\.\.3"),
        ({"test_labels": [0]}, "test_labels: expected 2 of them, one per sample, got 1"),
        ({"owner": [0, 0, 1, 1, 3, 3, 3]}, r"client 2 has no samples: .* \(1 of 4 have none\)"),
        ({"clients": 5}, "client 4 has no samples"),
        ({"clients": 3}, r"client of a sample = 3: expected a number in 0\.\.2"),
        ({"clients": 8}, "clients = 8: expected at most 7, one per sample"),
        ({"owner": [0, 0, 1, 1, 2, 2, -3]}, "client of a sample = -3: expected a number in"),
        ({"owner": [0, 0, 1, 1, 2, 2, 10**12]}, "expected at most 7, one per sample"),
        ({"owner": np.zeros(7)}, "client of each sample: expected whole numbers, got float64"),
        ({"clients": 0}, "clients = 0: expected a whole number >= 1"),
        ({"classes": 0}, "classes = 0: expected a whole number >= 1"),
        ({"scale": 0.0}, r"scale = 0\.0: expected a number > 0"),
        ({"features": np.full((7, 3), "x")}, "features: expected an array of real numbers, got"),
        (
            {"features": np.zeros((0, 3)), "labels": [], "owner": []},
            "features: expected at least one sample, got none",
        ),
        (
            {"test_features": np.zeros((0, 3), np.float32), "test_labels": np.zeros(0, int)},
            "test_features: expected at least one sample, got none",
        ),
        ({"test_features": np.zeros((2, 4), np.float32)}, r"float32 of shape \(4,\)"),
        ({"test_features": np.zeros((2, 3), np.uint8)}, "got uint8 of shape"),
    ],
)
def test_bad_data_give_one_line(changed, message):
    with pytest.raises(ValueError, match=message) as refused:
        split_with(**changed)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, "1", 2, 3, 4, 5, 6], "client_ids: expected all whole numbers or all strings"),
        (np.zeros(7), "client_ids: expected whole numbers or strings, got float64"),
        (np.array([1.5] * 7, object), "client_ids: expected whole numbers or strings, got float64"),
        ([None] * 7, "client_ids: expected whole numbers or strings, got object"),
        ([True] * 7, "client_ids: expected whole numbers or strings, got bool"),
        (3, "lengths differ"),
        ([], "lengths differ"),
    ],
)
def test_bad_ids_give_one_line(ids, message):
    features, labels = arrays()
    with pytest.raises(ValueError, match=message) as refused:
        Population.from_arrays(features, labels, ids, **TEST)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 6], "offsets: expected to run from 0 to 7 (samples), got 0 to 6"),
        ([1, 3, 7], "offsets: expected to run from 0 to 7 (samples), got 1 to 7"),
        ([0, 3, 3, 7], "client 1 has no samples"),
        ([0, 5, 3, 7], "client 1 has no samples"),
        ([0], "offsets: expected clients + 1 whole numbers"),
    ],
)
def test_bad_offsets_give_one_line(offsets, message):
    good = split_with()
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(good, offsets=np.array(offsets))


@pytest.mark.parametrize("index", [-1, 4])
def test_client_out_of_range(index):
    with pytest.raises(ValueError, match=rf"client = {index}: expected a number in 0\.\.3"):
        split_with().client(index)


def sequences(labels, test_labels=None):
    return Population.from_split(
        np.zeros((3, 4), np.uint8),
        labels,
        [0, 0, 1],
        np.zeros((2, 4), np.uint8),
        np.zeros((2, 4), int) if test_labels is None else test_labels,
        classes=5,
        scale=1.0,
    )


def test_a_label_at_every_position():
    labels = np.array([[0, 1, 2, 3], [4, 4, -1, -1], [0, 0, 0, -1]])
    population = sequences(labels)
    assert population.labels.dtype == np.int32
    assert population.client(0)[1].tolist() == labels[:2].tolist()
    assert population.scale == 1.0
    with pytest.raises(ValueError, match=r"labels\[1, 2\] = -2: .*0..4, or -1 for no label"):
        sequences(labels - (labels < 0))
    with pytest.raises(ValueError, match=r"one per position of features of shape \(3, 4\)"):
        sequences(labels[:, :3])
    with pytest.raises(ValueError, match="test_labels: expected one per position like labels"):
        sequences(labels, np.zeros(2, int))


def test_limited():
    owner = np.repeat([0, 1, 2], [2, 5, 3])
    rows = np.arange(10.0)
    everyone = Population.from_split(rows, np.arange(10) % 2, owner, rows, owner % 2, classes=2)
    assert everyone.limited(2, 5) is everyone
    some = everyone.limited(3, 4)
    assert some.offsets.tolist() == [0, 4, 7]
    assert some.features.tolist() == [2, 3, 4, 5, 7, 8, 9]
    assert some.labels.tolist() == [0, 1, 0, 1, 1, 0, 1]
    with pytest.raises(ValueError, match="no client has that many; the largest has 5"):
        everyone.limited(6)
    with pytest.raises(ValueError, match="max_samples = 1: expected at least min_samples = 2"):
        everyone.limited(2, 1)


def test_a_digest_moves_with_everything_and_with_its_key():
    features, labels = arrays()
    people = Population.from_arrays(features, labels, IDS, **TEST)
    key = bytes(32)
    first = people.digest(key)
    assert people.digest(key) == first != people.digest(b"1" * 32)
    assert len(bytes.fromhex(first)) == 32
    same = Population.from_arrays(np.asfortranarray(features), labels, IDS, **TEST, name="other")
    assert same.digest(key) == first
    one = features.copy()
    one[-1, -1] += 1
    others = [
        dataclasses.replace(people, features=np.sort(one, axis=0)),
        dataclasses.replace(people, features=people.features.view(np.int32),
                            test_features=people.test_features.view(np.int32)),
        dataclasses.replace(people, features=people.features.reshape(7, 3, 1),
                            test_features=people.test_features.reshape(2, 3, 1)),
        dataclasses.replace(people, labels=people.labels[::-1]),
        dataclasses.replace(people, offsets=np.array([0, 2, 4, 5, 7])),
        dataclasses.replace(people, test_features=people.test_features + 1),
        dataclasses.replace(people, test_labels=people.test_labels[::-1]),
        dataclasses.replace(people, classes=5),
        dataclasses.replace(people, scale=0.5),
    ]  # fmt: skip
    assert len({first, *(other.digest(key) for other in others)}) == 10


def test_a_digest_does_not_depend_on_the_pieces_that_are_read(monkeypatch):
    features, labels = arrays()
    people = Population.from_arrays(features, labels, IDS, **TEST)
    whole = people.digest(bytes(32))
    monkeypatch.setattr("locksfl.data.population._AT_ONCE", 24)
    assert people.digest(bytes(32)) == whole


def test_a_repr_shows_no_record():
    people = Population.from_arrays(
        np.full((4, 2), 41.25), [0, 1, 1, 0], ["ann", "bob"] * 2, np.ones((1, 2)), [1], classes=2
    )
    assert "41.25" not in repr(people)
    assert "ann" not in repr(people)
    assert "2 clients, 4 samples of [2], 1 held out" in repr(people)
