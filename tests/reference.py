"""One round in plain NumPy and float64, written from the design and not from the program.

Only the draws are the program's own: the coins, the noises and the shuffles go in, and everything
that is computed from them is written out here, one client at a time, without padding or chunks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from locksfl.round.client import permutation
from locksfl.round.draws import draw_cohort, draw_members, draw_secret, draw_server, grid_of
from locksfl.round.randomness import Purpose, client_keys, draw_key

# --- The model: dense layers with ReLU between them; a flat vector holds W, b of each layer. ------


def layers(flat, widths):
    """[(W [out, in], b [out]), ...]"""
    found, start = [], 0
    for i, o in itertools.pairwise(widths):
        matrix = flat[start : start + i * o].reshape(o, i)
        bias = flat[start + i * o : start + i * o + o]
        found.append((matrix, bias))
        start += i * o + o
    assert start == flat.size
    return found


def scores(flat, widths, features):
    value, stack = features, layers(flat, widths)
    for matrix, bias in stack[:-1]:
        value = np.maximum(value @ matrix.T + bias, 0)
    return value @ stack[-1][0].T + stack[-1][1]


def probabilities(values):
    shifted = np.exp(values - values.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def mean_loss(flat, widths, features, labels):
    p = probabilities(scores(flat, widths, features))
    return -np.log(p[np.arange(len(labels)), labels]).mean()


def accuracy(flat, widths, features, labels):
    return (scores(flat, widths, features).argmax(axis=1) == labels).mean()


def gradient(flat, widths, features, labels):
    """Of the mean cross-entropy, by hand."""
    stack = layers(flat, widths)
    inputs = [features]
    for matrix, bias in stack[:-1]:
        inputs.append(np.maximum(inputs[-1] @ matrix.T + bias, 0))
    error = probabilities(inputs[-1] @ stack[-1][0].T + stack[-1][1])
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    parts = []
    for number in reversed(range(len(stack))):
        parts = [error.T @ inputs[number], error.sum(axis=0), *parts]
        if number:
            error = (error @ stack[number][0]) * (inputs[number] > 0)
    return np.concatenate([part.ravel() for part in parts])


# --- A client ------------------------------------------------


def rows_used(size, work, key):
    """Which of its rows a client uses: at most max_samples of them, at least min_samples draws."""
    rows = np.arange(size)
    if work.max_samples is not None and size > work.max_samples:
        return np.asarray(permutation(jax.random.fold_in(key, 0), size, size))[: work.max_samples]
    if size < work.min_samples:
        uniform = jax.random.uniform(jax.random.fold_in(key, 1), (work.min_samples,))
        again = np.minimum((np.asarray(uniform) * size).astype(int), size - 1)
        return np.concatenate([rows, again[size:]])
    return rows


def client_update(flat, widths, features, labels, work, key, drift=0.0):
    """u_i: the mean gradient, or w - w_i after some epochs, held by mu and pushed by a drift."""
    rows = rows_used(len(labels), work, key)
    counts = (
        len(rows) / (work.reference_samples or work.max_samples) if work.weight == "size" else 1
    )
    if work.update == "gradient":
        return counts * gradient(flat, widths, features[rows], labels[rows])
    local = flat.copy()
    for epoch in range(work.epochs):
        shuffled = rows[
            np.asarray(permutation(jax.random.fold_in(key, 2 + epoch), len(rows), len(rows)))
        ]
        for first in range(0, len(rows), work.batch):
            batch = shuffled[first : first + work.batch]
            found = gradient(local, widths, features[batch], labels[batch])
            local = local - work.step * (found + work.proximal * (local - flat) + drift)
    return counts * (flat - local)


# --- The two stages ------------------------------------------------


def probability(plan, score, norm_sum, weight):
    """p_i; `weight` is w_i, which sums to 1."""
    b, m = plan.uploads, plan.cohort
    rule = plan.method.rule
    if rule == "uniform":
        return b / m
    if rule == "full":
        return 1.0
    if rule == "coin":
        return score / plan.clip_norm
    if rule == "weights":
        return min(1.0, b * weight / (m / plan.clients))
    if rule in ("ocs", "aocs"):
        return min(1.0, b * score / norm_sum) if score > 0 else 0.0
    return (1 - plan.floor) * b * score / norm_sum + plan.floor * b / m


def water_level(scores, uploads):
    """K' of optimal client sampling: b over the c at which the min(1, c a_i) sum to b, by halving
    an interval; almost 0 if not so many are positive."""
    if np.sum(scores > 0) <= uploads:
        return 1e-30
    low, high = 0.0, uploads / scores[scores > 0].min()
    for _ in range(200):
        middle = (low + high) / 2
        if np.minimum(1.0, middle * scores).sum() < uploads:
            low = middle
        else:
            high = middle
    return uploads / high


def by_sums(plan, scores, first, noise):
    """K' after the steps of AOCS: four, or twelve where sums cost nothing; noise in standard
    units."""
    b, std = plan.uploads, 0.0
    if plan.method.trust == "central":
        std = np.sqrt(5) * plan.norm_multiplier
    known = max(first, std * plan.clip_norm, 1e-30)
    for below, certain in noise if std else np.zeros((12, 2)):
        p = np.array([probability(plan, score, known, 1.0) for score in scores])
        total, ones = p[p < 1].sum(), np.sum(p >= 1)
        total, ones = total + std * below, ones + std * certain
        factor = max(total, 0.0) / max(b - ones, 1e-30)
        if std:
            factor = max(factor, 1 / (1 + b / std))
        known *= min(factor, 1 + min(std / b, b / std) if std else 1.0)
        known = max(known, 1e-30)
    return known


def largest(scores, uploads):
    """1 for the largest; those that are equal at the limit share what is left."""
    found = np.zeros(len(scores))
    for value in sorted(set(scores), reverse=True):
        equal = scores == value
        found[equal] = min(1.0, (uploads - found.sum()) / equal.sum())
    return np.maximum(found, 0.0)


@dataclass
class Round:
    """What one round gave."""

    update: np.ndarray
    cohort: np.ndarray
    uploaded: np.ndarray
    norms: np.ndarray
    released: float
    used: float
    signal: float
    noise: float
    expected_weight: float
    count: float | None  # as released


def two_stages(
    plan, updates, coins, norm_noise, server_norm_noise, update_noise, weights, count_noise=0.0,
    refine_noise=(),
):  # fmt: skip
    """From the updates u_i of a cohort, one row each, to the server's average. Noise is in standard
    units: one row, or one for each member's message."""
    method, clip = plan.method, plan.clip_norm
    b, m = plan.uploads, plan.cohort
    # an upload and its place in the count are one vector, sqrt(1 + s^2) bounds long
    counted = {"coin": 0.1}.get(method.rule, 0.0) if method.trust == "central" else 0.0
    z = plan.noise_multiplier * np.sqrt(1 + counted**2)
    members = range(len(updates))
    clipped, norms = np.zeros_like(updates), np.zeros(len(updates))
    for i in members:
        if np.isfinite(updates[i]).all():
            norms[i] = np.linalg.norm(updates[i])
            clipped[i] = updates[i] / max(1.0, norms[i] / clip)
            if plan.lengths == "equal":
                clipped[i] = clip * updates[i] / max(norms[i], 1e-12)
    lengths = np.linalg.norm(clipped, axis=1)

    # the norms, and the one public number
    known, released, used = lengths, 0.0, 0.0
    if method.rule in ("norm", "dpis", "ocs", "aocs", "top-k"):
        released = lengths.sum()
        if method.trust == "central":
            sums = 5 if method.rule == "aocs" else 1  # which share one charge
            released += np.sqrt(sums) * plan.norm_multiplier * clip * server_norm_noise
        if method.trust == "local":
            known = np.clip(lengths + plan.norm_multiplier * clip * norm_noise, 0, clip)
            released = known.sum()
    if method.rule in ("norm", "dpis"):
        used = min(max(released, plan.norm_low * m * clip), m * clip)
    if method.rule == "dpis" and plan.ladder:  # the highest rung that is not above K'
        steps = int(np.ceil(np.log(1 / plan.norm_low) / np.log(1.1)))
        sums = m * clip * np.geomspace(plan.norm_low, 1.0, 1 + steps)
        z = plan.ladder[max(k for k in range(len(sums)) if k == 0 or sums[k] <= used)]
    if method.rule == "ocs":
        used = water_level(known, b)
    if method.rule == "aocs":
        used = by_sums(plan, known, released, np.reshape(refine_noise, (-1, 2)))
    given = None  # probabilities that do not follow from one number
    if method.rule == "top-k":
        given = largest(np.round(known, 9), b)  # those that are clipped have one length
        used = min([p for p in given if p > 0], default=1.0)

    # the second coin, and what each sends
    at_clip = probability(plan, clip, used, 1 / plan.clients) if given is None else used
    total, variance, told = np.zeros(updates.shape[1]), 0.0, np.zeros(updates.shape[1])
    uploaded, expected = np.zeros(len(updates), bool), []
    for i in members:
        p = probability(plan, known[i], used, weights[i]) if given is None else given[i]
        uploaded[i] = coins[i] < p
        share, bound = 1.0, clip
        if method.estimator == "capped":
            bound = clip / at_clip
            share = 1 / p if p > 0 else 0.0
            if lengths[i] * share > bound:
                share = bound / lengths[i]
        if method.estimator == "horvitz-thompson":
            share, bound = (1 / p, clip / p) if p > 0 else (0.0, 0.0)
        expected.append(p * share)
        if uploaded[i]:
            total += share * clipped[i]
            variance += (z * bound) ** 2
            if update_noise.ndim == 2:
                told += z * bound * update_noise[i]
    if method.trust == "central":
        bound = clip / at_clip if method.estimator == "capped" else clip
        variance = (z * bound) ** 2
    if method.trust == "none":
        variance = 0.0
    count = None
    if method.rule == "coin":
        count = uploaded.sum() + (z / counted * count_noise if counted else 0.0)

    divisor = m if method.estimator in ("capped", "horvitz-thompson") else b
    std = np.sqrt(variance)
    return Round(
        update=(total + (told if update_noise.ndim == 2 else std * update_noise)) / divisor,
        cohort=np.zeros(0),
        uploaded=uploaded,
        norms=norms,
        released=released,
        used=used,
        signal=np.linalg.norm(total) / divisor,
        noise=std * np.sqrt(total.size) / divisor,
        expected_weight=float(np.mean(expected)) if expected else 0.0,
        count=count,
    )


