"""Models: their sizes, convolutions as matrix products, gradients, and that each can learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from locksfl import LocalConfig, OptimizerConfig, Population, train
from locksfl.experiment.config import parse_config
from locksfl.models import conv, winograd
from locksfl.models.build import activations, build_model, records_at_once, scores_of
from locksfl.models.conv import group_norm, max_pool
from locksfl.round.client import LocalWork, Records, SizeClass, choose_rows, measure

SMALL = {
    "cnn": {"filters": [3, 4], "dense": 8},
    "cifar-cnn": {"filters": [4, 8], "groups": 2},
    "chars": {"embedding": 4, "hidden": 12, "layers": 2},
}
SHAPES = {"softmax": (5, 2), "mlp": (5, 2), "cnn": (9, 8), "cifar-cnn": (8, 8, 3), "chars": (7,)}
CLASSES = 5


def small(name):
    return build_model(name, SHAPES[name], CLASSES, **SMALL.get(name, {}))


def data(name, samples, seed=0):
    """Records as they are stored, and labels."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[name]
    if name == "chars":
        ids = rng.integers(0, CLASSES, (samples, *shape)).astype(np.uint8)
        return ids, rng.integers(-1, CLASSES, (samples, *shape)).astype(np.int32)
    images = rng.normal(size=(samples, *shape)).astype(np.float32)
    return images, rng.integers(0, CLASSES, samples).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("softmax", (28, 28), 10, 7850),
        ("mlp", (28, 28), 10, 784 * 200 + 200 + 2010),
        ("cnn", (28, 28), 10, 832 + 51_264 + 3136 * 512 + 512 + 5130),  # 1,663,370 as published
        ("cifar-cnn", (32, 32, 3), 10, 289_194),
        ("chars", (80,), 90, 90 * 16 + 16 * 768 + 768 + 256 * 768 + 256 + 257 * 90),
    ],
)
def test_sizes(name, shape, classes, size):
    model = build_model(name, shape, classes)
    assert model.size == size
    flat = jax.eval_shape(model.init, jax.random.key(0))
    assert (flat.shape, flat.dtype) == ((size,), jnp.float32)


# --- Convolutions ------------------------------------------------


def lax_conv(images, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=numbers)


WAYS = [  # how the products are made depends on the form, the size and the channels
    *[("a batch", size, 2) for size in (1, 2, 3, 5)],  # patches, some images at a time
    *[("a batch", size, 5) for size in (2, 3, 5)],  # Winograd's method for 3 and 5
    *[("by groups", size, 2) for size in (2, 5)],
    *[("by groups", size, 5) for size in (3, 5)],
    *[(form, size, 5) for form in ("one by one", "by clients") for size in (2, 3)],
]


@pytest.mark.parametrize(("form", "size", "channels"), WAYS)
def test_products_are_the_convolution(form, size, channels, monkeypatch):
    """Values and both gradients, against lax.conv in float64; the fault: a turned kernel."""
    shape = (6, 5)
    if form == "by groups":
        monkeypatch.setattr(winograd, "CACHE_FLOATS", 1)

    def convolve(images, kernel):
        if form == "one by one":
            return jax.vmap(conv.convolve, (0, None))(images, kernel)
        if form == "by clients":
            return jax.vmap(conv.convolve)(images[None], kernel[None])[0]
        return conv.convolve(images, kernel)

    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        images = jnp.asarray(rng.normal(size=(4, *shape, channels)))
        kernel = jnp.asarray(rng.normal(size=(size, size, channels, 4)))
        pull = jnp.asarray(rng.normal(size=(4, *shape, 4)))
        assert images.dtype == jnp.float64
        results = [jax.vjp(function, images, kernel) for function in (convolve, lax_conv)]
        np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(results[0][1](pull), results[1][1](pull), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        if size > 1:
            assert not np.allclose(convolve(images, kernel[::-1]), results[1][0], rtol=0.05)


@pytest.mark.parametrize(("size", "most"), [(3, 1e-6), (5, 4e-6)])
def test_fewer_products_round_little_more(size, most, monkeypatch):
    """In float32, of 32 channels; the fault: points further from zero."""

    def apart():
        value, back = jax.vjp(winograd.winograd, images, kernel)
        pairs = zip((value, *back(pull)), wanted, strict=True)
        return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)

    rng = np.random.default_rng(0)
    shapes = [(2, 14, 14, 32), (size, size, 32, 64), (2, 14, 14, 64)]
    exact = [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]
    with jax.enable_x64(True):
        value, back = jax.vjp(lax_conv, *map(jnp.asarray, exact[:2]))
        wanted = [np.asarray(array) for array in (value, *back(jnp.asarray(exact[2])))]
    images, kernel, pull = (jnp.asarray(array, jnp.float32) for array in exact)
    assert apart() < most
    monkeypatch.setitem(winograd.POINTS, size, tuple(float(k) for k in range(size)))
    assert apart() > most


