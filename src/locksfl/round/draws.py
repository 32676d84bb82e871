"""The random draws of a round: the cohort, the members' own draws, and the server's noise.

A simulation draws floats on the device (`draw_members`, `draw_server`). A secret run draws whole
numbers on the host, from a cryptographic generator, before the round (`draw_secret`): coins of 64
bits, which are compared as integers, and noise in steps of a public grid.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from locksfl.arm import Arm
from locksfl.methods.cyclic import correlated
from locksfl.round.noise import SystemNoise
from locksfl.round.randomness import Purpose, Randomness, Stream, client_keys, draw_key, normal


class Members(NamedTuple):
    """The members of a cohort, one entry each; a slot without a client is not `present`."""

    clients: Array  # client numbers
    present: Array
    weights: Array  # public, with mean 1 over the population
    coins: Array  # of the second sample: uniform in [0, 1), or [members, 2] words of 32 bits
    norm_noise: Array  # standard normal, for trusts under which clients add it; else not read


class ServerDraws(NamedTuple):
    """The server's own noise of a round, in standard units."""

    norm_noise: Array  # one number
    update_noise: Array  # one for each parameter
    count_noise: Any = 0.0  # one number
    clip_noise: Any = 0.0  # one number, read if the clip norm adapts
    refine_noise: Any = None  # [refinements, 2], if the rule refines its public number


def draw_cohort(rng: np.random.Generator, clients: int, sampling_rate: float) -> np.ndarray:
    """Draw the cohort: each client joins with probability `sampling_rate`.

    The size is binomial and, given the size, every subset is equally likely. That equals n
    independent draws but takes time in proportion to the cohort only.

    Returns:
        Sorted client numbers.
    """
    size = rng.binomial(clients, sampling_rate)
    return np.sort(rng.choice(clients, size, replace=False, shuffle=False)).astype(np.int32)


def cohort_of(randomness: Randomness, arm: Arm, round_index: int) -> np.ndarray:
    """The cohort of a round: sorted client numbers."""
    scheme = arm.scheme
    group = scheme.group and scheme.group(arm, round_index)
    if group is None:
        return _joining(randomness, arm, round_index, arm.clients)
    return group[_joining(randomness, arm, round_index, group.size)] if scheme.secret else group


def _joining(randomness: Randomness, arm: Arm, round_index: int, clients: int) -> np.ndarray:
    """Which of so many clients join, each by a coin of its own."""
    rate = arm.scheme.rate(arm)
    if randomness.simulated:
        return draw_cohort(randomness.host(arm.name, round_index, Purpose.COHORT), clients, rate)
    coins = randomness.stream(arm.name, round_index, Purpose.COHORT).words(clients)
    least = int(Fraction(rate) * 2**64)  # rounded down: nobody is drawn too often
    joins = coins < np.uint64(least) if least < 2**64 else np.ones(clients, bool)
    return np.flatnonzero(joins).astype(np.int32)


class Grid(NamedTuple):
    """The public grids of an arm's releases: powers of two, or whole numbers of each rung."""

    norm: Any  # steps in the clip norm C
    update: Any  # steps in the bound S of a contribution; of every rung, where noise follows K'
    bits: Any = 1.0  # steps in 1/2, for the sum of bits


FINEST, COARSEST = 23, 12  # bits: squares of steps are summed exactly, noise fits in 32 bits
LEAST_STEPS = 256  # of a rung: an update is cut to 1/256 of S, far below noise of 2^20 steps