def play_round(plan, work, widths, flat, population, randomness, t, update_of=None):
    """Round t at the weights `flat`, with the draws of the program. `update_of`: (client, what
    `client_update` is given) -> u_i, if it is another one."""
    update_of = update_of or (lambda client, *given: client_update(*given))
    arm_key = randomness.arm_key(plan.name)
    if randomness.simulated:
        host = randomness.host(plan.name, t, Purpose.COHORT)
        cohort = draw_cohort(host, plan.clients, plan.cohort / plan.clients)
        clients = jnp.asarray(cohort)
        drawn = draw_members(arm_key, t, clients, jnp.ones(len(cohort)))
        server = draw_server(arm_key, t, flat.size, 4)
        noises = (server.norm_noise, server.update_noise, server.count_noise, server.refine_noise)
        draws = (drawn.coins, drawn.norm_noise, *noises)
    else:  # the same draws in standard units
        secret, grid = draw_secret(randomness, plan, t, flat.size), grid_of(plan)
        cohort, clients = secret.cohort, jnp.asarray(secret.cohort)
        steps = grid.norm * (plan.sum_multiplier or 1.0)
        norm_noise = secret.norm_noise / steps
        draws = (
            secret.coins.astype(float) @ [2.0**-32, 2.0**-64],
            norm_noise,
            norm_noise,
            secret.update_noise / (np.ravel(grid.update)[-1] * plan.update_multiplier),
            secret.count_noise / (plan.count_noise or 1.0),
            secret.refine_noise / steps if secret.refine_noise.size else np.zeros((4, 2)),
        )
    keys = client_keys(draw_key(arm_key, t, Purpose.LOCAL), clients)
    updates = np.zeros((len(cohort), flat.size))
    for i, client in enumerate(cohort):
        features, labels = population.client(client)
        scaled = features.reshape(len(labels), -1).astype(float) * population.scale
        with np.errstate(invalid="ignore", over="ignore"):
            updates[i] = update_of(client, flat, widths, scaled, labels, work, keys[i])
    everyone = np.full(plan.clients, 1 / plan.clients) if plan.weights is None else plan.weights
    *draws, count, refine = (np.asarray(one, float) for one in draws)
    result = two_stages(plan, updates, *draws, np.asarray(everyone)[cohort], count, refine)
    result.cohort = cohort
    return result


