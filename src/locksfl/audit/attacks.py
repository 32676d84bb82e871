"""Attacks on the implementation itself: is the claimed epsilon at least not refuted?

The rounds that are attacked are `algorithm.play` with the coins and the noise of `draws`, on
synthetic clients: the code of a seeded run. A canary's raw update is ten times the clip
norm, so that clipping is attacked too; the other clients have zero updates, which is the worst case
for it. The attacker knows all that is public (multipliers, clip norm, rates), and its score is the
likelihood ratio of what it sees, summed over the rounds:

| trust   | observer | sees                              | ln of the ratio, one round           |
|---------|----------|-----------------------------------|--------------------------------------|
| central | PUBLIC   | K~, the update and the count      | ln((1-q) + q e^(ax - a^2/2) M(y))    |
| local   | SERVER   | each message, and who uploads     | the clipped norm's + c y - c^2/2     |
| local   | PUBLIC   | the update, and how many uploaded | ln M(y), with q p instead of p       |

with M(y) = (1-p) + p e^(cy - c^2/2);
x and y in standard deviations of their noise, y along the canary; a = 1/z_K, c = 1/z; p is the
canary's own probability at the released K'. With a released count k, M has another shift of the
same uploads, e^(cy - c^2/2 + bk - b^2/2). A rule that refines its public number has two more sums
for each refinement, of which the canary shifts one: their ratios multiply that of x.

Zero-out: the canary's update against zero. Replace: against its negative, whose norm is the same
(so a norm release shows under zero-out only).

Where a public schedule says when clients may take part, the noise of rounds may be correlated
(methods/cyclic.py). What was released is multiplied with C, which makes it independent; PUBLIC then
adds up c m y - c^2 m^2/2 over the rounds from one chance of the canary to its next, m its shift of
each: C times 1 in that chance, 0 in others; and mixes it with 0, if a coin decides.

An audit can refute a claim. It cannot prove one: see docs/audit.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.audit import bounds
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.methods.cyclic import decorrelated
from locksfl.methods.releases import Observer
from locksfl.methods.trusts import Trust
from locksfl.privacy import Cost
from locksfl.round.algorithm import (
    Facts,
    GivenClients,
    RoundResult,
    Uploads,
    contribution_bounds,
    play,
    upload_probability,
)
from locksfl.round.draws import correlate, draw_cohort, draw_members, draw_server
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Purpose, Randomness

SIZE = 2  # parameters of the attacked model: noise beside the canary's direction tells nothing
SLOTS = 8  # clients: the canary, and seven that stand for all the others
RAW = 10.0  # the canary's norm before clipping, in clip norms
WORLDS = {"in": 1.0, "out": 0.0, "negated": -1.0}  # what the canary's update is times
BATCH = 10_000
ONE_RUN_DELTA = 1e-3  # over the canaries: that bound charges 2 delta for every one of them
# threefry takes longer to optimise than to run 50,000 times
QUICKLY_COMPILED = {"xla_backend_optimization_level": 1}
_jit = functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)


@dataclass(frozen=True)
class Finding:
    """One attack: the claim, what was proved, and the most that could have been."""

    arm: str  # its name
    observer: str  # who attacks
    relation: str  # of the two worlds
    attack: str
    rounds: int  # that were attacked
    samples: int  # repetitions of each world, or canaries
    delta: float  # at which the claim is tested
    claimed: float  # the epsilon that the accountant gives these rounds
    lower: float  # epsilon is at least this, with the stated confidence
    largest: float  # that the test could have certified
    problem: str | None = None  # why nothing could be scored: that is a failure too

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, or could not be tested."""
        return self.problem is not None or self.lower > self.claimed


class Orthogonal(GivenClients):
    """Canaries of one run: client i's update lies along coordinate i."""

    def __init__(self, norms: Array, given: Facts) -> None:
        self.norms, self.given = norms, given

    def combined(self, coefficient: Array) -> Array:
        """Each has a coordinate for itself."""
        return coefficient * self.norms


