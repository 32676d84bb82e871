"""The attack on ways to train: how much does a run tell about one client?

The canary's loss is a/2 |w - b|^2, b so far away, or a so large, that each of its updates passes
its bound. The other clients have no update, which is the worst case for it. Rounds are those of a
seeded run: the client's work (local epochs, a proximal term, anchors, SCAFFOLD), clipping, coins,
noise, the control variate, the server's step. The observer knows the models and all that is public,
and so the direction of the canary's update in every round; its score is the likelihood ratio of
`audit.attacks`, summed over the rounds.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from locksfl.arm import Arm
from locksfl.audit import attacks, bounds
from locksfl.audit.attacks import Finding, Seen
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.methods.releases import Observer
from locksfl.models.build import Model
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.client import (
    NO_LIMIT,
    Asked,
    LocalWork,
    Records,
    SizeClass,
    choose_rows,
    measure,
)
from locksfl.round.control import CONTROLS, control_of
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness

SIZE, FAR = 2, 1e6  # parameters, and how far away the canary's centre is
SEED = Randomness.seeded(12)
CHARGED = dict(CONTROLS)  # as they are: a test plants faults in the others


def quadratic_model(size: int) -> Model:
    """The model of size weights for which a record (a, b_1, ...) has the loss a/2 |w - b|^2."""

    def apply(weights: Array, records: Array) -> Array:
        curvature, centre = records[:, 0], records[:, 1:]
        loss = curvature / 2 * jnp.sum(jnp.square(weights - centre), axis=1)
        # the loss of label 0 is softplus of the second score, which at 100 has slope 1
        second = loss - jax.lax.stop_gradient(loss) + 100.0
        return jnp.stack([jnp.zeros_like(second), second], axis=-1)

    return Model("quadratic", size, lambda key: jnp.zeros(size), lambda flat: flat, apply)


def canary(work: LocalWork) -> Records:
    """One client with one record. Its gradients change by more than any bound from one model to
    the next; local SGD halves the way to its centre in every step."""
    curvature = 1e4 if work.update == "gradient" else 0.5 / work.step
    record = jnp.asarray([[curvature, FAR, *[0.0] * (SIZE - 1)]], jnp.float32)
    zero = jnp.zeros(1, jnp.int32)
    return Records(record, zero, zero, zero + 1, jnp.float32(1))


def scores(arm: Arm, work: LocalWork, repetitions: int) -> list[np.ndarray]:
    """The scores of repetitions of a run with the canary, and of others with its update zero."""
    model, records, control = quadratic_model(SIZE), canary(work), control_of(work)
    score, _ = attacks.attacks_on(arm.parts[2])[observer_of(arm)]
    first = None if control is None else control.first(work, jnp.zeros(SIZE), 1)

    def updates(asked: Asked, state: Any, key: Array) -> Array:
        shape, alone = SizeClass(1, 0, repeats=False), jnp.zeros(1, jnp.int32)
        chunk = choose_rows(records, alone, jax.random.split(key, 1), shape, work)
        corrected = control and (lambda: control.updates(asked, state, chunk, alone))
        found: Array = measure(model, asked.weights, records, chunk, work, None, corrected).trace
        return found

    def one_round(
        carry: Any, at: tuple[Array, Array], arm_key: Array, inside: Array
    ) -> tuple[Any, Array]:
        (weights, state), (t, cohort) = carry, at
        asked, key = Asked(work, t, model, weights, records), jax.random.fold_in(arm_key, t)
        dials = charged = arm.dials()
        if control is not None:
            dials = control.dials_of(work, dials, t)
            charged = CHARGED[work.control].dials_of(work, charged, t)
        own = updates(asked, state, key)
        members = draw_members(arm_key, t, cohort, jnp.ones(1))
        drawn = draw_server(arm_key, t, SIZE)
        result, uploads, _ = play(
            arm.method, GivenClients(inside * own), members, FloatSums(drawn), dials
        )
        # what a client keeps is not known to the observer; the direction does not depend on it
        (aim,) = updates(asked, first, key) if control and control.keeps else own
        seen = Seen(
            result.released_norm_sum,
            result.used_norm_sum,
            # in units of a round at C, as the score has it
            result.update @ aim / jnp.linalg.norm(aim) * arm.clip_norm / charged.clip_norm,
            jnp.sum(uploads.uploaded),
            uploads.uploaded[0],
            result.released_count,
        )
        step = result.update
        if control is not None:
            sent = (jnp.where(uploads.uploaded, 0, NO_LIMIT), own)
            step, state = control.after(work, state, t, weights, step, dials, sent)
        return (weights - step, state), score(arm, "zero-out", seen)

    @functools.partial(jax.jit, compiler_options=attacks.QUICKLY_COMPILED)
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def repetition(arm_key: Array, cohorts: Array, inside: Array) -> Array:
        one = functools.partial(one_round, arm_key=arm_key, inside=inside)
        _, found = jax.lax.scan(one, (jnp.zeros(SIZE), first), (jnp.arange(arm.rounds), cohorts))
        return jnp.sum(found)

    worlds = []
    rate = 1.0 if observer_of(arm) == "SERVER" else arm.sampling_rate  # it knows whom it asks
    for name, inside in (("in", 1.0), ("out", 0.0)):
        cohorts = attacks.draw_cohorts(SEED, name, 0, (repetitions, arm.rounds), rate, 1)
        keys = jax.random.split(SEED.arm_key(name), repetitions)
        found = repetition(keys, jnp.asarray(cohorts), jnp.float32(inside))
        worlds.append(np.asarray(found, np.float64))
    return worlds


def observer_of(arm: Arm) -> Observer:
    """From whom its trust protects."""
    return "SERVER" if arm.parts[2].guards_server else "PUBLIC"


def attack(
    arm: Arm, work: LocalWork, privacy: PrivacyConfig, repetitions: int, significance: float
) -> Finding:
    """What is proved of the claim under zero-out; it holds with probability 1 - significance."""
    claims = {(c.observer, c.relation): c for c in statement([arm], privacy)}
    claim = claims[observer_of(arm), "zero-out"]
    worlds = scores(arm, work, repetitions)
    test = (privacy.delta, significance)
    return Finding(
        arm.name, claim.observer, claim.relation, "repeated runs", arm.rounds, repetitions,
        claim.delta, claim.epsilon or np.inf, bounds.repeated_bound(*worlds, *test),
        bounds.largest_repeated(repetitions, *test),
    )  # fmt: skip
