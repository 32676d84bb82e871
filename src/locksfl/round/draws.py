"""The random draws of a round: the cohort, the members' own draws, and the server's noise."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from locksfl.round.randomness import Purpose, client_keys, draw_key, normal


class Members(NamedTuple):
    """The members of a cohort, one entry each; a slot without a client is not `present`."""

    clients: Array  # client numbers
    present: Array
    weights: Array  # public, with mean 1 over the population
    coins: Array  # of the second sample, uniform in [0, 1)
    norm_noise: Array  # standard normal, for trusts under which clients add the noise


class ServerDraws(NamedTuple):
    """The server's own noise of a round, in standard units."""

    norm_noise: Array  # one number
    update_noise: Array  # one for each parameter


def draw_cohort(rng: np.random.Generator, clients: int, sampling_rate: float) -> np.ndarray:
    """Draw the cohort: each client joins with probability `sampling_rate`.

    The size is binomial and, given the size, every subset is equally likely. That equals n
    independent draws but takes time in proportion to the cohort only.

    Returns:
        Sorted client numbers.
    """
    size = rng.binomial(clients, sampling_rate)
    return np.sort(rng.choice(clients, size, replace=False, shuffle=False)).astype(np.int32)


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


def draw_server(arm_key: Array, round_index: Array | int, size: int) -> ServerDraws:
    """Draw the server's own noise of a round, as `draw_members` does for the members; `size` is the
    number of parameters."""
    norms = draw_key(arm_key, round_index, Purpose.SERVER_NORM_NOISE)
    update = draw_key(arm_key, round_index, Purpose.UPDATE_NOISE)
    return ServerDraws(normal(norms, 1)[0], normal(update, size))


def second_sample(coins: Array, probability: Array, present: Array) -> Array:
    """Draw the uploaders: each present member uploads if its own uniform draw in [0, 1) is below
    p_i. Returns a mask over the members."""
    return present & (coins < probability)