def extreme_facts(arm: Arm, norms: Array, size: int) -> Facts:
    """Facts for which a canary has the largest score of any rule of ours, and a client without an
    update the least that its rule allows: a large loss and spread, and an update against v, beside
    no loss, no spread and an update that is v, too short to count."""
    short = 1e-6 * arm.clip_norm
    there = norms > 0
    public = {"last_norm": short, "sum": 0.0, "last_sum": 0.0, "size": 1.0, "parameters": size}
    return {
        **dict.fromkeys(("loss", "rms_loss", "spread"), jnp.where(there, 1e6, 0.0)),
        "norm": jnp.where(there, norms, short),
        "along": jnp.where(there, -norms, short) * short,
        **{name: jnp.full(norms.shape, value) for name, value in public.items()},
    }


def shifts(arm: Arm, used: Array) -> tuple[float, Any]:
    """a and c: the canary's shifts of x and, at this K', of y, in standard deviations."""
    norm = 1 / arm.sum_multiplier if arm.releases_norms else 0.0
    return norm, 1 / arm.dials().at_public(used, jnp).noise_multiplier


def canary_weight(arm: Arm) -> float:
    """The canary's public weight: the largest."""
    return float(np.max(arm.scaled_weights()))


def canary_probability(arm: Arm, score: Array, used: Array) -> Array:
    """The canary's upload probability at this score; of probabilities that do not follow from one
    score, the least, which in a cohort of one is the canary's."""
    if arm.parts[0].jointly:
        return used
    dials = arm.dials().at_public(used, jnp)
    return upload_probability(arm.method, score, used, jnp.float32(canary_weight(arm)), dials)


def in_deviations(arm: Arm, value: Array, used: Array, p: Array) -> Array:
    """A number of the averaged update, in standard deviations of one noise."""
    _, estimator, _ = arm.parts
    dials = arm.dials().at_public(used, jnp)
    std = dials.noise_multiplier * contribution_bounds(arm.method, p, used, dials)
    return value * estimator.divisor(dials) / std


class Seen(NamedTuple):
    """What a round shows, an entry for each repetition and round."""

    released: Array  # K~
    used: Array  # K'
    along: Array  # the averaged update along the canary
    uploads: Array  # how many uploaded
    canary: Array  # whether the canary did: the server's knowledge
    counted: Array  # the released number of uploads; NaN if there is none
    refined: Any = None  # [refinements, 2] the sums by which K' was refined


Score = Callable[[Arm, str, Seen], Array]
Bound = Callable[..., float]  # of piles of scores


def _log_mixture(rate: Array | float, log_ratio: Array) -> Array:
    """ln((1 - rate) + rate e^log_ratio), even at rate 1."""
    log_rest = jnp.where(jnp.asarray(rate) < 1, jnp.log1p(-jnp.minimum(rate, 1 - 1e-7)), -jnp.inf)
    return jnp.logaddexp(log_rest, jnp.log(rate) + log_ratio)


def refined_score(arm: Arm, seen: Seen) -> Array:
    """ln of the ratio of the sums that refine K': the canary shifts one of each pair."""
    rule, dials = arm.parts[0], arm.dials()
    score = jnp.zeros_like(seen.released)
    if rule.refine is None:
        return score
    used = rule.settle(seen.released, dials, jnp)
    for k in range(rule.refinements):
        below, certain = seen.refined[..., k, 0], seen.refined[..., k, 1]
        p = canary_probability(arm, dials.clip_norm, used)
        shifted = jnp.where(p < 1, below, certain)
        score += (p * shifted - p * p / 2) / arm.sum_multiplier**2
        used = rule.refine(used, below, certain, dials, jnp)
    return score