def grid_of(arm: Arm) -> Grid:
    """The grids on which an arm's noise has a standard deviation of 2^20 to 2^21 steps, like a
    device's, unless that would be too fine or too coarse a grid for the values.

    Noise that follows K' is drawn before K' is known: always of the same size in steps. It is the
    number of steps in S that follows, the largest at the last rung, whose multiplier is the least:
    steps_k = steps z / z_k, rounded down."""

    def steps(multiplier: float, name: str) -> np.float32:
        _, exponent = np.frexp(multiplier)
        bits = int(np.clip(21 - exponent, COARSEST, FINEST))
        if multiplier * 2.0**bits >= 2.0**27:
            raise ValueError(
                f"{name} = {multiplier:g}: expected less than {2 ** (27 - COARSEST)} without a seed"
            )
        return np.float32(2.0**bits)

    norm = steps(arm.sum_multiplier, "norm_multiplier") if arm.releases_norms else np.float32(1)
    update: Any = steps(arm.update_multiplier, "noise_multiplier")
    if (ladder := arm.dials(float).ladder) is not None:
        share = arm.update_multiplier / ladder.noise_multipliers * (1 - 1e-15)
        update = np.floor(float(update) * np.append(share[:-1], 1.0)).astype(np.float32)
        if update[0] < LEAST_STEPS:
            raise ValueError(
                f"norm_low = {arm.norm_low:g}: the noise of the rungs differs by a factor of "
                f"{1 / share[0]:.3g}; expected a larger one without a seed"
            )
    if arm.clip_quantile is None:
        return Grid(norm, update)
    # the sum over all clients and its noise fit in 32 bits; a whole number needs no finer grid
    finest = min(FINEST, 29 - arm.clients.bit_length())
    bits = int(np.clip(21 - np.frexp(arm.clip_multiplier)[1], 0, max(0, finest)))
    if arm.clip_multiplier * 2.0**bits >= 2.0**27:
        raise ValueError(
            f"clip_multiplier = {arm.clip_multiplier:g}: expected less than {2**27} without a seed"
        )
    return Grid(norm, update, np.float32(2.0**bits))


class SecretDraws(NamedTuple):
    """What is drawn in a round of a secret run: a row for each member of the cohort or, if the
    server adds the noise, one number and one row for the server."""

    cohort: NDArray[np.int32]  # client numbers
    coins: NDArray[np.uint32]  # [members, 2] of the second sample: 64 bits each, high word first
    norm_noise: NDArray[np.int32]  # in steps
    update_noise: NDArray[np.int32]
    count_noise: NDArray[np.int32]  # in uploads
    clip_noise: NDArray[np.int32]  # one number, of the sum of bits if the clip norm adapts
    refine_noise: NDArray[np.int32]  # [refinements, 2] in steps, of the server


def draw_secret(randomness: Randomness, arm: Arm, round_index: int, size: int) -> SecretDraws:
    """Draw a round. A draw depends on the place of its member in the cohort and on nothing else.

    Args:
        randomness: the secret source.
        arm: the arm, whose multipliers give the noise: std over the bound of what is released. A
            count is a whole number, and so is its noise: that of a Gaussian, rounded.
        round_index: the round, counted from 0.
        size: the number of parameters.
    """
    cohort, grid = cohort_of(randomness, arm, round_index), grid_of(arm)
    members, each = cohort.size, arm.parts.trust.clients_add_noise

    def stream(purpose: Purpose) -> Stream:
        return randomness.stream(arm.name, round_index, purpose)

    def noise(multiplier: float, grid: float, purpose: Purpose, *shape: int) -> NDArray[np.int32]:
        source = SystemNoise(stream(purpose))
        steps = source.steps(multiplier, 1 / float(grid), int(np.prod(shape, dtype=int)))
        return steps.astype(np.int32).reshape(shape)

    coins = stream(Purpose.UPLOAD_COIN).words(members)
    norms = np.zeros((members,) if each else (), np.int32)
    if arm.releases_norms:
        purpose = Purpose.NORM_NOISE if each else Purpose.SERVER_NORM_NOISE
        norms = noise(arm.sum_multiplier, grid.norm, purpose, *norms.shape)
    refine = np.zeros((0 if each else arm.parts.rule.refinements, 2), np.int32)
    if refine.size:
        refine = noise(arm.sum_multiplier, grid.norm, Purpose.REFINE_NOISE, *refine.shape)
    shape = (members, size) if each else (size,)
    steps = np.ravel(grid.update)[-1]
    update = noise(arm.update_multiplier, steps, Purpose.UPDATE_NOISE, *shape)
    count = np.zeros((), np.int32)
    if arm.count_noise:
        count = noise(arm.count_noise, 1.0, Purpose.COUNT_NOISE)
    bits = np.zeros((), np.int32)
    if arm.clip_quantile is not None:
        bits = noise(arm.clip_multiplier, grid.bits, Purpose.CLIP_NOISE)
    return SecretDraws(cohort, halves(coins), norms, update, count, bits, refine)


