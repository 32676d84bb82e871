"""A model in a file: the same predictions after loading, pickling, and in ONNX."""

from __future__ import annotations

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import safetensors

from locksfl.data.origin import Encoding
from locksfl.data.population import Population
from locksfl.data.task import Task
from locksfl.models.build import Model, build_model, with_task
from locksfl.models.fitted import Fitted, load, parameters
from locksfl.models.own import make_model
from locksfl.models.public_features import with_features

MODELS = {
    "softmax": ((4, 5), {}),
    "mlp": ((7,), {"hidden": [6, 5]}),
    "cnn": ((9, 8, 2), {"filters": [3, 4], "dense": 6}),  # an odd side, which pooling cuts
    "cifar-cnn": ((8, 9, 3), {"filters": [2, 4], "groups": 2}),
    "chars": ((6,), {"embedding": 3, "hidden": 5, "layers": 2}),
}
OWN = """
import jax

def build(shape, classes, width=4, note=""):
    def init(key):
        return {"first": jax.random.normal(key, (shape[0], width)), "meta": jax.numpy.ones(width)}
    def apply(weights, records):
        return (records @ weights["first"] + weights["meta"])[:, :classes]
    return init, apply
"""


def fitted(name, scale=0.5):
    """A built-in model with weights that no constant could stand for."""
    shape, options = MODELS[name]
    model = build_model(name, shape, 3, **options)
    noise = np.random.default_rng(1).normal(0, 0.2, model.size)
    weights = (np.asarray(model.init(jax.random.key(1))) + noise).astype(np.float32)
    return Fitted(model, weights, scale, None)


def records(name, count=5):
    rng, shape = np.random.default_rng(2), MODELS[name][0]
    values = (
        rng.integers(0, 6, (count, *shape)) if name == "chars" else rng.normal(size=(count, *shape))
    )
    return values.astype(np.float32)


def in_onnx(path, values):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"records": values})[0]


def encoded(kind, tmp_path):
    """A softmax on features of 8 x 8 images, and the images."""
    images = np.random.default_rng(3).integers(0, 255, (6, 8, 8)).astype(np.uint8)
    labels = np.arange(6, dtype=np.int32) % 3
    people = Population(images, labels, [0, 3, 6], images, labels, 3, "images", 1 / 255)
    file = None
    if kind == "encoder":
        file = str(tmp_path / "encoder.npz")
        rng = np.random.default_rng(4)
        np.savez(file, W=rng.normal(size=(64, 9)).astype(np.float32), b=np.full(9, 0.1, np.float32))
    people = with_features(people, kind, file)
    model = build_model("softmax", people.features.shape[1:], 3)
    weights = np.random.default_rng(5).normal(size=model.size).astype(np.float32)
    return Fitted(model, weights, people.scale, people.encoding), people, images


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_has_the_same_scores_and_names_its_parameters(tmp_path, name, suffix):
    mine, path = fitted(name), tmp_path / f"model.{suffix}"
    mine.save(path)
    again = load(path)
    assert again.model is mine.model  # so nothing compiles again
    assert again.scale == mine.scale
    np.testing.assert_array_equal(again.weights, mine.weights)
    if name == "softmax":
        np.testing.assert_array_equal(again.scores(records(name)), mine.scores(records(name)))
    if suffix == "npz":
        with np.load(path) as file:
            found = {key: file[key] for key in file.files if key != "meta"}
            header = json.loads(bytes(file["meta"]))
    else:
        with safetensors.safe_open(path, "numpy") as file:
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            header = json.loads(file.metadata()["locks"])
    assert {key: list(a.shape) for key, a in found.items()} == header["parameters"]
    assert sum(a.size for a in found.values()) == mine.model.size


def test_names_are_those_of_the_layers():
    assert {name: a.shape for name, a in fitted("mlp").parameters.items()} == {
        "layers.0.weight": (6, 7), "layers.0.bias": (6,), "layers.1.weight": (5, 6),
        "layers.1.bias": (5,), "layers.2.weight": (3, 5), "layers.2.bias": (3,),
    }  # fmt: skip
    scrambled = Model("odd", 4, lambda key: jnp.zeros(4), lambda w: {"a": 2 * w}, lambda w, x: x)
    assert parameters(scrambled, np.ones(4)).keys() == {"weights"}


@pytest.mark.parametrize("name", MODELS)
def test_onnx_gives_the_same_scores(tmp_path, name):
    scale = 1.0 if name == "chars" else 0.5
    mine = fitted(name, scale)
    mine.save(tmp_path / "model.onnx")
    values = records(name, 7)
    scores, wanted = in_onnx(tmp_path / "model.onnx", values), mine.scores(values)
    assert scores.shape == wanted.shape
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)
    # the comparison can fail: other weights, other scores
    other = Fitted(mine.model, mine.weights[::-1].copy(), scale, None).scores(values)
    assert np.abs(other - scores).max() > 1e-2