def public_score(arm: Arm, relation: str, seen: Seen) -> Array:
    """PUBLIC: both sums of central trust together; of local trust the average alone, with the
    noise of all who uploaded."""
    clip = arm.dials().clip_norm
    a, of_one = shifts(arm, seen.used)
    noises: Any = 1.0
    refined = refined_score(arm, seen) if arm.parts[2].server_adds_noise else 0.0
    if arm.parts[2].clients_add_noise:
        a, noises = 0.0, jnp.sqrt(jnp.maximum(1.0, seen.uploads))
    p = canary_probability(arm, clip, seen.used)
    x = seen.released * a / clip
    y, c = in_deviations(arm, seen.along, seen.used, p) / noises, of_one / noises
    counted: Any = 0.0
    if arm.count_noise:  # the others have no update, so that none of them uploads by its norm
        counted = (seen.counted - 0.5) / arm.count_noise**2

    def world(sign: float) -> Array:
        inner = _log_mixture(p, sign * c * y - c * c / 2 + counted)
        return _log_mixture(arm.sampling_rate, a * x - a * a / 2 + refined + inner)

    return world(1.0) - (world(-1.0) if relation == "replace" else 0.0)


def scheduled_score(arm: Arm, relation: str, seen: Seen) -> Array:
    """PUBLIC, with a public schedule: rounds as they would be with independent noise."""
    coefficients, apart = arm.strategy or (1.0,), arm.scheme.apart(arm)
    rounds = seen.along.shape[1]
    turn = jnp.arange(rounds) % apart == 0
    y = in_deviations(arm, seen.along, seen.used, jnp.ones(()))
    y, m = decorrelated(jnp.stack([y, jnp.broadcast_to(turn, y.shape)]), coefficients, jnp)
    c = m / arm.update_multiplier

    def world(sign: float) -> Array:
        each = jnp.pad(sign * c * y - c * c / 2, ((0, 0), (0, -rounds % apart)))
        by_chance = each.reshape(len(each), -1, apart).sum(axis=2)
        return _log_mixture(arm.scheme.rate(arm), by_chance)

    return world(1.0) - (world(-1.0) if relation == "replace" else 0.0)


def server_score(arm: Arm, relation: str, seen: Seen) -> Array:
    """SERVER, local trust: one client's own messages, from a cohort of one."""
    a, c = shifts(arm, seen.used)
    p = canary_probability(arm, seen.released, seen.used)
    y = in_deviations(arm, seen.along, seen.used, p)
    if relation == "replace":
        return jnp.where(seen.canary, 2 * c * y, 0.0)
    score = jnp.where(seen.canary, c * y - c * c / 2, 0.0)
    if a:  # the norm as sent: a Gaussian, with its tails gathered at 0 and at C
        r = seen.released / arm.dials().clip_norm
        end = jnp.log(0.5) - log_ndtr(jnp.float32(-a))
        score += jnp.where(r <= 0, -end, jnp.where(r >= 1, end, (r - 0.5) * a * a))
    return score


def attacks_on(trust: Trust) -> dict[Observer, tuple[Score, int]]:
    """The score of each observer that the trust protects from, and the clients of its rounds."""
    if not trust.private:
        return {}
    public: dict[Observer, tuple[Score, int]] = {"PUBLIC": (public_score, SLOTS)}
    return {"SERVER": (server_score, 1), **public} if trust.guards_server else public


def draw_cohorts(
    randomness: Randomness,
    arm: str,
    batch: int,
    shape: tuple[int, int],
    rate: float,
    clients: int,
    apart: int = 1,
) -> np.ndarray:
    """Client numbers [*shape, clients], -1 for who was not drawn, by the run's own first sample.

    It tosses independent coins, so one call for all clients of all repetitions is many calls. If
    the chances of a client are some rounds apart, the canary has the first one, and so the most.
    """
    rng = randomness.host(arm, batch, Purpose.COHORT)
    there = np.zeros(shape[0] * shape[1] * clients, bool)
    there[draw_cohort(rng, there.size, rate)] = True
    ahead = np.arange(shape[1])[:, None] - np.arange(clients)
    there = there.reshape(*shape, clients) & (ahead % apart == 0)
    return np.where(there, np.arange(clients), -1).astype(np.int32)