def halves(coins: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Numbers of 64 bits as two words each, the high one first."""
    return np.stack([coins >> np.uint64(32), coins & np.uint64(2**32 - 1)], -1).astype(np.uint32)


def draw_members(
    arm_key: Array, round_index: Array | int, clients: Array, weights: Array
) -> Members:
    """Draw what each member of the cohort draws for itself in a round.

    Args:
        arm_key: the root key of the arm.
        round_index: the round, counted from 0.
        clients: client numbers; numbers < 0 are empty slots.
        weights: the public weight of each member, with mean 1 over the population.
    """
    coins = client_keys(draw_key(arm_key, round_index, Purpose.UPLOAD_COIN), clients)
    norms = client_keys(draw_key(arm_key, round_index, Purpose.NORM_NOISE), clients)
    return Members(
        clients=clients,
        present=clients >= 0,
        weights=weights,
        coins=jax.vmap(jax.random.uniform)(coins),
        norm_noise=jax.vmap(lambda key: normal(key, 1)[0])(norms),
    )


def draw_server(
    arm_key: Array, round_index: Array | int, size: int, refinements: int = 0
) -> ServerDraws:
    """Draw the server's own noise of a round, as `draw_members` does for the members; `size` is the
    number of parameters, `refinements` how often the rule refines its public number."""
    norms = draw_key(arm_key, round_index, Purpose.SERVER_NORM_NOISE)
    update = draw_key(arm_key, round_index, Purpose.UPDATE_NOISE)
    purposes = (Purpose.COUNT_NOISE, Purpose.CLIP_NOISE)
    count, bits = (draw_key(arm_key, round_index, purpose) for purpose in purposes)
    drawn = (normal(norms, 1)[0], normal(update, size), normal(count, 1)[0], normal(bits, 1)[0])
    refine = draw_key(arm_key, round_index, Purpose.REFINE_NOISE)
    return ServerDraws(*drawn, normal(refine, 2 * refinements).reshape(refinements, 2))


def correlate(
    drawn: ServerDraws, recent: Any, strategy: tuple[float, ...]
) -> tuple[ServerDraws, Any]:
    """The draws of `draw_server` with noise that is correlated with `recent`, that of the rounds
    before; and what is recent in the next round. Without a strategy they stay as they are."""
    if not strategy:
        return drawn, recent
    noise, recent = correlated(drawn.update_noise, recent, strategy, jnp)
    return drawn._replace(update_noise=noise), recent


def second_sample(coins: Array, probability: Array, present: Array) -> Array:
    """Draw the uploaders: each present member uploads if its own uniform draw in [0, 1) is below
    p_i. Returns a mask over the members."""
    if coins.dtype == jnp.uint32:
        return present & _below(coins, probability)
    return present & (coins < probability)


def _below(coins: Array, probability: Array) -> Array:
    """Whether a coin of 64 bits is below 2^64 p, rounded down, compared as integers: multiplying by
    a power of two, cutting off the whole part and what is left are exact."""
    scaled = probability * 2.0**32
    whole = jnp.floor(scaled)
    rest = (scaled - whole) * 2.0**32
    high, low = whole.astype(jnp.uint32), rest.astype(jnp.uint32)
    less = (coins[:, 0] < high) | ((coins[:, 0] == high) & (coins[:, 1] < low))
    return (probability >= 1) | less
