"""The simulator itself, played on clients whose updates are known: what it released, what it drew,
and what the arm states that it should have.

A record (k, v) of the model here has the gradient v e_k, whatever the weights are. So each client
moves a coordinate of its own by a known length, and every other coordinate of the model is noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.methods.cyclic import decorrelated
from locksfl.methods.dials import Dials
from locksfl.methods.estimators import SMALLEST_NORM
from locksfl.methods.rules import Facts
from locksfl.models.build import Model
from locksfl.round.client import LocalWork
from locksfl.round.draws import draw_members, grid_of
from locksfl.round.noise import SystemNoise
from locksfl.round.randomness import Purpose, Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

Bools = npt.NDArray[np.bool_]

# lengths of the updates at clip norm 1: none, short, long, absurd and broken
LENGTHS = (0.3, 1.0, 10.0, 0.7, 1e6, 0.0, 2.0, np.nan)
ROWS = (1, 1, 4, 1, 4, 4, 4, 1)  # records of each: two size classes, a long update in both
LOSS = 100.0  # of every record
PLAIN = 20.0  # deviations of a contribution that shows through its noise
COHORT, MOST = 14, 600  # the expected cohort, and the largest population
PLANNED = 10**6  # rounds: more than are played


def known_gradients(size: int) -> Model:
    """A model in which a record (k, v) has the gradient v e_k."""

    def apply(weights: jax.Array, records: jax.Array) -> jax.Array:
        place, value = records[:, 0].astype(jnp.int32), records[:, 1]
        moved = value * weights[place]
        # the loss of label 0 is softplus of the second score, which at 100 has slope 1
        second = moved - jax.lax.stop_gradient(moved) + LOSS
        return jnp.stack([jnp.zeros_like(second), second], axis=-1)

    return Model("known", size, lambda key: jnp.zeros(size), lambda flat: flat, apply)


def population(lengths: Floats, rows: npt.NDArray[np.int64], first: int) -> Population:
    """Clients whose update is `lengths[i]` along coordinate first + i, as the mean of `rows[i]`
    records."""
    owner = np.repeat(np.arange(len(lengths)), rows)
    records = np.stack([first + owner, lengths[owner]], axis=1).astype(np.float32)
    labels = np.zeros(len(owner), np.int64)
    return Population.from_split(records, labels, owner, records[:1], labels[:1], classes=2)


def smaller(arm: Arm, clients: int, **other: Any) -> Arm:
    """The arm on fewer clients: the rates, the shares and so the charge of a round stay."""
    cohort = arm.sampling_rate * clients
    weights = arm.weights
    if weights is not None:
        spread = np.quantile(weights, np.linspace(0, 1, clients))
        weights = tuple(spread / spread.sum())
    settings: dict[str, Any] = {
        "clients": clients,
        "cohort": cohort,
        "uploads": arm.uploads / arm.cohort * cohort,
        "weights": weights,
        "step": 1.0,
        "budget": None,
    }
    return arm.changed(**settings | other)


@dataclass(frozen=True)
class Transcript:
    """What was played. T rounds of n clients, in B blocks: the model is seen when a block ends."""

    arm: Arm  # as it was played
    lengths: Floats  # [n] of the updates, before clipping
    member: Bools  # [T, n]
    uploaded: Bools  # [T, n]
    seen: Bools  # [T, n] whether `uploaded` is known: logged, or plain from the model
    released: Floats  # [T] K~
    used: Floats  # [T] K'
    counts: Floats  # [T] the released number of uploads; NaN if there is none
    clips: Floats  # [T + 1] the clip norms, that of the next round too
    block: npt.NDArray[np.int64]  # [T] the block of each round
    sums: Floats  # [B, d] what the blocks added to the model, times the divisor
    own: slice  # the coordinates of the clients
    asked: Floats  # [T] the expected cohort, which rate control chooses
    refined: Floats  # [T, refinements, 2] the sums by which the rule refined K'
    values_released: Floats | None = None  # [T, n] what members released, where a rule compares it

    def dials(self) -> Dials:
        """The arm's numbers in every round, each [T, 1] if the clip norm, K' or the rate has a part
        in it."""
        dials = self.arm.dials(float)
        if self.arm.controlled:
            known = {one.cohort: one.dials(float) for one in self.arm.at_rungs()}
            each = np.array([known[cohort]._replace(ladder=0.0) for cohort in self.asked])
            dials = Dials(*each.T[:, :, None])._replace(ladder=None)
        dials = dials.at_clip(self.clips[:-1, None], np)
        return dials.at_public(self.used[:, None], np)

    @property
    def clipped(self) -> Floats:
        """[T, n] the norms of the clipped updates; a broken one counts as zero."""
        lengths, clips = np.nan_to_num(self.lengths, nan=0.0), self.clips[:-1, None]
        if self.arm.lengths == "equal":
            return np.where(lengths >= SMALLEST_NORM, clips, 0.0)
        return np.minimum(lengths, clips)


def asked_values(played: Transcript) -> Floats:
    """[T, n] what the rule asks of each client: the norm of its clipped update, or the score of its
    facts, which the model here makes known. A rule that asks about the last update needs blocks of
    one round."""
    rule, dials = played.arm.parts[0], played.dials()
    if rule.score is None:
        return played.clipped
    lengths, broken = np.nan_to_num(played.lengths, nan=0.0), np.isnan(played.lengths)
    divisor = float(played.arm.parts[1].divisor(played.arm.dials(float)))
    last = np.zeros((len(played.member), played.sums.shape[1]))
    if rule.remembers:
        last[1:] = played.sums[:-1] / divisor
    facts = {
        "norm": lengths,
        **dict.fromkeys(("loss", "rms_loss"), np.where(broken, np.nan, LOSS)),
        "spread": np.where(broken, np.nan, 0.0),  # all records of a client are alike
        "size": 1.0,
        "sum": lengths,
        "along": lengths * last[:, played.own],
        "last_norm": np.linalg.norm(last, axis=1, keepdims=True),
        "last_sum": np.sum(last, axis=1, keepdims=True),
        "parameters": float(last.shape[1]),
    }
    asked = cast(Facts, {name: facts[name] for name in rule.facts})
    scores = np.broadcast_to(np.nan_to_num(rule.score(asked, dials, np)), played.member.shape)
    return np.clip(scores, 0.0, dials.clip_norm)


class Watched(Simulator):
    """The simulator, with a look at the cohorts that it plays, which a secret run does not log."""

    cohorts: list[np.ndarray]

    def slots(self, cohorts: list[np.ndarray], *rest: Any) -> np.ndarray:
        """The client in each slot; the cohorts are kept."""
        self.cohorts = cohorts
        return super().slots(cohorts, *rest)


class Engine:
    """A population of known updates on the devices, for the arms of one method."""

    def __init__(self, arm: Arm, size: int, clients: int | None = None) -> None:
        # where each client adds noise, a cohort costs as many draws as it has members
        cohort = COHORT / 2 if arm.parts[2].clients_add_noise else COHORT
        enough = clients or int(np.clip(round(cohort / arm.sampling_rate), len(LENGTHS), MOST))
        self.clients, self.size, self.arm = enough, size, arm
        tile = np.arange(enough) % len(LENGTHS)
        self.lengths = np.asarray(LENGTHS)[tile]
        rows = np.ones(enough, int) if clients else np.asarray(ROWS)[tile]  # one class is quicker
        # not the first: those would be equal to another noise that is drawn in the same way
        first = min(size // 3, size - enough)
        self.own = slice(first, first + enough)
        self._simulator = Watched(population(self.lengths, rows, first), known_gradients(size))

    def play(
        self, name: str, rounds: int, randomness: Randomness, *, every: int = 1, **dials: Any
    ) -> Transcript:
        """Play an arm of this name with some numbers changed; a block is at most `every` rounds."""
        if self.arm.parts[0].remembers:
            every = 1
        rounds = -(-rounds // every) * every
        arm = smaller(self.arm, self.clients, name=name, rounds=rounds, **dials)
        server = Server(schedule="constant", rounds=PLANNED)  # a program belongs to a number
        blocks = self._simulator.play(
            arm, LocalWork(), server, randomness, evaluate_every=PLANNED, pause_every=every
        )
        before, logs, cohorts = np.zeros(self.size), [], []
        sums: list[Floats] = []
        block: list[int] = []
        for done in blocks:
            after = np.asarray(done.state.weights, np.float64)
            block += [len(sums)] * len(done.rounds)
            sums.append(before - after)
            before = after
            logs += done.rounds
            cohorts += self._simulator.cohorts
            if len(logs) >= rounds:
                break
        shape = (len(logs), self.clients)
        member, uploaded, seen = (np.zeros(shape, bool) for _ in range(3))
        for t, (log, cohort) in enumerate(zip(logs, cohorts, strict=True)):
            member[t, cohort if log.uploaded is None else log.cohort] = True  # who could pay
            if log.uploaded is not None:
                uploaded[t, log.cohort], seen[t] = log.uploaded, True
        clips = np.full(len(logs) + 1, arm.clip_norm)
        if arm.clip_quantile is not None:
            clips = np.array([*(log.clip_norm for log in logs), done.state.clip_norm], np.float64)

        def column(name: str) -> Floats:
            return np.array([getattr(log, name) for log in logs], np.float64)  # None is NaN

        played = Transcript(
            arm,
            self.lengths,
            member,
            uploaded,
            seen,
            column("released_norm_sum"),
            column("used_norm_sum"),
            column("released_count"),
            clips,
            np.array(block),
            np.array(sums),
            self.own,
            np.array([log.expected_cohort or arm.cohort for log in logs]),
            column("refined"),
        )
        divisor = arm.parts[1].divisor(played.dials())
        played = replace(played, sums=played.sums * divisor)
        if compares_released(arm):
            return replace(played, values_released=released_values(played, randomness))
        return played if seen.all() else inferred(played)


def compares_released(arm: Arm) -> bool:
    """Whether a probability follows from what all members released: then a little noise on one
    value can change another client's probability by much, and true values do not give it."""
    rule, _, trust = arm.parts
    return trust.clients_add_noise and not rule.from_one_sum


