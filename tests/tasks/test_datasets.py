"""The digits are MNIST's, whole and unaltered, and a population made of them is reproducible."""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from locksfl.tasks import datasets

ROOT = Path(__file__).parents[2]


def data_folder() -> Path:
    """Where downloaded data lie: LOCKS_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get(datasets.DATA_VARIABLE) or ROOT.parent / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip("the original MNIST files are not here: set LOCKS_DATA to test them")
    return folder


def script():
    path = ROOT / "scripts" / "make_embedded_digits.py"
    spec = importlib.util.spec_from_file_location("make_embedded_digits", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed() -> bytes:
    folder = resources.files("locksfl.tasks").joinpath("embedded")
    return folder.joinpath(datasets.EMBEDDED_FILE).read_bytes()


def test_embedded_counts_and_classes():
    digits = datasets.load("mnist-embedded")
    assert digits.train_features.shape == (10_000, 28, 28)
    assert digits.test_features.shape == (2_000, 28, 28)
    assert digits.train_features.dtype == digits.test_features.dtype == np.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == np.int32
    assert np.bincount(digits.train_labels).tolist() == [1000] * 10
    assert np.bincount(digits.test_labels).tolist() == [200] * 10
    assert digits.classes == 10
    assert digits.train_features.max() == 255
    assert digits.train_features.any(axis=(1, 2)).all()


def test_embedded_digits_are_all_different():
    digits = datasets.load("mnist-embedded")
    every = np.concatenate([digits.train_features, digits.test_features])
    assert len({image.tobytes() for image in every}) == 12_000


def test_embedded_checksums_and_size():
    data = packed()
    assert len(data) < 1_700_000
    assert hashlib.sha256(data).hexdigest() == datasets.EMBEDDED_SHA256
    content = hashlib.sha256(lzma.decompress(data)).hexdigest()
    assert content == "f78e0b7d0a551f269e599522bdc2a9ce03c7e4b09a4309bb99d854a7b25b3ac9"


def test_embedded_digits_look_like_their_labels():
    """The nearest class mean of the training digits names 8 of 10 test digits; chance is 1."""
    digits = datasets.load("mnist-embedded")
    train = digits.train_features.reshape(-1, 784) / 255
    test = digits.test_features.reshape(-1, 784) / 255
    means = np.stack([train[digits.train_labels == k].mean(axis=0) for k in range(10)])
    named = ((means**2).sum(axis=1) - 2 * test @ means.T).argmin(axis=1)
    assert (named == digits.test_labels).mean() > 0.75
    assert (named == np.roll(digits.test_labels, 1)).mean() < 0.15


def test_embedded_load_is_quick():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        datasets.load("mnist-embedded")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


def test_a_damaged_file_is_refused():
    data = bytearray(packed())
    data[1000] ^= 1
    with pytest.raises(ValueError, match=r"mnist_digits\.idx\.xz has sha256 .* install the"):
        datasets._unpack(bytes(data))


def test_notice_travels_with_the_digits():
    folder = resources.files("locksfl.tasks").joinpath("embedded")
    for text in (folder.joinpath("NOTICE").read_text(), (ROOT / "NOTICE").read_text()):
        for word in ("MNIST", "LeCun", "Cortes", "Burges", "NIST Special Databases", "CC BY-SA"):
            assert word in text


def test_mnist_counts_and_classes():
    mnist = datasets.load("mnist", data_folder())
    assert mnist.train_features.shape == (60_000, 28, 28)
    assert mnist.test_features.shape == (10_000, 28, 28)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(mnist.train_labels).tolist() == train
    assert np.bincount(mnist.test_labels).tolist() == test


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
    with pytest.raises(ValueError, match="no folder to look in; set data_dir, or LOCKS_DATA"):
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


@pytest.mark.parametrize(
    ("kind", "options", "golden"),
    [
        ("iid", {}, "dad9b07f71ba7f6a"),
        ("shards", {"classes": 2}, "092f87bae64378e9"),
        ("dirichlet", {"alpha": 0.3}, "c3b6b44e94de0a7b"),
    ],
)
def test_open_population(kind, options, golden):
    population = datasets.open_population("mnist-embedded", 100, kind, options, seed=0)
    assert (population.clients, population.samples, population.classes) == (100, 10_000, 10)
    assert population.name == "mnist-embedded"
    assert population.scale == 1 / 255
    assert population.features.dtype == np.uint8
    assert population.test_labels.shape == (2_000,)
    # Nothing lost: the same digits with the same labels, in another order.
    digits = datasets.load("mnist-embedded")

    def pairs(features, labels):
        return sorted((x.tobytes(), int(y)) for x, y in zip(features, labels, strict=True))

    before = pairs(digits.train_features, digits.train_labels)
    assert pairs(population.features, population.labels) == before
    # The same on every machine; another seed gives another split.
    parts = (population.offsets.astype("<i8"), population.labels.astype("<i4"))
    digest = hashlib.sha256(
        b"".join([p.tobytes() for p in parts] + [population.features.tobytes()])
    )
    assert digest.hexdigest()[:16] == golden
    other = datasets.open_population("mnist-embedded", 100, kind, options, seed=1)
    assert not np.array_equal(other.features, population.features)


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0"])
def test_bad_split_seed(seed):
    with pytest.raises(ValueError, match=r"split seed = .*: expected a whole number >= 0"):
        datasets.open_population("mnist-embedded", 10, "iid", {}, seed)


def test_import_is_light():
    code = "import sys, locksfl.tasks.datasets; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
