"""The noise of a device: exactly the rounded Gaussian that is charged, on a grid without traces."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from checks import counts_are, std_is
from locksfl.federation.device.update import clip
from locksfl.round.noise import (
    MARGIN,
    SYSTEM,
    SystemNoise,
    _Exact,
    add_noise,
    gaussian_std,
    grid_for,
)


def repeatable(seed):
    """The exact sampler on bytes that a test can draw again."""
    return SystemNoise(np.random.default_rng(seed).bytes)


def tail(y):
    return mpmath.erfc(mpmath.mpf(y) / mpmath.sqrt(2)) / 2


def cell_probabilities(spread, cells):
    """P(round(spread N) = k) for |k| <= cells, then all that is beyond, by mpmath."""
    with mpmath.workdps(40):
        borders = [tail((k - mpmath.mpf(1) / 2) / spread) for k in range(-cells, cells + 2)]
        inner = [float(a - b) for a, b in pairwise(borders)]
    return np.array([*inner, max(0.0, 1 - sum(inner))])


def cell_counts(steps, cells):
    inner = np.bincount(steps[np.abs(steps) <= cells] + cells, minlength=2 * cells + 1)
    return np.append(inner, np.sum(np.abs(steps) > cells))


def test_every_whole_number_has_its_exact_probability():
    """Chi-square over the cells at 1e-6; the same check turns away 1% too little noise and a
    Gaussian that was cut off (towards zero) instead of rounded."""
    size, spread, cells = 1_000_000, 3.0, 14
    expected = size * cell_probabilities(spread, cells)
    assert counts_are(cell_counts(repeatable(1).steps(spread, 1.0, size), cells), expected)
    assert counts_are(
        cell_counts(repeatable(2).steps(spread * 2**-9, 2**-9, size), cells), expected
    )
    wrong = repeatable(3).steps(0.99 * spread, 1.0, size)
    assert not counts_are(cell_counts(wrong, cells), expected)
    cut = np.trunc(np.random.default_rng(4).normal(0, spread, size)).astype(np.int64)
    assert not counts_are(cell_counts(cut, cells), expected)


def test_the_exact_path_alone_has_the_exact_probabilities():
    rng = np.random.default_rng(5)
    known = rng.integers(0, 2**63, 3000)
    drawn = np.array([_Exact(int(word), 1.5, rng.bytes).step() for word in known])
    expected = 3000 * cell_probabilities(1.5, 8)
    folded = np.append(expected[8], 2 * expected[9:17])  # the exact path knows no sign
    assert counts_are(np.bincount(drawn, minlength=9)[:9], folded)
    assert not counts_are(np.bincount(drawn // 2 * 2, minlength=9)[:9], folded)


def test_the_last_bits_of_a_draw_are_as_random_as_the_first():
    """At the grid that is used, k is about 2^20: its last 4 bits are uniform to 1e-9."""
    std = 1.3
    steps = repeatable(12).steps(std, grid_for(std), 400_000)
    assert counts_are(np.bincount(steps % 16, minlength=16), np.full(16, 25_000.0))
    coarse = 2 * (steps // 2)
    assert not counts_are(np.bincount(coarse % 16, minlength=16), np.full(16, 25_000.0))


def test_the_noise_is_the_one_that_is_charged():
    std = gaussian_std(0.7, 1.9)
    released = add_noise(np.zeros(600_000), std, repeatable(6))
    assert std_is(released, 0.7 * 1.9)
    assert not std_is(released, 1.01 * 0.7 * 1.9)


@given(st.floats(1e-6, 1e6), st.floats(1e-12, 1e12))
def test_never_less_noise_than_is_charged(multiplier, bound):
    std = gaussian_std(multiplier, bound)
    assert Fraction(std) >= Fraction(multiplier) * Fraction(bound)
    ratio = std / grid_for(std)
    assert 2**20 <= ratio < 2**21
    assert math.frexp(grid_for(std))[0] == 0.5  # a power of two


def test_the_float_inverse_is_far_within_its_margin():
    """The margin is trusted by the sampler; here it is a thousand times what is found, from the
    middle to the last of the 63 bits."""
    rng = np.random.default_rng(7)
    known = np.concatenate(
        [
            rng.integers(1, 2**63, 300),
            (2.0 ** rng.uniform(0, 63, 600)).astype(np.int64),
            2**63 - 1 - np.arange(5) * 977,
            [1, 2, 3, 2**62],
        ]
    )
    assert (known > 0).all()
    values = known * 2.0**-64
    points = -special.ndtri(values)
    with mpmath.workdps(40):
        for value, point in zip(values, points, strict=True):
            # one Newton step from a point that is right to 1e-12 is right to 1e-23
            density = mpmath.exp(-(mpmath.mpf(point) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)
            off = (tail(point) - mpmath.mpf(value)) / density
            assert abs(off) < MARGIN / 1000 * (1 + point)


class Told:
    """Entropy that a test chose: these words, and then every further byte the same."""

    def __init__(self, words, then):
        self.words, self.then, self.more = words, then, 0

    def __call__(self, size):
        if self.words is not None:
            given, self.words = np.asarray(self.words, np.uint64).tobytes(), None
            assert len(given) == size
            return given
        self.more += 1
        return bytes([self.then]) * size


@pytest.mark.parametrize("border", [0, 1, 2, 1234, 2**20, 5 * 2**20, 8 * 2**20])
def test_a_draw_that_floats_cannot_decide_is_decided_right(border):
    """V agrees with a border between two whole numbers in all of its 63 bits: the bits after them
    decide, and the float result alone is not trusted."""
    spread = 1.7 * 2**20
    with mpmath.workdps(60):
        y = (mpmath.mpf(border) + 0.5) / mpmath.mpf(spread)
        known = int(mpmath.floor(mpmath.ldexp(tail(y), 64)))
    for sign, then, expected in ((0, 0x00, border + 1), (1, 0x00, -border - 1), (0, 0xFF, border)):
        entropy = Told([2 * known + sign], then)
        assert SystemNoise(entropy).steps(spread, 1.0, 1).tolist() == [expected]
        assert entropy.more >= 1


@pytest.mark.parametrize("known", [0, 1, 5, 1000, 2**20, 2**40])
def test_the_far_tail_is_reached_and_exact(known):
    """Where 63 bits leave many whole numbers open, more bits are drawn."""
    spread = 1.1 * 2**20
    entropy = Told([2 * known], 0x35)
    (step,) = SystemNoise(entropy).steps(spread, 1.0, 1).tolist()
    with mpmath.workdps(60):
        value = mpmath.ldexp(known + mpmath.mpf(0x3535353535353535) / 2**64, -64)
        assert tail((step + mpmath.mpf("0.5")) / spread) <= value
        assert tail((step - mpmath.mpf("0.5")) / spread) >= value
    assert step > 6 * spread or known > 1000


def test_both_paths_agree_on_the_same_bits():
    rng = np.random.default_rng(8)
    words = rng.integers(0, 2**64, 200, dtype=np.uint64)
    quick = SystemNoise(Told(words, 0)).steps(1.2 * 2**20, 1.0, 200)
    for word, step in zip(words.tolist(), quick.tolist(), strict=True):
        assert abs(step) == _Exact(word >> 1, 1.2 * 2**20, rng.bytes).step()


def lowest_bit(values):
    """The exponent of the finest power of two of which all values are multiples."""
    mantissa, exponent = np.frexp(values[values != 0])
    whole = (mantissa * 2.0**53).astype(np.int64)
    return int(np.min(exponent - 53 + np.log2(whole & -whole).astype(int)))


def test_the_last_digits_of_a_release_say_nothing_about_the_value():
    """Mironov's attack looks at which floats are possible at all. Neighbours 0 and 1 release values
    on one public grid; the usual float Gaussian gives the two away by the digits that it has, near
    zero, where 1 + y has lost those that 0 + y has."""
    size, std = 20_000, 0.5
    rng = np.random.default_rng(9)

    def near_zero(values):
        return values[np.abs(values) < 0.1]

    def naive(x):
        return near_zero(x + std * rng.normal(size=size))

    def ours(x):
        return near_zero(add_noise(np.full(size, x), std, SYSTEM))

    grid = math.log2(grid_for(std))
    for x in (0.0, 1.0, 1 / 3, 0.7071):
        assert lowest_bit(ours(x)) == grid
    assert lowest_bit(naive(0.0)) < lowest_bit(naive(1.0)) - 3  # told apart without fail
    assert lowest_bit(naive(1.0)) != grid


lengths = st.floats(1e-12, 1e12)
vectors = st.lists(
    st.floats(-1e30, 1e30)
    | st.floats(-2, 2)
    | st.sampled_from([math.nan, math.inf, 1e200, 5e-324]),
    max_size=40,
)


@given(vectors, lengths, st.floats(1e-3, 1e3))
@settings(max_examples=300)
def test_no_contribution_passes_its_bound_in_exact_arithmetic(vector, bound, multiplier):
    """After clipping and cutting to the grid, the norm is at most the bound as a real number."""

    class Still:
        def steps(self, _std, _grid, size):
            return np.zeros(size, np.int64)

    std = gaussian_std(multiplier, bound)
    kept = add_noise(clip(vector, bound), std, Still())
    assert kept.shape == (len(vector),)
    assert sum(Fraction(float(v)) ** 2 for v in kept) <= Fraction(bound) ** 2
    if not np.isfinite(vector).all():
        assert not kept.any()


def test_a_clip_in_plain_floats_would_pass_the_bound():
    """So the check above can fail: about half of plainly scaled vectors are too long by a digit."""
    rng = np.random.default_rng(10)
    over = [0, 0]
    for _ in range(50):
        vector = rng.normal(size=200)
        for i, kept in enumerate((vector / np.linalg.norm(vector), clip(vector, 1.0))):
            over[i] += sum(Fraction(float(v)) ** 2 for v in kept) > 1
    assert over[0] > 5
    assert over[1] == 0


def test_a_clipped_vector_keeps_its_direction_and_nearly_its_length():
    vector = np.random.default_rng(11).normal(size=1000)
    kept = clip(vector, 2.0)
    assert np.linalg.norm(kept) == pytest.approx(2.0, rel=1e-10)
    np.testing.assert_allclose(kept / np.linalg.norm(kept), vector / np.linalg.norm(vector))
    assert (clip(vector, 100.0) == vector).all()


def test_a_value_beyond_the_grid_is_refused():
    with pytest.raises(ValueError, match="too large for the grid"):
        add_noise(np.array([1e12]), 1e-6, SYSTEM)
