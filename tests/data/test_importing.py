"""A user's own table: every row in its place, whatever the file, or refused as a whole."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from unittest import mock

import msgspec
import numpy as np
import pytest

from locksfl.data import datasets, ngrams, npy_folder, tables
from locksfl.data.importing import Request, import_table

pyarrow = pytest.importorskip("pyarrow")
import pyarrow.parquet as parquet  # noqa: E402

REQUEST = Request("user", "y")


@pytest.fixture
def records():
    """2,000 rows of 50 clients in no order: the first feature is the row's own number."""
    rng = np.random.default_rng(0)
    user = rng.permutation(np.r_[np.arange(50), rng.integers(0, 50, 1950)])
    return {
        "user": np.array([f"u{number:02d}" for number in user]),
        "a": np.arange(2000.0),
        "b": rng.normal(size=2000),
        "y": rng.integers(0, 3, 2000),
    }


def write(path, columns):
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        table = pyarrow.table({k: list(v) for k, v in columns.items()})
        parquet.write_table(table, path, row_group_size=300, write_page_checksum=True)
    else:
        lines = [",".join(columns)]
        lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("kind", "batch"), [(".csv", 256), (".parquet", 256), (".npz", 256), (".csv", 100_000)]
)
def test_every_row_finds_its_client(records, tmp_path, kind, batch, monkeypatch):
    monkeypatch.setattr(tables, "BATCH", batch)
    place = import_table(write(tmp_path / f"t{kind}", records), tmp_path / "out", REQUEST)
    population = datasets.open_population(str(place), None, "natural", {}, 0)
    assert (population.clients, population.classes, population.scale) == (45, 3, 1.0)
    assert population.samples + len(population.test_labels) == 2000
    rows = population.features[:, 0].astype(int)
    users = sorted(set(records["user"][rows]))
    for client in range(population.clients):
        features, labels = population.client(client)
        mine = np.flatnonzero(records["user"] == users[client])
        assert features[:, 0].tolist() == mine.tolist()  # all of its rows, in their order
        np.testing.assert_array_equal(features[:, 1], records["b"][mine].astype(np.float32))
        assert labels.tolist() == records["y"][mine].tolist()
    tests = population.test_features[:, 0].astype(int)
    assert not set(records["user"][tests]) & set(users)
    assert sorted([*rows, *tests]) == list(range(2000))


def test_a_held_out_file_of_other_clients(records, tmp_path):
    train = write(tmp_path / "train.csv", records)
    other = {**records, "user": np.char.add("other-", records["user"])}
    place = import_table(train, tmp_path / "a", REQUEST, write(tmp_path / "test.csv", other))
    header = npy_folder.read_header(place)
    sizes = (header.clients, header.samples, header.tests, header.test_clients)
    assert sizes == (50, 2000, 2000, 50)
    unnamed = {name: column for name, column in records.items() if name != "user"}
    place = import_table(train, tmp_path / "b", REQUEST, write(tmp_path / "none.csv", unnamed))
    assert npy_folder.read_header(place).test_clients is None
    with pytest.raises(ValueError, match=r"client 'u00' is also in .*train.csv \(50 are in both"):
        import_table(train, tmp_path / "c", REQUEST, train)
    assert not (tmp_path / "c").exists()


def test_chosen_features_and_named_classes(records, tmp_path):
    names = np.array(["cat", "dog", "eel"])[records["y"]]
    path = write(tmp_path / "t.csv", {**records, "y": names})
    request = Request("user", "y", features=("b",), classes=("eel", "dog", "cat", "fox"))
    population = npy_folder.open_folder(import_table(path, tmp_path / "out", request))
    assert population.features.shape[1:] == (1,)
    assert population.classes == 4
    header = json.loads((tmp_path / "out" / "header.json").read_text())
    assert header["class_names"] == ["eel", "dog", "cat", "fox"]
    assert header["feature_names"] == ["b"]
    assert not any(user in json.dumps(header) for user in records["user"])  # no client's name
    everyone = np.concatenate([population.labels, population.test_labels])
    counts = [int((names == name).sum()) for name in ("eel", "dog", "cat")]
    assert np.bincount(everyone).tolist() == counts


@pytest.mark.parametrize("kind", ["npz", "lists", "png", "paths"])
def test_images(tmp_path, kind):
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (12, 5, 4, 3), np.uint8)
    columns = {"user": np.arange(12) % 4, "y": np.arange(12) % 2}
    encoded = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        encoded.append(buffer.getvalue())
    if kind == "npz":
        path = write(tmp_path / "t.npz", {**columns, "image": pixels})
    elif kind == "lists":
        path = write(tmp_path / "t.parquet", {**columns, "image": pixels.tolist()})
    elif kind == "png":
        path = write(tmp_path / "t.parquet", {**columns, "image": encoded})
    else:
        for i, data in enumerate(encoded):
            (tmp_path / f"{i}.png").write_bytes(data)
        path = write(tmp_path / "t.csv", {**columns, "image": [f"{i}.png" for i in range(12)]})
    place = import_table(path, tmp_path / "out", Request("user", "y", image="image"))
    population = npy_folder.open_folder(place)
    assert population.features.dtype == np.uint8
    assert population.scale == 1 / 255
    known = {image.tobytes() for image in pixels}
    assert {image.tobytes() for image in population.features} <= known
    assert npy_folder.read_header(place).kind == "image"