def test_pools_and_norms_are_the_written_out_ones():
    rng = np.random.default_rng(1)
    image = rng.normal(size=(7, 6, 4)).astype(np.float32)
    pooled = np.asarray(max_pool(jnp.asarray(image)))
    assert pooled.shape == (3, 3, 4)
    for i in range(3):
        for j in range(3):
            square = image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            np.testing.assert_array_equal(pooled[i, j], square.max((0, 1)))
    scale, shift = rng.normal(size=4), rng.normal(size=4)
    normed = group_norm(jnp.asarray(image), 2, jnp.asarray(scale), jnp.asarray(shift))
    for first in (0, 2):
        group = image[..., first : first + 2]
        normal = (group - group.mean()) / np.sqrt(group.var() + 1e-5)
        wanted = normal * scale[first : first + 2] + shift[first : first + 2]
        np.testing.assert_allclose(normed[..., first : first + 2], wanted, rtol=1e-4, atol=1e-5)


# --- Every model in the engine ------------------------------------------------


def numpy_loss(scores, labels):
    """The mean over records of the mean over a record's labelled positions."""
    scores, total = np.asarray(scores, float), 0.0
    for score, label in zip(scores, labels, strict=True):
        score, label = np.atleast_2d(score), np.atleast_1d(label)
        terms = [
            np.log(np.exp(s).sum()) - s[c] for s, c in zip(score, label, strict=True) if c >= 0
        ]
        total += np.mean(terms) if terms else 0.0
    return total / len(labels)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("update", ["gradient", "epochs"])
def test_updates_are_the_gradients(name, update):
    """A chunk of ragged clients through `measure`, against jax.grad of the loss on each alone;
    the loss itself against NumPy. Epochs of one batch are one step."""
    model = small(name)
    sizes, starts = np.array([3, 1, 4]), np.array([0, 3, 4])
    features, labels = data(name, 8)
    if name == "chars":
        labels[4] = -1  # a record without any label counts, and adds nothing
    records = Records(*(jnp.asarray(a) for a in (features, labels, starts, sizes)), jnp.float32(1))
    flat = model.init(jax.random.key(1)) + 0.1 * jax.random.normal(jax.random.key(2), (model.size,))
    work = LocalWork(update, epochs=1, batch=4, step=0.5)
    keys = jax.random.split(jax.random.key(0), 3)
    chunk = choose_rows(records, jnp.arange(3), keys, SizeClass(4, 0, False), work)
    visit = jax.jit(lambda flat, chunk: measure(model, flat, records, chunk, work))(flat, chunk)

    everything = jnp.asarray(features, jnp.float32).reshape(len(features), -1)

    def loss(flat, mine):
        scores, y = model.apply(model.unravel(flat), everything), jnp.asarray(labels)
        there = y >= 0
        right = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.maximum(y, 0)[..., None], -1)
        right = jnp.where(there, right[..., 0], 0.0).reshape(len(y), -1)
        count = jnp.maximum(1, jnp.sum(there.reshape(len(y), -1), axis=1))
        return -jnp.sum(mine * jnp.sum(right, axis=1) / count) / jnp.sum(mine), scores

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        mine = (np.arange(8) >= start) & (np.arange(8) < start + size)
        (value, scores), wanted = gradient(flat, jnp.asarray(mine, jnp.float32))
        assert value == pytest.approx(numpy_loss(scores[mine], labels[mine]), rel=1e-5)
        wanted = wanted * (work.step if update == "epochs" else 1.0)
        np.testing.assert_allclose(visit.norms[i], np.linalg.norm(wanted), rtol=1e-4)
        if hasattr(visit.trace, "shape"):
            np.testing.assert_allclose(visit.trace[i], wanted, rtol=1e-3, atol=1e-5)


def task(name, samples, seed):
    """Records in which the class shows: a bright place, or characters that count upwards."""
    rng = np.random.default_rng(seed)
    if name == "chars":
        step = rng.integers(1, 3, (samples, 1))
        ids = (rng.integers(0, CLASSES, (samples, 1)) + step * np.arange(8)) % CLASSES
        labels = ids[:, 1:].astype(np.int32)
        labels[rng.random(labels.shape) < 0.1] = -1
        return ids[:, :-1].astype(np.float32), labels
    labels = rng.integers(0, CLASSES, samples).astype(np.int32)
    patterns = np.random.default_rng(7).normal(size=(CLASSES, *SHAPES[name]))
    return (patterns[labels] + 0.3 * rng.normal(size=(samples, *SHAPES[name]))), labels


def population_of(features, labels, test_features, test_labels, owner):
    """A population; the labels of sequences are put in after it is made."""
    first = labels.ndim == 2
    population = Population.from_split(
        features.astype(np.float32),
        np.zeros(len(labels), np.int32) if first else labels,
        owner,
        test_features.astype(np.float32),
        np.zeros(len(test_labels), np.int32) if first else test_labels,
        classes=CLASSES,
    )
    object.__setattr__(population, "labels", labels)
    object.__setattr__(population, "test_labels", test_labels)
    return population


