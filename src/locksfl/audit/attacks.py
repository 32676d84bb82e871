"""Attacks on the implementation itself: is the claimed epsilon at least not refuted?

The rounds that are attacked are `algorithm.play` with the coins and the noise of `mechanisms` and
`sampling`, on synthetic clients: the code that trains. A canary's raw update is ten times the clip
norm, so that clipping is attacked too; the other clients have zero updates, which is the worst case
for it. The attacker knows all that is public (multipliers, clip norm, rates), and its score is the
likelihood ratio of what it sees, summed over the rounds:

| trust   | observer | sees                              | ln of the ratio, one round           |
|---------|----------|-----------------------------------|--------------------------------------|
| central | PUBLIC   | K~ and the update                 | ln((1-q) + q e^(ax - a^2/2) M(y))    |
| local   | SERVER   | each message, and who uploads     | the clipped norm's + c y - c^2/2     |
| local   | PUBLIC   | the update, and how many uploaded | ln M(y), with q p instead of p       |

with M(y) = (1-p) + p e^(cy - c^2/2);
x and y in standard deviations of their noise, y along the canary; a = 1/z_K, c = 1/z; p is the
canary's own probability at the released K'. Zero-out: the canary's update against zero. Replace:
against its negative, whose norm is the same (so a norm release shows under zero-out only).

An audit can refute a claim. It cannot prove one: see docs/audit.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr

from locksfl.arm import Arm, Dials
from locksfl.audit import bounds
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.methods.releases import Observer
from locksfl.methods.trusts import Trust
from locksfl.round.algorithm import (
    GivenClients,
    RoundResult,
    Uploads,
    contribution_bounds,
    play,
    upload_probability,
)
from locksfl.round.draws import Members, draw_cohort, draw_members, draw_server
from locksfl.round.randomness import Purpose, Randomness

SIZE = 2  # parameters of the attacked model: noise beside the canary's direction tells nothing
SLOTS = 8  # clients: the canary, and seven that stand for all the others
RAW = 10.0  # the canary's norm before clipping, in clip norms
BATCH = 10_000
ONE_RUN_DELTA = 1e-3  # over the canaries: that bound charges 2 delta for every one of them
# threefry takes longer to optimise than to run 50,000 times
_COMPILE_QUICKLY: Any = {"xla_backend_optimization_level": 1}


@dataclass(frozen=True)
class Finding:
    """One attack: the claim, what was proved, and the most that could have been."""

    arm: str
    observer: str
    relation: str
    attack: str
    rounds: int
    samples: int  # repetitions of each world, or canaries
    delta: float
    claimed: float  # the epsilon that the accountant gives these rounds
    lower: float  # epsilon is at least this, with the stated confidence
    largest: float  # that the test could have certified

    @property
    def refuted(self) -> bool:
        """Whether the claim is false."""
        return self.lower > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "refuted": self.refuted}


class Orthogonal(GivenClients):
    """Canaries of one run: client i's update lies along coordinate i."""

    def __init__(self, norms: Array) -> None:
        self.norms = norms

    def weighted_sum(
        self, choose: Callable[[Array, Any], Uploads], each: Any, kept: Any
    ) -> tuple[Array, Uploads, Array]:
        """Sum of coefficient_i u_i: each has a coordinate for itself."""
        del kept
        uploads = choose(self.norms, each)
        return uploads.coefficient * self.norms, uploads, self.norms


@dataclass(frozen=True)
class Public:
    """What everybody knows of an arm: the attacker's whole knowledge beside what is released."""

    plan: Arm
    dials: Dials
    weight: float = 1.0  # the canary's public weight

    @property
    def norm_shift(self) -> float:
        """a: the canary's shift of x, in standard deviations."""
        return 1 / self.plan.norm_multiplier if self.plan.releases_norms else 0.0

    @property
    def shift(self) -> float:
        """c: its shift of y."""
        return 1 / self.plan.noise_multiplier

    def probability(self, score: Array, used: Array) -> Array:
        """The canary's upload probability at this score."""
        weight = jnp.float32(self.weight)
        return upload_probability(self.plan.method, score, used, weight, self.dials)

    def in_deviations(self, value: Array, used: Array, p: Array) -> Array:
        """A number of the averaged update, in standard deviations of one noise."""
        _, estimator, _ = self.plan.parts
        bounds = contribution_bounds(self.plan.method, p, used, self.dials)
        std = self.dials.noise_multiplier * bounds
        return value * estimator.divisor(self.dials) / std


