"""Full precision asks every product for all its bits; reduced precision is close to it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks import ragged
from locksfl.config import parse_config
from locksfl.local import LocalWork, Records, SizeClass, choose_rows, combine, measure
from locksfl.tasks.models import cnn, mlp

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
    """The same bits on a CPU; on a GPU the 10 bits of TF32, some steps long."""
    weights = model.init(jax.random.key(0))
    full = jax.jit(update(model, work, rows))(weights)
    reduced = jax.jit(update(model, replace(work, precision="reduced"), rows))(weights)
    apart = float(jnp.linalg.norm(full - reduced) / jnp.linalg.norm(full))
    assert apart <= (0 if jax.default_backend() == "cpu" else 1e-2)


def test_the_setting_is_checked():
    arm = '[[arm]]\nname = "a"\ncohort = 2\n[privacy]\ntrust = "none"\n'
    assert parse_config(arm).local.precision == "full"
    assert parse_config(arm, ["local.precision=reduced"]).local.precision == "reduced"
    with pytest.raises(ValueError, match=r"local.precision = 'half': expected"):
        parse_config(arm, ["local.precision=half"])