def released_values(played: Transcript, randomness: Randomness) -> Floats:
    """[T, n] the values that the members released, by the noise that the run drew."""
    arm, clip = played.arm, played.arm.clip_norm
    values, noise = asked_values(played), np.zeros(played.member.shape)
    if randomness.simulated:
        key, everyone = randomness.arm_key(arm.name), jnp.arange(values.shape[1])

        @jax.jit
        @jax.vmap
        def drawn(t: jax.Array) -> jax.Array:
            return draw_members(key, t, everyone, jnp.ones(everyone.shape)).norm_noise

        noise = arm.norm_multiplier * np.asarray(drawn(jnp.arange(len(noise))), np.float64)
    else:
        steps = float(grid_of(arm).norm)
        values = clip / steps * np.floor(values * steps / clip)
        for t, there in enumerate(played.member):
            source = SystemNoise(randomness.stream(arm.name, t, Purpose.NORM_NOISE))
            noise[t, there] = source.steps(arm.norm_multiplier, 1 / steps, there.sum()) / steps
    return np.clip(values + clip * noise, 0.0, clip)


def inferred(played: Transcript) -> Transcript:
    """Who uploaded, where the model shows it: one round at a time, and a contribution far above the
    noise on it."""
    if len(played.sums) < len(played.member):
        return played
    expected = expected_of(replace(played, uploaded=played.member))
    own = played.sums[:, played.own]
    uploaded = played.member & (np.abs(own - expected.contribution) < np.abs(own))
    return replace(
        played,
        uploaded=uploaded,
        seen=np.abs(expected.contribution) > PLAIN * expected.std[:, None],
    )


