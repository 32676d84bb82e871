"""Public features: fixed functions of one record each."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from experiments.results import strokes

from locksfl.data.population import Population
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import open_task
from locksfl.models.public_features import (
    _bank,
    read_weights,
    scatter,
    scattering,
    transformed,
    with_features,
)


def images(samples=7, side=28, seed=0):
    """Smooth spots somewhere in the middle, as pixels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    middle = rng.uniform(side / 3, 2 * side / 3, (samples, 2, 1, 1))
    spots = np.exp(-((y - middle[:, 0]) ** 2 + (x - middle[:, 1]) ** 2) / 8)
    return (255 * spots).astype(np.uint8)


def population(records):
    owner = np.arange(len(records)) % 2
    labels = np.arange(len(records)) % 3
    return Population.from_split(
        records, labels, owner, records[:3], labels[:3], classes=3, name="spots"
    )


def test_a_population_of_features():
    """Shapes, the same again, everything else untouched, each record normalised by itself."""
    before = population(images())
    after = with_features(before, "scattering")
    assert after.features.shape == (7, 81 * 7 * 7)
    assert (after.features.dtype, after.scale, after.name) == (np.float32, 1.0, "spots")
    np.testing.assert_array_equal(after.labels, before.labels)
    np.testing.assert_array_equal(after.offsets, before.offsets)
    np.testing.assert_array_equal(with_features(before, "scattering").features, after.features)
    groups = after.features.reshape(7, 27, -1)
    np.testing.assert_allclose(groups.mean(-1), 0, atol=1e-4)
    assert groups.std(-1).max() <= 1 + 1e-4
    assert with_features(before, "none") is before
    colour = np.repeat(images(2, 16)[..., None], 3, axis=-1)
    assert with_features(population(colour), "scattering").features.shape == (2, 3 * 81 * 4 * 4)


def test_they_are_functions_of_one_record():
    """Other records, in other places and numbers: the same features."""
    records = images(9)
    found = with_features(population(records), "scattering").features
    order = np.argsort(np.arange(9) % 2, kind="stable")
    alone = np.asarray(scattering((28, 28))(jnp.asarray(records[order[4]])[None] / 255))
    np.testing.assert_allclose(found[4], alone[0], rtol=1e-3, atol=1e-3)
    other = records.copy()
    other[order[0]] = 255 - other[order[0]]
    changed = with_features(population(other), "scattering").features
    np.testing.assert_array_equal(changed[1:], found[1:])
    assert np.abs(changed[0] - found[0]).max() > 0.1


def test_a_function_of_the_batch_is_refused():
    with pytest.raises(ValueError, match="features of a record change with other records"):
        transformed(population(images()), lambda x: x.reshape(len(x), -1) - x.mean(), "mine")


def test_a_small_shift_changes_features_little():
    """A line of one pixel that moves by one has not one bright pixel in common with itself; half
    of its scattering stays."""
    here = np.zeros((5, 28, 28), np.float32)
    for number in range(5):
        here[number, 6:22, 10 + number] = 1.0
    there = np.roll(here, 1, axis=2)

    def change(a, b):
        return np.linalg.norm(a - b, axis=(1, 2)) / np.linalg.norm(a, axis=(1, 2))

    first, second = (np.asarray(scatter(jnp.asarray(x))).reshape(5, 1, -1) for x in (here, there))
    assert np.all(change(here, there) > 1.4)
    assert np.all(change(first, second) < 0.7), change(first, second)


def test_wavelets_have_no_mean_and_look_their_way():
    """A grating answers most in the wavelet of its direction and scale, against a direct sum."""
    fine, coarse = _bank(36, 36)
    assert np.abs(fine[:, 0, 0]).max() < 1e-6
    assert np.abs(coarse[:, 0, 0]).max() < 1e-6
    y, x = np.mgrid[:28, :28]
    for direction, wave in ((0, x), (4, y)):
        for number, frequency in enumerate((0.75 * np.pi, 0.375 * np.pi)):
            grating = np.cos(frequency * wave)[None].astype(np.float32)
            answers = np.asarray(scatter(jnp.asarray(grating)))[0, 1:17].mean((1, 2))
            assert answers.argmax() == 8 * number + direction


