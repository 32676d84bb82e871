"""A user's own model: what is taken, and what is refused in one line."""

from __future__ import annotations

import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from locksfl import Population, train
from locksfl.experiment.config import ModelConfig
from locksfl.models.build import Model
from locksfl.models.own import check_model, own_model

SOURCE = """
import math
import equinox as eqx, jax, jax.numpy as jnp
raise_at_once = False

def plain(shape, classes, width=7):
    def init(key):
        one, two = jax.random.split(key)
        return {
            "hidden": 0.3 * jax.random.normal(one, (math.prod(shape), width)),
            "out": [0.3 * jax.random.normal(two, (width, classes)), jnp.zeros(classes)],
        }
    def apply(weights, records):
        assert records.shape[1:] == shape
        hidden = jnp.tanh(records.reshape(len(records), -1) @ weights["hidden"])
        return hidden @ weights["out"][0] + weights["out"][1]
    return init, apply

class Net(eqx.Module):
    layer: eqx.nn.Linear
    def __call__(self, record):
        return self.layer(record.ravel())

def module(shape, classes, key):
    return Net(eqx.nn.Linear(math.prod(shape), classes, key=key))

def fixed(shape, classes):
    return Net(eqx.nn.Linear(math.prod(shape), classes, key=jax.random.key(3)))

class Normed(eqx.Module):
    norm: eqx.nn.BatchNorm
    layer: eqx.nn.Linear
    def __call__(self, record, state):
        return self.norm(self.layer(record.ravel()), state)

def _normed(shape, classes):
    norm = eqx.nn.BatchNorm(classes, "batch", mode="batch")
    return Normed(norm, eqx.nn.Linear(math.prod(shape), classes, key=jax.random.key(0)))

normed = _normed
def with_state(shape, classes):
    return eqx.nn.make_with_state(_normed)(shape, classes)

def flax_like(shape, classes):
    init, apply = plain(shape, classes)
    return lambda key: {"params": init(key), "batch_stats": {"mean": jnp.zeros(3)}}, apply

def centred(shape, classes):
    init, apply = plain(shape, classes)
    return init, lambda w, x: apply(w, x - jnp.mean(x, axis=0))

def transposed(shape, classes):
    init, apply = plain(shape, classes)
    return init, lambda w, x: apply(w, x).T

def whole(shape, classes):
    init, apply = plain(shape, classes)
    return init, lambda w, x: apply(w, x).astype(int)

def two(shape, classes):
    init, apply = plain(shape, classes)
    return init, lambda w, x: (apply(w, x), {"count": 1})

def integers(shape, classes):
    return lambda key: jnp.arange(classes), lambda w, x: x @ w

def half(shape, classes):
    return lambda key: jnp.zeros((2, classes), jnp.float16), lambda w, x: x @ w

def empty(shape, classes):
    return lambda key: {}, lambda w, x: x[:, :classes]

def number(shape, classes):
    return 7

def raises(shape, classes):
    raise RuntimeError("out of luck\\nand more")

def bad_init(shape, classes):
    return lambda: 1, lambda w, x: x

def bad_apply(shape, classes):
    return lambda key: jnp.zeros((3, classes)), lambda w, x: x @ w @ w
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Modules in the current directory."""
    (tmp_path / "nets.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "broken.py").write_text("import no_such_thing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("nets", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def clouds(samples, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    return (2 * np.eye(3, 6)[labels] + 0.5 * rng.normal(size=(samples, 6))).reshape(
        -1, 2, 3
    ), labels


@pytest.mark.parametrize("name", ["plain", "module", "fixed"])
def test_a_model_of_ones_own_is_trained(name):
    x, y = clouds(200, 0)
    population = Population.from_arrays(x, y, np.arange(200) % 20, *clouds(100, 1), classes=3)
    result = train(
        population, rule="full", model=f"nets:{name}", rounds=15, trust="none", seed=0, step=2.0
    )
    assert result.accuracy > 0.9
    assert result.model.size == {"plain": 6 * 7 + 24}.get(name, 21)


def test_options_reach_it_and_keys_differ():
    assert own_model("nets:plain", (2, 3), 4, {"width": 5}).size == 30 + 24
    starts = {}
    for name in ("plain", "module", "fixed"):
        model = own_model(f"nets:{name}", (2, 3), 4, {})
        one, two = (model.init(jax.random.key(k)) for k in (0, 1))
        starts[name] = bool(np.array_equal(one, two))
        assert one.dtype == jnp.float32
    assert starts == {"plain": False, "module": False, "fixed": True}


STATISTICS = "batch statistics mix records and clients"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nest:plain", "no module 'nest' in the current directory"),
        ("nets:plane", "has no function 'plane' .did you mean 'plain'"),
        ("nets:raise_at_once", "has no function 'raise_at_once'"),
        ("nets:", "expected package.module:function"),
        ("a b:c", "expected package.module:function"),
        ("broken:net", "importing it failed: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("nets:number", "returns int, expected an Equinox module"),
        ("nets:raises", "calling it failed: RuntimeError: out of luck"),
        ("nets:bad_init", r"init\(key\) failed: TypeError"),
        ("nets:bad_apply", r"it fails on records of shape \[2, 3\]: TypeError"),
        ("nets:integers", "weights of type int32, expected float32"),
        ("nets:half", "weights of type float16, expected float32"),
        ("nets:empty", "it has no weights to train"),
        ("nets:transposed", r"shape \[4, 3\] for 3 records, expected floats of shape \[3, 4\]"),
        ("nets:whole", "scores of int32"),
        ("nets:two", "returns tuple, expected one array of scores"),
        ("nets:normed", STATISTICS),
        ("nets:with_state", STATISTICS),
        ("nets:flax_like", STATISTICS),
        ("nets:centred", f"scores of a record change with other records: {STATISTICS}"),
    ],
)
def test_what_cannot_be_trained_is_refused(name, expected):
    ModelConfig(name)  # the file may say so; whether it can be had is known when it is built
    with pytest.raises(ValueError, match=f"^model.name = '{name}': .*{expected}") as caught:
        check_model(own_model(name, (2, 3), 4, {}), (2, 3), 4)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_told():
    with pytest.raises(ValueError, match=r"calling it failed: TypeError: .*'depth'"):
        own_model("nets:plain", (2, 3), 4, {"depth": 2})


def test_a_model_that_starts_at_zero_is_still_looked_at():
    """All scores are 0 at the start, whatever the records: the check must move the weights."""
    mixing = Model(
        "mixing",
        6,
        lambda key: jnp.zeros(6),
        lambda flat: flat.reshape(2, 3),
        lambda weights, records: (records / (1 + records.max())) @ weights,
    )
    with pytest.raises(ValueError, match=STATISTICS):
        check_model(mixing, (2,), 3)


def test_labels_at_every_position_need_scores_at_every_position():
    module = eqx.nn.Linear(5, 4, key=jax.random.key(0))
    weights, static = eqx.partition(module, eqx.is_array)
    flat, unravel = jax.flatten_util.ravel_pytree(weights)
    model = Model(
        "m", flat.size, lambda k: flat, unravel, lambda w, x: jax.vmap(eqx.combine(w, static))(x)
    )
    check_model(model, (5,), 4)
    with pytest.raises(ValueError, match=r"expected floats of shape \[3, 5, 4\], \[records, pos"):
        check_model(model, (5,), 4, (5,))
