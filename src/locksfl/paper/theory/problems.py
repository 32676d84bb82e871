"""Losses whose constants are known exactly, and descent on them by the real round.

`descend` plays `algorithm.play` and the server's step on every client's exact gradient, for many
seeds at once, and keeps what the proof of the corrected bound speaks of. On every path, in
expectation or not, smoothness alone gives, with Delta_t = a_t - beta_t + xi_t (a_t = grad F(w_t),
beta_t what clipping takes, xi_t the chance of the round, which averages to zero) and L eta_t <= 1:

    sum eta_t/2 |a_t|^2 <= Delta F + sum eta_t/2 |beta_t|^2 + L/2 sum eta_t^2 |xi_t|^2
                           - sum eta_t <a_t, xi_t> + L sum eta_t^2 <a_t - beta_t, xi_t>.

The last two sums are the slack of one seed: they have expectation zero, and without them the
expectation of the rest is the bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.round.algorithm import GivenClients, clip_factor, clipped_norms, play
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.floats import FloatSums
from locksfl.round.server import Server


@dataclass(frozen=True, eq=False)
class Problem:
    """A mean of losses, one per client, and the constants that it has for certain."""

    name: str  # in tables
    start: Floats  # w_0
    gradients: Callable[[Array], Array]  # of every client at w: [n, d]
    clients: int  # n
    smoothness: float  # L of the mean
    gap: float  # F(w_0) - min F
    client_spread: float  # sigma_G with A = 0, of the mean over clients
    clip_norm: float  # C
    worst_client_spread: float  # of every client, as the paper assumes, with A:
    worst_dissimilarity: float = 0.0  # A
    clip_bias: float = 0.0  # c_nu of the mean gradient, wherever the paths can go
    worst_clip_bias: float = 0.0  # of every client
    sample_spread: float = 0.0  # sigma_L of one record; clients use all of theirs in every round

    @property
    def parameters(self) -> int:
        """d."""
        return int(self.start.size)


def quadratic(
    centres: npt.ArrayLike,
    curvature: npt.ArrayLike,
    start: npt.ArrayLike,
    *,
    clip_norm: float,
    name: str = "quadratic",
) -> Problem:
    """f_i(w) = sum_k h_k (w_k - c_ik)^2 / 2. L = max h; grad f_i - grad F = h (mean c - c_i)
    everywhere, so A = 0 and sigma_G^2 is its mean square. For every client it takes A = 1 and twice
    the largest square, |a + b|^2 <= 2 |a|^2 + 2 |b|^2, unless all are alike."""
    c, h, w = (np.asarray(values, float) for values in (centres, curvature, start))
    middle = c.mean(axis=0)
    apart = np.sum((h * (c - middle)) ** 2, axis=1)
    c_device, h_device = jnp.asarray(c, jnp.float32), jnp.asarray(h, jnp.float32)
    return Problem(
        name=name,
        start=w,
        gradients=lambda weights: h_device * (weights - c_device),
        clients=len(c),
        smoothness=float(h.max()),
        gap=float(np.sum(h * (w - middle) ** 2) / 2),
        client_spread=float(np.sqrt(apart.mean())),
        clip_norm=clip_norm,
        worst_client_spread=float(np.sqrt(2 * apart.max())),
        worst_dissimilarity=float(apart.any()),
    )


def logistic(features: Floats, signs: Floats) -> Problem:
    """f_i(w) = mean_j ln(1 + e^(-y_ij x_ij . w)) from w_0 = 0; features [n, K, d] of length 1.

    L = lambda_max(mean x x^T) / 4. A client's gradient is never longer than 1, so that C = 1 never
    clips, and sigma_G = sigma_L = 1 with A = 0, for every client. The minimum is found by Newton's
    method to rounding.
    """
    n, _, d = features.shape
    lengths = np.linalg.norm(features, axis=2)
    if not np.allclose(lengths, 1):
        raise ValueError("features: expected every record to have length 1")
    flat, y = features.reshape(-1, d), signs.reshape(-1)
    moment = flat.T @ flat / len(flat)
    x_device, y_device = jnp.asarray(features, jnp.float32), jnp.asarray(signs, jnp.float32)

    def gradients(weights: Array) -> Array:
        pull = -y_device * jax.nn.sigmoid(-y_device * (x_device @ weights))
        return jnp.mean(pull[..., None] * x_device, axis=1)

    def loss(w: Floats) -> float:
        return float(np.mean(np.logaddexp(0, -y * (flat @ w))))

    w = np.zeros(d)
    for _ in range(50):
        share = 1 / (1 + np.exp(y * (flat @ w)))
        slope = -(flat * (y * share)[:, None]).mean(axis=0)
        bend = (flat * (share * (1 - share))[:, None]).T @ flat / len(flat)
        w = w - np.linalg.solve(bend, slope)
    if not np.linalg.norm(slope) < 1e-12:
        raise ValueError(
            "features: expected labels that are not linearly separable, so that F has a minimum"
        )
    return Problem(
        name="logistic",
        start=np.zeros(d),
        gradients=gradients,
        clients=n,
        smoothness=float(np.linalg.eigvalsh(moment)[-1] / 4),
        gap=loss(np.zeros(d)) - loss(w),
        client_spread=1.0,
        worst_client_spread=1.0,
        clip_norm=1.0,
        sample_spread=1.0,
    )


class Step(NamedTuple):
    """One round of one seed: what the inequality above is made of."""

    step: Any  # eta_t
    gradient: Any  # |a|^2
    bias: Any  # |beta|^2
    chance: Any  # |xi|^2
    variance: Any  # its expectation, by the rates and the noise of the round
    gradient_chance: Any  # <a, xi>
    mean_chance: Any  # <a - beta, xi>
    longest: Any  # the longest update of a client
    uploads: Any  # how many


def running_mean(steps: Floats, gradient: Floats) -> Floats:
    """Returns the mean of |grad F(w_t)|^2 so far, weighted by eta_t, after each round: what is
    bounded."""
    return np.cumsum(steps * gradient, axis=-1) / np.cumsum(steps, axis=-1)


@dataclass(frozen=True)
class Descent:
    """Paths of many seeds, [seeds, rounds] each."""

    steps: Step  # of all rounds
    smoothness: float  # L
    gap: float  # F(w_0) - min F

    @property
    def gradient(self) -> Floats:
        """|grad F(w_t)|^2."""
        return self.steps.gradient

    def weighted(self) -> Floats:
        """Its means so far."""
        return running_mean(self.steps.step, self.gradient)

    def path_variance(self) -> Floats:
        """Of each seed, the mean of the rounds' variances that the bound takes: by eta_t^2."""
        weight = self.steps.step**2
        return np.sum(weight * self.steps.variance, 1) / np.sum(weight, 1)

    def left_over(self) -> Floats:
        """Right minus left side of the inequality of one path: never negative, on any seed."""
        s, eta, smooth = self.steps, self.steps.step, self.smoothness
        right = eta / 2 * s.bias + smooth / 2 * eta**2 * s.chance
        right += -eta * s.gradient_chance + smooth * eta**2 * s.mean_chance
        return self.gap + np.sum(right - eta / 2 * s.gradient, axis=1)