def test_the_linear_model_trains_on_them():
    text = '[features]\nname = "scattering"\n[[arm]]\nname = "a"\ncohort = 5'
    config = parse_config(text, ["data.clients=20"])
    small = population(images())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("locksfl.experiment.run.open_population", lambda *_, **__: small)
        opened, model = open_task(config)
    assert (opened.features.shape[1], model.size) == (3969, 39_690 // 10 * 3 + 3)


# --- Encoders ------------------------------------------------


def test_an_encoder_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(16, 5)), rng.normal(size=5)
    records = images(4, 4)
    np.save(tmp_path / "w.npy", weights)
    np.savez(tmp_path / "w.npz", W=weights, b=bias)
    for file, b in (("w.npy", 0.0), ("w.npz", bias)):
        found = with_features(population(records), "encoder", str(tmp_path / file))
        wanted = np.maximum(records.reshape(4, 16) / 255 @ weights + b, 0)
        np.testing.assert_allclose(found.features, wanted[[0, 2, 1, 3]], rtol=1e-4, atol=1e-5)
        assert found.test_features.shape == (3, 5)


def test_an_encoder_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "encoders.py").write_text(
        "def rows(x): return x.mean(axis=2)\ndef batch(x): return x.mean(axis=2) - x.mean()\n"
        "def flat(x): return x.ravel()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = population(images(4, 8))
    found = with_features(small, "encoder", "encoders:rows").features
    np.testing.assert_allclose(found, small.features.mean(axis=2) / 255, rtol=1e-5)
    for name, expected in (
        ("batch", "change with other records"),
        ("flat", "expected .records, f"),
    ):
        with pytest.raises(ValueError, match=expected):
            with_features(small, "encoder", f"encoders:{name}")


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"V": np.zeros((16, 5))}, r"expected an array W .* it has \['V'\]"),
        (
            {"W": np.zeros((15, 5))},
            r"of shape \[15, 5\], expected floats of shape \[16, features\]",
        ),
        ({"W": np.zeros((16, 5), int)}, "W is int64"),
        ({"W": np.zeros((16, 5)), "b": np.zeros(4)}, r"b of shape \[5\]"),
        ({"W": np.full((16, 5), np.nan)}, "expected finite numbers"),
    ],
)
def test_bad_encoder_files_are_refused(tmp_path, arrays, expected):
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(ValueError, match=expected) as caught:
        read_weights(str(tmp_path / "w.npz"), 16)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for name in ("none.npy", "cut.npy"):
        with pytest.raises(ValueError, match="cannot be read"):
            read_weights(str(tmp_path / name), 16)
    with pytest.raises(ValueError, match="no module 'nowhere'"):
        with_features(population(np.zeros((2, 4, 4), np.float32)), "encoder", "nowhere:function")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('name = "scatter"', "did you mean 'scattering'"),
        ('name = "encoder"', "features.file is missing"),
        ('name = "scattering"\nfile = "w.npy"', "takes no file"),
    ],
)
def test_bad_settings_are_refused(lines, expected):
    with pytest.raises(ValueError, match=expected):
        parse_config(f'[features]\n{lines}\n[[arm]]\nname = "a"\ncohort = 5')
    with pytest.raises(ValueError, match="multiples of 4"):
        scattering((28, 30))


def test_the_centre_of_strokes_knows_nothing_of_the_records():
    """It is drawn, not measured: the same for any data. It takes away more than half of the energy
    of the mean of digits' features, so that more of the clip norm is left for what differs."""
    digits = open_task(parse_config('[[arm]]\nname = "all"\nrule = "full"', ()))[0]
    records = jnp.asarray(digits.features[:100] * digits.scale, jnp.float32)
    plain, less = scattering((28, 28))(records), strokes.centred(records)
    np.testing.assert_allclose(plain - less, np.tile(strokes.centre(), (100, 1)), atol=1e-5)
    before, after = (float(jnp.sum(jnp.mean(found, axis=0) ** 2)) for found in (plain, less))
    assert after < before / 2