# --- The server's step ------------------------------------------------


@dataclass
class Steps:
    """sgd, momentum or Adam (beta 0.9 and 0.999, 1e-8), and the mean of the last iterates."""

    server: object
    base: float
    flat: np.ndarray
    t: int = 0
    first: np.ndarray | float = 0.0
    second: np.ndarray | float = 0.0
    iterates: list = field(default_factory=list)

    def take(self, update):
        if self.server.optimizer == "momentum":
            self.first = self.server.momentum * self.first + update
            update = self.first
        if self.server.optimizer == "adam":
            self.first = 0.9 * self.first + 0.1 * update
            self.second = 0.999 * self.second + 0.001 * update**2
            mean = self.first / (1 - 0.9 ** (self.t + 1))
            update = mean / (np.sqrt(self.second / (1 - 0.999 ** (self.t + 1))) + 1e-8)
        falls = {
            "inverse-sqrt": 1 / np.sqrt(self.t + 1),
            "constant": 1.0,
            "linear": 1 - self.t / self.server.rounds,
        }
        self.flat = self.flat - self.base * falls[self.server.schedule] * update
        self.t += 1
        self.iterates.append(self.flat)

    def model(self):
        """The mean of those of the last `average_last` rounds that are done, else the last."""
        begin = self.server.rounds - self.server.average_last
        late = self.iterates[begin:] if self.server.average_last else []
        return np.mean(late, axis=0) if late else self.flat


