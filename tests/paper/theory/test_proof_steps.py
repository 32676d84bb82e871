"""The steps of Theorem 1's proof, A_1 to A_3, B_1 and B_2, in their corrected form, over every
outcome of one round of random problems: exact, up to rounding. Where the paper prints a step that
is wrong, a case in which it fails.

f_i(w) = (w - c_i)^T H_i (w - c_i) / 2. Client i draws K_i of its two records, whose gradients are
grad f_i + s_i and grad f_i - s_i (so that sigma_L = |s_i|), clips their mean u_i to g_i, and
uploads with probability rho_i, which the paper writes as b p_i / n:

    Delta = (1/n) sum over uploaders of g_i / rho_i,     ubar = (1/n) sum of their noise / rho_i
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class Problem:
    """At w = 0."""

    hessians: np.ndarray  # [n, d, d]
    centres: np.ndarray  # [n, d]
    spreads: np.ndarray  # [n, d] s_i
    samples: np.ndarray  # [n] K_i
    rates: np.ndarray  # [n] rho_i
    clip_norm: float
    noise: float = 0.0  # sigma_0

    @property
    def gradients(self):
        """grad f_i, [n, d]."""
        return -np.einsum("nij,nj->ni", self.hessians, self.centres)

    @property
    def smoothness(self):
        return np.linalg.eigvalsh(self.hessians.mean(axis=0))[-1]

    def loss(self, w):
        apart = w - self.centres
        return np.einsum("ni,nij,nj->", apart, self.hessians, apart) / (2 * len(self.centres))

    def draws(self, i):
        """Every mean u_i of K_i records, and its probability."""
        k = int(self.samples[i])
        ups = np.arange(k + 1) if self.spreads[i].any() else np.array([0])
        chance = np.array([math.comb(k, up) for up in ups]) / 2.0**k if len(ups) > 1 else np.ones(1)
        return chance, self.gradients[i] + (2 * ups[:, None] / k - 1) * self.spreads[i]


@dataclass(frozen=True, eq=False)
class Round:
    """Every outcome, and its probability: who uploads what."""

    chance: np.ndarray  # [outcomes]
    there: np.ndarray  # [outcomes, n] 1/rho_i of uploaders, else 0
    raw: np.ndarray  # [outcomes, n, d] u_i
    clipped: np.ndarray  # g_i

    def mean(self, values):
        return np.tensordot(self.chance, values, axes=1)

    def average(self, vectors):
        """(1/n) sum over uploaders of v_i / rho_i, in every outcome."""
        return (
            np.einsum("on,ond->od", self.there, np.broadcast_to(vectors, self.raw.shape))
            / (self.there.shape[1])
        )


def square(vectors):
    return np.sum(np.square(vectors), axis=-1)


def played(p):
    each = []
    for i, rate in enumerate(p.rates):
        coins = [(rate, 1 / rate), (1 - rate, 0.0)]
        each.append([
            (a * b, there, u) for a, there in coins if a for b, u in zip(*p.draws(i), strict=True)
        ])  # fmt: skip
    outcomes = list(itertools.product(*each))
    chance = np.array([math.prod(one[0] for one in row) for row in outcomes])
    there = np.array([[one[1] for one in row] for row in outcomes])
    raw = np.array([[one[2] for one in row] for row in outcomes])
    lengths = np.linalg.norm(raw, axis=2, keepdims=True)
    assert chance.sum() == pytest.approx(1)
    return Round(chance, there, raw, raw / np.maximum(1, lengths / p.clip_norm))


def some_problem(seed):
    rng = np.random.default_rng(seed)
    n, d = 3, 2
    roots = rng.normal(size=(n, d, d)) * (seed % 2)  # every other one as round as a ball
    return Problem(
        hessians=roots @ roots.transpose(0, 2, 1) + rng.uniform(0.1, 1) * np.eye(d),
        centres=rng.normal(size=(n, d)) * rng.lognormal(0, 1),
        spreads=rng.normal(size=(n, d)) * rng.choice([0.0, 0.3, 2.0]),
        samples=rng.integers(1, 4, n),
        rates=rng.choice([rng.uniform(0.1, 1, n), np.ones(n)]),
        clip_norm=rng.lognormal(0, 1),
        noise=rng.choice([0.0, 0.5]),
    )


def same_clients(n, gradient, **settings):
    """All with this gradient at w = 0 and L = 1; everybody uploads, nothing is random."""
    given = {
        "hessians": np.ones((n, 1, 1)),
        "centres": np.full((n, 1), -gradient),
        "spreads": np.zeros((n, 1)),
        "samples": np.ones(n),
        "rates": np.ones(n),
        "clip_norm": 1e9,
    }
    return Problem(**(given | settings))


PROBLEMS = [some_problem(seed) for seed in range(200)]
ROUNDS = [played(p) for p in PROBLEMS]


def each():
    for p, r in zip(PROBLEMS, ROUNDS, strict=True):
        kept = r.mean(r.clipped)  # E g_i
        yield p, r, p.gradients.mean(axis=0), p.gradients.mean(axis=0) - kept.mean(axis=0)


def variance(p, r):
    """What the theorem takes for E|xi|^2: (1/n^2) sum of E|g_i|^2 / rho_i - |E g_i|^2."""
    kept, n = r.mean(r.clipped), len(p.rates)
    return np.sum(r.mean(square(r.clipped)) / p.rates - square(kept)) / n**2


def noise_variance(p):
    """(1/n^2) sum d sigma_0^2 / rho_i."""
    n, d = p.centres.shape
    return d * p.noise**2 * np.sum(1 / p.rates) / n**2


def clip_square(r):
    """c_nu^2 of assumption 4, of the worst client: E|u_i - g_i|^2."""
    return r.mean(square(r.raw - r.clipped)).max()


def test_a_1_is_the_bias_of_the_mean_alone():
    """A_1 = eta <a, a - E Delta> = eta <a, beta> <= eta/2 |a|^2 + eta/2 |beta|^2, and |beta| is at
    most the mean of what clipping takes from each client. Printed: K_max/K_min (sigma_L^2 +
    c_nu^2) in place of |beta|^2 / 2, which is true, and a floor for no reason."""
    for p, r, a, beta in each():
        inner = a @ (a - r.mean(r.average(r.clipped)))
        assert inner == pytest.approx(a @ beta, abs=MARGIN)
        assert inner <= (a @ a + beta @ beta) / 2 + MARGIN
        own = r.mean(r.raw - r.clipped)
        assert math.sqrt(beta @ beta) <= np.linalg.norm(own, axis=1).mean() + MARGIN
        worst = square(p.spreads).max() + clip_square(r)
        assert inner <= (a @ a) / 2 + p.samples.max() / p.samples.min() * worst + MARGIN


def test_a_1_as_printed_cannot_put_k_min_into_the_inner_product():
    """Step (1): with K = 1 and 10, and clients that clipping moves apart, the sum with 1/K_min is
    below what it should bound."""
    samples, moved, a = np.array([1, 10]), np.array([1.0, -1.0]), 1.0
    right = a * np.mean(moved)
    printed = a * np.mean(samples * moved / samples.min())
    assert printed < right - 1


def test_a_2_is_mean_and_variance():
    """E|Delta|^2 = |a - beta|^2 + (1/n^2) sum (E|g_i|^2 / rho_i - |E g_i|^2), the last at most
    V_0/b C^2, and at most what the clients' own gradients and samples are allowed."""
    for p, r, a, beta in each():
        found = r.mean(square(r.average(r.clipped)))
        assert found == pytest.approx((a - beta) @ (a - beta) + variance(p, r), abs=MARGIN)
        n = len(p.rates)
        assert variance(p, r) <= p.clip_norm**2 * np.sum(1 / p.rates) / n**2 + MARGIN
        sampled = np.sum((1 / p.rates - 1) * square(r.mean(r.clipped))) / n**2
        samples = np.sum(square(p.spreads) / (p.samples * p.rates)) / n**2
        assert variance(p, r) <= sampled + samples + MARGIN


