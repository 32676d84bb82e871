"""SCAFFOLD: local SGD without client drift (Karimireddy et al. 2020).

    client   y <- y - eta (g_i(y) - c_i + c), K times from w     c_i its own control, c the server's
             u_i = w - y - K eta (c - c_i) = eta (sum of its K gradients)
    release  R, the average of the clipped u_i, as of any update
    server   w <- w - step R
             c <- c + rho (R / (K eta) - c)                      rho = uploads / n, a public number
    client   c_i <- u_i / (K eta), not clipped, if it uploaded   the paper's option II

Under every trust, also under none, this is a variant of the paper's: its clients send two vectors,
w - y and the change of c_i, and the server averages both. Here they send u_i alone, and c is made
of the released average.

With c_i near the client's gradient and c near the mean of all, every client moves along the mean
gradient and local steps cause no drift. Under uniform sampling c is in expectation the mean of the
c_i, less what clipping took; if all clients upload and nothing is clipped or noised, it is that
mean exactly, and the server's step is the paper's, because the mean of c - c_i is 0. Under any rule
R estimates the mean of the clipped u_i, whatever c and c_i are.

The paper's clients send w - y. If only some upload, that has a smaller variance, but its mean is
right only while c is the mean of the c_i. The server's noise enters c and no c_i, so c - mean c_i
would become a random walk, of deviation sqrt(T) z C / (n K eta) in every coordinate after T rounds,
and all of it would be in every step. Here c forgets it at the rate rho. It still shifts local
iterates, but is not added to what is sent. The price: c - c_i no longer reduces the variance of
sampling clients, as it does in the paper.

Privacy:
* u_i is a function of client i's own data and past coins (through c_i) and of w and c, which are
  functions of releases. c_i never leaves the client. Given what was released, a round is a mixture
  over the client's hidden c_i of rounds that are charged as any other, with a fresh coin; the
  divergences are convex, so the mixture costs no more, and costs add up as ever.
* One vector is released, as without controls, and c is post-processing of it: a round costs what
  it costs without controls. A second vector would have to be charged; it is not needed because K is
  the same public number for all, whatever a client's size: `local_steps`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from locksfl.methods.dials import Dials
from locksfl.round.client import Asked, Chunk, LocalWork, epochs_update


class Controls(NamedTuple):
    """The control of the server and, never released, of every client."""

    server: Array  # c [size]
    own: Array  # c_i [n, size]


def first(work: LocalWork, weights: Array, clients: int) -> Controls:
    """Before the first round all are zero."""
    del work
    return Controls(jnp.zeros_like(weights), jnp.zeros((clients, *weights.shape)))


def local_steps(work: LocalWork) -> int | None:
    """K, if limits on a client's samples make it the same for all. A client repeats samples up to
    min_samples and leaves some out beyond max_samples, so that as many batches are filled."""
    if work.max_samples is None:
        return None
    fewest, most = (-(-limit // work.batch) for limit in (work.min_samples, work.max_samples))
    return work.epochs * most if fewest == most else None


def problem(work: LocalWork) -> str | None:
    """Why this local work cannot be controlled."""
    if work.proximal:
        return "not with local.proximal, which also corrects drift; leave one of them out"
    if work.weight == "size":
        return "not with local.weight = 'size'; expected 'equal'"
    if local_steps(work) is None:
        return (
            "every client must take the same number of local steps; expected local.min_samples and "
            f"local.max_samples that fill as many batches of {work.batch}, not "
            f"{work.min_samples} and {work.max_samples}"
        )
    return None


def updates(asked: Asked, controls: Controls, chunk: Chunk, clients: Array) -> Array:
    """u_i for each client of a chunk, not yet clipped. [c, size]"""
    work, _, model, weights, records = asked
    there = jnp.any(chunk.used, axis=1, keepdims=True)  # an empty slot stays zero
    drift = jnp.where(there, controls.server - controls.own[clients], 0.0)
    moved = epochs_update(model, weights, records, chunk, work, drift)
    return moved - _way(work) * drift


def after(
    work: LocalWork,
    controls: Controls,
    t: Array,
    weights: Array,
    released: Array,
    dials: Dials,
    sent: tuple[Array, Array],
) -> tuple[Array, Controls]:
    """What the server steps with, and the controls of the next round.

    Args:
        work: the clients' work.
        controls: before the round.
        t, weights: not read.
        released: R.
        dials: of the round.
        sent: numbers of clients, and u_i for each. A number beyond the last client is nobody: who
            did not upload, or has an update that is not finite, keeps its control.
    """
    del t, weights
    clients, rows = sent
    rate = dials.uploads / controls.own.shape[0]
    server = controls.server + rate * (released / _way(work) - controls.server)
    own = controls.own.at[clients].set(rows / _way(work), mode="drop")
    return released, Controls(server, own)


def _way(work: LocalWork) -> float:
    """K eta."""
    steps = local_steps(work)
    if steps is None:
        raise ValueError(f"local.control: {problem(work)}")
    return steps * work.step