def test_numbers_and_tags_come_back_as_such(tmp_path):
    """The task is in the file, and in the graph of numbers are their units."""
    for task in (Task.numbers(low=[0, 0, 10], high=[10, 100, 30]), Task("tags")):
        mine = fitted("softmax")
        mine = Fitted(with_task(mine.model, task), mine.weights, mine.scale, None)
        values = records("softmax")
        mine.save(tmp_path / "model.npz")
        for again in (load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(mine))):
            assert again.model.task == task
            np.testing.assert_array_equal(again.predict(values), mine.predict(values))
        mine.save(tmp_path / "model.onnx")
        found = in_onnx(tmp_path / "model.onnx", values)
        wanted = mine.predict(values) if task.kind == "numbers" else mine.scores(values)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["scattering", "encoder"])
def test_features_are_part_of_the_file(tmp_path, kind):
    mine, people, images = encoded(kind, tmp_path)
    plain = Fitted(mine.model, mine.weights, 1.0, None).scores(people.features)
    np.testing.assert_allclose(mine.scores(images), plain, rtol=1e-5, atol=1e-6)
    mine.save(tmp_path / "model.npz")
    mine.save(tmp_path / "model.safetensors")
    (tmp_path / "encoder.npz").unlink(missing_ok=True)  # the model's file has its weights
    for suffix in ("npz", "safetensors"):
        again = load(tmp_path / f"model.{suffix}")
        np.testing.assert_array_equal(again.scores(images), mine.scores(images))
    with pytest.raises(ValueError, match=r"records of shape \[9\]: expected \[8, 8\]"):
        mine.scores(np.zeros((2, 9)))
    if kind == "scattering":
        with pytest.raises(ValueError, match="'scattering': it has no ONNX graph"):
            mine.save(tmp_path / "model.onnx")
        assert not (tmp_path / "model.onnx").exists()
    else:
        mine.save(tmp_path / "model.onnx")
        scores = in_onnx(tmp_path / "model.onnx", images.astype(np.float32))
        np.testing.assert_allclose(scores, mine.scores(images), rtol=1e-4, atol=1e-4)


def test_results_are_pickled_and_models_of_ones_own_too(tmp_path, monkeypatch):
    mine = fitted("cnn")
    again = pickle.loads(pickle.dumps(mine))
    assert again.model is mine.model
    np.testing.assert_array_equal(again.weights, mine.weights)
    (tmp_path / "own_net_to_pickle.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = make_model("own_net_to_pickle:build", (5,), 2, {"width": 3})
    own = Fitted(model, np.arange(model.size, dtype=np.float32), 1.0, None)
    values = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(own)).scores(values), own.scores(values)
    )
    own.save(tmp_path / "own.npz")  # one of its parameters is called like the header
    np.testing.assert_array_equal(load(tmp_path / "own.npz").scores(values), own.scores(values))
    with pytest.raises(ValueError, match="ONNX has no graph of it; expected one of softmax, mlp"):
        own.save(tmp_path / "own.onnx")


def test_a_model_that_no_file_can_name_is_given_again(tmp_path):
    model = Model("mine", 6, jnp.zeros, lambda w: w.reshape(3, 2), lambda w, x: x @ w)
    mine = Fitted(model, np.arange(6, dtype=np.float32), 1.0, None)
    mine.save(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match=r"how to build model 'mine'; expected load\(path, model="):
        load(tmp_path / "mine.npz")
    again = load(tmp_path / "mine.npz", model=model)
    np.testing.assert_array_equal(again.scores(np.eye(3)), mine.scores(np.eye(3)))
    with pytest.raises(ValueError, match="6 weights, expected the model's 63"):
        load(tmp_path / "mine.npz", model=build_model("softmax", 20, 3))


def test_wrong_names_and_damaged_files_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"model\.h5: expected a name that ends in \.npz"):
        fitted("softmax").save(tmp_path / "model.h5")
    for name in ("model.npz", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(ValueError, match=f"{name}: damaged or not written by this program"):
            load(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            load(tmp_path / f"no-{name}")
    np.savez(tmp_path / "other.npz", meta=np.frombuffer(b'{"shape": [4]}', np.uint8))
    with pytest.raises(ValueError, match="damaged or not written by this program"):
        load(tmp_path / "other.npz")


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ValueError, match=r"onnx is not installed: .*locks-fl\[export\]"):
        fitted("softmax").save(tmp_path / "model.onnx")


def test_records_of_another_shape_are_one_line():
    made = Fitted(build_model("softmax", 6, 3), np.zeros(21, np.float32), 1.0, None)
    with pytest.raises(ValueError, match=r"records of shape \(2,\): expected"):
        made.predict(np.zeros((4, 2)))


def test_a_file_does_not_say_where_an_encoder_lay():
    encoding = Encoding("random", "/home/ann/encoder.npz", (4,), 1.0)
    made = Fitted(build_model("softmax", 6, 3), np.zeros(21, np.float32), 1.0, encoding)
    assert made.header()["features"]["file"] == "encoder.npz"
