"""SVRG at client level: gradients as differences from an anchor (Johnson and Zhang 2013).

    round t, t % k = 0   u_i = grad f_i(w_t), clipped to C        an anchor round
                         w~ <- w_t, G~ <- the released average    server: steps with G~
    every other round    u_i = grad f_i(w_t) - grad f_i(w~), clipped to C' = ratio C
                         D = the released average                 server: steps with D + G~

Both gradients of a difference are of the same rows of the client, so that what is left when w_t is
near w~ is small even if `max_samples` subsamples them. For a smooth loss |u_i| <= L_i |w_t - w~|
instead of |grad f_i|, and the variance of sampling clients falls by the square of that ratio. A
ratio C'/ C so small that most differences are clipped keeps the steps near G~.

When it pays. The error of G~, by sampling and by noise, is in all k steps until the next anchor.
Together they carry

    k^2 V_G + (k - 1) V_D                    k steps with gradients: k V_G at their rate and noise
    V_G = (1/q - 1) sum |g_i|^2 / n^2 + d (z C / (n q))^2          V_D: of differences, and C' for C

under uniform sampling, q and z those of the round. At one q and z for all rounds, as here, that is
more than k times as much noise. Anchor rounds with a cohort of their own would not change the rule:

* Sampling. While 1/q - 1 is about 1/q, k^2 / q_a alone is more than gradients carry with as many
  uploads, k / q' with q' = (q_a + (k - 1) q) / k, whatever q_a. Only with anchors of (nearly) all
  clients, as in SVRG proper, is their part gone: q_a = 1 pays if
      sum |u_i|^2 / sum |g_i|^2 < k (1/q' - 1) / ((k - 1) (1/q - 1)).
* Noise. Where a round costs rho = (q / z)^2, which is exact at q = 1 and near it in long runs with
  z > 1, the noise of an average is d C^2 / (n^2 rho): no cohort makes it smaller. Out of k rho for
  k rounds the best shares are as k to `ratio` (Cauchy-Schwarz), and then anchors have
  (1 + (1 - 1/k) ratio)^2 times the noise of gradients: never less.

So they pay where the variance of sampling clients is far above that of the noise, anchors ask
everybody and differences are short. Else they lose.

Privacy:
* u_i is a function of client i's own data and of w_t, w~: released models.
* G~ is the average of an anchor round as it was released. Adding it is post-processing.
* Every round is one release of one vector of bound C or C', public numbers, under noise of the same
  multiplier in units of that bound; norms likewise. So a round costs what it costs without anchors:
  calibration and ledger are unchanged, and the noise of a difference round is `ratio` times as
  large.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.methods.dials import Dials
from locksfl.round.client import Asked, Chunk, LocalWork, gradient_update


class Anchor(NamedTuple):
    """The last anchor round: its model and what it released."""

    weights: Array  # w~
    average: Array  # G~


def first(work: LocalWork, weights: Array, clients: int) -> Anchor:
    """Before the first round, which is an anchor round."""
    del work, clients
    return Anchor(weights, jnp.zeros_like(weights))


def dials_of(work: LocalWork, dials: Dials, t: Array) -> Dials:
    """The numbers of round t: in a difference round all that is a share of C is one of C'."""
    ratio = jnp.where(_is_anchor(work, t), 1.0, work.anchor_ratio)
    return dials.at_clip(ratio * dials.clip_norm, jnp)


def updates(asked: Asked, anchor: Anchor, chunk: Chunk, clients: Array) -> Array:
    """u_i for each client of a chunk, not yet clipped. [c, size]"""
    del clients
    work, t, model, weights, records = asked
    here = gradient_update(model, weights, records, chunk)

    def difference() -> Array:
        return here - gradient_update(model, anchor.weights, records, chunk)

    return jax.lax.cond(_is_anchor(work, t), lambda: here, difference)


def after(
    work: LocalWork, anchor: Anchor, t: Array, weights: Array, released: Array, dials: Dials, _: Any
) -> tuple[Array, Anchor]:
    """What the server steps with, and the anchor of the next round.

    Args:
        work: the clients' work.
        anchor: before the round.
        t: the round, counted from 0.
        weights: w_t.
        released: the average that the round released.
        dials: not read.
    """
    del dials
    now = _is_anchor(work, t)
    following = Anchor(
        jnp.where(now, weights, anchor.weights), jnp.where(now, released, anchor.average)
    )
    return jnp.where(now, released, released + anchor.average), following


def _is_anchor(work: LocalWork, t: Array) -> Array:
    return t % work.anchor_every == 0
