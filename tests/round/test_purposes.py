"""Every noise of every kind of round has a key of its own purpose, and the size that is charged:
rules x trusts x {plain, adaptive clip, rates or rungs that are chosen, turns}, as far as an arm
allows them, from the list of purposes.

What is expected is derived here, from the source, the arm's name, the round and the purpose alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from dataclasses import replace
from unittest import mock

import jax
import numpy as np
import pytest

from checks import arm_for
from locksfl.federation.server.rounds import draw_round
from locksfl.methods import ESTIMATORS, RULES, TRUSTS, Method
from locksfl.methods.sound import unsound
from locksfl.round import draws
from locksfl.round.algorithm import contribution_bound
from locksfl.round.client import LocalWork
from locksfl.round.noise import SystemNoise
from locksfl.round.randomness import Purpose, Randomness, Stream, normal
from locksfl.round.server import Server
from locksfl.simulate.secret import SecretRounds
from locksfl.simulate.simulator import Simulator
from quadratics import quadratic_clients, quadratic_model

CLIENTS, ROUNDS, SIZE = 24, 12, 37
SEED, SECRET = Randomness.seeded(5), Randomness(12345, simulated=False)
WEIGHTS = np.linspace(1, 3, CLIENTS)
USUAL = {
    "clients": CLIENTS, "rounds": ROUNDS, "floor": 0.2, "norm_low": 0.5, "clip_norm": 0.6,
    "weights": tuple(WEIGHTS / WEIGHTS.sum()), "noise_multiplier": 1.7, "norm_multiplier": 2.3,
}  # fmt: skip
MODES = {
    "plain": {},
    "adaptive": {"clip_quantile": 0.5, "clip_multiplier": 5.0},
    "chosen": {"uploads": 3.0, "norm_multiplier": 20.0},  # so that K' passes several rungs
    "turns": {"separation": 3},
}


def arm_of(rule, trust, mode):
    """The arm, or None if there is none; what is chosen has noise that differs from rung to rung,
    and the plan's is that of the last."""
    sound = [e for e in ESTIMATORS if not unsound(RULES[rule], ESTIMATORS[e], TRUSTS[trust])]
    if not sound:
        return None
    cohort = {} if RULES[rule].all_clients or mode == "turns" else {"cohort": 12.0}
    uploads = {} if RULES[rule].everyone or RULES[rule].count_share else {"uploads": 6.0}
    numbers = cohort | ({} if mode == "turns" else uploads) | MODES[mode]
    if not RULES[rule].released:
        numbers["norm_multiplier"] = 0.0
    try:
        arm = arm_for(Method(rule, sound[0], trust), USUAL, "a", **numbers)
    except ValueError:
        return None
    if (mode == "chosen") != bool(arm.rungs):
        return None
    if not arm.rungs:
        return arm
    ladder = tuple(np.geomspace(0.5, 5.0, len(arm.rungs)))
    return arm.changed(ladder=ladder, noise_multiplier=ladder[-1])


ARMS = {
    (rule, trust, mode): arm
    for rule, trust, mode in itertools.product(RULES, TRUSTS, MODES)
    if TRUSTS[trust].private and (arm := arm_of(rule, trust, mode)) is not None
}


def charged(arm):
    """Of a round without a choice: the standard deviation of each noise over the sensitivity of
    what it hides, or None for coins; from the multipliers that are charged."""
    rule, _, trust = arm.parts
    sums, z, s = trust.server_adds_noise, arm.noise_multiplier, rule.count_share
    norms, bits = rule.released, arm.clip_quantile is not None
    refining = rule.refinements if sums else 0
    norm = arm.norm_multiplier * math.sqrt(1 + refining)
    every = {
        Purpose.COHORT: (not arm.separation, None),
        Purpose.UPLOAD_COIN: (True, None),
        Purpose.UPDATE_NOISE: (True, z * math.hypot(1, s)),
        Purpose.NORM_NOISE: (norms and not sums, norm),
        Purpose.SERVER_NORM_NOISE: (norms and sums, norm),
        Purpose.REFINE_NOISE: (refining > 0, norm),
        Purpose.COUNT_NOISE: (s > 0, z * math.hypot(1, s) / s if s else None),
        Purpose.CLIP_NOISE: (bits, arm.clip_multiplier),
        Purpose.LOCAL: (False, None),  # of a client alone, who does not draw from the run's secret
        Purpose.MODEL: (False, None),  # public
    }
    assert every.keys() == set(Purpose), "a purpose without a word on who draws it"
    return {purpose: std for purpose, (there, std) in every.items() if there}