class Expected(NamedTuple):
    """What the arm states of the rounds of a transcript, in float64, without the round's code."""

    norm_sum: Floats  # [T] of the members' clipped norms, or scores
    probability: Floats  # [T, n] of an upload
    contribution: Floats  # [T, n] along a client's own coordinate, if it uploaded
    std: Floats  # [T] of the noise on each coordinate of the sum
    bound: Floats  # [T] of a client with norm C: the unit of central noise


def expected_of(played: Transcript, scores: Floats | None = None) -> Expected:
    """What follows from the arm's numbers, from who was drawn and from K'.

    Args:
        played: the transcript.
        scores: [T, n] what the rule knows of each client; without it, what members released or,
            if that is not known, the true norms or scores.
    """
    arm, dials, shape = played.arm, played.dials(), played.member.shape
    rule, estimator, trust = arm.parts
    assert estimator.bound is not None  # a private arm
    clip, most = np.broadcast_to(dials.clip_norm, shape), dials.largest_probability
    clipped, values = played.clipped, asked_values(played)
    public = np.broadcast_to(played.used[:, None], shape)
    weights = np.broadcast_to(np.asarray(arm.scaled_weights(), np.float64), shape)
    known = played.values_released if scores is None else scores
    own = np.broadcast_to(values if known is None else known, shape)
    if rule.asks is None:
        own = np.zeros(shape)

    def chance(own: Floats, weights: Floats) -> Floats:
        if rule.jointly:
            return compared(played, own)
        p = np.broadcast_to(rule.probability(own, public, weights, dials, np), shape)
        return np.clip(np.nan_to_num(p), 0.0, most)

    p = chance(own, weights)
    at_clip = public if rule.jointly else chance(clip, np.ones(shape))
    at_most = estimator.bound(at_clip, at_clip, clip, np)
    bounds = estimator.bound(p, at_clip, clip, np) if estimator.own_bound else at_most
    weight = np.nan_to_num(estimator.weight(clipped, p, bounds, np))
    contribution = np.where(played.uploaded, np.clip(weight * clipped, -bounds, bounds), 0.0)
    bound = at_most[:, 0]
    std = np.broadcast_to(dials.noise_multiplier, shape)[:, 0] * bound
    if trust.clients_add_noise:
        std = arm.update_multiplier * np.sqrt(np.sum(np.where(played.uploaded, bounds**2, 0.0), 1))
    return Expected(np.sum(np.where(played.member, values, 0.0), 1), p, contribution, std, bound)


