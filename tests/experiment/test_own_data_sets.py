"""Tables as people have them, imported and trained at epsilon 8: each learns something.

Every table has 1,500 clients of 2 records and a held-out table of 3,000 other people. The model is
compared with the majority of the held-out records: accuracy minus its 95% interval (one-sided
Clopper-Pearson at 2.5%, so that chance alone passes one run in 40) must be above it. A model that
learnt from shuffled labels must not pass.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from scipy.stats import beta

import locksfl
from locksfl.data import npy_folder
from locksfl.data.importing import Request, import_table

CLIENTS, RECORDS, TESTS = 1500, 2, 3000
CITIES = ("Oslo", "Rome", "Lima")
GOOD, BAD = ("good", "great", "fine", "lovely"), ("bad", "poor", "awful", "dull")
PLAIN = ("the", "film", "was", "a", "long", "story", "about", "people", "who", "live", "in", "town")

RECIPE = """
[columns.age]
missing = "flag"
low = 0
high = 100
[columns.city]
categories = ["Oslo", "Rome", "Lima"]
missing = "flag"
[columns.joined]
date = ["year", "month"]
"""


def people(rows, seed):
    """Age, city and date of joining; who is old, from Rome or new tends to class 1."""
    rng = np.random.default_rng(seed)
    age, city = rng.uniform(0, 100, rows), rng.integers(0, 3, rows)
    year, month = rng.integers(2000, 2024, rows), rng.integers(1, 13, rows)
    score = (age - 50) / 20 + 1.5 * (city == 1) + (year - 2012) / 8 - 0.8
    label = (score + rng.logistic(0, 0.5, rows) > 0).astype(int)
    return age, city, year, month, label, rng


def mixed(rows, seed, separator):
    age, city, year, month, label, rng = people(rows, seed)
    lines = [separator.join(("user", "age", "city", "joined", "y"))]
    for i in range(rows):
        shown = "" if rng.random() < 0.1 else f"{age[i]:.1f}"
        town = "" if rng.random() < 0.1 else CITIES[city[i]]
        lines.append(
            separator.join((f"{seed}-{i // RECORDS}", shown, f'"{town}"',
                            f"{year[i]}-{month[i]:02d}-15", str(label[i])))
        )  # fmt: skip
    return "\n".join(lines)


def mixed_csv(place, rows, seed):
    path = place / f"{seed}.csv"
    path.write_text(mixed(rows, seed, ","))
    return path


def semicolons(place, rows, seed):
    path = place / f"{seed}.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write(mixed(rows, seed, ";"))
    return path


def json_lines(place, rows, seed):
    age, city, year, month, label, _ = people(rows, seed)
    path = place / f"{seed}.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"user": f"{seed}-{i // RECORDS}", "age": age[i], "city": CITIES[city[i]],
                        "joined": f"{year[i]}-{month[i]:02d}-01T12:00:00", "y": int(label[i])})
            for i in range(rows)
        )
    )  # fmt: skip
    return path


def digits(rows, seed):
    """Three faint patterns of 25 pixels."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).integers(0, 2, (3, 25))
    label = rng.integers(0, 3, rows)
    return np.clip(patterns[label] * 0.5 + rng.normal(0.25, 0.35, (rows, 25)), 0, 1), label


def leaf(place, rows, seed):
    """A folder of two files."""
    pixels, label = digits(rows, seed)
    (place / str(seed)).mkdir()
    for part in range(2):
        users = range(part * rows // RECORDS // 2, (part + 1) * rows // RECORDS // 2)
        of_user = {f"{seed}_{u}": slice(u * RECORDS, (u + 1) * RECORDS) for u in users}
        table = {
            "users": list(of_user),
            "num_samples": [RECORDS] * len(of_user),
            "user_data": {
                name: {"x": pixels[mine].round(3).tolist(), "y": label[mine].tolist()}
                for name, mine in of_user.items()
            },
        }
        (place / str(seed) / f"part_{part}.json").write_text(json.dumps(table))
    return place / str(seed)


def hugging_face(place, rows, seed):
    """Nested lists of pixels, a label of named classes, a dictionary column of users."""
    pixels, label = digits(rows, seed)
    images = (pixels * 255).astype(np.uint8).reshape(rows, 5, 5)
    users = pa.array([f"{seed}-{i // RECORDS}" for i in range(rows)]).dictionary_encode()
    table = pa.table({"user": users, "image": pa.array(images.tolist()), "y": label})
    path = place / f"{seed}-00000-of-00001.parquet"
    parquet.write_table(table.replace_schema_metadata({"huggingface": "{}"}), path)
    return path


def reviews(place, rows, seed):
    """Texts with commas, quotes and line breaks; the opinion is a word or two of them."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, rows)
    lines = ["user,review,y"]
    for i in range(rows):
        words = list(rng.choice(PLAIN, 8)) + list(rng.choice(GOOD if label[i] else BAD, 2))
        rng.shuffle(words)
        text = '""Well"", ' + "\n".join([" ".join(words[:5]), " ".join(words[5:])])
        lines.append(f'{seed}-{i // RECORDS},"{text}",{"pos" if label[i] else "neg"}')
    path = place / f"{seed}.csv"
    path.write_text("\n".join(lines))
    return path


SETS = {
    "mixed CSV": (mixed_csv, {"client": "user", "label": "y", "classes": ("2",)}, True),
    "semicolons": (semicolons, {"client": "user", "label": "y", "classes": ("2",)}, True),
    "JSONL": (json_lines, {"client": "user", "label": "y", "classes": ("2",)}, True),
    "LEAF": (leaf, {"classes": ("3",)}, False),
    "Hugging Face": (hugging_face, {"client": "user", "label": "y", "classes": ("3",)}, False),
    "text": (reviews, {"client": "user", "label": "y", "text": "review",
                       "classes": ("neg", "pos")}, False),
}  # fmt: skip


def learnt(population, shuffled=False):
    """Whether a model at epsilon 8 is better than the majority, outside its 95% interval."""
    if shuffled:
        labels = np.random.default_rng(0).permutation(population.labels)
        population = locksfl.Population(**{**vars(population), "labels": labels})
    done = locksfl.train(
        population, rule="uniform", cohort=500, rounds=25, epsilon=8.0, seed=1, clip_norm=1.0,
        accountant="rdp", optimizer=locksfl.OptimizerConfig(step=4.0),
    )  # fmt: skip
    right = round(done.accuracy * TESTS)
    least = beta.ppf(0.025, right, TESTS - right + 1)
    majority = np.bincount(population.test_labels).max() / TESTS
    print(f"accuracy {done.accuracy:.3f}, at least {least:.3f}; majority {majority:.3f}")
    return least > majority


@pytest.mark.parametrize("kind", SETS)
def test_six_kinds_of_tables_are_learnt_at_epsilon_8(kind, tmp_path):
    write, options, recipe = SETS[kind]
    if recipe:
        (tmp_path / "recipe.toml").write_text(RECIPE)
        options = {**options, "recipe": tmp_path / "recipe.toml"}
    train = write(tmp_path, CLIENTS * RECORDS, 0)
    held = write(tmp_path, TESTS, 1)
    place = import_table(train, tmp_path / "out", Request(**options, test_public=True), held)
    population = npy_folder.open_folder(place)
    assert (population.clients, len(population.test_labels)) == (CLIENTS, TESTS)
    assert learnt(population)
    if kind == "mixed CSV":
        assert not learnt(population, shuffled=True)