FIELDS = {
    Purpose.UPDATE_NOISE: "update_noise",
    Purpose.NORM_NOISE: "norm_noise",
    Purpose.SERVER_NORM_NOISE: "norm_noise",
    Purpose.REFINE_NOISE: "refine_noise",
    Purpose.COUNT_NOISE: "count_noise",
    Purpose.CLIP_NOISE: "clip_noise",
}


SIZES = dict.fromkeys(FIELDS, 1) | {Purpose.UPDATE_NOISE: SIZE, Purpose.REFINE_NOISE: 8}


def stream(source, name, t, purpose):
    """The secret bytes of one purpose, by hand."""
    label = json.dumps(["draw", name, t, int(purpose)]).encode()
    key = source.entropy.to_bytes(32, "big") + label
    return Stream(hashlib.shake_256(key).digest(32))


def in_steps(arm, t, purpose, std, size):
    """A noise of a run without a seed, in steps of its grid, and the steps in a sensitivity."""
    grid = draws.grid_of(arm)
    fields = {"update_noise": np.ravel(grid.update)[-1], "count_noise": 1, "clip_noise": grid.bits}
    steps = float(fields.get(FIELDS[purpose], grid.norm))
    noise = SystemNoise(stream(SECRET, arm.name, t, purpose)).steps(std, 1 / steps, size)
    return noise, steps


def alone(source, arm, t, purpose, size):
    """The noise of one purpose, in sensitivities."""
    std = charged(arm)[purpose]
    if source is SECRET:
        noise, steps = in_steps(arm, t, purpose, std, size)
        return noise / steps
    key = jax.random.fold_in(source.arm_key(arm.name), t)
    return std * np.asarray(normal(jax.random.fold_in(key, int(purpose)), size), float)


def rungs(arm):
    """The arms of the rounds that an arm may play, one a round."""
    if not arm.controlled:
        return [arm] * 2
    return [arm.at_rung(number) for number in (0, 2, -1)]


@pytest.mark.parametrize("case", ARMS, ids="-".join)
def test_without_a_seed_each_noise_has_the_bytes_of_its_own_purpose(case):
    """Of two arms, as they are drawn ahead of the rounds. Streams that are made: each purpose of a
    round once, and no two with one key. Only here is every rule tried with every kind of round."""
    made, real = defaultdict(list), Randomness._secret

    def secret(self, *label):
        made[label[1:]].append(real(self, *label))
        return made[label[1:]][-1]

    asked_of = rungs(ARMS[case])
    wanted = set()
    with mock.patch.object(Randomness, "_secret", secret):
        for name in "ab":
            bands = min(1, ARMS[case].separation)  # correlated noise is refused without a seed
            arm = replace(ARMS[case], name=name, rounds=len(asked_of), bands=bands)
            rounds = SecretRounds(SECRET, arm, SIZE)
            for t, asked in enumerate(rungs(arm)):
                (drawn,) = rounds.draw(t, 1, asked)
                for purpose, std in charged(asked).items():
                    wanted.add((name, t, int(purpose)))
                    if std is not None:
                        found = getattr(drawn, FIELDS[purpose])
                        steps, _ = in_steps(asked, t, purpose, std, found.size)
                        np.testing.assert_array_equal(found.ravel(), steps)
    assert made.keys() == wanted, "a draw without a stream of its own, or one that nobody needs"
    keys = list(itertools.chain(*made.values()))
    assert len(set(keys)) == len(keys) == len(made), "two draws share a stream"