def refining(played: Transcript) -> Floats:
    """[T, refinements, 2] the sums by which K' was refined as they are without noise, each given
    the releases before it."""
    rule, dials, sums = played.arm.parts[0], played.dials(), np.zeros(played.refined.shape)
    used, own = rule.settle(played.released[:, None], dials, np), asked_values(played)
    weights = np.asarray(played.arm.scaled_weights(), np.float64)
    for k, pair in enumerate(np.moveaxis(played.refined, 1, 0)):
        p = np.minimum(rule.probability(own, used, weights, dials, np), dials.largest_probability)
        p = np.where(played.member, p, 0.0)
        sums[:, k] = np.stack([np.sum(p * (p < 1), axis=1), np.sum(p >= 1, axis=1)], axis=1)
        assert rule.refine is not None
        used = rule.refine(used, pair[:, :1], pair[:, 1:], dials, np)
    return sums


def compared(played: Transcript, own: Floats) -> Floats:
    """[T, n] the probabilities of a rule that looks at all members at once."""
    rule, dials = played.arm.parts[0], played.arm.dials(float)
    rounds = zip(np.where(played.member, own, 0.0), played.member, strict=True)
    return np.array([rule.probability(row, 0.0, there * 1.0, dials, np) for row, there in rounds])


def residual(played: Transcript, expected: Expected) -> Floats:
    """[B, d] what the blocks added beyond the contributions, in standard deviations of the noise
    that is stated; blocks without any noise are left out. What is correlated over rounds is made
    independent."""
    blocks, clients = played.sums.shape[0], played.member.shape[1]
    summed, variance = np.zeros((blocks, clients)), np.zeros(blocks)
    np.add.at(summed, played.block, expected.contribution)
    np.add.at(variance, played.block, expected.std**2)
    beyond = played.sums.copy()
    beyond[:, played.own] -= summed
    there = variance > 0
    deviations = beyond[there] / np.sqrt(variance[there])[:, None]
    strategy = played.arm.strategy
    return decorrelated(deviations.T, strategy, np).T if strategy else deviations