def descend(problem: Problem, arm: Arm, seeds: int, seed: int = 0) -> Descent:
    """Play an arm's rounds on a problem, for seeds `seed`, `seed` + 1, ..."""
    if arm.clients != problem.clients:
        raise ValueError(f"clients = {arm.clients}: expected the problem's {problem.clients}")
    server = Server(schedule="inverse-sqrt", rounds=arm.rounds)
    keys = jax.vmap(jax.random.key)(jnp.arange(seed, seed + seeds))
    steps = Step(*(np.asarray(value, float) for value in _paths(problem, arm, server, keys)))
    return Descent(steps, problem.smoothness, problem.gap)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _paths(problem: Problem, arm: Arm, server: Server, keys: Array) -> Step:
    dials, n = arm.dials(), arm.clients

    def one_round(key: Array, state: Any, t: Array) -> tuple[Any, Step]:
        first = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, 1), t), (n,))
        clients = jnp.where(first < arm.sampling_rate, jnp.arange(n), -1)
        members = draw_members(jax.random.fold_in(key, 0), t, clients, jnp.ones(n))
        draws = draw_server(jax.random.fold_in(key, 0), t, problem.parameters)
        updates = problem.gradients(state.weights)
        given = GivenClients(updates)
        result, uploads, _ = play(arm.method, given, members, FloatSums(draws), dials)
        true = jnp.mean(updates, axis=0)
        kept = jnp.mean(clip_factor(given.norms, dials)[:, None] * updates, axis=0)
        chance = result.update - kept
        # sum (1/rho - 1) |g|^2, each uploader for 1/rho clients like it: its part is |g|/rho long
        lengths = clipped_norms(given.norms, dials)
        parts = uploads.coefficient * given.norms / arm.sampling_rate
        sampled = jnp.sum(parts * jnp.maximum(0.0, parts - lengths)) / n**2
        row = Step(
            step=server.eta(dials.step, t),
            gradient=true @ true,
            bias=(true - kept) @ (true - kept),
            chance=chance @ chance,
            variance=sampled + result.noise**2,
            gradient_chance=true @ chance,
            mean_chance=kept @ chance,
            longest=jnp.max(given.norms),
            uploads=jnp.sum(uploads.uploaded),
        )
        return server.step(state, result.update, dials.step, t), row

    def path(key: Array) -> Step:
        state = server.init(jnp.asarray(problem.start, jnp.float32))
        _, rows = jax.lax.scan(functools.partial(one_round, key), state, jnp.arange(arm.rounds))
        return rows

    return jax.vmap(path)(keys)
