"""Full precision asks every product for all its bits; reduced precision is close to it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import ragged
from locksfl.experiment.config import parse_config
from locksfl.models import conv
from locksfl.models.build import cnn, mlp
from locksfl.round.client import LocalWork, Records, SizeClass, choose_rows, combine, measure

HIGHEST = jax.lax.Precision.HIGHEST
EPOCHS = LocalWork("epochs", epochs=2, batch=4, step=0.1)
CASES = [
    (mlp(6, 3, (16,)), LocalWork(), 3),  # norms without gradients
    (mlp(6, 3, (16,)), LocalWork(), 12),
    (mlp(6, 3, (16,)), EPOCHS, 12),
    (cnn((8, 8), 3, (2, 3), 5), EPOCHS, 12),
]


def update(model, work, rows):
    """The sum of two clients' updates as a function of the weights."""
    population = ragged(np.array([rows, rows]), 64 if model.name == "cnn" else 6)
    numbers = (population.offsets[:-1], population.sizes)
    records = Records(
        *map(jnp.asarray, (population.features, population.labels, *numbers)), jnp.float32(1)
    )

    def summed(weights):
        keys = jax.random.split(jax.random.key(1), 2)
        shape = SizeClass(rows, 0, False)
        chunk = choose_rows(records, jnp.arange(2), keys, shape, work)
        return combine(measure(model, weights, records, chunk, work).trace, jnp.ones(2))

    return summed


def precisions(jaxpr):
    """What every product of a program was asked for."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from precisions(inner)


@pytest.mark.parametrize(("model", "work", "rows"), CASES)
def test_full_precision_reaches_every_product(model, work, rows):
    weights = jnp.zeros(model.size)
    full = list(precisions(jax.make_jaxpr(update(model, work, rows))(weights).jaxpr))
    assert len(full) > 2
    assert all(found == (HIGHEST, HIGHEST) for found in full)
    reduced = replace(work, precision="reduced")
    less = list(precisions(jax.make_jaxpr(update(model, reduced, rows))(weights).jaxpr))
    assert len(less) == len(full)
    assert (HIGHEST, HIGHEST) in less, "sums and norms stay exact"
    assert any(found != (HIGHEST, HIGHEST) for found in less)


@pytest.mark.parametrize(("model", "work", "rows"), CASES)
def test_reduced_precision_is_close(model, work, rows):
    """The same bits on a CPU; on a GPU what rounded factors make of it in some steps."""
    weights = model.init(jax.random.key(0))
    full = jax.jit(update(model, work, rows))(weights)
    reduced = jax.jit(update(model, replace(work, precision="reduced"), rows))(weights)
    apart = float(jnp.linalg.norm(full - reduced) / jnp.linalg.norm(full))
    assert apart <= (0 if jax.default_backend() == "cpu" else 1e-2)


def test_sixteen_bit_patches_are_close_to_the_convolution(monkeypatch):
    """As reduced precision has them on a GPU. A rounded factor is off by 2**-9 at most; a wrong
    kernel by more than that, and exact numbers by less."""
    images, kernel, pull = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(4, 9, 8, 3), (3, 3, 3, 5), (4, 9, 8, 5)])
    )

    def apart(wanted_kernel):
        found = jax.vjp(conv.convolve, images, kernel)
        wanted = jax.vjp(full, images, wanted_kernel)
        pairs = zip((found[0], *found[1](pull)), (wanted[0], *wanted[1](pull)), strict=True)
        return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]

    def full(images, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=numbers, precision=HIGHEST
        )

    assert max(apart(kernel)) < 1e-6
    monkeypatch.setattr(conv, "_sixteen_bits", lambda: True)
    assert conv.convolve(images, kernel).dtype == jnp.float32
    assert 1e-4 < min(apart(kernel)) <= max(apart(kernel)) < 1e-2
    assert max(apart(kernel[::-1])) > 0.5


def test_the_setting_is_checked():
    arm = '[[arm]]\nname = "a"\ncohort = 2\n[privacy]\ntrust = "none"\n'
    assert parse_config(arm).local.precision == "full"
    assert parse_config(arm, ["local.precision=reduced"]).local.precision == "reduced"
    with pytest.raises(ValueError, match=r"local.precision = 'half': expected"):
        parse_config(arm, ["local.precision=half"])