@pytest.mark.parametrize("case", ARMS, ids="-".join)
def test_a_server_without_a_seed_draws_coins_alone(case):
    """Devices, or the operating system, have the noise of a federation."""
    made, real = [], Randomness._secret
    secret = lambda self, *label: (made.append(label), real(self, *label))[1]  # noqa: E731
    with mock.patch.object(Randomness, "_secret", secret):
        for t, asked in enumerate(rungs(ARMS[case])):
            draw_round(asked, SECRET, t, SIZE)
            coins = [p for p, std in charged(asked).items() if std is None]
            assert sorted(made) == sorted(("draw", "a", t, int(p)) for p in coins)
            made.clear()


def test_every_rule_is_tried_in_every_way_that_it_can_be():
    assert {rule for rule, _, _ in ARMS} == set(RULES)
    for case in (("aocs", "central", "plain"), ("coin", "central", "adaptive"),
                 ("coin", "central", "chosen"), ("dpis", "central", "chosen"),
                 ("norm", "local", "plain"), ("uniform", "central", "turns")):  # fmt: skip
        assert case in ARMS
    assert {p for arm in ARMS.values() for p in charged(arm)} == set(Purpose) - {
        Purpose.LOCAL, Purpose.MODEL,
    }  # fmt: skip


PLAYED = [
    ("aocs", "central", "plain"), ("aocs", "central", "adaptive"), ("norm", "central", "adaptive"),
    ("coin", "central", "adaptive"), ("coin", "central", "chosen"), ("dpis", "central", "chosen"),
    ("uniform", "central", "plain"),
]  # fmt: skip


@pytest.mark.parametrize("source", [SEED, SECRET], ids=["seed", "no seed"])
@pytest.mark.parametrize("case", PLAYED, ids="-".join)
def test_whatever_leaves_a_round_of_nothing_is_the_noise_of_its_own_purpose(case, source):
    """No client has an update: the norm sum, the sums that refine it, the count, the clip norm and
    the model are noise, and it is known which. Where rates or rungs are chosen, the noise is that
    of the round and not the plan's."""
    arm = ARMS[case]
    silent = quadratic_clients(np.zeros(CLIENTS), np.zeros((CLIENTS, 1, SIZE)))
    simulator = Simulator(silent, quadratic_model(SIZE))
    server = Server(schedule="constant", rounds=ROUNDS)
    before, chosen = np.zeros(SIZE), set()
    for block in simulator.play(arm, LocalWork(), server, source, pause_every=1):
        (log,) = block.rounds
        asked, t = arm, log.round
        if arm.controlled:
            asked = arm.at_rung(arm.rungs.index(log.expected_cohort))
        noise = {
            purpose: alone(source, asked, t, purpose, size)
            for purpose, size in SIZES.items()
            if purpose in charged(asked)
        }
        members = draws.cohort_of(source, asked, t).size
        clip = log.clip_norm
        for purpose, shown in (
            (Purpose.SERVER_NORM_NOISE, log.released_norm_sum / clip),
            (Purpose.REFINE_NOISE, log.refined),
            (Purpose.COUNT_NOISE, log.released_count),
        ):
            if purpose in noise:
                np.testing.assert_allclose(np.ravel(shown), noise[purpose], rtol=1e-4, atol=1e-4)
        if Purpose.CLIP_NOISE in noise:
            share = 0.5 + (members + noise[Purpose.CLIP_NOISE][0]) / 2 / asked.cohort
            following = clip * math.exp(-asked.clip_rate * (share - asked.clip_quantile))
            assert float(block.state.clip_norm) == pytest.approx(following, rel=1e-5)
        dials = asked.dials().at_clip(np.float32(clip), np)
        if asked.noise_follows:  # drawn for the last rung, in steps; each has its own
            asked = arm.at_public(log.used_norm_sum)
            noise[Purpose.UPDATE_NOISE] *= asked.noise_multiplier / arm.noise_multiplier
        chosen.add(asked)
        dials = dials.at_public(np.float32(log.used_norm_sum), np)
        bound = float(contribution_bound(arm.method, np.float32(log.used_norm_sum), dials))
        moved = noise[Purpose.UPDATE_NOISE] * bound / float(arm.parts[1].divisor(dials))
        after = np.asarray(block.state.weights, float)
        np.testing.assert_allclose(before - after, moved, rtol=1e-3, atol=1e-3 * bound)
        before = after
    assert (len(chosen) > 1) == bool(arm.rungs)