def b_1(p, r):
    return r.mean(square(r.average(r.clipped - p.gradients)))


def b_2(p, r):
    return r.mean(square(r.average(p.gradients)))


def test_a_2_as_printed_drops_the_cross_term():
    """One client at 10, clipped to 1, against twenty at -1: E|Delta|^2 is twice B_1 + B_2."""
    centres = -np.array([[10.0]] + [[-1.0]] * 20)
    p = same_clients(21, 0.0, centres=centres, clip_norm=1.0)
    r = played(p)
    assert r.mean(square(r.average(r.clipped))) == pytest.approx(361 / 441)
    assert b_1(p, r) + b_2(p, r) == pytest.approx(181 / 441)


def test_a_3_is_the_noise_over_the_rates():
    """As printed: E|ubar|^2 = (1/n^2) sum d sigma_0^2 / rho_i. But the printed law of ubar, a
    variance of sqrt|Z| sigma_0^2 in each coordinate, is not that of a mean of |Z| numbers."""
    for p, r, *_ in each():
        n, d = p.centres.shape
        found = r.mean(d * p.noise**2 * np.sum((r.there / n) ** 2, axis=1))
        assert found == pytest.approx(noise_variance(p), rel=1e-9)
    p = same_clients(4, 1.0, noise=1.0)
    assert noise_variance(p) == pytest.approx(1 / 4)
    assert math.sqrt(4) > 7 * noise_variance(p)


