"""Where every random draw comes from.

There are exactly two sources: a seed given by the user (a repeatable simulation) or the operating
system's entropy (a secret that is not recorded). There is no default seed.

Every draw is identified by (arm, round, purpose), and by client where each client draws for itself,
so that no two draws share noise: arms differ in their root key, rounds and purposes are folded in.
A draw depends on nothing else: not on chunk sizes, padding, block lengths or the number of devices.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


class Purpose(enum.IntEnum):
    """What a draw is for. Numbers are folded into keys: never reuse one."""

    COHORT = 0
    NORM_NOISE = 1
    UPLOAD_COIN = 2
    UPDATE_NOISE = 3
    LOCAL = 4  # a client's own shuffles and subsamples
    MODEL = 5  # the first weights, which all arms share
    SERVER_NORM_NOISE = 6


@dataclass(frozen=True)
class Randomness:
    """A source of draws. `simulated`: its seed is known, so it protects nobody."""

    entropy: int
    simulated: bool

    @classmethod
    def seeded(cls, seed: int) -> Randomness:
        """Draws that can be repeated and therefore protect nobody."""
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed = {seed!r}: expected a whole number >= 0")
        return cls(seed, simulated=True)

    @classmethod
    def from_system(cls) -> Randomness:
        """Draws from the operating system's entropy, known to nobody."""
        return cls(secrets.randbits(128), simulated=False)

    def host(self, arm: str, round_index: int, purpose: Purpose) -> np.random.Generator:
        """A NumPy generator for the draws of one purpose in one round of an arm, on the host."""
        words = self._words(arm, round_index, int(purpose))
        return np.random.Generator(np.random.Philox(words))

    def arm_key(self, arm: str) -> jax.Array:
        """The root key of an arm's draws on the device; `draw_key` derives the others."""
        return _device_key(self._words(arm))

    def model_key(self) -> jax.Array:
        """The key of the initial weights: public, and the same for every arm."""
        words = np.random.SeedSequence(self.entropy, spawn_key=(int(Purpose.MODEL),))
        return _device_key(words)

    def _words(self, arm: str, *more: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.entropy, spawn_key=(0, arm_number(arm), *more))


def _device_key(words: np.random.SeedSequence) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(words.generate_state(2, np.uint32)))


def arm_number(arm: str) -> int:
    """A number derived from an arm's name, so that adding an arm does not alter the others."""
    return int.from_bytes(hashlib.sha256(arm.encode()).digest()[:4], "big")


def draw_key(arm_key: jax.Array, round_index: jax.Array | int, purpose: Purpose) -> jax.Array:
    """The key of one purpose in one round."""
    return jax.random.fold_in(jax.random.fold_in(arm_key, round_index), int(purpose))


def normal(key: jax.Array, size: int) -> jax.Array:
    """`size` standard normal draws whose tails reach 9.4; a Gaussian has less than 1e-20 beyond.

    `jax.random.normal` never exceeds 5.42 in float32, so an output beyond that would reveal a
    client, and over many rounds that alone exceeds a delta of 1e-5. Here, by the method of Box and
    Muller, a radius has 64 random bits: 32 ordinary ones, and 32 more that matter if those are
    small.

    The remaining differences from a Gaussian are float32 itself (Mironov 2012) and a generator
    (Threefry, 64-bit key) that is not cryptographic: good enough for a simulation.
    """
    half = -(-size // 2)
    high, low, turn = jax.random.bits(key, (3, half), jnp.uint32)
    fraction = (low.astype(jnp.float32) + 0.5) * 2.0**-32
    uniform = (high.astype(jnp.float32) + fraction) * 2.0**-32  # in (0, 1], down to 2**-65
    radius = jnp.sqrt(-2.0 * jnp.log(uniform))
    angle = turn.astype(jnp.float32) * (2.0 * jnp.pi * 2.0**-32)
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:size]


def client_keys(key: jax.Array, clients: jax.Array) -> jax.Array:
    """One key per client: a client's draws do not depend on the other clients."""
    keys: jax.Array = jax.vmap(jax.random.fold_in, (None, 0))(key, clients)
    return keys
