"""Correlated noise: that of a round takes back part of the noise of earlier rounds.

It goes with clients that take turns (`methods.samplings.turns`), k rounds apart, ceil(T / k) times.
Sums over many rounds matter more to a model than the sum of one. With a lower-triangular
Toeplitz matrix C of `bands` coefficients c_0, c_1, ..., whose squares sum to 1, the server releases

    round t    (sum of the group's g_i) + z S x_t
               x_t = (y_t - c_1 x_(t-1) - ... - c_(bands-1) x_(t-bands+1)) / c_0,   y_t ~ N(0, I)

that is x = C^-1 y: all rounds together are C^-1 (C G + z S y), a function of C G with independent
noise. (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", without the
amplification; Kairouz et al. 2021 and Denisov et al. 2022 before.)

Cost: in C G a client moves rows t to t + bands - 1 by c g_t for each t at which it takes part. With
bands <= separation no two of these overlap, so that its share of C G is at most S sqrt(number of
times) long, 2 S under replace: one Gaussian mechanism of

    mu = sqrt(ceil(T / k)) / z   (zero-out),   2 sqrt(ceil(T / k)) / z   (replace)

whatever the bands. It also holds if updates are chosen in view of earlier releases (Denisov et al.
2022, Theorem 2.1: C is lower-triangular), and after t rounds with t in place of T, because the
first t rounds are those of a run of t rounds. z is the noise multiplier: std over the zero-out
sensitivity of one upload. bands = 1 is independent noise on the same schedule, at the same cost.

Gain: the error of the sum of rounds 1 to t has variance (z S)^2 sum over j <= t of b_j^2, b the
running sums of the first column of C^-1. C is the one for which jax_privacy finds the mean of that
over t smallest.

A run without a seed is refused if bands > 1: its noise is exact on a grid of whole numbers, and a
matrix of floats would leave that grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from locksfl._arrays import Floats

if TYPE_CHECKING:
    from locksfl.arm import Arm

DIGITS = 1e5  # coefficients are cut to so many digits: the same ones on every machine


def turns(rounds: int, separation: int) -> int:
    """How often the busiest client takes part in the first so many rounds."""
    return -(-rounds // separation)


@lru_cache(maxsize=64)
def strategy(rounds: int, bands: int) -> tuple[float, ...]:
    """The coefficients of C for so many rounds: a public function of the two numbers. Their squares
    sum to 1, or a little less after cutting, never more."""
    bands = min(bands, rounds)
    if bands == 1:
        return (1.0,)
    import jax
    from jax_privacy.matrix_factorization import toeplitz

    # also while a round is being compiled; a GPU would find other last digits
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        best = np.asarray(toeplitz.optimize_banded_toeplitz(rounds, bands), np.float64)
    cut = np.trunc(best / np.linalg.norm(best) * DIGITS) / DIGITS
    return tuple(cut.tolist())


def correlated(fresh: Any, recent: Any, coefficients: tuple[float, ...], xp: Any) -> Any:
    """The noise of a round.

    Args:
        fresh: y_t, standard normal.
        recent: [bands - 1, ...] the noise of the rounds before, the last one first; zeros at first.
        coefficients: of C.
        xp: numpy or jax.numpy.

    Returns:
        x_t, and `recent` for the next round.
    """
    first, *rest = coefficients
    now = fresh
    for weight, before in zip(rest, recent, strict=False):
        now = now - weight * before
    now = now / first
    return now, xp.concatenate([now[None], recent[:-1]])


def decorrelated(noise: Any, coefficients: tuple[float, ...], xp: Any) -> Any:
    """[..., T] C times what has one entry per round: the inverse of `correlated`."""
    rounds = noise.shape[-1]
    product = xp.zeros(noise.shape)
    for lag, weight in enumerate(coefficients[:rounds]):
        earlier = noise[..., : rounds - lag]
        missing = xp.zeros((*noise.shape[:-1], lag))
        product = product + weight * xp.concatenate([missing, earlier], axis=-1)
    return product


@lru_cache(maxsize=64)
def prefix_stds(rounds: int, coefficients: tuple[float, ...]) -> Floats:
    """[T] the std of x_1 + ... + x_t, in deviations of y: sqrt(t) if the noise is independent."""
    coefficients = coefficients or (1.0,)
    recent, column = np.zeros(max(1, len(coefficients) - 1)), np.zeros(rounds)
    for t in range(rounds):  # what y_1 becomes in every round: the first column of C^-1
        fresh = np.float64(t == 0)
        column[t], recent = correlated(fresh, recent, coefficients, np)
    stds: Floats = np.sqrt(np.cumsum(np.cumsum(column) ** 2))
    return stds


def check_secret(arms: Iterable[Arm]) -> None:
    """Refuse correlated noise in a run without a seed."""
    for arm in arms:
        if arm.bands > 1:
            raise ValueError(
                f"arm.{arm.name}.bands = {arm.bands}: not without a seed: secret noise is exact on "
                "a grid of whole numbers, which a matrix of floats leaves; expected bands = 1, or "
                "a seed (a simulation)"
            )
