"""A client's work: which rows it uses, its update, and norms without gradients."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import counts_are, mean_is, ragged
from locksfl.models.build import from_equinox, mlp, softmax
from locksfl.round.client import (
    DenseTrace,
    LocalWork,
    Records,
    SizeClass,
    _measure_dense,
    _visit,
    choose_rows,
    combine,
    epochs_update,
    gradient_update,
    measure,
    permutation,
    used_samples,
    uses_errors,
)
from quadratics import records_of

SIZES = np.array([1, 2, 5, 12, 3, 8])
STARTS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
GRADIENT = LocalWork()


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def chunk_of(records, clients, work, rows, subsample_from=0, repeats=False, seed=0):
    shape = SizeClass(rows, subsample_from, repeats)
    return choose_rows(records, jnp.asarray(clients), keys(len(clients), seed), shape, work)


# --- Rows ------------------------------------------------


def test_rows_are_a_client_s_own_and_within_the_limits():
    """Clients of 1 to 12 samples under [4, 6], an empty slot among them, over many rounds."""
    records = records_of(ragged(SIZES))
    work = LocalWork(min_samples=4, max_samples=6)
    slots = [3, -1, 0, 1, 2, 5, 4]
    for seed in range(30):
        chunk = chunk_of(records, slots, work, 6, 12, repeats=True, seed=seed)
        for client, rows, used in zip(slots, chunk.rows, np.asarray(chunk.used), strict=True):
            if client < 0:
                assert not used.any()
                continue
            size = SIZES[client]
            count = min(max(size, 4), 6)
            assert used.tolist() == [True] * count + [False] * (6 - count)
            own = np.asarray(rows)[used] - STARTS[client]
            assert own.min() >= 0
            assert own.max() < size
            if size >= count:  # a subsample, or all of them: nothing twice
                assert len(set(own.tolist())) == count
            else:  # all of them, and then some again
                assert own[:size].tolist() == list(range(size))
    assert used_samples(SIZES, work).tolist() == [4, 4, 5, 6, 4, 6]
    assert used_samples(SIZES, LocalWork()).tolist() == SIZES.tolist()


def test_a_subsample_is_uniform_over_rows():
    """12 rows, 5 of them used: each row alike, each pair alike (1e-6); "the first 5" is rejected,
    and so is a sampler that prefers early rows a little. Repeats are uniform too."""
    records, many = records_of(ragged(SIZES)), 40_000
    work = LocalWork(min_samples=5, max_samples=5)

    @jax.jit
    def rows(keys):
        shape = SizeClass(5, 12, repeats=True)
        big = choose_rows(records, jnp.full(many, 3), keys, shape, work)
        small = choose_rows(records, jnp.full(many, 4), keys, shape, work)
        return big.rows - STARTS[3], small.rows - STARTS[4]

    big, small = (np.asarray(a) for a in rows(keys(many)))
    there = np.zeros((many, 12), bool)
    there[np.arange(many)[:, None], big] = True
    assert mean_is(there, np.full(12, 5 / 12))
    first, second = np.triu_indices(12, 1)
    assert mean_is(there[:, first] & there[:, second], np.full(66, 5 / 12 * 4 / 11))
    early = 5 / 12 + 0.02 * np.where(np.arange(12) < 6, 1, -1)
    assert not mean_is(there, early)
    assert not mean_is(np.arange(12)[None].repeat(many, 0) < 5, np.full(12, 5 / 12))
    again = np.bincount(small[:, 3:].ravel(), minlength=3)
    assert counts_are(again, [2 * many / 3] * 3)
    assert not counts_are(again, np.array([1.02, 1, 0.98]) * 2 * many / 3)


def test_a_permutation_does_not_see_its_padding():
    """The same order of 0..size-1 for any padded length; uniform over orders (1e-6)."""
    key = jax.random.key(4)
    short = np.asarray(permutation(key, 5, 5))
    for length in (6, 12, 40):
        padded = np.asarray(permutation(key, 5, length))
        np.testing.assert_array_equal(padded[:5], short)
        assert sorted(padded) == list(range(length))
    orders = jax.vmap(lambda key: permutation(key, 3, 7)[:3])(keys(6000))
    codes = np.asarray(orders) @ [100, 10, 1]
    counts = [int(np.sum(codes == code)) for code in (12, 21, 102, 120, 201, 210)]
    assert sum(counts) == 6000
    assert counts_are(counts, [1000] * 6)
    assert not counts_are(counts, [1200, 800, 1000, 1000, 1000, 1000])


# --- Updates ------------------------------------------------

CASES = [(softmax(6, 3), (6, 3)), (mlp(6, 3, (7,)), (6, 7, 3)), (mlp(6, 3, (5, 4)), (6, 5, 4, 3))]


def weights_of(model, seed=2):
    """Away from zero, so that no gradient is special."""
    return 0.5 * jax.random.normal(jax.random.key(seed), (model.size,))


@pytest.mark.parametrize(("model", "widths"), CASES, ids=["softmax", "mlp", "deep"])
def test_updates_are_the_written_out_ones(model, widths):
    """Both modes against NumPy in float64, ragged clients and an empty slot, chunk and alone."""
    population, flat = ragged(SIZES), weights_of(model)
    records, clients = records_of(population), [2, 3, -1, 0]
    chunk = chunk_of(records, clients, GRADIENT, 12)
    work = LocalWork("epochs", epochs=2, batch=4, step=0.1)
    found = {
        "gradient": jax.jit(lambda c: gradient_update(model, flat, records, c))(chunk),
        "epochs": jax.jit(lambda c: epochs_update(model, flat, records, c, work))(chunk),
    }
    for mode, updates in found.items():
        for i, client in enumerate(clients):
            wanted = np.zeros(model.size)
            if client >= 0:
                how = work if mode == "epochs" else GRADIENT
                features, labels = population.client(client)
                wanted = reference.client_update(
                    np.asarray(flat, float), widths, features, labels, how, chunk.keys[i]
                )
            np.testing.assert_allclose(updates[i], wanted, rtol=1e-4, atol=2e-6)
    alone = jax.tree.map(lambda a: a[:1], chunk)
    lonely = epochs_update(model, flat, records, alone, work)
    np.testing.assert_allclose(lonely[0], found["epochs"][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "widths"), CASES, ids=["softmax", "mlp", "deep"])
def test_norms_without_gradients_are_the_norms(model, widths):
    """The Gram path gives the norms and the weighted sums of the explicit gradients."""
    del widths
    records, flat = records_of(ragged(SIZES)), weights_of(model)
    chunk = chunk_of(records, [2, 3, -1, 0], GRADIENT, 12)
    dense = _measure_dense(model, flat, records, chunk, GRADIENT)
    explicit = np.asarray(gradient_update(model, flat, records, chunk), float)
    norms = np.linalg.norm(explicit, axis=1)
    np.testing.assert_allclose(dense.norms, norms, rtol=1e-4, atol=1e-6)
    assert np.all(dense.norms >= norms)  # rounded upwards: what is clipped keeps its bound
    coefficients = np.array([0.3, 1.7, 5.0, 0.0])
    summed = combine(dense.trace, jnp.asarray(coefficients, jnp.float32))
    np.testing.assert_allclose(summed, coefficients @ explicit, rtol=1e-4, atol=2e-6)
    assert isinstance(dense.trace, DenseTrace)


def test_the_cheaper_path_is_taken():
    """Few rows and wide layers: errors. Many rows, epochs or an unknown model: gradients."""
    wide = softmax(100, 50)
    assert uses_errors(wide, 33, GRADIENT)  # 33 * 150 < 5000
    assert not uses_errors(wide, 34, GRADIENT)
    assert not uses_errors(wide, 2, LocalWork("epochs"))
    records, flat = records_of(ragged(SIZES, 100, 50)), jnp.zeros(wide.size)
    for rows, dense in ((12, True), (34, False)):
        visit = measure(wide, flat, records, chunk_of(records, [2, 3], GRADIENT, rows), GRADIENT)
        assert isinstance(visit.trace, DenseTrace) == dense


def test_rows_that_cancel_cannot_slip_under_the_clip():
    """Two rows whose gradients nearly cancel: their difference is lost in a Gram matrix of
    float32, and a norm that is found too small would let a client pass its bound."""
    wide = softmax(100, 50)
    rng = np.random.default_rng(0)
    worst, truths = 0.0, []
    for size in (1.0, 1e3, 1e6):
        for off in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
            x = rng.normal(size=(1, 100)) * size
            features = np.concatenate([x, -x * (1 + off * rng.normal(size=x.shape))])
            labels = np.zeros(2, int)
            records = Records(
                jnp.asarray(features, jnp.float32),
                jnp.asarray(labels),
                jnp.array([0]),
                jnp.array([2]),
                jnp.float32(1),
            )
            chunk = chunk_of(records, [0], GRADIENT, 2)
            visit = measure(wide, jnp.zeros(wide.size), records, chunk, GRADIENT)
            assert isinstance(visit.trace, DenseTrace)
            sent = np.linalg.norm(np.asarray(combine(visit.trace, jnp.ones(1)), float))
            worst = max(worst, sent / float(visit.norms[0]))
            truths.append(sent)
    assert worst <= 1
    assert max(truths) / min(truths) > 1e5  # from tiny to huge


# --- Broken clients ------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("path", ["errors", "gradients", "epochs"])
def test_a_broken_client_is_cleared(path, value):
    """Its norm is 0, it is told as not finite and its trace adds nothing; the others are as they
    would be without it, and an empty slot adds nothing either."""
    model = softmax(6, 3)
    flat, clients = weights_of(model), [0, 3, 4, -1]
    work = LocalWork("epochs", epochs=2, batch=4, step=0.1) if path == "epochs" else GRADIENT
    visits = []
    for broken in ((), (0,)):
        records = records_of(ragged(SIZES, broken=broken, value=value))
        chunk = chunk_of(records, clients, work, 12)
        if path == "errors":
            visit = _measure_dense(model, flat, records, chunk, work)
        else:
            visit = measure(model, flat, records, chunk, work)
        visits.append(visit)
    whole, odd = visits
    assert whole.finite.all()
    assert odd.finite[:3].tolist() == [False, True, True]
    assert odd.norms[0] == 0
    assert odd.norms[3] == 0
    np.testing.assert_array_equal(odd.norms[1:], whole.norms[1:])
    without = jnp.array([0.0, 2.0, 0.5, 0.0])
    with_it = jnp.array([1e3, 2.0, 0.5, 0.0])
    np.testing.assert_allclose(
        combine(odd.trace, with_it), combine(whole.trace, without), rtol=1e-5, atol=1e-6
    )


def test_a_norm_that_overflows_counts_as_broken():
    """Every number is finite, their sum of squares is not."""
    updates = jnp.array([[1e30, 1e30], [3.0, 4.0]])
    visit = _visit(jnp.sqrt(jnp.sum(jnp.square(updates), axis=-1)), updates)
    assert visit.norms.tolist() == [0.0, 5.0]
    np.testing.assert_array_equal(combine(visit.trace, jnp.ones(2)), [3.0, 4.0])


# --- Padding ------------------------------------------------


class Unit(eqx.Module):
    """x / |x|, then a matrix: singular at a row of zeros."""

    matrix: jax.Array

    def __init__(self, key):
        self.matrix = 0.3 * jax.random.normal(key, (3, 6))

    def __call__(self, x):
        return self.matrix @ (x / jnp.sqrt(jnp.sum(x * x)))


@pytest.mark.parametrize("work", [GRADIENT, LocalWork("epochs", epochs=2, batch=4, step=0.1)])
def test_padding_breaks_no_client(work):
    """How much a client is padded depends on the others of its size class: it must not matter to a
    model that has no value at zero, alone or among others."""
    records, model = records_of(ragged(SIZES)), from_equinox("unit", Unit)
    flat = weights_of(model)
    for client, size in enumerate(SIZES):
        exact = measure(model, flat, records, chunk_of(records, [client], work, size), work)
        for others in ([], [3, -1]):
            for rows in (12, 40):
                chunk = chunk_of(records, [client, *others], work, rows)
                found = measure(model, flat, records, chunk, work)
                assert found.finite[0]
                np.testing.assert_allclose(found.trace[0], exact.trace[0], rtol=1e-5, atol=1e-6)