def test_b_1_is_the_spread_of_the_samples():
    """(1/n^2) sum E|g_i - E g_i|^2 / rho_i <= V_0/b sigma_L^2 / K_min: clipping brings no two
    updates further apart, and K_i samples have sigma_L^2 / K_i."""
    for p, r, *_ in each():
        n, kept = len(p.rates), r.mean(r.clipped)
        spread = r.mean(square(r.clipped - kept))
        assert (spread <= square(p.spreads) / p.samples + MARGIN).all()
        most = np.sum(1 / p.rates) / n**2 * square(p.spreads).max() / p.samples.min()
        assert np.sum(spread / p.rates) / n**2 <= most + MARGIN


def test_b_1_as_printed_fails():
    """2 K_max (sigma_L^2 + c_nu^2) / (b K_min^2) with K = 10: five clients, each clipped by 9."""
    p = same_clients(5, 10.0, clip_norm=1.0, samples=np.full(5, 10))
    r = played(p)
    printed = 2 * 10 * clip_square(r) / (5 * 10**2)
    assert b_1(p, r) == pytest.approx(81)
    assert b_1(p, r) > 20 * printed


def test_b_2_has_the_gradient_of_the_mean():
    """|grad F|^2 + (1/n^2) sum (1/rho_i - 1) |grad f_i|^2. As printed the first is lost, and only
    clients that nearly cancel each other are covered."""
    lost = 0
    for p, r, a, _ in each():
        n = len(p.rates)
        right = a @ a + np.sum((1 / p.rates - 1) * square(p.gradients)) / n**2
        assert b_2(p, r) == pytest.approx(right, abs=MARGIN)
        lost += b_2(p, r) > np.sum(square(p.gradients) / p.rates) / n**2 + MARGIN
    assert lost > 20
    p = same_clients(100, 1.0)
    assert b_2(p, played(p)) == pytest.approx(1)
    assert np.sum(square(p.gradients) / p.rates) / 100**2 == pytest.approx(1 / 100)


def after(p, r, step):
    """E F(w - step (Delta + ubar)); the noise's part of a quadratic is its trace."""
    n = len(p.rates)
    moved = r.mean(np.array([p.loss(-step * one) for one in r.average(r.clipped)]))
    noise = p.noise**2 * r.mean(np.sum((r.there / n) ** 2, axis=1))
    return moved + step**2 / 2 * np.trace(p.hessians.mean(axis=0)) * noise


def test_a_round_descends_as_the_corrected_proof_says():
    """E F(w_(t+1)) <= F - eta/2 |a|^2 + eta/2 |beta|^2 + L eta^2/2 (E|xi|^2 + E|ubar|^2) for
    L eta <= 1: with equality where F is round and L eta = 1, so that without any of its terms, or
    with a larger step, it fails."""
    broken = np.zeros(4, int)
    for p, r, a, beta in each():
        w, smooth = np.zeros(2), p.smoothness
        terms = np.array([beta @ beta / 2, variance(p, r) / 2, noise_variance(p) / 2]) / smooth
        for share in (0.1, 0.5, 1.0):
            step = share / smooth
            left = after(p, r, step) - p.loss(w) + step / 2 * (a @ a)
            assert left <= terms @ [share, share**2, share**2] + MARGIN
        broken[:3] += left > terms.sum() - terms + MARGIN  # the last step, L eta = 1
        left = after(p, r, 3 / smooth) - p.loss(w) + 3 / smooth / 2 * (a @ a)
        broken[3] += left > terms @ [3, 9, 9] + MARGIN
    assert (broken > 20).all()


def test_a_round_as_printed_fails():
    """With the clients of the counterexample, L = 1 and eta = 10: the loss grows 81 times, and the
    printed combination, eta/2 (1 - L eta/b) |a|^2 less than before, is below zero."""
    p = same_clients(100, 1.0)
    left, before = after(p, played(p), 10.0), p.loss(np.zeros(1))
    assert left == pytest.approx(81 * before)
    assert before - 10 / 2 * (1 - 10 / 100) < 0 < left


@pytest.mark.parametrize("rounds", [1, 2, 3, 10, 1000])
def test_the_sums_over_rounds(rounds):
    """sum 1/(t+1) is at most 1 + ln T, and never at most the printed ln T; sum 1/sqrt(t+1) is
    between 2 (sqrt(T+1) - 1) and 2 sqrt(T)."""
    t = np.arange(rounds)
    assert math.log(rounds) < np.sum(1 / (t + 1)) <= 1 + math.log(rounds)
    assert 2 * (math.sqrt(rounds + 1) - 1) <= np.sum(1 / np.sqrt(t + 1)) <= 2 * math.sqrt(rounds)
