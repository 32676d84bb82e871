"""Whole numbers instead of floats: every sum and every bound is exact."""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import arm_for, counts_are, std_is
from locksfl.methods import Method
from locksfl.round.draws import cohort_of, draw_secret, grid_of, halves, second_sample
from locksfl.round.exact import (
    Words,
    add,
    contribution_steps,
    safe_norms,
    sum_of_squares,
    total_counts,
    total_steps,
    words,
)
from locksfl.round.randomness import Purpose, Randomness

SECRET = Randomness(12345, simulated=False)
USUAL = {
    "clients": 40,
    "rounds": 3,
    "cohort": 20.0,
    "uploads": 10.0,
    "noise_multiplier": 1.5,
    "norm_multiplier": 6.0,
}


def whole(found: Words) -> list[int]:
    high, low = np.asarray(found.high).astype(np.int64), np.asarray(found.low).astype(np.int64)
    assert ((low >= 0) & (low < 2**16)).all()
    return (high * 2**16 + low).tolist()


# --- Sums ------------------------------------------------


def test_sums_of_steps_are_exact_and_a_float_sum_is_not():
    rng = np.random.default_rng(1)
    steps = rng.integers(-(2**23), 2**23 + 1, (5000, 7)).astype(np.int32)
    steps[:, 0] = 2**23  # the largest sum
    steps[:, 1] = -(2**23)
    truth = steps.sum(axis=0, dtype=np.int64).tolist()
    halves_of = (total_steps(jnp.asarray(part)) for part in (steps[:2000], steps[2000:]))
    assert whole(add(*halves_of)) == truth
    assert np.asarray(jnp.sum(jnp.asarray(steps, jnp.float32), axis=0)).tolist() != truth
    assert whole(words(jnp.asarray(steps[0]))) == steps[0].tolist()


@pytest.mark.parametrize("size", [1, 5, 256, 257, 65536, 65537, 300_000])
def test_sums_of_counts_are_exact(size):
    rng = np.random.default_rng(size)
    counts = rng.integers(0, 2**24, (2, size)).astype(np.int32)
    counts[1] = 2**24 - 1
    assert whole(total_counts(jnp.asarray(counts))) == counts.sum(axis=1, dtype=np.int64).tolist()


@pytest.mark.parametrize("size", [1, 3, 256, 1000, 70_000])
@pytest.mark.parametrize("largest", [1, 2**12, 2**20, 2**23, 2**24 - 1])
def test_sums_of_squares_are_exact(size, largest):
    rng = np.random.default_rng(size)
    steps = rng.integers(-largest, largest + 1, (3, size))
    steps[1], steps[2] = largest, -largest
    high, low = (np.asarray(a).astype(object) for a in sum_of_squares(jnp.asarray(steps)))
    truth = [sum(int(v) ** 2 for v in row) for row in steps.tolist()]
    for found, wanted in zip(high * 2**24 + low, truth, strict=True):
        assert found == wanted or (wanted >= 2**53 and found >= 2**53)


# --- Contributions ------------------------------------------------

numbers = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1e-38, 1e-45, 3e38, -3e38]),
)


@given(st.lists(numbers, min_size=1, max_size=300))
@settings(max_examples=200, deadline=None)
def test_a_norm_is_never_below_the_truth_and_hardly_above(values):
    vector = np.array(values, np.float32)
    vector[np.abs(vector) < np.finfo(np.float32).tiny] = 0.0  # a device may flush these
    found = float(safe_norms(jnp.asarray(vector)[None])[0])
    truth = math.sqrt(sum(Fraction(float(v)) ** 2 for v in vector))
    if np.abs(vector).max() >= 2.0**120:
        assert found == math.inf
        return
    side = math.isqrt(len(values) - 1) + 1
    assert truth * (1 - 1e-15) <= found <= truth * (1 + (side + 16) * 2.0**-22) * (1 + 1e-6)