def one_round(
    arm: Arm,
    clients: GivenClients,
    arm_key: Array,
    t: Array | int,
    numbers: Array,
    size: int,
    recent: Any = None,
) -> tuple[RoundResult, Uploads, Any]:
    """A round as it is played in training, with its own draws; `recent`: see
    `draws.correlate`."""
    weights = jnp.where(jnp.arange(numbers.shape[0]) == 0, canary_weight(arm), 1.0)
    members = draw_members(arm_key, t, numbers, weights)
    server = draw_server(arm_key, t, size, arm.parts[0].refinements)
    server, recent = correlate(server, recent, arm.strategy)
    result, uploads, _ = play(arm.method, clients, members, FloatSums(server), arm.dials())
    return result, uploads, recent


def repeated_rounds(
    arm: Arm, observer: Observer, slots: int, rounds: int, repetitions: int, randomness: Randomness
) -> dict[str, Seen]:
    """What an observer sees of independent repetitions of an arm's rounds, by world.

    Args:
        arm: the attacked arm, with its multipliers.
        observer: who looks.
        slots: clients of a round, the canary first.
        rounds: rounds of one repetition.
        repetitions: of each world.
        randomness: source of all draws.

    Returns:
        For each world of WORLDS what is seen, [repetitions, rounds] each.
    """

    # made anew for every audit, so that what is attacked is the code as it is now
    @_jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def repetition(updates: Array, arm_key: Array, cohorts: Array) -> Seen:
        def one(recent: Any, at: tuple[Array, Array]) -> tuple[Any, Seen]:
            norms = jnp.linalg.norm(updates, axis=1)
            clients = GivenClients(updates, given=extreme_facts(arm, norms, SIZE))
            result, uploads, recent = one_round(arm, clients, arm_key, *at, SIZE, recent)
            return recent, Seen(
                result.released_norm_sum,
                result.used_norm_sum,
                result.update[0],
                jnp.sum(uploads.uploaded),
                uploads.uploaded[0],
                result.released_count,
                result.refined,
            )

        every = (jnp.arange(rounds), cohorts)
        if arm.strategy:  # one round after another
            return jax.lax.scan(one, jnp.zeros((len(arm.strategy) - 1, SIZE)), every)[1]
        return jax.vmap(lambda *at: one(None, at)[1])(*every)

    seen = {}
    for world, sign in WORLDS.items():
        updates = jnp.zeros((slots, SIZE)).at[0, 0].set(sign * RAW * arm.clip_norm)
        name = f"audit-{observer}-{world}-{arm.name}"
        keys = jax.random.split(randomness.arm_key(name), repetitions)
        batches = []
        for start in range(0, repetitions, BATCH):
            part = keys[start : start + BATCH]
            shape = (len(part), rounds)
            if observer == "SERVER":  # it knows whom it asked; the claim is for every round
                cohorts = np.zeros((*shape, 1), np.int32)
            else:
                how = (arm.scheme.rate(arm), slots, arm.scheme.apart(arm))
                cohorts = draw_cohorts(randomness, name, start, shape, *how)
            batch = repetition(updates, part, jnp.asarray(cohorts))
            batches.append(jax.tree.map(np.asarray, batch))
        seen[world] = jax.tree.map(lambda *a: np.concatenate(a), *batches)
    return seen


