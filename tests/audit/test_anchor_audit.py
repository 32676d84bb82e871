"""An audit of anchors: rounds of anchors and differences, attacked by an observer who knows w, w~,
and so the direction of the canary's update in each round."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.audit import attacks, bounds
from locksfl.audit.suite import DEFAULT_DELTA, DEFAULT_EPSILON
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement
from locksfl.experiment.plan import calibrated
from locksfl.round import anchor
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.client import LocalWork
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.randomness import Randomness
from quadratics import chunk_of, quadratic_clients, quadratic_model, records_of

ROUNDS, REPETITIONS, SLOTS, SIZE = 4, 50_000, 8, 2
WORK = LocalWork(control="anchor", anchor_every=2, anchor_ratio=0.25)
PRIVACY = PrivacyConfig(trust="central", epsilon=DEFAULT_EPSILON, delta=DEFAULT_DELTA)
SEED = Randomness.seeded(12)


def people(curvature):
    """The canary first, with a loss so steep that its differences pass any bound; the others have
    no gradient."""
    centres = np.zeros((SLOTS, 1, SIZE))
    centres[0, 0, 0] = 5.0
    return quadratic_clients([curvature, *[0.0] * (SLOTS - 1)], centres)


def scores(arm, world, dials_of=anchor.dials_of, noise=1.0):
    """The log-likelihood ratio of what PUBLIC sees, summed over the rounds, of each repetition.
    `noise`: what it knows that a fault multiplies the noise of differences by."""
    model, clients = quadratic_model(SIZE), jnp.arange(SLOTS)
    here, known = (people(curvature) for curvature in (1e4 * (world == "in"), 1e4))
    chunk = chunk_of(here, WORK, jax.random.split(jax.random.key(0), SLOTS))

    def repetition(arm_key, cohorts):
        weights, state = jnp.zeros(SIZE), anchor.first(WORK, jnp.zeros(SIZE), SLOTS)
        total = 0.0
        for number in range(ROUNDS):
            t = jnp.int32(number)

            def updates(records, t=t, weights=weights, state=state):
                given = (model, weights, records_of(records), chunk, clients)
                return anchor.updates(WORK, state, t, *given)

            dials, right = (of(WORK, arm.dials(), t) for of in (dials_of, anchor.dials_of))
            members = draw_members(arm_key, t, cohorts[number], jnp.ones(SLOTS))
            drawn = draw_server(arm_key, t, SIZE)
            result, uploads, _ = play(
                arm.method, GivenClients(updates(here)), members, drawn, dials
            )
            aim = updates(known)[0]
            # in units of a round at C, as the attack computes
            along = result.update @ (aim / jnp.linalg.norm(aim))
            along = along * arm.clip_norm / right.clip_norm
            seen = attacks.Seen(
                result.released_norm_sum,
                result.used_norm_sum,
                along,
                jnp.sum(uploads.uploaded),
                uploads.uploaded[0],
                result.released_count,
            )
            known_noise = arm.noise_multiplier * (noise if number % 2 else 1.0)
            told = replace(arm, noise_multiplier=known_noise)
            total += attacks.public_score(told, "zero-out", seen)
            step, state = anchor.after(WORK, state, t, weights, result.update, dials, None)
            weights = weights - step
        return total

    keys = jax.random.split(SEED.arm_key(world), REPETITIONS)
    shape = (REPETITIONS, ROUNDS)
    cohorts = attacks.draw_cohorts(SEED, world, 0, shape, arm.sampling_rate, SLOTS)
    found = jax.jit(jax.vmap(repetition))(keys, jnp.asarray(cohorts))
    return np.asarray(found, np.float64)


@pytest.fixture(scope="module")
def audited():
    arm = Arm("anchors", 100, ROUNDS, cohort=50.0)
    return calibrated(arm, PRIVACY)


def lower(arm, **fault):
    """Epsilon is at least this, with confidence 1 - 1e-3."""
    inside, outside = (scores(arm, world, **fault) for world in ("in", "out"))
    return bounds.repeated_bound(inside, outside, DEFAULT_DELTA, 1e-3)


def test_the_claim_of_three_holds_and_half_of_it_is_proved(audited):
    """Two anchors and two differences at a quarter of the bound: at least 1.94."""
    claims = statement([audited], [ROUNDS], PRIVACY)
    claim = next(c for c in claims if (c.observer, c.relation) == ("PUBLIC", "zero-out"))
    assert 2.9 < claim.epsilon <= 3.0
    assert 1.5 <= lower(audited) <= claim.epsilon


@pytest.mark.parametrize("fault", ["clip", "noise"])
def test_differences_with_too_little_noise_are_caught(audited, fault):
    """Clipped to C under the noise of C'; the noise of C'^2 / C."""

    def faulty(work, dials, t):
        right = anchor.dials_of(work, dials, t)
        ratio = right.clip_norm / dials.clip_norm
        wrong = dials if fault == "clip" else right
        return wrong._replace(noise_multiplier=dials.noise_multiplier * ratio)

    noise = WORK.anchor_ratio if fault == "noise" else 1.0
    assert lower(audited, dials_of=faulty, noise=noise) > 3.0