def test_text_with_next_characters_and_with_a_label(tmp_path):
    texts = ["To be, or not to be: " * 5, "x", "that is the question", "Whether 'tis nobler"]
    columns = {"user": ["a", "a", "b", "c"], "line": texts, "y": [0, 1, 0, 1]}
    path = write(tmp_path / "t.parquet", columns)
    request = Request("user", text="line", test_share=0.3)
    population = npy_folder.open_folder(import_table(path, tmp_path / "out", request))
    assert (population.classes, population.scale, population.clients) == (80, 1.0, 2)
    every = np.concatenate([population.labels, population.test_labels])
    assert (every >= 0).sum() == sum(len(text) - 1 for text in texts)
    labelled = Request("user", "y", text="line", test_share=0.3)
    population = npy_folder.open_folder(import_table(path, tmp_path / "two", labelled))
    every = np.concatenate([population.features, population.test_features])
    expected = ngrams.encode(texts)
    assert every.dtype == np.float16
    assert {row.tobytes() for row in every} == {row.tobytes() for row in expected}


def cells(**changes):
    columns = {"user": [1, 1, 2, 3], "a": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]}
    return {**columns, **changes}


BAD = [
    (cells(a=[1.0, "", 3.0, ""]), {}, "missing or not finite: 'a' in rows 2, 4"),
    (cells(a=[1.0, "nan", 3.0, "inf"]), {}, "missing or not finite: 'a' in rows 2, 4"),
    (cells(user=[1, "", 2, 3]), {}, "missing or not finite: 'user' in row 2"),
    (cells(y=[0, 1, "", 1]), {}, "missing or not finite: 'y' in row 3"),
    (cells(y=[0, "dog", 0, 1]), {}, "label 'y' in row 2 is 'dog': expected a whole number, or"),
    (cells(y=[0, 0.5, 0, 1]), {}, "label 'y' in row 2 is '0.5': expected a whole number"),
    (cells(y=[0, 1, -1, 1]), {}, "label 'y' in row 3 is -1: expected a class in 0, 1, 2, ..."),
    (cells(y=[0, 1, 3, 1]), {"classes": ("3",)}, "in row 3 is 3: expected a class in 0..2"),
    (cells(y=["cat", "dgo", "cat", "dog"]), {"classes": ("cat", "dog")},
     "in row 2 is 'dgo': expected one of cat, dog (did you mean 'dog'?)"),
    (cells(user=[1, 1, 1, 1]), {}, "names only one client"),
    (cells(a=["x", "y", "z", "w"]), {}, "column 'a' in row 1 is 'x': expected a number"),
    (cells(), {"client": "user_id"}, "no column 'user_id' (--client); it has user, a, y"),
    (cells(), {"label": "label"}, "no column 'label' (--label); it has user, a, y"),
    (cells(), {"features": ("a", "b")}, "no column 'b' (--features); it has user, a, y"),
    (cells(t=["ab", "cd", "e", "fg"]), {"label": None, "text": "t"}, "client '2' has no samples"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "options", "expected"), BAD)
def test_bad_tables_leave_nothing(tmp_path, columns, options, expected):
    path = write(tmp_path / "t.csv", columns)
    with pytest.raises(ValueError, match=r".") as caught:
        import_table(path, tmp_path / "out", Request(**{"client": "user", "label": "y", **options}))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_missing_values_in_parquet_and_npz(tmp_path):
    a = [1.0, None, float("nan"), 4.0]
    path = write(tmp_path / "t.parquet", cells(a=a))
    with pytest.raises(ValueError, match="missing or not finite: 'a' in rows 2, 3"):
        import_table(path, tmp_path / "out", REQUEST)
    wide = np.zeros((4, 3))
    wide[1, 2] = np.nan
    path = write(tmp_path / "t.npz", cells(a=wide))
    with pytest.raises(ValueError, match="missing or not finite: 'a' in row 2"):
        import_table(path, tmp_path / "out", REQUEST)


@pytest.mark.parametrize(
    ("kind", "share"), [(".parquet", 0.0), (".parquet", 0.99), (".npz", 0.5), (".npz", 0.99)]
)
def test_a_truncated_file(records, tmp_path, kind, share):
    path = write(tmp_path / f"t{kind}", records)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=r"damaged or incomplete (Parquet|NPZ) file"):
        import_table(path, tmp_path / "out", REQUEST)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_damaged_row_group_is_found(records, tmp_path):
    path = write(tmp_path / "t.parquet", records)
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 2000] = bytes(2000)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"t.parquet: damaged or incomplete Parquet file"):
        import_table(path, tmp_path / "out", REQUEST)
    assert not (tmp_path / "out").exists()