def one_run_scores(
    arm: Arm, rounds: int, canaries: int, randomness: Randomness
) -> tuple[np.ndarray, np.ndarray]:
    """(scores, who was in) of many canaries in one run of central trust, against PUBLIC.

    The population is the canaries: cohort and uploads grow with it, so q, p and the charge stay.
    """
    rate, share = arm.sampling_rate, arm.uploads / arm.cohort
    cohort = rate * canaries
    scaled = replace(arm, clients=canaries, cohort=cohort, uploads=share * cohort)
    name = f"audit-one-run-{arm.name}"
    inside = randomness.host(name, 0, Purpose.MODEL).random(canaries) < 0.5
    norms = jnp.where(inside, RAW * arm.clip_norm, 0.0)
    arm_key = randomness.arm_key(name)
    cohorts = draw_cohorts(randomness, name, 1, (1, rounds), rate, canaries)[0]

    @_jit
    def one(t: Array, numbers: Array) -> Array:
        clients = Orthogonal(norms, extreme_facts(scaled, norms, canaries))
        result, *_ = one_round(scaled, clients, arm_key, t, numbers, canaries)
        p = canary_probability(scaled, scaled.dials().clip_norm, result.used_norm_sum)
        y = in_deviations(scaled, result.update, result.used_norm_sum, p)
        _, c = shifts(scaled, result.used_norm_sum)
        return _log_mixture(rate * p, c * y - c * c / 2)

    score = sum(np.asarray(one(jnp.int32(t), jnp.asarray(cohorts[t]))) for t in range(rounds))
    return np.asarray(score, np.float64), inside


def planned_attacks(arm: Arm, canaries: int) -> int:
    """How many bounds `audit_arm` gives, for the confidence of all of them together."""
    return 2 * len(attacks_on(arm.parts[2])) + _one_run(arm, canaries)


def _one_run(arm: Arm, canaries: int) -> bool:
    """Whether many canaries in one run are an attack of its own."""
    coins = arm.parts[2].amplified and arm.scheme.group is None
    return coins and arm.weights is None and canaries > 0


def audit_arm(
    arm: Arm,
    privacy: PrivacyConfig,
    *,
    rounds: int,
    repetitions: int,
    canaries: int,
    significance: float,
    randomness: Randomness,
) -> list[Finding]:
    """Every attack on an arm; each bound holds with probability 1 - significance."""

    def finding(
        claim: Cost, attack: str, samples: int, bound: Bound, largest: float, *scores: Floats
    ) -> Finding:
        what = (arm.name, claim.observer, claim.relation, attack, rounds, samples, claim.delta)
        if missing := sum(int(np.isnan(score).sum()) for score in scores):
            total = sum(score.size for score in scores)
            problem = f"{missing:,} of {total:,} scores are not numbers"
            return Finding(*what, claim.epsilon, 0.0, largest, problem)
        # far beyond any threshold, but finite: quantiles are interpolated
        finite = (np.clip(score, -1e9, 1e9) for score in scores)
        lower = bound(*finite, delta=claim.delta, significance=significance)
        return Finding(*what, claim.epsilon, lower, largest)

    findings, played = [], [replace(arm, rounds=rounds)]
    for observer, (score, slots) in attacks_on(arm.parts[2]).items():
        seen = repeated_rounds(arm, observer, slots, rounds, repetitions, randomness)
        for claim in statement(played, privacy):
            if np.isinf(claim.epsilon) or claim.observer != observer:
                continue
            worlds = ("in", "out" if claim.relation == "zero-out" else "negated")
            score = scheduled_score if arm.scheme.group else score
            each = (score(arm, claim.relation, seen[world]) for world in worlds)
            first, second = (np.asarray(one, np.float64).sum(axis=1) for one in each)
            largest = bounds.largest_repeated(repetitions, claim.delta, significance)
            how = ("repeated rounds", repetitions, bounds.repeated_bound)
            findings.append(finding(claim, *how, largest, first, second))
    if _one_run(arm, canaries):
        small = replace(privacy, delta=min(privacy.delta, ONE_RUN_DELTA / canaries))
        claim = next(c for c in statement(played, small) if c.observer == "PUBLIC")
        scores, inside = one_run_scores(arm, rounds, canaries, randomness)
        largest = bounds.largest_one_run(canaries, claim.delta, significance)
        bound = functools.partial(bounds.one_run_bound, present=inside)
        findings.append(finding(claim, "one run", canaries, bound, largest, scores))
    return findings