class Seen(NamedTuple):
    """What a round shows, an entry for each repetition and round."""

    released: Array  # K~
    used: Array  # K'
    along: Array  # the averaged update along the canary
    uploads: Array  # how many uploaded
    canary: Array  # whether the canary did: the server's knowledge


Score = Callable[[Public, str, Seen], Array]


def _log_mixture(rate: Array | float, log_ratio: Array) -> Array:
    """ln((1 - rate) + rate e^log_ratio), also at rate 1."""
    log_rest = jnp.where(jnp.asarray(rate) < 1, jnp.log1p(-jnp.minimum(rate, 1 - 1e-7)), -jnp.inf)
    return jnp.logaddexp(log_rest, jnp.log(rate) + log_ratio)


def central_score(public: Public, relation: str, seen: Seen) -> Array:
    """PUBLIC, central trust: the two releases together."""
    a, c, dials = public.norm_shift, public.shift, public.dials
    p = public.probability(dials.clip_norm, seen.used)
    y = public.in_deviations(seen.along, seen.used, p)
    x = seen.released * a / dials.clip_norm

    def world(sign: float) -> Array:
        inner = _log_mixture(p, sign * c * y - c * c / 2)
        return _log_mixture(public.plan.sampling_rate, a * x - a * a / 2 + inner)

    return world(1.0) - (world(-1.0) if relation == "replace" else 0.0)


def server_score(public: Public, relation: str, seen: Seen) -> Array:
    """SERVER, local trust: one client's own messages, from a cohort of one."""
    a, c = public.norm_shift, public.shift
    released = seen.released
    p = public.probability(released, seen.used)
    y = public.in_deviations(seen.along, seen.used, p)
    if relation == "replace":
        return jnp.where(seen.canary, 2 * c * y, 0.0)
    score = jnp.where(seen.canary, c * y - c * c / 2, 0.0)
    if a:  # the norm as sent: a Gaussian, with its tails gathered at 0 and at C
        r = released / public.dials.clip_norm
        end = jnp.log(0.5) - log_ndtr(jnp.float32(-a))
        score += jnp.where(r <= 0, -end, jnp.where(r >= 1, end, (r - 0.5) * a * a))
    return score


def average_score(public: Public, relation: str, seen: Seen) -> Array:
    """PUBLIC, local trust: the average alone, with the noise of all who uploaded."""
    p = public.probability(public.dials.clip_norm, seen.used)
    noises = jnp.sqrt(jnp.maximum(1.0, seen.uploads))
    y = public.in_deviations(seen.along, seen.used, p) / noises
    c = public.shift / noises
    rate = public.plan.sampling_rate * p
    score = _log_mixture(rate, c * y - c * c / 2)
    return score - (_log_mixture(rate, -c * y - c * c / 2) if relation == "replace" else 0.0)


def attacks_on(trust: Trust) -> dict[Observer, tuple[Score, int]]:
    """The score of each observer that the trust protects from, and the clients of its rounds."""
    if trust.amplified:
        return {"PUBLIC": (central_score, SLOTS)}
    if trust.guards_server:
        return {"SERVER": (server_score, 1), "PUBLIC": (average_score, SLOTS)}
    return {}


def public_knowledge(plan: Arm, weight: float | None = None) -> Public:
    """The numbers of an arm; its canary has the largest public weight."""
    largest = float(np.max(plan.scaled_weights()))
    return Public(plan, plan.dials(), largest if weight is None else weight)