def test_an_import_that_stops_halfway_leaves_nothing(records, tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", records)

    monkeypatch.setattr(npy_folder, "finish", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        import_table(path, tmp_path / "out", REQUEST)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_an_imported_folder_is_for_its_owner_alone(records, tmp_path):
    """The fault: raw records that every account of the machine can read, or a copy of one of the
    files that they can."""
    before = os.umask(0)
    try:
        place = import_table(write(tmp_path / "t.csv", records), tmp_path / "out", REQUEST)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place, *place.iterdir())}
    names = ("header.json", *(f"{name}.npy" for name in npy_folder.ARRAYS))
    assert modes == {"out": 0o700, **dict.fromkeys(names, 0o600)}


def test_damaged_folders_are_refused(records, tmp_path):
    place = import_table(write(tmp_path / "t.csv", records), tmp_path / "out", REQUEST)
    with pytest.raises(ValueError, match="already exists; expected a new folder"):
        import_table(tmp_path / "t.csv", place, REQUEST)
    labels = place / "labels.npy"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-4] + b"\x02\x00\x00\x00"[::-1])
    with pytest.raises(ValueError, match=r"labels.npy has sha256 .*, expected .*import it again"):
        npy_folder.open_folder(place)
    labels.write_bytes(whole[:-4])
    with pytest.raises(ValueError, match=r"labels.npy: \d+ bytes, expected \d+"):
        npy_folder.open_folder(place)
    labels.unlink()
    with pytest.raises(ValueError, match=r"labels.npy: no bytes, expected"):
        npy_folder.open_folder(place)
    (place / "header.json").write_text("{}")
    with pytest.raises(ValueError, match="not a header of a data set"):
        npy_folder.open_folder(place)


MILLION = """
import sys, resource
import numpy as np
from pathlib import Path
from locksfl.data import npy_folder

place = Path(sys.argv[1])

def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

import jax
from locksfl.experiment.training import train
from locksfl.experiment.config import LocalConfig
jax.block_until_ready(jax.numpy.zeros(3) + 1)
before = memory()
population = npy_folder.open_folder(place)
opened = memory()
assert population.clients == 1_000_000
done = train(population, rule="uniform", cohort=200, rounds=3, trust="none", seed=0)
assert len(done.history) == 3
print(opened - before, memory() - before)
"""


def make_million(place, width):
    """1,000,000 clients of 5 samples; the features are a hole in the file, so they cost no disk."""
    clients, samples = 1_000_000, 5_000_000
    with npy_folder.new_folder(place) as building:

        def new(name, shape, kind):
            return np.lib.format.open_memmap(building / f"{name}.npy", "w+", kind, shape)

        new("features", (samples, width), np.uint8).flush()
        new("labels", (samples,), np.int32)[:] = np.arange(samples) % 10
        new("offsets", (clients + 1,), np.int64)[:] = np.arange(clients + 1) * 5
        new("test_features", (1000, width), np.uint8).flush()
        new("test_labels", (1000,), np.int32)[:] = np.arange(1000) % 10
        files = {
            f"{name}.npy": npy_folder.StoredFile(
                (building / f"{name}.npy").stat().st_size,
                npy_folder._sha256(building / f"{name}.npy") if name != "features" else "",
            )
            for name in npy_folder.ARRAYS
        }
        header = npy_folder.Header(
            place.name, "table", clients, samples, 1000, 10, 1 / 255, files=files
        )
        (building / "header.json").write_bytes(msgspec.json.encode(header))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_million_clients_cost_what_is_touched(tmp_path):
    """3.9 GB of features, of which three rounds touch 3,000 rows: memory grows by far less."""
    make_million(tmp_path / "million", 784)
    size = (tmp_path / "million" / "features.npy").stat().st_size
    assert size > 3.9e9
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(tmp_path / "million")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened, trained = map(float, done.stdout.split())
    assert opened < 150  # labels and offsets are 28 MB
    assert trained < 700


STREAMED = """
import sys
from pathlib import Path
import pyarrow
from locksfl.data.importing import Request, import_table
import_table(Path(sys.argv[1]), Path(sys.argv[2]), Request("user", "y"))
print(pyarrow.default_memory_pool().max_memory())
"""


def test_parquet_is_read_a_row_group_at_a_time(tmp_path):
    """A file of 30 MB in 30 groups: what pyarrow holds at once is a few of them."""
    rng, path = np.random.default_rng(0), tmp_path / "t.parquet"
    rows = 150_000
    columns = {f"f{i}": rng.normal(size=rows) for i in range(25)}
    columns |= {"user": rng.integers(0, 100, rows), "y": rng.integers(0, 2, rows)}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=5000)
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, str(path), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert path.stat().st_size > 3e7
    assert int(done.stdout) < path.stat().st_size / 4
