"""A round as a server plays it, over any network: the simulator's steps, performed by devices.

    cohort      each client with probability q        (drawn before anything is asked)
    stage 1     "norm" to the cohort                  rule norm only; the others ask nothing here
    server      K', p_i, the draw of the uploaders    functions of what was released
    stage 2     "update" to the uploaders only        or, if a rule leaves it to the devices who
                                                      uploads, to the cohort: some answer nothing
    server      the sum divided by n q                n and q are public constants

A round continues with the devices that answered in time. The effect on the estimator: device i's
share of the mean is multiplied by the probability that its answers arrive. If that does not depend
on the data, the mean shrinks by the answer rate but keeps its direction; if it does (for example, a
device that is slow because it has much data), the mean is biased towards the devices that answer.
The divisor remains n q, a constant: dividing by the number of answers would be a release without
noise. The shares of answers are reported.

What is charged: a client asked for a norm has released it, whether or not it arrived; a client that
was drawn has released an update, unless its refusal says that it has not (REPEATED does not say
so). For the device, its own ledger is authoritative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np

from locksfl.arm import Arm
from locksfl.federation.device import Refusal, RoundTerms
from locksfl.federation.device.update import clip
from locksfl.federation.server.liars import Scores, length_limit
from locksfl.federation.telling import refusal_name
from locksfl.federation.wire import Answer, Network, Question
from locksfl.methods.dials import Dials
from locksfl.round.algorithm import (
    Norms,
    Released,
    RoundResult,
    WeightedSum,
    aggregate,
    choose_uploads,
    contribution_bound,
    no_norms,
    query_norms,
    refine_norms,
    settle_norms,
    upload_probability,
)
from locksfl.round.draws import (
    Members,
    ServerDraws,
    cohort_of,
    draw_members,
    draw_server,
    halves,
)
from locksfl.round.floats import FloatSums
from locksfl.round.noise import SYSTEM, add_noise, gaussian_std, grid_for
from locksfl.round.randomness import Purpose, Randomness

SLACK = 1.001  # for rounding, of a raw update
# codes after which nothing of this stage was ever sent: REPEATED says that something may have been
NOTHING_RELEASED = frozenset(Refusal) - {Refusal.REPEATED, Refusal.LEDGER}


@dataclass
class Tally:
    """The outcome of the questions of one stage."""

    asked: int = 0
    answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by the name of the code
    rejected: int = 0  # NaN, a wrong shape, too large, an error
    missing: int = 0
    flagged: list[int] = field(default_factory=list)  # clients, from this round on (liars.py)

    def as_dict(self) -> dict[str, object]:
        """For rounds.jsonl."""
        facts = dict(vars(self))
        if not self.flagged:
            del facts["flagged"]
        return facts


@dataclass(frozen=True)
class Played:
    """What the server knows about a round; all masks are over the n clients."""

    result: RoundResult
    asked: np.ndarray  # the cohort, or without a norm stage the uploaders
    uploaded: np.ndarray  # drawn, and perhaps sent: charged
    received: np.ndarray  # the updates that are in the sum
    tallies: dict[str, Tally]


@dataclass(frozen=True)
class Draws:
    """The server's own randomness of a round."""

    cohort: np.ndarray  # client numbers
    members: Members  # the draws of the second sample, one slot for each of the n clients
    server: ServerDraws | None  # central trust; None: exact noise from the operating system


def draw_round(plan: Arm, randomness: Randomness, t: int, size: int) -> Draws:
    """The same coins that the simulator draws from the same source; its noise only with a seed."""
    cohort, clients = cohort_of(randomness, plan, t), jnp.arange(plan.clients)
    public = jnp.asarray(np.broadcast_to(plan.scaled_weights(), plan.clients))
    if randomness.simulated:
        key = randomness.arm_key(plan.name)
        server = draw_server(key, t, size, plan.parts[0].refinements)
        return Draws(cohort, draw_members(key, t, clients, public), server)
    coins = randomness.stream(plan.name, t, Purpose.UPLOAD_COIN).words(cohort.size)
    each = np.zeros((plan.clients, 2), np.uint32)
    each[cohort] = halves(coins)
    nothing = jnp.zeros(plan.clients)
    return Draws(cohort, Members(clients, clients >= 0, public, jnp.asarray(each), nothing), None)


def round_terms(plan: Arm, run: str, number: int, relation: str) -> RoundTerms:
    """What the devices are asked to agree to. Numbers grow within a run, over all its arms."""
    return RoundTerms(
        run=run,
        round=number,
        asks_norms=plan.releases_norms,
        clip_norm=float(plan.clip_norm),
        noise_multiplier=float(plan.noise_multiplier),
        norm_multiplier=float(plan.norm_multiplier) if plan.releases_norms else None,
        trust=plan.trust,
        relation=relation,
        lengths=plan.lengths,
    )


