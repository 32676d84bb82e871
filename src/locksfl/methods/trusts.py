"""Releases: who adds noise to what, and what it costs each observer.

A `Mechanism` is one kind of trust. The object that adds the noise also says what it releases and to
whom. Noise is always a multiplier times a derived bound, so nobody types a sensitivity:

| trust   | norm release                        | update release     | epsilon SERVER, PUBLIC |
|---------|-------------------------------------|--------------------|------------------------|
| local   | each client: |g_i| + z_s C N(0,1)   | each: + z S N(0,I) | finite, finite         |
| central | server: sum of |g_i| + z_K C N(0,1) | sum: + z S N(0,I)  | infinite, finite       |
| none    | exact                               | exact              | infinite, infinite     |

Guarantees:
* local: a release is a Gaussian of the stated multiplier, and the upload coins are a function of
  released norms only, so the server learns nothing else.
* central: both sums come from one secret Poisson cohort; only the noised sums leave the server.

To add a trust (secure aggregation, say), add a case to `accounting.events.round_releases` (what is
released, to whom), a `Mechanism` to `MECHANISMS`, and a test of its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.privacy.events import Release, round_releases
from locksfl.round.randomness import Purpose, client_keys, draw_key, normal
from locksfl.round.sampling import Dials

Total = Callable[[Array], Array]  # a sum over every client of the round, on every device


class Members(NamedTuple):
    """The members of a cohort, one entry each; a slot without a client is not `present`."""

    clients: Array  # client numbers
    present: Array
    weights: Array  # public, mean 1 over the population
    coins: Array  # of the second sample, uniform in [0, 1)
    norm_noise: Array  # standard normal, for trust local


class ServerDraws(NamedTuple):
    """The server's own noise of a round, in standard units."""

    norm_noise: Array  # one number, for trust central
    update_noise: Array  # one a parameter


def draw_members(
    arm_key: Array, round_index: Array | int, clients: Array, weights: Array
) -> Members:
    """Each client's own draws of a round. `clients` < 0 are empty slots."""
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
    """The server's draws of a round; `size` is the number of parameters."""
    norms = draw_key(arm_key, round_index, Purpose.SERVER_NORM_NOISE)
    update = draw_key(arm_key, round_index, Purpose.UPDATE_NOISE)
    return ServerDraws(normal(norms, 1)[0], normal(update, size))


@dataclass(frozen=True)
class Mechanism:
    """One kind of trust.

    release_norms(norms, members, server_noise, dials, total) -> (scores, released sum): what the
        rule may use of each client, and the one number that becomes K'.
    noise_std(scales, bound, uploaded, dials, total): std of the noise on the summed updates; the
        independent noises of many uploaders are drawn once with their summed variance.
    """

    trust: str
    release_norms: Callable[[Array, Members, Array, Dials, Total], tuple[Array, Array]]
    noise_std: Callable[[Array, Array, Array, Dials, Total], Array]
    about: str

    def releases(
        self, noise_multiplier: float, norm_multiplier: float, asks_norms: bool
    ) -> tuple[Release, ...]:
        """What one round releases, to whom, in which domain (so: sensitivity) and how noisy."""
        return round_releases(self.trust, noise_multiplier, norm_multiplier, asks_norms)

    @property
    def server_sees_raw(self) -> bool:
        """Whether any message reaches the server without noise."""
        return not all(r.noise_multiplier for r in self._typical if r.observer == "SERVER")

    @property
    def noisy(self) -> bool:
        """Whether anybody adds noise."""
        return any(release.noise_multiplier for release in self._typical)

    @property
    def _typical(self) -> tuple[Release, ...]:
        return self.releases(1.0, 1.0, asks_norms=True)


def _central_norms(
    norms: Array, members: Members, server_noise: Array, dials: Dials, total: Total
) -> tuple[Array, Array]:
    """The server keeps the true norms to itself and releases their noisy sum."""
    noise = dials.norm_multiplier * dials.clip_norm * server_noise
    return norms, total(jnp.where(members.present, norms, 0.0)) + noise


def _local_norms(
    norms: Array, members: Members, server_noise: Array, dials: Dials, total: Total
) -> tuple[Array, Array]:
    """Each client sends its noised norm; clipping to [0, C] afterwards costs nothing."""
    del server_noise
    noise = dials.norm_multiplier * dials.clip_norm * members.norm_noise
    released = jnp.clip(norms + noise, 0.0, dials.clip_norm)
    return released, total(jnp.where(members.present, released, 0.0))


def _exact_norms(
    norms: Array, members: Members, server_noise: Array, dials: Dials, total: Total
) -> tuple[Array, Array]:
    del server_noise, dials
    return norms, total(jnp.where(members.present, norms, 0.0))


def _central_std(scales: Array, bound: Array, uploaded: Array, dials: Dials, total: Total) -> Array:
    """Once on the sum, by the public bound of one contribution: it does not depend on who came."""
    del scales, uploaded, total
    return dials.noise_multiplier * bound


def _local_std(scales: Array, bound: Array, uploaded: Array, dials: Dials, total: Total) -> Array:
    del bound
    return dials.noise_multiplier * jnp.sqrt(total(jnp.where(uploaded, scales**2, 0.0)))


def _no_std(scales: Array, bound: Array, uploaded: Array, dials: Dials, total: Total) -> Array:
    del scales, uploaded, dials, total
    return jnp.zeros_like(bound)


MECHANISMS: dict[str, Mechanism] = {
    mechanism.trust: mechanism
    for mechanism in (
        Mechanism("none", _exact_norms, _no_std, about="no noise"),
        Mechanism("central", _central_norms, _central_std, about="noise by the server"),
        Mechanism("local", _local_norms, _local_std, about="noise by each client"),
    )
}
