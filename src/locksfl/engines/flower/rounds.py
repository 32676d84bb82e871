"""A round as a server plays it, over any network: the simulator's own steps, asked of devices.

    cohort      n coins of rate q                     (drawn before anything is asked)
    stage 1     "norm" to the cohort                  rule norm only; the others ask nothing here
    server      K', p_i, the second coins             functions of what was released
    stage 2     "update" to the uploaders only
    server      the sum over n q                      n and q are public constants, as ever

A round goes on with who answered in time. What that does to the estimator: device i's share of the
mean is multiplied by the probability that its answers come. Where that does not depend on the data
the mean shrinks by the answer rate, and points where it did; where it does (a device that is slow
because it has much data, say), the mean leans towards those who answer. The divisor stays n q, a
constant: to divide by who came would be a release without noise. The shares that came are reported.

What is charged: who was asked for a norm has released it, whether or not it came; who was drawn has
released an update, unless it refused. The device's own ledger is the truth for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from locksfl.algorithm import (
    RoundResult,
    aggregate,
    choose_uploads,
    no_norms,
    query_norms,
)
from locksfl.device import Refusal, RoundTerms
from locksfl.engines.flower.network import Answer, Network, Question
from locksfl.mechanisms import Members, ServerDraws, draw_members, draw_server
from locksfl.plan import ArmPlan
from locksfl.randomness import Purpose, Randomness
from locksfl.sampling import draw_cohort, upload_probability

TAIL = 10.0  # a chi variable passes its root of d by this with probability below exp(-50)


@dataclass
class Tally:
    """What became of the questions of one stage."""

    asked: int = 0
    answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by the name of the code
    rejected: int = 0  # NaN, another shape, too large, an error
    missing: int = 0

    def as_dict(self) -> dict[str, object]:
        """For rounds.jsonl."""
        return dict(vars(self))


@dataclass(frozen=True)
class Played:
    """What the server has of a round; all masks are over the n clients."""

    result: RoundResult
    asked: np.ndarray  # the cohort, or without a norm stage the uploaders
    uploaded: np.ndarray  # drawn, and not refused: charged
    received: np.ndarray  # the updates that are in the sum
    tallies: dict[str, Tally]


@dataclass(frozen=True)
class Draws:
    """The server's own randomness of a round."""

    cohort: np.ndarray  # client numbers
    members: Members  # the second coins, a slot for each of the n clients
    server: ServerDraws  # central trust only


def draw_round(plan: ArmPlan, randomness: Randomness, t: int, size: int) -> Draws:
    """The same draws as the simulator makes from the same source."""
    rng = randomness.host(plan.name, t, Purpose.COHORT)
    weights = plan.scaled_weights()
    public = np.ones(plan.clients, np.float32) if weights is None else weights
    key = randomness.arm_key(plan.name)
    members = draw_members(key, t, jnp.arange(plan.clients), jnp.asarray(public))
    server = draw_server(key, t, size)
    return Draws(draw_cohort(rng, plan.clients, plan.sampling_rate), members, server)


def round_terms(plan: ArmPlan, run: str, t: int, relation: str) -> RoundTerms:
    """What the devices are asked to agree to, in round t (from 0)."""
    return RoundTerms(
        run=run,
        round=t + 1,
        asks_norms=plan.releases_norms,
        clip_norm=float(plan.clip_norm),
        noise_multiplier=float(plan.noise_multiplier),
        norm_multiplier=float(plan.norm_multiplier) if plan.releases_norms else None,
        trust=plan.method.trust,
        relation=relation,
    )


Charge = Callable[[np.ndarray], np.ndarray]  # reserve a round: which of these clients may be asked