def server_dials(plan: Arm) -> Dials:
    """The arm's numbers as the server uses them: the lengths that devices tell are of updates that
    have been clipped or scaled already, and perhaps noised."""
    return plan.dials()._replace(shortest=np.float32(1))


Reserve = Callable[[np.ndarray], np.ndarray]  # pays for the round: which of these may be asked


def play_round(
    plan: Arm,
    network: Network,
    weights: np.ndarray,
    draws: Draws,
    *,
    terms: RoundTerms,
    seconds: float,
    reserve: Reserve,
    model: str | None = None,
    scores: Scores | None = None,
) -> Played:
    """Play a round on the devices. `reserve` is called once, before the first question;
    `model`: its name, which the devices compare with that of their own; `scores`: of all updates
    that are in a sum, under local trust."""
    rule, _, _ = plan.parts
    dials, n, table = server_dials(plan), plan.clients, terms.as_dict()
    # devices in local trust have already added their own noise: none is drawn here
    members = draws.members._replace(norm_noise=jnp.zeros(n))
    tallies: dict[str, Tally] = {}
    if rule.released:
        asked = mask(reserve(draws.cohort), n)
        question = Question("norm", table, weights, model=model)
        questions = {int(i): question for i in np.flatnonzero(asked)}
        answers = network.ask(questions, seconds, terms.round)
        found, present, tallies["norm"] = check_norms(asked, answers, plan.clip_norm)
        members = members._replace(present=jnp.asarray(present))
        norms = _settle(plan, found, members, draws)
    else:  # both draws are made before any client is asked
        members = members._replace(present=jnp.asarray(mask(draws.cohort, n)))
        norms = no_norms(members, dials)
    plan = plan.at_public(float(norms.used))
    dials = server_dials(plan)
    uploads = choose_uploads(plan.method, norms.scores, members, norms.scores, norms.used, dials)
    drawn = np.asarray(uploads.uploaded)
    decide = rule.asks is not None and not rule.released  # the devices, each by its own coin
    if not rule.released:
        asked = drawn = mask(reserve(draws.cohort if decide else np.flatnonzero(drawn)), n)
    known = (norms.scores, norms.used, members.weights)
    p = np.asarray(upload_probability(plan.method, *known, dials))
    if decide:
        p = np.full(n, plan.largest_probability)
    named = plan.rule if decide else None
    bounds = np.asarray(uploads.scale, np.float64)
    question = Question("update", table, estimator=plan.estimator, rule=named)
    if not rule.released:  # the first question of this round
        question = replace(question, weights=weights, model=model)
    questions = {
        int(i): replace(question, probability=float(p[i]), bound=float(bounds[i]))
        for i in np.flatnonzero(drawn)
    }
    answers = network.ask(questions, seconds, terms.round)
    updates = check_updates(
        plan, drawn, answers, weights.size, bounds, may_be_empty=decide, scores=scores
    )
    tallies["update"] = updates.tally
    summed, noise = _noised(plan, updates.summed, norms, draws)
    uploads = uploads._replace(uploaded=jnp.asarray(updates.received))
    result = aggregate(
        plan.method,
        WeightedSum(jnp.asarray(summed, jnp.float32), uploads),
        norms,
        FloatSums(ServerDraws(jnp.zeros(()), jnp.asarray(noise))),
        dials,
    )
    if plan.counts:
        count = jnp.float32(_count(plan, updates.received, draws))
        result = result._replace(released_count=count)
    return Played(result, asked, drawn & ~updates.refused, updates.received, tallies)


def _settle(plan: Arm, found: np.ndarray, members: Members, draws: Draws) -> Norms:
    """Stage 1 at the server: what `algorithm.query_norms` does with the norms that arrived."""
    dials, norms = server_dials(plan), jnp.asarray(found)
    if plan.parts[2].server_adds_noise and draws.server is None:

        def released(values: np.ndarray, bound: float) -> jnp.ndarray:
            std = gaussian_std(plan.sum_multiplier, bound)
            total = np.array([_on_grid(values, std).sum()])
            return jnp.float32(add_noise(total, std, SYSTEM)[0])

        exact = np.minimum(found.astype(np.float64), plan.clip_norm)  # float32 may round C up
        summed = released(exact, plan.clip_norm)
        settled = settle_norms(plan.method, Released(norms, summed), dials)
        return refine_norms(
            plan.method,
            settled,
            members,
            dials,
            lambda k, *each: jnp.stack([released(np.asarray(p, np.float64), 1.0) for p in each]),
        )
    server = draws.server or ServerDraws(jnp.zeros(()), jnp.zeros(()))
    return query_norms(plan.method, norms, members, FloatSums(server), dials)