@pytest.mark.parametrize("bits", [12, 20, 23])
def test_no_contribution_passes_its_bound(bits):
    """In exact arithmetic, for vectors at the bound; the direction and the length are kept. A
    coefficient that is too large, which would be a fault of the estimator, uploads zero."""
    rng = np.random.default_rng(bits)
    steps, bound = jnp.float32(2.0**bits), 0.7
    updates = (rng.normal(size=(50, 400)) * 10.0 ** rng.uniform(-3, 3, (50, 1))).astype(np.float32)
    lengths = np.asarray(safe_norms(jnp.asarray(updates)))
    coefficient = jnp.asarray(bound / lengths)
    bounds = jnp.full(50, bound)
    found = np.asarray(contribution_steps(jnp.asarray(updates), coefficient, bounds, steps))
    squares = [sum(int(v) ** 2 for v in row) for row in found.tolist()]
    assert max(squares) <= 4**bits
    assert min(squares) >= 4**bits * (1 - 2e-4 - 400 * 2.0**-bits)
    expected = updates * np.asarray(coefficient)[:, None] / bound
    np.testing.assert_allclose(found / 2.0**bits, expected, atol=1.1 * 2.0**-bits + 1e-5)
    longer = contribution_steps(jnp.asarray(updates), 1.01 * coefficient, bounds, steps)
    assert not np.asarray(longer).any()


def test_a_contribution_that_is_not_finite_is_zero():
    updates = jnp.array([[1e38, 1e38], [1.0, 0.0], [np.nan, 1.0]])
    steps = jnp.float32(2**20)
    found = contribution_steps(updates, jnp.array([1e30, 1.0, 1.0]), jnp.array([1.0, 0, 1]), steps)
    assert np.abs(np.asarray(found[0])).max() == 0  # two coordinates at the bound are too long
    assert not np.asarray(found[1:, 0]).any()


# --- Coins ------------------------------------------------


