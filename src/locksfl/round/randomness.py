"""Where every random draw comes from.

There are exactly two sources: a seed given by the user (a repeatable simulation) or the operating
system's entropy (a secret, kept only in the checkpoint of an unfinished run). There is no default
seed.

A simulation draws with fast generators that protect nobody. A secret run draws every coin and all
noise from SHAKE-256, a cryptographic generator, under a key of 256 bits (`Stream`).

Every draw is identified by (arm, round, purpose), and by client where each client draws for itself,
so that no two draws share noise: arms differ in their root key, rounds and purposes are folded in.
A draw depends on nothing else: not on chunk sizes, padding, block lengths or the number of devices.
"""

from __future__ import annotations

import enum
import hashlib
import json
import secrets
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


class Purpose(enum.IntEnum):
    """What a draw is for. Numbers are folded into keys: never reuse one."""

    COHORT = 0
    NORM_NOISE = 1
    UPLOAD_COIN = 2
    UPDATE_NOISE = 3
    LOCAL = 4  # a client's own shuffles and subsamples
    MODEL = 5  # the first weights, which all arms share
    SERVER_NORM_NOISE = 6
    COUNT_NOISE = 7  # on the released number of uploads
    CLIP_NOISE = 8
    REFINE_NOISE = 9  # on the sums that refine a public number


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
        return cls(secrets.randbits(KEY_BITS), simulated=False)

    def stream(self, arm: str, round_index: int, purpose: Purpose) -> Stream:
        """The secret bytes of one purpose in one round of an arm: asked for once, or the same bytes
        are drawn twice."""
        return Stream(self._secret("draw", arm, round_index, int(purpose)))

    def host(self, arm: str, round_index: int, purpose: Purpose) -> np.random.Generator:
        """A NumPy generator for the draws of one purpose in one round of an arm, on the host."""
        words = self._words(arm, round_index, int(purpose))
        return np.random.Generator(np.random.Philox(words))

    def arm_key(self, arm: str) -> jax.Array:
        """The root key of an arm's draws on the device; `draw_key` derives the others. In a secret
        run only clients' own shuffles and subsamples, which privacy does not rest on, come from
        it."""
        return _device_key(self._words(arm) if self.simulated else self._secret("arm", arm))

    def model_key(self) -> jax.Array:
        """The key of the initial weights: public, and the same for every arm."""
        if not self.simulated:  # a public model must not tell about the other draws
            return _device_key(self._secret("model"))
        return _device_key(np.random.SeedSequence(self.entropy, spawn_key=(int(Purpose.MODEL),)))

    def _secret(self, *label: str | int) -> bytes:
        """A key of its own for everything that has a label."""
        if self.simulated:
            raise ValueError("a seed is no secret: expected the operating system's entropy")
        key = self.entropy.to_bytes(KEY_BITS // 8, "big")
        return hashlib.shake_256(key + json.dumps(label).encode()).digest(KEY_BITS // 8)

    def _words(self, arm: str, *more: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.entropy, spawn_key=(0, arm_number(arm), *more))


KEY_BITS = 256


class Stream:
    """A secret sequence of random bytes: SHAKE-256 of a key and the number of the request."""

    def __init__(self, key: bytes) -> None:
        self._key, self._requests = key, 0

    def __call__(self, size: int) -> bytes:
        """The next `size` bytes."""
        self._requests += 1
        return hashlib.shake_256(self._key + self._requests.to_bytes(8, "big")).digest(size)

    def words(self, size: int) -> NDArray[np.uint64]:
        """The next `size` whole numbers of 64 bits."""
        return np.frombuffer(self(8 * size), "<u8")


def _device_key(words: np.random.SeedSequence | bytes) -> jax.Array:
    if isinstance(words, bytes):
        return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(words[:8], "<u4")))
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
    (Threefry, 64-bit key) that is not cryptographic: good enough for a simulation, and used in
    nothing else.
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
    return jax.vmap(jax.random.fold_in, (None, 0))(key, clients)