def play_round(
    plan: ArmPlan,
    network: Network,
    weights: np.ndarray,
    t: int,
    draws: Draws,
    *,
    relation: str,
    seconds: float,
    reserve: Charge,
) -> Played:
    """Play round t on the devices. `reserve` is called once, before the first question."""
    rule, _, _ = plan.method.parts
    dials, n = plan.dials(), plan.clients
    terms = round_terms(plan, network.run, t, relation).as_dict()
    local = plan.method.trust == "local"
    tallies: dict[str, Tally] = {}
    silent = jnp.zeros(n)  # devices have added their own noise already
    members = draws.members._replace(norm_noise=silent)
    if rule.uses_norms:
        asked = mask(reserve(draws.cohort), n)
        answers = network.ask(
            {int(i): Question("norm", terms, weights) for i in np.flatnonzero(asked)}, seconds, t
        )
        found, present, _, tallies["norm"] = check_norms(asked, answers, plan.clip_norm)
        members = members._replace(present=jnp.asarray(present))
        norms = query_norms(
            plan.method, jnp.asarray(found), members, draws.server.norm_noise, dials, jnp.sum
        )
    else:
        norms = no_norms(members, dials)
        members = members._replace(present=jnp.asarray(mask(draws.cohort, n)))
    uploads = choose_uploads(plan.method, norms.scores, members, norms.scores, norms.used, dials)
    drawn = np.asarray(uploads.uploaded)
    if not rule.uses_norms:  # both coins are tossed before anybody is asked
        asked = drawn = mask(reserve(np.flatnonzero(drawn)), n)
    p = np.asarray(upload_probability(rule, norms.scores, norms.used, members.weights, dials))
    bounds = np.asarray(jnp.broadcast_to(uploads.scale, (n,)), np.float64)
    questions = {
        int(i): Question(
            "update",
            terms,
            None if rule.uses_norms else weights,
            plan.method.estimator,
            float(p[i]),
            float(bounds[i]),
        )
        for i in np.flatnonzero(drawn)
    }
    answers = network.ask(questions, seconds, t)
    noise = plan.noise_multiplier if local else 0.0
    limits = bounds * update_limit(noise, weights.size)
    summed, received, refused, tallies["update"] = check_updates(
        drawn, answers, weights.size, limits
    )
    result = aggregate(
        plan.method,
        jnp.asarray(summed, jnp.float32),
        uploads._replace(uploaded=jnp.asarray(received)),
        norms,
        jnp.zeros(weights.size) if local else draws.server.update_noise,
        dials,
        jnp.sum,
    )
    return Played(result, asked, drawn & ~refused, received, tallies)


def update_limit(noise_multiplier: float, size: int) -> float:
    """How long an honest update can be, over its bound S: S itself and its noise, whose length is
    below z S (sqrt(d) + 10) but for a chance of exp(-50); 0.1% for rounding. What is longer is
    rejected, and a device that lies can add that much."""
    return 1.001 * (1.0 + noise_multiplier * (math.sqrt(size) + TAIL))


def check_norms(
    asked: np.ndarray, answers: Mapping[int, Answer], clip_norm: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tally]:
    """The released norms, who sent one, who refused, and the tally."""
    found = np.zeros(asked.size, np.float32)

    def take(number: int, value: np.ndarray) -> bool:
        if value.shape != (1,) or not 0.0 <= float(value[0]) <= clip_norm * 1.001:
            return False  # NaN, too
        found[number] = value[0]
        return True

    present, refused, tally = _sort(asked, answers, take)
    return found, present, refused, tally


def check_updates(
    asked: np.ndarray, answers: Mapping[int, Answer], size: int, limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tally]:
    """The sum of the updates that are sound, whose they are, who refused, and the tally."""
    summed = np.zeros(size, np.float64)

    def take(number: int, value: np.ndarray) -> bool:
        if value.shape != (size,) or value.dtype != np.float32:
            return False
        length = float(np.linalg.norm(value.astype(np.float64)))
        if not length <= limits[number]:  # NaN and Inf, too
            return False
        summed[:] += value
        return True

    received, refused, tally = _sort(asked, answers, take)
    return summed, received, refused, tally


def _sort(
    asked: np.ndarray, answers: Mapping[int, Answer], take: Callable[[int, np.ndarray], bool]
) -> tuple[np.ndarray, np.ndarray, Tally]:
    """Hand every released value to `take`; nothing that was not asked for is looked at."""
    taken, refused = np.zeros(asked.size, bool), np.zeros(asked.size, bool)
    tally = Tally(asked=int(asked.sum()))
    for number in np.flatnonzero(asked):
        answer = answers.get(int(number))
        if answer is None:
            tally.missing += 1
        elif answer.refusal is not None:
            refused[number] = True
            name = _refusal_name(answer.refusal)
            tally.refused[name] = tally.refused.get(name, 0) + 1
        elif answer.released is not None and take(int(number), answer.released):
            taken[number] = True
            tally.answered += 1
        else:
            tally.rejected += 1
    return taken, refused, tally


def _refusal_name(code: int) -> str:
    try:
        return Refusal(code).name
    except ValueError:
        return "UNKNOWN"


def mask(numbers: np.ndarray, n: int) -> np.ndarray:
    """Client numbers as a mask over all clients."""
    found = np.zeros(n, bool)
    found[np.asarray(numbers, int)] = True
    return found