def draw_cohorts(
    randomness: Randomness, arm: str, batch: int, shape: tuple[int, int], rate: float, clients: int
) -> np.ndarray:
    """Client numbers [*shape, clients], -1 for who was not drawn, by the run's own first sample.

    It tosses independent coins, so one call for all clients of all repetitions is many calls.
    """
    rng = randomness.host(arm, batch, Purpose.COHORT)
    there = np.zeros(shape[0] * shape[1] * clients, bool)
    there[draw_cohort(rng, there.size, rate)] = True
    numbers: np.ndarray = np.where(there.reshape(*shape, clients), np.arange(clients), -1)
    return numbers.astype(np.int32)


def one_round(
    public: Public, clients: GivenClients, arm_key: Array, t: Array | int, numbers: Array, size: int
) -> tuple[RoundResult, Uploads]:
    """A round as it is played in training, with its own draws."""
    weights = jnp.where(jnp.arange(numbers.shape[0]) == 0, public.weight, 1.0)
    members: Members = draw_members(arm_key, t, numbers, weights)
    server = draw_server(arm_key, t, size)
    result, uploads, _ = play(public.plan.method, clients, members, server, public.dials)
    return result, uploads


class Repetitions:
    """Independent repetitions of an arm's rounds against one observer, each world played once."""

    def __init__(
        self,
        plan: Arm,
        observer: Observer,
        rounds: int,
        repetitions: int,
        randomness: Randomness,
    ) -> None:
        self.plan, self.observer, self.rounds, self.count = plan, observer, rounds, repetitions
        self.randomness, self.public = randomness, public_knowledge(plan)
        self.score, self.slots = attacks_on(plan.parts[2])[observer]
        # made anew for every audit, so that what is attacked is the code as it is now
        self._play = jax.jit(
            jax.vmap(self._repetition, (None, 0, 0)), compiler_options=_COMPILE_QUICKLY
        )
        self._seen: dict[str, Seen] = {}

    def _repetition(self, updates: Array, arm_key: Array, cohorts: Array) -> Seen:
        def one(t: Array, numbers: Array) -> Seen:
            clients = GivenClients(updates)
            result, uploads = one_round(self.public, clients, arm_key, t, numbers, SIZE)
            return Seen(
                result.released_norm_sum,
                result.used_norm_sum,
                result.update[0],
                jnp.sum(uploads.uploaded),
                uploads.uploaded[0],
            )

        return jax.vmap(one)(jnp.arange(self.rounds), cohorts)

    def seen(self, world: str) -> Seen:
        """What the observer sees in a world: the canary "in", "out" or "negated"."""
        if world not in self._seen:
            sign = {"in": 1.0, "out": 0.0, "negated": -1.0}[world]
            raw = sign * RAW * self.plan.clip_norm
            updates = jnp.zeros((self.slots, SIZE)).at[0, 0].set(raw)
            arm = f"audit-{self.observer}-{world}-{self.plan.name}"
            keys = jax.random.split(self.randomness.arm_key(arm), self.count)
            batches = []
            for start in range(0, self.count, BATCH):
                part = keys[start : start + BATCH]
                cohorts = jnp.asarray(self._cohorts(arm, start, len(part)))
                batches.append(jax.tree.map(np.asarray, self._play(updates, part, cohorts)))
            self._seen[world] = jax.tree.map(lambda *a: np.concatenate(a), *batches)
        return self._seen[world]

    def _cohorts(self, arm: str, batch: int, count: int) -> np.ndarray:
        shape = (count, self.rounds)
        if self.observer == "SERVER":  # it knows whom it asked, and the claim is for every round
            return np.zeros((*shape, 1), np.int32)
        rate = self.plan.sampling_rate
        return draw_cohorts(self.randomness, arm, batch, shape, rate, self.slots)

    def scores(self, relation: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores with the canary, and with it zeroed out or replaced by its negative."""
        worlds = ("in", "out" if relation == "zero-out" else "negated")
        found = [self.score(self.public, relation, self.seen(world)) for world in worlds]
        first, second = (np.asarray(s, np.float64).sum(axis=1) for s in found)
        return first, second


def one_run_scores(
    plan: Arm, rounds: int, canaries: int, randomness: Randomness
) -> tuple[np.ndarray, np.ndarray]:
    """(scores, who was in) of many canaries in one run of central trust, against PUBLIC.

    The population is the canaries: cohort and uploads grow with it, so q, p and the charge stay.
    """
    rate, share = plan.sampling_rate, plan.uploads / plan.cohort
    cohort = rate * canaries
    scaled = replace(plan, clients=canaries, cohort=cohort, uploads=share * cohort, weights=None)
    public = public_knowledge(scaled, weight=1.0)
    arm = f"audit-one-run-{plan.name}"
    inside = randomness.host(arm, 0, Purpose.MODEL).random(canaries) < 0.5
    norms = jnp.where(inside, RAW * plan.clip_norm, 0.0)
    arm_key = randomness.arm_key(arm)
    cohorts = draw_cohorts(randomness, arm, 1, (1, rounds), rate, canaries)[0]
    c = public.shift

    @functools.partial(jax.jit, compiler_options=_COMPILE_QUICKLY)
    def one(t: Array, numbers: Array) -> Array:
        result, _ = one_round(public, Orthogonal(norms), arm_key, t, numbers, canaries)
        p = public.probability(public.dials.clip_norm, result.used_norm_sum)
        y = public.in_deviations(result.update, result.used_norm_sum, p)
        return _log_mixture(rate * p, c * y - c * c / 2)

    score = sum(np.asarray(one(jnp.int32(t), jnp.asarray(cohorts[t]))) for t in range(rounds))
    return np.asarray(score, np.float64), inside


def planned_attacks(plan: Arm, canaries: int) -> int:
    """How many bounds `audit_arm` gives, for the confidence of all of them together."""
    trust = plan.parts[2]
    return 2 * len(attacks_on(trust)) + _one_run(plan, canaries)


def _one_run(plan: Arm, canaries: int) -> bool:
    """Whether many canaries in one run are an attack of its own."""
    return plan.parts[2].amplified and plan.weights is None and canaries > 0


def audit_arm(
    plan: Arm,
    privacy: PrivacyConfig,
    *,
    rounds: int,
    repetitions: int,
    canaries: int,
    significance: float,
    randomness: Randomness,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Every attack on an arm; each bound holds with probability 1 - significance."""
    observers = attacks_on(plan.parts[2])
    if not observers:
        raise ValueError(
            f"trust = {plan.trust!r}: it claims nothing, so there is nothing to attack"
        )
    claims = {(c.observer, c.relation): c for c in statement([plan], [rounds], privacy)}
    delta = privacy.delta
    findings = []
    attacks = {
        observer: Repetitions(plan, observer, rounds, repetitions, randomness)
        for observer in observers
    }
    for (observer, relation), claim in claims.items():
        if claim.epsilon is None or observer not in attacks:
            continue
        say(f"{plan.name}: {observer}, {relation}")
        scores = attacks[observer].scores(relation)
        findings.append(
            Finding(
                *(plan.name, observer, relation, "repeated rounds", rounds, repetitions, delta),
                claimed=claim.epsilon,
                lower=bounds.repeated_bound(*scores, delta, significance),
                largest=bounds.largest_repeated(repetitions, delta, significance),
            )
        )
    if _one_run(plan, canaries):
        say(f"{plan.name}: many canaries in one run")
        small = replace(privacy, delta=min(delta, ONE_RUN_DELTA / canaries))
        claim = next(c for c in statement([plan], [rounds], small) if c.observer == "PUBLIC")
        score, inside = one_run_scores(plan, rounds, canaries, randomness)
        findings.append(
            Finding(
                *(plan.name, "PUBLIC", claim.relation, "one run", rounds, canaries, claim.delta),
                claimed=np.inf if claim.epsilon is None else claim.epsilon,
                lower=bounds.one_run_bound(score, inside, claim.delta, significance),
                largest=bounds.largest_one_run(canaries, claim.delta, significance),
            )
        )
    return findings