def _noised(
    plan: Arm, summed: np.ndarray, norms: Norms, draws: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """The sum, and the standard noise that the server still has to add to it."""
    silent = np.zeros(summed.size, np.float32)
    if not plan.parts[2].server_adds_noise:
        return summed, silent
    if draws.server is not None:
        return summed, np.asarray(draws.server.update_noise)
    bound = float(contribution_bound(plan.method, norms.used, plan.dials()))
    return add_noise(summed, gaussian_std(plan.update_multiplier, bound), SYSTEM), silent


def _count(plan: Arm, received: np.ndarray, draws: Draws) -> float:
    """The number of uploads with its noise: a whole number unless the run is a simulation."""
    uploads = int(received.sum())
    if not plan.count_noise:
        return float(uploads)
    if draws.server is not None:
        return uploads + plan.count_noise * float(draws.server.count_noise)
    return float(uploads + int(SYSTEM.steps(plan.count_noise, 1.0, 1)[0]))


def _on_grid(values: np.ndarray, std: float) -> np.ndarray:
    """Truncate to the grid of the noise before anything is summed: the sums of neighbours then
    differ by one client's truncated value, whose norm has not grown."""
    grid = grid_for(std)
    return np.trunc(values / grid) * grid


def check_norms(
    asked: np.ndarray, answers: Mapping[int, Answer], clip_norm: float
) -> tuple[np.ndarray, np.ndarray, Tally]:
    """The released norms, which clients sent one, and the tally."""
    found = np.zeros(asked.size, np.float32)

    def take(number: int, value: np.ndarray) -> bool:
        if value.shape != (1,) or not 0.0 <= float(value[0]) <= clip_norm:
            return False  # also for NaN; a guard clips to this interval, after the noise too
        found[number] = float(value[0])
        return True

    present, _, tally = _sort(asked, answers, take)
    return found, present, tally


@dataclass(frozen=True)
class Updates:
    """The sum of the valid updates, the clients that sent them, those that certainly sent none, and
    the tally."""

    summed: np.ndarray
    received: np.ndarray
    refused: np.ndarray
    tally: Tally


def check_updates(
    plan: Arm,
    asked: np.ndarray,
    answers: Mapping[int, Answer],
    size: int,
    bounds: np.ndarray,
    may_be_empty: bool = False,
    scores: Scores | None = None,
) -> Updates:
    """Sum the updates that have the right shape, are finite, and are no longer than an honest one
    can be. `may_be_empty`: a device may answer that it does not upload."""
    central = plan.parts[2].server_adds_noise
    limit = SLACK if central else length_limit(plan.noise_multiplier, size)
    summed = np.zeros(size, np.float64)
    silent, sent = np.zeros(asked.size, bool), dict[int, np.ndarray]()

    def take(number: int, value: np.ndarray) -> bool:
        if may_be_empty and value.size == 0:
            silent[number] = True
            return True
        if value.shape != (size,) or value.dtype != np.float32:
            return False
        update = value.astype(np.float64)
        length = float(np.linalg.norm(update))
        if not length <= limit * bounds[number]:  # also for NaN and Inf
            return False
        if central:
            std = gaussian_std(plan.update_multiplier, bounds[number])
            update = _on_grid(clip(update, bounds[number]), std)
        summed[:] += update
        sent[number] = value
        return True

    received, refused, tally = _sort(asked, answers, take)
    received &= ~silent
    if scores is not None:
        tally.flagged = scores.judge(sent, bounds, plan.noise_multiplier)
        if scores.exclude:
            for i in tally.flagged:
                summed -= sent[i]
                received[i] = False
    return Updates(summed, received, refused, tally)


def _sort(
    asked: np.ndarray, answers: Mapping[int, Answer], take: Callable[[int, np.ndarray], bool]
) -> tuple[np.ndarray, np.ndarray, Tally]:
    """Pass every released value to `take`; nothing that was not asked for is looked at."""
    taken, refused = np.zeros(asked.size, bool), np.zeros(asked.size, bool)
    tally = Tally(asked=int(asked.sum()))
    for number in np.flatnonzero(asked):
        answer = answers.get(int(number))
        if answer is None:
            tally.missing += 1
        elif answer.refusal is not None:
            refused[number] = answer.refusal in NOTHING_RELEASED
            name = refusal_name(answer.refusal)
            tally.refused[name] = tally.refused.get(name, 0) + 1
        elif answer.released is not None and take(int(number), answer.released):
            taken[number] = True
            tally.answered += 1
        else:
            tally.rejected += 1
    return taken, refused, tally


def mask(numbers: np.ndarray, n: int) -> np.ndarray:
    """Client numbers as a mask over all clients."""
    found = np.zeros(n, bool)
    found[np.asarray(numbers, int)] = True
    return found
