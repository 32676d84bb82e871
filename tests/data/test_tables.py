"""Every kind of table gives the same population, or is refused in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as parquet
import pytest

from locksfl.data import columns, ngrams, npy_folder, table_features, tables
from locksfl.data.importing import Request, import_table, population_of
from locksfl.data.task import CLASSES, Task

ROWS = 200
REQUEST = Request("user", "y")
rng = np.random.default_rng(3)
RECORDS = {
    "user": rng.permutation(np.r_[np.arange(8, 28), rng.integers(8, 28, ROWS - 20)]).tolist(),
    "a": np.arange(ROWS).tolist(),
    'b, "c"': rng.normal(size=ROWS).tolist(),
    "y": rng.integers(0, 3, ROWS).tolist(),
}


def text(separator, newline="\n"):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=newline)
    writer.writerow(RECORDS)
    writer.writerows(zip(*RECORDS.values(), strict=True))
    return out.getvalue()


def json_lines():
    rows = zip(*RECORDS.values(), strict=True)
    return "\n".join(json.dumps(dict(zip(RECORDS, row, strict=True))) for row in rows)


def packed(content):
    return gzip.compress(content.encode())


def parquet_bytes(table):
    out = io.BytesIO()
    parquet.write_table(table, out, row_group_size=70)
    return out.getvalue()


def npz():
    out = io.BytesIO()
    np.savez(out, **{name: np.array(column) for name, column in RECORDS.items()})
    return out.getvalue()


def records_list():
    return "[" + json_lines().replace("\n", ",") + "]"


TABLE = pa.table(RECORDS)
FILES = {
    "t.csv": text(","),
    "semicolon.csv": text(";"),
    "bar.csv": text("|", "\r\n"),
    "t.tsv": text("\t"),
    "numbered.csv": "".join(
        f"{i - 1 if i else ''},{line}" for i, line in enumerate(io.StringIO(text(",")))
    ),
    "bom.csv": "\ufeff" + text(";"),
    "utf16.csv": text(",").encode("utf-16"),
    "t.csv.gz": packed(text(";")),
    "t.jsonl": json_lines(),
    "t.ndjson.gz": packed(json_lines()),
    "list.json": records_list(),
    "t.parquet": parquet_bytes(TABLE),
    "floats.parquet": parquet_bytes(TABLE.set_column(0, "user", TABLE["user"].cast(pa.float64()))),
    "words.parquet": parquet_bytes(
        TABLE.set_column(0, "user", TABLE["user"].cast(pa.string()).dictionary_encode())
    ),
    "t.npz": npz(),
}


def put(place, name, content):
    path = place / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sums(place):
    return {name: noted.sha256 for name, noted in npy_folder.verify(place).files.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    place = tmp_path_factory.mktemp("expected")
    return sums(import_table(put(place, "t.csv", FILES["t.csv"]), place / "out", REQUEST))


@pytest.mark.parametrize(("name", "batch"), [*((name, 64) for name in FILES), ("t.csv", 100_000)])
def test_every_kind_of_file_is_the_same_population(name, batch, tmp_path, expected, monkeypatch):
    monkeypatch.setattr(tables, "BATCH", batch)
    path = put(tmp_path, name, FILES[name])
    assert sums(import_table(path, tmp_path / "out", REQUEST)) == expected


def test_a_folder_of_parts(tmp_path, expected):
    head, *lines = text(";").splitlines()
    (tmp_path / "parts").mkdir()
    for part in range(3):
        mine = "\n".join([head, *lines[part * 70 : (part + 1) * 70]])
        put(tmp_path / "parts", f"part-{part}.csv", mine)
    put(tmp_path / "parts", "_SUCCESS", "")
    assert sums(import_table(tmp_path / "parts", tmp_path / "out", REQUEST)) == expected


class Capsule:
    """What pandas and polars tables have in common."""

    def __arrow_c_stream__(self, requested_schema=None):
        index = pa.array(np.arange(ROWS)[::-1])
        return TABLE.append_column("__index_level_0__", index).__arrow_c_stream__(requested_schema)


class HuggingFace:
    """What a Hugging Face dataset has."""

    column_names = tuple(RECORDS)

    def with_format(self, name):
        assert name == "arrow"
        return self

    def __getitem__(self, rows):
        assert rows == slice(None)
        return TABLE


def objects():
    yield "arrow", lambda: TABLE
    yield "in pieces", lambda: pa.concat_tables([TABLE.slice(0, 90), TABLE.slice(90)])
    yield (
        "text views",
        lambda: TABLE.set_column(0, "user", TABLE["user"].cast(pa.string()).cast(pa.string_view())),
    )
    yield "capsule", Capsule
    yield "hugging face", HuggingFace
    for library in ("pandas", "polars"):
        yield library, lambda library=library: pytest.importorskip(library).DataFrame(RECORDS)


@pytest.mark.parametrize(("kind", "make"), list(objects()))
def test_tables_of_other_libraries(kind, make, tmp_path, expected):
    assert sums(import_table(make(), tmp_path / kind, REQUEST)) == expected
    population = population_of(make(), REQUEST, None, "mine", None)
    saved = npy_folder.open_folder(tmp_path / kind)
    for name in npy_folder.ARRAYS:
        np.testing.assert_array_equal(getattr(population, name), getattr(saved, name))
    assert (population.name, population.classes) == ("mine", 3)


def leaf(users):
    of_user = {u: {"x": [[u, 2.5], [u, 3.5]], "y": [0, 1]} for u in users}
    named = {f"f_{u}": data for u, data in of_user.items()}
    return json.dumps({"users": list(named), "num_samples": [2] * len(named), "user_data": named})


def test_leaf_is_one_client_per_user(tmp_path):
    (tmp_path / "train").mkdir()
    put(tmp_path / "train", "all_data_0.json", leaf([1, 2, 3]))
    put(tmp_path / "train", "all_data_1.json", leaf([4, 5]))
    held = put(tmp_path, "test.json", leaf([9]))
    place = import_table(tmp_path / "train", tmp_path / "out", Request(), held)
    population = npy_folder.open_folder(place)
    assert population.sizes.tolist() == [2] * 5
    assert population.features[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert population.labels.tolist() == [0, 1] * 5
    assert population.test_features.tolist() == [[9, 2.5], [9, 3.5]]


SCORES = {"p": [0.5, 2.0, 1.0, 3.5], "q": [0, 1, 1, 0], "r": [1, 1, 0, 0]}
NUMBERS, SMALL = Task.numbers(low=0, high=4), Task.numbers(low=0, high=3)


@pytest.mark.parametrize("kind", ["columns", "csv", "lists", "npz"])
def test_numbers_and_tags(kind, tmp_path):
    """Two tags of a sample, and a number, from columns of their own or from one of arrays."""
    both = np.column_stack([SCORES["q"], SCORES["r"]])
    owned = {"user": [1, 1, 2, 3], "a": [0, 1, 2, 3]}
    data, labels = pa.table({**owned, **SCORES}), ("q", "r")
    if kind == "csv":
        out = io.BytesIO()
        pa.csv.write_csv(data, out)
        data = put(tmp_path, "t.csv", out.getvalue())
    elif kind == "lists":
        data, labels = pa.table({**owned, "p": SCORES["p"], "y": both.tolist()}), ("y",)
    elif kind == "npz":
        np.savez(tmp_path / "t.npz", **{k: np.array(v) for k, v in owned.items()},
                 p=np.array(SCORES["p"]), y=both)  # fmt: skip
        data, labels = tmp_path / "t.npz", ("y",)
    request = Request("user", labels, task=Task("tags"), features=("a",), test_share=0.3)
    tagged = population_of(data, request, None, "tagged", None)
    everybody = np.r_[tagged.features[:, 0], tagged.test_features[:, 0]].astype(int)
    assert np.r_[tagged.labels, tagged.test_labels].tolist() == both[everybody].tolist()
    assert (tagged.classes, tagged.classes_public, tagged.labels.dtype) == (2, True, np.int32)
    request = Request("user", "p", task=NUMBERS, features=("a",), test_share=0.3)
    place = import_table(data, tmp_path / "out", request)
    numbers = npy_folder.open_folder(place)
    expected = np.array(SCORES["p"], np.float32)[everybody][:, None]
    assert np.r_[numbers.labels, numbers.test_labels].tolist() == expected.tolist()
    assert numbers.task == NUMBERS


@pytest.mark.parametrize(
    ("labels", "task", "options", "expected"),
    [
        (("p",), SMALL, {}, r"label in row 4 \[0, 0\] = 3.5: expected a number"),
        (("p", "q"), Task("tags"), {}, r"label in row 1 \[0, 0\] = 0.5: expected 0 or 1"),
        (("user", "q"), Task("tags"), {}, r"label in row 3 \[0, 0\] = 2.0: expected 0 or 1"),
        (("q", "r"), CLASSES, {}, "--label q,r: expected one column of classes; several are"),
        (("q", "r"), Task("tags"), {"classes": ("2",)}, "--classes 2: tags have none"),
        (("w",), NUMBERS, {}, "column 'w' in row 1 is 'x': expected a number"),
        (("v",), NUMBERS, {}, "missing or not finite: 'v' in row 2"),
    ],
)
def test_numbers_and_tags_that_are_refused(labels, task, options, expected):
    owned = {"user": [1, 1, 2, 3], "a": [0, 1, 2, 3], "w": list("xyzw"), "v": [1, None, 2, 3]}
    request = Request("user", labels, task=task, features=("a",), **options)
    with pytest.raises(ValueError, match=expected):
        population_of(pa.table({**owned, **SCORES}), request, None, "mine", None)


def wide_file(place, count):
    names = [f"f{i}" for i in range(count)]
    lines = [",".join(["user", "y", *names])]
    lines += [",".join([str(row), str(row % 2), *["0.5"] * count]) for row in range(4)]
    return put(place, "wide.csv", "\n".join(lines))


def test_40_000_columns(tmp_path, monkeypatch):
    """Twice as many columns are read in as many steps: none of them is looked for among all."""
    calls = []
    real = table_features._all_at_once
    monkeypatch.setattr(table_features, "_all_at_once", lambda c: calls.append(len(c)) or real(c))
    place = import_table(wide_file(tmp_path, 40_000), tmp_path / "out", REQUEST)
    population = npy_folder.open_folder(place)
    assert population.features.shape == (3, 40_000)
    assert (np.asarray(population.features) == 0.5).all()
    assert calls == [40_000, 40_000]  # one call a pass


def test_the_encoder_of_texts_is_fixed():
    """These numbers never change: models that were trained on them would be lost."""
    found = ngrams.encode(["Ein Text über 3 Wörter", "ein  text ÜBER 3 wörter!", "another", ""])
    assert found.shape == (4, ngrams.SIZE)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(np.linalg.norm(found[:3].astype(float), axis=1), 1, atol=2e-3)
    assert not found[3].any()
    places = [151, 643, 741, 797, 863, 1010, 1144, 1213, 1397, 1469, 1510, 1542, 1705, 2020]
    assert np.flatnonzero(found[2]).tolist() == places
    assert abs(found[0].astype(float) @ found[2].astype(float)) < 0.3


def cells(**changes):
    base = {"user": [1, 1, 2, 3], "a": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]}
    return pa.table({**base, **changes})


REFUSED = [
    ("t.csv", "user,a,y\n1,2,0\n2,3\n", "row 2 has 2 cells, expected 3"),
    ("t.csv", 'user,a,y\n1,2,0\n2,3,"1\n', "a quote is never closed"),
    ("t.csv", "user,a,a,y\n1,2,2,0\n", "column 'a' appears twice"),
    ("t.csv", "", "empty; expected a header row"),
    ("t.csv", "user,a,y", "no rows; expected at least one"),
    ("t.csv", "user,a,y\n1,\xe9,0\n".encode("latin-1"), "try --encoding latin-1"),
    ("t.csv", "user,a,y\n1,1e300,0\n2,1,1\n", "'a' in row 1 is 1e+300: expected at most 3.4e+38"),
    ("t.csv", "user,a,y\n1,2,1000000000\n2,1,1\n", "row 1 is 1000000000: expected a class in 0, 1"),
    ("t.csv", "user,a,y\n1,2,1e400\n2,1,1\n", "'1e400': expected a whole number"),
    ("t.csv.gz", packed(text(","))[:-30], "damaged or incomplete CSV file"),
    ("t.jsonl", '{"user": 1}\n{"user": \n', "row 2 is not JSON"),
    ("t.jsonl", "[1]\n", "row 1: expected an object, one per line"),
    ("t.json", "{}", "expected LEAF's users and user_data"),
    ("t.json", '{"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}}', "as many x as y"),
    ("t.txt", "a", "expected a file that ends in .csv, .tsv, .jsonl"),
]


@pytest.mark.parametrize(("name", "content", "expected"), REFUSED)
def test_files_that_are_refused(name, content, expected, tmp_path):
    path = put(tmp_path, name, content)
    with pytest.raises(ValueError, match=r".") as caught:
        import_table(path, tmp_path / "out", REQUEST)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [name]


OBJECTS = [
    (cells(a=["x", "y", "z", "w"]), "column 'a' in row 1 is 'x': expected a number (declare"),
    (cells(a=[1.0, None, 2.0, 3.0]), "missing or not finite: 'a' in row 2"),
    (cells(a=[[1], [2], [3], [4]]).append_column("b", [[1, 2, 3, 4]]), "expected a number"),
    (cells(y=[[0, 1]] * 4), "column 'y' holds list<item: int64>: expected numbers or text"),
    (cells(user=[0.5, 1.0, 2.0, 3.0]), "column 'user': expected whole numbers below 2^53, or text"),
    (cells(user=[b"\xff", b"a", b"b", b"c"]), "column 'user' holds binary: expected numbers or"),
    (42, "a table of type int: expected a path, a table of pandas"),
    ({"a": [1]}, "a table of type dict: expected a path, a table"),
]


@pytest.mark.parametrize(("data", "expected"), OBJECTS)
def test_tables_that_are_refused(data, expected):
    with pytest.raises(ValueError, match=r".") as caught:
        population_of(data, REQUEST, None, "mine", None)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_multi_label_npz_and_parts_that_differ(tmp_path):
    np.savez(tmp_path / "t.npz", user=np.arange(4), a=np.zeros((4, 3)), y=np.zeros((4, 5), int))
    with pytest.raises(ValueError, match=r"t.npz: column 'y' holds arrays of shape \(5,\): exp"):
        import_table(tmp_path / "t.npz", tmp_path / "out", REQUEST)
    (tmp_path / "parts").mkdir()
    put(tmp_path / "parts", "1.csv", "user,a,y\n1,2,0\n")
    other = put(tmp_path / "parts", "2.json", "{}")
    with pytest.raises(ValueError, match=r"parts: files of kind .csv and .json: expected one kind"):
        import_table(tmp_path / "parts", tmp_path / "out", REQUEST)
    other.unlink()
    put(tmp_path / "parts", "2.csv", "user,b,y\n1,2,0\n")
    with pytest.raises(ValueError, match=r"2.csv: expected the columns of .*1.csv beside it"):
        import_table(tmp_path / "parts", tmp_path / "out", REQUEST)


def test_options_of_text_files(tmp_path):
    path = put(tmp_path, "t.csv", "user^a^y\n1^2^caf\xe9\n2^3^th\xe9\n".encode("latin-1"))
    request = Request("user", "y", classes=("caf\xe9", "th\xe9"), separator="^", encoding="latin-1")
    assert npy_folder.open_folder(import_table(path, tmp_path / "out", request)).clients == 1
    with pytest.raises(ValueError, match="--encoding: unknown encoding: latin-9000"):
        import_table(path, tmp_path / "two", Request("user", "y", encoding="latin-9000"))
    with pytest.raises(ValueError, match="--separator 'ab': expected one character"):
        import_table(
            path, tmp_path / "two", Request("user", "y", separator="ab", encoding="latin-1")
        )


def test_ids_are_in_the_order_of_numbers_only_if_all_are():
    assert columns.in_order(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert columns.in_order(["--1", "9", "10"]) == ["--1", "10", "9"]
    assert columns.in_order(["10", "9", "a"]) == ["10", "9", "a"]
    assert columns.in_order(["07", "7", "1"]) == ["1", "07", "7"]


def test_an_id_is_the_same_person_whatever_its_type(tmp_path):
    """Shards with whole ids, with floats (as pandas has them beside a gap) and, in JSON, floats
    beside text: nobody becomes two clients, also if the number is long."""
    ids = np.arange(48_123_456_780, 48_123_456_790)
    columns = {"a": np.arange(10.0), "y": np.arange(10) % 2}
    shards = tmp_path / "shards"
    shards.mkdir()
    for name, kind in (("one", np.int64), ("two", np.float64)):
        parquet.write_table(
            pa.table({"user": ids.astype(kind), **columns}), shards / f"{name}.parquet"
        )
    made = population_of(shards, REQUEST, None, "t", None)
    assert made.clients + made.test_clients == 10
    lines = [{"user": float(i), "a": 1, "y": i % 2} for i in range(9)]
    lines += [{"user": i, "a": 2, "y": 0} for i in range(9)] + [{"user": "ann", "a": 3, "y": 1}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    made = population_of(tmp_path / "t.jsonl", REQUEST, None, "t", None)
    assert made.clients + made.test_clients == 10
    long = pa.table({"user": [2.0**60, 1.0], "a": [1, 2], "y": [0, 1]})
    with pytest.raises(ValueError, match="expected whole numbers below 2"):
        population_of(long, REQUEST, None, "t", None)