@pytest.mark.parametrize("name", ["cnn", "cifar-cnn", "chars"])
def test_it_learns(name):
    """Without privacy, far above the fifth that guessing gives; accuracy and loss as in NumPy."""
    owner = np.repeat(np.arange(10), 20)
    population = population_of(*task(name, 200, 1), *task(name, 101, 2), owner)
    step = 0.3 if name == "chars" else 0.1
    result = train(
        population, rule="full", model=small(name), rounds=15, trust="none", seed=0,
        clip_norm=100.0, local=LocalConfig("epochs", epochs=2, batch=5, step=step),
        optimizer=OptimizerConfig(schedule="constant"),
    )  # fmt: skip
    assert result.accuracy > 0.6
    labels = population.test_labels
    right = (result.predict(population.test_features) == labels)[labels >= 0]
    assert result.accuracy == pytest.approx(right.mean(), abs=1e-6)
    wanted = numpy_loss(result.scores(population.test_features), labels)
    assert result.history[-1]["loss"] == pytest.approx(wanted, rel=1e-4)


def test_no_character_sees_a_later_one():
    model = small("chars")
    weights = model.unravel(model.init(jax.random.key(0)))
    ids = jnp.asarray(data("chars", 1)[0], jnp.float32)
    later = ids.at[0, 4].set((ids[0, 4] + 1) % CLASSES)
    before, after = model.apply(weights, ids)[0], model.apply(weights, later)[0]
    np.testing.assert_array_equal(before[:4], after[:4])
    assert np.abs(before[4:] - after[4:]).max(axis=1).min() > 1e-4


# --- Memory ------------------------------------------------


def test_activations_are_counted():
    """Dense layers by hand; a scan counts each turn; a whole cohort's batches fit on a GPU."""
    mlp = build_model("mlp", (6,), 3, hidden=(4,))
    assert 4 + 3 <= activations(mlp, (6,)) <= 4 * (4 + 3)
    lengths = [activations(build_model("chars", (n,), 5), (n,)) for n in (10, 20)]
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=0.05)
    floats = 100 * 2**30 // 24
    for name, shape, clients, batch in (
        ("cifar-cnn", (32, 32, 3), 50, 10),
        ("cnn", (28, 28), 20, 32),
    ):
        model = build_model(name, shape, 10)
        assert clients * batch <= records_at_once(model, shape, floats) < 20_000


def test_scores_in_parts_are_the_scores(monkeypatch):
    model = small("cnn")
    flat, records = model.init(jax.random.key(0)), data("cnn", 7)[0]
    whole = scores_of(model, flat, records, 1.0)
    monkeypatch.setattr("locksfl.models.build.records_at_once", lambda *_: 3)
    np.testing.assert_allclose(scores_of(model, flat, records, 1.0), whole, rtol=1e-5, atol=1e-6)


# --- Bad settings ------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        ("cnn", (784,), {}, r"model.name = 'cnn': expected images .* got records of shape \[784\]"),
        ("cnn", (3, 28), {}, "4 pixels or more per side"),
        (
            "cnn",
            (28, 28),
            {"filters": [3]},
            r"model.options.filters = \(3,\): expected a list of 2",
        ),
        ("cnn", (28, 28), {"filters": 5}, "model.options.filters = 5: expected a list of 2"),
        ("cifar-cnn", (32, 32, 3), {"filters": 5}, "model.options.filters = 5: expected a list of"),
        ("cnn", (28, 28), {"dense": 0}, "model.options.dense = 0: expected a whole number >= 1"),
        ("cnn", (28, 28), {"dens": 9}, "model.options.dens = 9: unknown .*did you mean 'dense'"),
        ("softmax", (9,), {"hidden": [9]}, "model 'softmax' takes no options"),
        ("cifar-cnn", (32, 32, 3), {"groups": 5}, "expected multiples of model.options.groups = 5"),
        ("chars", (28, 28), {}, r"expected records of character ids, shape \[length\]"),
        ("chars", (8,), {"layers": 0}, "model.options.layers = 0"),
    ],
)
def test_bad_options_are_refused(name, shape, options, expected):
    with pytest.raises(ValueError, match=expected) as caught:
        build_model(name, shape, 10, **options)
    assert "\n" not in str(caught.value)


def test_options_come_from_the_file():
    text = (
        '[model]\nname = "cnn"\n[model.options]\nfilters = [4, 8]\n[[arm]]\nname = "a"\ncohort = 5'
    )
    assert parse_config(text).model.arguments() == {"filters": [4, 8]}
    changed = parse_config(text, ["model.options.dense=16"]).model.arguments()
    assert changed == {"filters": [4, 8], "dense": 16}
    with pytest.raises(ValueError, match=r"model.options = 3: expected a table"):
        parse_config(text.replace("[model.options]\nfilters = [4, 8]", "options = 3"))