@given(st.floats(0, 1, width=32), st.integers(-2, 2), st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_coins_are_compared_as_integers(p, off, other):
    """At the threshold itself and right beside it, and anywhere."""
    if 0 < p < np.finfo(np.float32).tiny:
        p = 0.0
    least = int(Fraction(p) * 2**64)
    for coin in (max(0, min(2**64 - 1, least + off)), other):
        pair = jnp.asarray(halves(np.array([coin], np.uint64)))
        found = bool(second_sample(pair, jnp.float32([p]), jnp.array([True]))[0])
        assert found == (coin < least)
        assert not second_sample(pair, jnp.float32([p]), jnp.array([False]))[0]


def test_cohorts_follow_the_rate_and_the_members_of_a_run_are_independent():
    """Sizes over 2,000 rounds against the binomial (chi-square at 1e-6), which turns away a rate
    that is 5% too large; and rates of 0.999... and 1."""
    from scipy import stats

    arm = arm_for(Method("uniform", "capped", "central"), USUAL | {"rounds": 2000})
    sizes = [cohort_of(SECRET, arm, t).size for t in range(2000)]
    seen = np.bincount(sizes, minlength=41)
    for rate, right in ((0.5, True), (0.525, False)):
        law = stats.binom.pmf(np.arange(41), 40, rate)
        assert counts_are(seen, 2000 * law) == right
    everyone = arm_for(Method("full", "capped", "central"), USUAL)
    assert cohort_of(SECRET, everyone, 0).tolist() == list(range(40))


# --- Keys ------------------------------------------------


def test_every_draw_has_a_key_of_its_own_and_is_drawn_once(monkeypatch):
    """All streams of several arms and rounds are distinct, and their bytes are."""
    made, first = [], {}
    plain = Randomness.stream

    def stream(self, *label):
        made.append(label)
        found = plain(self, *label)
        bytes_ = plain(self, *label)(16)
        assert bytes_ not in first.values()
        first[label] = bytes_
        return found

    monkeypatch.setattr(Randomness, "stream", stream)
    for trust in ("central", "local"):
        for rule in ("norm", "uniform"):
            arm = arm_for(Method(rule, "capped", trust), USUAL, name=f"{rule}-{trust}")
            for t in range(3):
                draw_secret(SECRET, arm, t, 5)
    assert len(set(made)) == len(made) == 3 * (4 + 3 + 4 + 3)
    assert {label[2] for label in made} == {
        Purpose.COHORT,
        Purpose.UPLOAD_COIN,
        Purpose.NORM_NOISE,
        Purpose.SERVER_NORM_NOISE,
        Purpose.UPDATE_NOISE,
    }


def test_a_seed_gives_no_secrets_and_a_public_model_tells_none():
    with pytest.raises(ValueError, match="a seed is no secret"):
        Randomness.seeded(3).stream("arm", 0, Purpose.COHORT)
    keys = [SECRET.model_key(), SECRET.arm_key("a"), SECRET.arm_key("b")]
    assert len({tuple(jax.random.key_data(k).tolist()) for k in keys}) == 3
    assert Randomness.from_system().entropy.bit_length() > 200


@pytest.mark.parametrize(("multiplier", "bits"), [(1.0, 20), (1.99, 20), (0.05, 23), (9.0, 17)])
def test_the_grid_is_public_and_fits_the_noise(multiplier, bits):
    settings_ = USUAL | {"noise_multiplier": multiplier}
    grid = grid_of(arm_for(Method("uniform", "capped", "central"), settings_))
    assert grid.update == 2.0**bits


def test_noise_beyond_32_bits_is_refused():
    settings_ = USUAL | {"noise_multiplier": 1e6}
    with pytest.raises(ValueError, match="noise_multiplier = 1e\\+06: expected less than 32768"):
        grid_of(arm_for(Method("uniform", "capped", "central"), settings_))


def test_nobody_uploads_more_often_than_is_charged():
    """The float32 that a round compares coins with is never above the charged probability."""
    for uploads in np.linspace(1, 19, 57):
        for rule in ("uniform", "norm"):
            arm = arm_for(Method(rule, "capped", "central"), USUAL | {"uploads": float(uploads)})
            most = arm.dials().largest_probability
            assert most <= arm.largest_probability <= most * (1 + 2e-7)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_secret_noise_is_as_charged_and_never_repeats(trust):
    """Both noises over all draws of 60 rounds (chi-square at 1e-6; 2% less is turned away), and the
    correlation of 20,000 coordinates with themselves at every lag, of values and of squares (a
    false alarm in 1e-6 over all lags)."""
    arm = arm_for(Method("norm", "capped", trust), USUAL | {"rounds": 60})
    grid, size = grid_of(arm), 2000 if trust == "central" else 100
    drawn = [draw_secret(SECRET, arm, t, size) for t in range(60)]
    updates = np.concatenate([np.ravel(one.update_noise) for one in drawn]) / grid.update
    assert std_is(updates, arm.noise_multiplier)
    assert not std_is(0.98 * updates, arm.noise_multiplier)
    norms = np.concatenate([np.ravel(one.norm_noise) for one in drawn]) / grid.norm
    assert std_is(norms, arm.norm_multiplier)
    long = np.ravel(draw_secret(SECRET, arm, 0, 20_000).update_noise)[:20_000].astype(float)
    for seen in (long, long**2):
        centred = seen - seen.mean()
        power = np.abs(np.fft.rfft(centred, 2 * centred.size)) ** 2
        shared = np.fft.irfft(power)[1 : centred.size] / np.sum(centred**2)
        assert np.abs(shared).max() < 6.7 / math.sqrt(centred.size)


def test_the_noise_of_a_count_is_as_charged():
    """Whole numbers, over 3,000 rounds (chi-square at 1e-6; 10% less is turned away), and none
    where no count is released."""
    arm = arm_for(Method("coin", "capped", "central"), USUAL | {"rounds": 3000})
    noise = np.array([draw_secret(SECRET, arm, t, 1).count_noise for t in range(3000)])
    assert noise.dtype == np.int32
    assert arm.count_noise == pytest.approx(arm.noise_multiplier * math.sqrt(1.01) / 0.1)
    rounded = math.sqrt(arm.count_noise**2 + 1 / 12)
    assert std_is(noise, rounded)
    assert not std_is(0.9 * noise, rounded)
    uniform = arm_for(Method("uniform", "capped", "central"), USUAL)
    assert draw_secret(SECRET, uniform, 0, 1).count_noise == 0