def controlled(plan, counts):
    """The arm of the round after these released counts: b / r members, r from counts with a memory
    of some rounds, to the nearest rung of the ladder, whose noise it has."""
    b, m = plan.uploads, plan.cohort
    cohorts = np.geomspace(b, m, 1 + int(np.ceil(np.log(m / b) / np.log(1.1))))
    counted = asked = 5 * b
    for count in [*counts, 0.0]:
        share = min(1.0, max(counted / asked, b / m))
        k = int(np.argmin(np.abs(np.log(cohorts / (b / share)))))
        noise = plan.ladder[k] * np.sqrt(1.01) / 0.1  # on the count of this rung
        memory = max(5.0, (b + noise**2) / (0.2 * b) ** 2)
        counted = (1 - 1 / memory) * counted + count
        asked = (1 - 1 / memory) * asked + cohorts[k]
    size = min(cohorts[k], plan.clients)
    return plan.changed(cohort=size, uploads=size, noise_multiplier=plan.ladder[k], ladder=())


def play(plan, work, server, widths, flat, population, randomness):
    """All rounds: (the rounds, the models after each of them, the steps taken)."""
    steps, clip = Steps(server, plan.step, np.asarray(flat, float)), plan.clip_norm
    rounds, models = [], []
    for t in range(server.rounds):
        asked = controlled(plan, [one.count for one in rounds]) if plan.controlled else plan
        now = replace(asked, clip_norm=clip)
        found = play_round(now, work, widths, steps.flat, population, randomness, t)
        rounds.append(found)
        steps.take(found.update)
        models.append(steps.model())
        if plan.clip_quantile is not None:
            clip = next_clip(now, found.norms, bit_noise(plan, randomness, t))
    return rounds, models, steps


def bit_noise(plan, randomness, t):
    """Standard normal, as the program draws it."""
    if randomness.simulated:
        return float(draw_server(randomness.arm_key(plan.name), t, 1).clip_noise)
    drawn, grid = draw_secret(randomness, plan, t, 1), grid_of(plan)
    return float(drawn.clip_noise) / (grid.bits * plan.clip_multiplier)


def next_clip(plan, norms, noise):
    """Andrew et al. 2021: if more than the quantile are within C, it falls."""
    bits = np.where(norms <= plan.clip_norm, 0.5, -0.5)
    std = plan.clip_multiplier / 2 if plan.trust == "central" else 0.0
    share = 0.5 + (bits.sum() + std * noise) / plan.cohort
    return plan.clip_norm * np.exp(-plan.clip_rate * (share - plan.clip_quantile))
