"""From raw rows to predictions: the recipe in a model's file, and nothing private in it."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import locksfl
from locksfl._arrays import unpack_arrays
from locksfl.data import npy_folder, raw
from locksfl.data.importing import Request, import_table
from locksfl.data.origin import Preparation

RECIPE = """
public = "census.csv"
[columns.age]
missing = "flag"
scale = "public"
[columns.income]
low = 0.0
high = 100.0
missing = 50.0
[columns.city]
categories = ["Oslo", "Rome"]
other = true
missing = "flag"
[columns.joined]
date = ["year", "weekday"]
"""
ROWS = [
    {"age": 31, "city": "Rome", "income": 20.5, "joined": "2024-03-01"},
    {"age": None, "city": None, "income": None, "joined": "2011-12-24"},
    {"age": 77, "city": "Bern", "income": 250.0, "joined": "2030-01-01"},
]


def mixed_csv(path, rows=120):
    """Semicolons, gaps, categories and dates: six people, each with rows of all kinds."""
    rng = np.random.default_rng(0)
    lines = ["user;age;city;ill;joined;income"]
    for row in range(rows):
        age = "" if row % 7 == 0 else int(rng.integers(18, 90))
        city = ["Oslo", "Rome", "Bern", ""][rng.integers(4)]
        income = "NA" if row % 11 == 0 else f"{rng.uniform(0, 120):.2f}"
        day = f"20{rng.integers(10, 25)}-0{rng.integers(1, 10)}-1{rng.integers(0, 10)}"
        lines.append(f"p{row % 6};{age};{city};{int(rng.integers(2))};{day};{income}")
    path.write_text("\n".join(lines) + "\n")
    (path.parent / "census.csv").write_text("age\n20\n40\n60\n")
    (path.parent / "recipe.toml").write_text(RECIPE)
    return path


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_raw_rows_are_predicted_as_encoded_ones(tmp_path, suffix):
    source = mixed_csv(tmp_path / "people.csv")
    recipe = tmp_path / "recipe.toml"
    people = locksfl.from_table(source, client="user", label="ill", classes=2, recipe=recipe)
    result = locksfl.train(people, rule="uniform", cohort=3, rounds=3, epsilon=8.0, seed=1)
    result.save(tmp_path / f"model.{suffix}")
    model = locksfl.load(tmp_path / f"model.{suffix}")

    encoded = np.concatenate([people.features, people.test_features])  # sorted by client
    expected = sorted(map(tuple, model.scores(encoded).tolist()))
    assert len(set(expected)) > 100
    whole = csv.read_csv(source, parse_options=csv.ParseOptions(delimiter=";"))
    swapped = whole.select(["joined", "city", "age", "income"])
    for form in (source, str(source), whole, whole.to_pylist(), swapped):
        scores = model.scores(form)
        assert sorted(map(tuple, scores.tolist())) == expected
        assert (model.predict(form) == scores.argmax(axis=1)).all()
        assert (result.predict(form) == model.predict(form)).all()


def test_each_raw_row_is_encoded_by_the_recipe_in_the_order_of_the_import(tmp_path):
    source, recipe = mixed_csv(tmp_path / "people.csv"), tmp_path / "recipe.toml"
    made = locksfl.from_table(source, client="user", label="ill", classes=2, recipe=recipe).recipe
    std = np.std([20, 40, 60])  # of the public table: age, missing, Oslo, Rome, other, missing, ...
    assert raw.records(ROWS, made) == pytest.approx(
        np.array(
            [
                [(31 - 40) / std, 0, 0, 1, 0, 0, 2.4, 4 / 6, 0.205],
                [0, 1, 0, 0, 0, 1, 1.1, 5 / 6, 0.5],
                [(77 - 40) / std, 0, 0, 0, 1, 0, 3.0, 1 / 6, 1.0],
            ]
        ),
        abs=1e-6,
    )
    for rows, expected in [
        ([{"age": 1, "city": "Rome", "income": 1}], "no column 'joined', which the model"),
        ([{**ROWS[0], "joined": "soon"}], "column 'joined' in row 1 is 'soon': expected a date"),
        ([ROWS[0], {**ROWS[0], "joined": None}], "missing or not finite: 'joined.year' in row 2"),
    ]:
        with pytest.raises(ValueError, match=expected):
            raw.records(rows, made)


def test_images_and_texts_are_encoded_as_the_import_did(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 255, (4, 3, 2)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", user=[1, 1, 2, 2], y=[0, 1, 0, 1], pixels=pixels)
    seen = locksfl.from_table(tmp_path / "a.npz", client="user", label="y", classes=2)
    both = np.concatenate([seen.features, seen.test_features])
    stored = msgspec.json.decode(msgspec.json.encode(seen.recipe), type=Preparation)
    again = raw.records(tmp_path / "a.npz", stored)
    assert again.dtype == both.dtype == np.uint8
    assert sorted(again.ravel()) == sorted(both.ravel())
    assert again.shape == (4, 3, 2)
    np.savez(tmp_path / "b.npz", pixels=pixels / 255)  # scaled already
    with pytest.raises(ValueError, match="is float32 of shape"):
        raw.records(tmp_path / "b.npz", seen.recipe)

    texts = pa.table({"user": [1, 2], "y": [0, 1], "said": ["good morning", "no"]})
    read = locksfl.from_table(texts, client="user", label="y", classes=2, text="said")
    both = np.concatenate([read.features, read.test_features])
    assert sorted(map(tuple, raw.records(texts, read.recipe))) == sorted(map(tuple, both))


def test_names_that_were_found_in_private_records_are_not_in_the_file(tmp_path):
    rows = [{"user": u, "y": u % 2, "a": float(u)} for u in range(4)]
    rows[3]["hiv_test"] = 1.0  # a column that exists because of one person
    recipe = {"columns": {"*": {"missing": 0.0}}}
    found = locksfl.from_table(rows, client="user", label="y", classes=2, recipe=recipe)
    told = {"rule": "uniform", "cohort": 2, "rounds": 1, "epsilon": 8.0, "seed": 1}
    model = locksfl.train(found, **told)
    model.save(tmp_path / "model.npz")
    assert "hiv" not in json.dumps(unpack_arrays(tmp_path / "model.npz")[0])
    with pytest.raises(ValueError, match="does not say how to encode one"):
        locksfl.load(tmp_path / "model.npz").predict(rows)

    named = locksfl.from_table(
        rows, client="user", label="y", classes=2, features=["a", "hiv_test"], recipe=recipe
    )  # the owner declares them
    assert locksfl.train(named, **told).predict(rows).shape == (4,)


def test_a_table_of_numbers_needs_none(tmp_path):
    table = pa.table({"user": [0, 0, 1, 1], "b": [1.0, 2, 3, 4], "y": [0, 1, 0, 1]})
    place = import_table(table, tmp_path / "plain", Request("user", "y", classes=("2",)))
    people = npy_folder.open_folder(place)
    assert people.recipe == Preparation("numbers", {}, order=["b"])
    assert raw.records([{"b": 7, "c": "?"}], people.recipe).tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "client is missing: expected the column that names each row's owner"),
        ({"client": "user"}, "label is missing: expected the class column (or text)"),
        (
            {"client": "who", "label": "y"},
            "the table: no column 'who' (client); it has user, b",
        ),
        ({"test_share": 2.0}, "test_share = 2.0: expected"),
        (
            {"test_public": True},
            "test_public: only with test FILE or test_share 1; without them clients",
        ),
        ({"client": "user", "label": "b"}, "(declare categories or dates in a recipe, or choose"),
        ({"text": "b", "image": "b"}, "text and image: expected only one of them"),
    ],
)
def test_refusals_in_python_name_its_arguments(options, expected):
    rows = [{"user": u, "b": u, "c": "x--y"} for u in range(4)]
    with pytest.raises(ValueError, match=r".") as caught:
        locksfl.from_table(rows, **options)
    assert expected in str(caught.value)
