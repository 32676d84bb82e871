"""The digits are MNIST's, whole and unaltered, and a population made of them is reproducible."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import lzma
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from locksfl.data import datasets, shakespeare
from locksfl.data.catalogue import CATALOGUE, NAMES

ROOT = Path(__file__).parents[2]


def data_folder(name: str = "mnist") -> Path:
    """Where downloaded data lie: LOCKS_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get(datasets.DATA_VARIABLE) or ROOT.parent / "shared" / "data")
    if not datasets.present(CATALOGUE[name], folder):
        pytest.skip(f"the files of {name} are not here: set LOCKS_DATA to test them")
    return folder


def script():
    path = ROOT / "scripts" / "make_embedded_digits.py"
    spec = importlib.util.spec_from_file_location("make_embedded_digits", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed() -> bytes:
    folder = resources.files("locksfl.data").joinpath("embedded")
    return folder.joinpath(datasets.EMBEDDED_FILE).read_bytes()


def counts(data):
    """How many digits of each class, to train on and held out."""
    return [np.bincount(labels).tolist() for labels in (data.labels, data.test_labels)]


def test_embedded_checksums_and_size():
    """The content is fixed, and with it that all digits differ and how many each class has."""
    data = packed()
    assert len(data) < 1_700_000
    assert hashlib.sha256(data).hexdigest() == datasets.EMBEDDED_SHA256
    content = hashlib.sha256(lzma.decompress(data)).hexdigest()
    assert content == "f78e0b7d0a551f269e599522bdc2a9ce03c7e4b09a4309bb99d854a7b25b3ac9"


def test_embedded_digits_look_like_their_labels():
    """The nearest class mean of the training digits names 8 of 10 test digits; chance is 1."""
    digits = datasets.load("mnist-embedded")
    train = digits.features.reshape(-1, 784) / 255
    test = digits.test_features.reshape(-1, 784) / 255
    means = np.stack([train[digits.labels == k].mean(axis=0) for k in range(10)])
    named = ((means**2).sum(axis=1) - 2 * test @ means.T).argmin(axis=1)
    assert (named == digits.test_labels).mean() > 0.75
    assert (named == np.roll(digits.test_labels, 1)).mean() < 0.15


def test_a_damaged_file_is_refused():
    data = bytearray(packed())
    data[1000] ^= 1
    with pytest.raises(ValueError, match=r"mnist_digits\.idx\.xz has sha256 .* install the"):
        datasets._unpack(bytes(data))


def test_notice_travels_with_the_digits():
    folder = resources.files("locksfl.data").joinpath("embedded")
    for text in (folder.joinpath("NOTICE").read_text(), (ROOT / "NOTICE").read_text()):
        for word in ("MNIST", "LeCun", "Cortes", "Burges", "NIST Special Databases", "CC BY-SA"):
            assert word in text


TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
KNOWN = {  # the shape of a record, and how many there are of each class
    "mnist-embedded": ((28, 28), [[1000] * 10, [200] * 10]),
    "mnist": ((28, 28), [TRAIN, TEST]),
    "fashion-mnist": ((28, 28), [[6000] * 10, [1000] * 10]),
    "cifar10": ((32, 32, 3), [[5000] * 10, [1000] * 10]),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_tells_the_truth(name):
    entry = CATALOGUE[name]
    data = datasets.load(name, data_folder(name))
    assert (len(data.features), len(data.test_features)) == (entry.train, entry.test)
    assert data.classes == entry.classes
    assert (data.owner is None) == (entry.clients is None)
    if data.owner is not None:
        assert np.unique(data.owner).tolist() == list(range(entry.clients))
    if name in KNOWN:
        shape, of_class = KNOWN[name]
        assert data.features.shape[1:] == data.test_features.shape[1:] == shape
        assert data.features.dtype == data.test_features.dtype == np.uint8
        assert data.labels.dtype == data.test_labels.dtype == np.int32
        assert counts(data) == of_class


def test_channels_are_last():
    """The means of red, green and blue that everybody subtracts."""
    photos = datasets.load("cifar10", data_folder("cifar10"))
    mean = photos.features.mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-4)


def test_writers_are_natural_users_and_test_writers_are_others():
    folder = data_folder("mnist-writers")
    writers = datasets.load("mnist-writers", folder)
    digits = datasets.load("mnist", folder)
    assert np.array_equal(writers.features, digits.features)
    sizes = np.bincount(writers.owner)
    assert (sizes.size, sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)
    ids = []
    for file in CATALOGUE["mnist-writers"].files:
        packed = (folder / "mnist-writers" / file.name).read_bytes()
        ids.append(datasets._idx_array(gzip.decompress(packed))[0][:, 2])
    assert len(set(ids[1][:10_000])) == 297
    assert not set(ids[0]) & set(ids[1][:10_000])


def test_shakespeare_counts_and_characters():
    folder = data_folder("shakespeare")
    data = datasets.load("shakespeare", folder)
    roles = []
    with lzma.open(folder / "shakespeare" / "shakespeare_roles.jsonl.xz", "rt") as lines:
        for line in lines:
            role = json.loads(line)
            roles.append((shakespeare.held_out(role["play"], role["role"]), role["speeches"]))
    texts = [(out, "\n".join(speeches)) for out, speeches in roles]
    large = [(out, text) for out, text in texts if len(text) >= 160]
    assert (len(roles), len(large), sum(out for out, _ in large)) == (1346, 1055, 110)
    assert data.features.shape == data.labels.shape == (48_075, 80)
    assert data.test_features.shape == data.test_labels.shape == (6_236, 80)
    # every character but a role's first is a label, once
    assert (data.labels >= 0).sum() == sum(len(t) - 1 for out, t in large if not out)
    assert (data.test_labels >= 0).sum() == sum(len(t) - 1 for out, t in large if out)
    first = next(text for out, text in large if not out)
    mine = data.owner == 0
    codes = data.labels[mine].ravel()
    told = shakespeare.decode(codes[codes >= 0])
    assert told == first[1:]
    assert shakespeare.decode(data.features[mine].ravel()[: len(told)]) == first[:-1]


def test_characters():
    assert len(set(shakespeare.ALPHABET)) == 80
    assert shakespeare.decode(shakespeare.encode("To be, or\tnot — $")) == "To be, or not    "
    features, labels = shakespeare.windows("abcde", length=3)
    assert [shakespeare.decode(row) for row in features] == ["abc", "d\n\n"]
    assert shakespeare.decode(labels[0].astype(np.uint8)) == "bcd"
    assert labels[1].tolist() == [shakespeare.ALPHABET.index("e"), -1, -1]
    assert shakespeare.windows("a")[0].shape == shakespeare.windows("")[0].shape == (0, 80)


EMBEDDED = "mnist-embedded"
GOLDEN = [
    (EMBEDDED, 100, "iid", {}, "dad9b07f71ba7f6a"),
    (EMBEDDED, 100, "shards", {"classes": 2}, "092f87bae64378e9"),
    (EMBEDDED, 100, "dirichlet", {"alpha": 0.3}, "c3b6b44e94de0a7b"),
    ("mnist", 100, "shards", {"classes": 2}, "6e176d77a8aaaf59"),
    ("fashion-mnist", 100, "iid", {}, "5f9b8ba38a3a093a"),
    ("cifar10", 1000, "dirichlet", {"alpha": 0.5}, "2f2cfbd7b297d422"),
    ("mnist-writers", None, "natural", {}, "253810596a3cad29"),
    ("shakespeare", None, "natural", {}, "69c6bb47bd794b2f"),
    ("shakespeare", 50, "iid", {}, "5d7827ed8615420b"),
]


@pytest.mark.parametrize(("name", "clients", "kind", "options", "golden"), GOLDEN)
def test_the_same_split_on_every_machine(name, clients, kind, options, golden):
    """Every record, label and owner; another seed gives another split."""
    folder = data_folder(name)
    population = datasets.open_population(name, clients, kind, options, 0, folder)
    assert population.name == name
    assert population.clients == (clients or CATALOGUE[name].clients)
    assert population.scale == (1.0 if name == "shakespeare" else 1 / 255)
    assert fingerprint(population) == golden
    if name == EMBEDDED:
        other = datasets.open_population(name, clients, kind, options, 1, folder)
        assert fingerprint(other) != golden


def fingerprint(population) -> str:
    digest = hashlib.sha256(population.offsets.astype("<i8").tobytes())
    digest.update(population.labels.astype("<i4").tobytes())
    digest.update(population.features.tobytes())
    return digest.hexdigest()[:16]


def test_limits_of_natural_clients():
    folder = data_folder("mnist-writers")

    def opened(clients=None, **limits):
        return datasets.open_population(
            "mnist-writers", clients, "natural", {}, 0, folder, **limits
        )

    everyone = opened().sizes
    some = opened(min_samples=50, max_samples=100)
    assert some.sizes.tolist() == np.minimum(everyone[everyone >= 50], 100).tolist()
    assert datasets.natural_clients("mnist-writers", folder, 50) == some.clients < 539
    assert opened(539).clients == 539
    with pytest.raises(ValueError, match=r"data.clients = 100: expected 539, the users of mnist-w"):
        opened(100)
    with pytest.raises(ValueError, match="no client has that many; the largest has 131"):
        opened(min_samples=1000)


def test_limits_of_dealt_clients():
    def opened(kind, **limits):
        options = {"alpha": 0.1} if kind == "dirichlet" else {}
        return datasets.open_population("mnist-embedded", 100, kind, options, 0, **limits).sizes

    assert opened("dirichlet").min() < 20 <= opened("dirichlet", min_samples=20).min()
    assert opened("dirichlet").max() > 200 == opened("dirichlet", max_samples=200).max()
    assert opened("iid", max_samples=60).tolist() == [60] * 100
    with pytest.raises(ValueError, match=r"data.min_samples = 101: split 'iid' gives a client 100"):
        opened("iid", min_samples=101)


def test_splits_that_do_not_fit_the_data():
    with pytest.raises(
        ValueError, match="mnist-embedded does not say who owns its records; expected iid"
    ):
        datasets.open_population("mnist-embedded", None, "natural", {}, 0)
    with pytest.raises(ValueError, match="clients is missing"):
        datasets.open_population("mnist-embedded", None, "iid", {}, 0)
    folder = data_folder("shakespeare")
    with pytest.raises(ValueError, match=r"a label at every position.*expected natural or iid"):
        datasets.open_population("shakespeare", 50, "shards", {"classes": 2}, 0, folder)


def test_embedded_content_is_made_from_mnist():
    maker = script()
    made = maker.content(datasets.load("mnist", data_folder()))
    assert made == lzma.decompress(packed())


@pytest.mark.slow
def test_embedded_file_is_made_byte_for_byte():
    maker = script()
    made = maker.pack(maker.content(datasets.load("mnist", data_folder())))
    assert hashlib.sha256(made).hexdigest() == datasets.EMBEDDED_SHA256


def test_data_folder_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("LOCKS_DATA", raising=False)
    with pytest.raises(ValueError, match="no folder to look in; expected --data-dir"):
        datasets.load("mnist")
    monkeypatch.setenv("LOCKS_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz") as refused:
        datasets.load("mnist")
    assert str(tmp_path / "mnist") in str(refused.value)
    assert "LOCKS_DATA" in str(refused.value)
    assert "\n" not in str(refused.value)
    # The argument goes before the environment.
    with pytest.raises(ValueError, match="elsewhere"):
        datasets.load("mnist", tmp_path / "elsewhere")


def test_a_wrong_mnist_file_is_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"not digits")
    with pytest.raises(ValueError, match=r"has md5 [0-9a-f]{32}, expected f68b3c2d"):
        datasets.load("mnist", tmp_path)


def test_unknown_data_set():
    with pytest.raises(ValueError, match=r"dataset = 'mnst': .* \(did you mean 'mnist'\?\)"):
        datasets.load("mnst")


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0"])
def test_bad_split_seed(seed):
    with pytest.raises(ValueError, match=r"split seed = .*: expected a whole number >= 0"):
        datasets.open_population("mnist-embedded", 10, "iid", {}, seed)


def test_import_is_light():
    code = "import sys, locksfl.data.datasets; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
