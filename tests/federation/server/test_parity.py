"""Simulator and federation from the same draws: one model, one set of ledgers."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from checks import ragged, std_is
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.federation.device import DeviceLedger, Policy, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.local_update import local_update
from locksfl.federation.server import rounds
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.rounds import Draws, _settle
from locksfl.methods import RULES
from locksfl.models.build import softmax
from locksfl.privacy import calibrate
from locksfl.privacy.budget import Budget
from locksfl.privacy.ledger import LEDGER
from locksfl.round.client import LocalWork
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.noise import SYSTEM
from locksfl.round.randomness import Purpose, Randomness, client_keys, draw_key
from locksfl.round.rates import RateControl
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from memory_network import MemoryNetwork

CLIENTS, ROUNDS = 12, 5
SEED = Randomness.seeded(11)
SIZES = np.tile([3, 9, 14, 5], 3)
WORK = LocalWork(min_samples=2, max_samples=12)
EPOCHS = LocalWork("epochs", epochs=2, batch=5, step=0.3, max_samples=12)


class InjectedNoise:
    """A device's noise from the simulator's draws. The simulator draws the summed noise of all
    uploaders once: here uploader i has its part, scale_i^2 / sum of scale^2 of the variance's root,
    so that the parts add up to the same vector."""

    def __init__(self, plan, client, size):
        self.plan, self.client, self.size = plan, client, size
        self.round, self.share = 0, 1.0

    def steps(self, std, grid, size):
        key = SEED.arm_key(self.plan.name)
        if size == 1:
            members = draw_members(key, self.round, np.array([self.client]), np.ones(1))
            return np.rint(std * np.asarray(members.norm_noise, float) / grid).astype(np.int64)
        drawn = np.asarray(draw_server(key, self.round, self.size).update_noise, float)
        return np.rint(std * self.share * drawn / grid).astype(np.int64)


class InjectedCoin:
    """A device's own coin, where a rule leaves it to the device: the simulator's."""

    def __init__(self, plan, client):
        self.plan, self.client, self.round = plan, client, 0

    def __call__(self, size):
        clients = np.array([self.client])
        members = draw_members(SEED.arm_key(self.plan.name), self.round, clients, np.ones(1))
        return int(float(members.coins[0]) * 2**64).to_bytes(size, "big")


class InjectingNetwork(MemoryNetwork):
    """Tells every device's noise which round it is, and its part of the summed noise."""

    def ask(self, questions, seconds, round_number):
        bounds = [q.bound for q in questions.values() if q.bound is not None]
        for number, question in questions.items():
            noise = self.devices[number].noise
            noise.round = self.devices[number].entropy.round = round_number - 1
            if question.bound is not None:
                noise.share = question.bound / math.sqrt(sum(b * b for b in bounds))
        return super().ask(questions, seconds, round_number)


def plan_for(trust, rule, **other):
    settings = {"clients": CLIENTS, "rounds": ROUNDS, "cohort": 7.0, "uploads": 4.0, "step": 0.7}
    settings |= {"clip_norm": 0.6, "noise_multiplier": 0.3, "norm_multiplier": 0.5}
    if rule == "norm":
        settings |= {"floor": 0.2, "norm_low": 0.6}
    elif not RULES[rule].released:
        settings["norm_multiplier"] = 0.0
    if rule == "coin":  # of one rate; its norms differ more
        settings |= {"uploads": None, "clip_norm": 1.0}
    return Arm.of("arm", rule=rule, trust=trust, **(settings | other))


def policy_for(trust):
    limits = {"max_clip_norm": 1.0, "min_noise_multiplier": 0.1, "min_norm_multiplier": 0.1}
    budget = {} if trust == "central" else {"epsilon": 1e5, "delta": 1e-5}
    return Policy(trust=trust, max_rounds=50, **limits, **budget)


def federate(folder, plan, work=WORK, population=None, model=None):
    """The same experiment on devices in memory, each with its own guard and ledger."""
    population = population or ragged(SIZES)
    model = model or softmax(6, 3)
    devices = {}
    for i in range(CLIENTS):
        rows = slice(*population.offsets[i : i + 2])

        def key(number, i=i):
            of_round = draw_key(SEED.arm_key("arm"), number - 1, Purpose.LOCAL)
            return client_keys(of_round, np.array([i]))[0]

        update = local_update(
            model, work, population.features[rows], population.labels[rows], population.scale, key
        )
        ledger = Witness(folder / f"{i}.sqlite", folder / f"{i}.key")
        ledger.create()
        noise = InjectedNoise(plan, i, model.size)
        coin = InjectedCoin(plan, i)
        devices[i] = Device(update, policy_for(plan.method.trust), ledger, noise, coin)
    network = InjectingNetwork(devices)
    privacy = PrivacyConfig(trust=plan.method.trust)
    return Federation(
        population, model, network, [plan],
        folder=folder, experiment="x", privacy=privacy, seconds=1.0,
    )  # fmt: skip


def play(engine, plan, work):
    rounds, state = [], None
    for block in engine.play(plan, work, Server(rounds=plan.rounds), SEED):
        rounds += block.rounds
        state = jax.tree.map(np.asarray, block.state)
    return rounds, state


@pytest.mark.parametrize(
    ("rule", "trust"),
    [
        ("norm", "local"),
        ("norm", "central"),
        ("uniform", "local"),
        ("uniform", "central"),
        ("ocs", "local"),
        ("top-k", "local"),
        ("aocs", "central"),
    ],
)
def test_the_same_draws_give_the_same_model_and_ledgers(tmp_path, rule, trust):
    plan = plan_for(trust, rule)
    population, model = ragged(SIZES), softmax(6, 3)
    expected, wanted = play(Simulator(population, model), plan, WORK)
    found, state = play(federate(tmp_path, plan, WORK, population, model), plan, WORK)
    np.testing.assert_allclose(state.weights, wanted.weights, rtol=2e-5, atol=2e-6)
    norms, uploads = np.zeros(CLIENTS, int), np.zeros(CLIENTS, int)
    for mine, theirs in zip(found, expected, strict=True):
        cohort, uploaded = theirs.cohort, theirs.uploaded
        if rule == "uniform":  # the federation asks uploaders only
            cohort, uploaded = cohort[uploaded], uploaded[uploaded]
        np.testing.assert_array_equal(mine.cohort, cohort)
        np.testing.assert_array_equal(mine.uploaded, uploaded)
        np.testing.assert_array_equal(mine.received, uploaded)
        np.testing.assert_allclose(mine.used_norm_sum, theirs.used_norm_sum, rtol=1e-5)
        np.testing.assert_allclose(mine.noise, theirs.noise, rtol=1e-5)
        assert mine.accuracy == pytest.approx(theirs.accuracy)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
        norms[theirs.cohort] += plan.releases_norms
        uploads[theirs.cohort[theirs.uploaded]] += 1
    assert uploads.sum() > 5  # of about 20: the comparison is of something
    for i in range(CLIENTS):
        device = DeviceLedger.open(tmp_path / f"{i}.sqlite")
        tallies = device.tallies()
        assert sum(t.rounds for t in tallies if t.terms.asks_norms) == norms[i]
        assert sum(t.uploads for t in tallies) == sum(t.sent for t in tallies) == uploads[i]
        device.close()
    if trust == "local":
        with ServerLedger.open_for(tmp_path / LEDGER, "x") as ledger:
            (arm,) = ledger.books.arms
        np.testing.assert_array_equal(arm.norms, norms)
        np.testing.assert_array_equal(arm.uploads, uploads)


@pytest.mark.parametrize("uploads", [None, 3.0])
def test_devices_flip_the_coin(tmp_path, uploads):
    """Each device decides by its own norm and answers C u / |u| or nothing: at one rate, and under
    rate control."""
    plan = plan_for("central", "coin", uploads=uploads)
    if uploads:
        plan = calibrate(plan.changed(noise_multiplier=0.0), 100.0, 1e-3)
        assert len({RateControl(plan, [0.0] * t).arm.cohort for t in range(ROUNDS)}) > 1
    population, model = ragged(SIZES), softmax(6, 3)
    expected, wanted = play(Simulator(population, model), plan, WORK)
    found, state = play(federate(tmp_path, plan, WORK, population, model), plan, WORK)
    np.testing.assert_allclose(state.weights, wanted.weights, rtol=2e-5, atol=2e-6)
    silent = 0
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.cohort, theirs.cohort)
        np.testing.assert_array_equal(mine.received, theirs.uploaded)
        assert mine.released_count == pytest.approx(theirs.released_count, abs=1e-4)
        assert mine.expected_cohort == theirs.expected_cohort
        np.testing.assert_allclose(mine.noise, theirs.noise, rtol=1e-5)
        assert mine.stages["update"]["answered"] == len(mine.cohort)  # nothing is an answer
        silent += int((~mine.received).sum())
    assert silent > 3
    for i in range(CLIENTS):  # the ledger knows what was asked, not how a coin fell
        device = DeviceLedger.open(tmp_path / f"{i}.sqlite")
        asked = sum(i in log.cohort for log in found)
        assert sum(t.uploads for t in device.tallies()) == asked
        device.close()


def test_without_a_seed_the_count_is_a_whole_number(tmp_path):
    """The server's noise on it is exact, and the devices' coins are the operating system's."""
    plan = replace(plan_for("central", "coin"), rounds=30)
    federation = federate(tmp_path, plan)
    for number, device in federation.network.devices.items():
        flip = type("", (), {"__call__": lambda _, size: os.urandom(size), "round": 0})()
        federation.network.devices[number] = replace(device, entropy=flip)
    secret, rounds = Randomness(2**99, simulated=False), []
    for block in federation.play(plan, WORK, Server(rounds=30), secret):
        rounds += block.rounds
    beyond = np.array([log.released_count - log.received.sum() for log in rounds])
    assert (beyond == np.round(beyond)).all()
    # chi-square at 1e-6, both sides; a seventh of the noise is turned away
    assert std_is(beyond, plan.count_noise)
    assert not std_is(0.15 * beyond, plan.count_noise)


def test_without_a_seed_every_rate_has_its_own_noise():
    """What the server asks of the exact sampler, for update and count, under rate control: only
    here is the noise of a federation without a seed that of the round, and not the plan's."""
    plan = calibrate(plan_for("central", "coin", uploads=3.0, noise_multiplier=0.0), 100.0, 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        check_its_own_noise(plan, federate(Path(folder), plan))


def check_its_own_noise(plan, federation):
    real = rounds.add_noise
    for number, device in federation.network.devices.items():
        flip = type("", (), {"__call__": lambda _, size: os.urandom(size), "round": 0})()
        federation.network.devices[number] = replace(device, entropy=flip)
    updates, counts, logs = [], [], []

    class Asked:
        def steps(self, std, grid, size):
            if grid == 1.0:
                counts.append(std)
            return SYSTEM.steps(std, grid, size)

    def noised(values, std, noise):
        updates.append(std)
        return real(values, std, noise)

    with mock.patch.multiple(rounds, SYSTEM=Asked(), add_noise=noised):
        secret = Randomness(2**99, simulated=False)
        for block in federation.play(plan, WORK, Server(rounds=ROUNDS), secret):
            logs += block.rounds
    share = RULES["coin"].count_share
    z = [plan.ladder[plan.rungs.index(log.expected_cohort)] for log in logs]
    wanted = np.array(z) * math.hypot(1.0, share)
    np.testing.assert_allclose(updates, wanted * plan.clip_norm, rtol=1e-6)
    np.testing.assert_allclose(counts, wanted / share, rtol=1e-6)
    assert min(wanted) < 0.95 * plan.update_multiplier


def test_local_epochs_agree_too(tmp_path):
    plan = plan_for("local", "norm")
    population, model = ragged(SIZES), softmax(6, 3)
    _, wanted = play(Simulator(population, model), plan, EPOCHS)
    _, state = play(federate(tmp_path, plan, EPOCHS, population, model), plan, EPOCHS)
    np.testing.assert_allclose(state.weights, wanted.weights, rtol=2e-5, atol=2e-6)


def test_the_filter_stops_the_same_clients(tmp_path):
    budget = Budget(9.0, 1e-5)
    plan = plan_for("local", "norm", noise_multiplier=1.2, norm_multiplier=2.0, budget=budget)
    population, model = ragged(SIZES), softmax(6, 3)
    expected, wanted = play(Simulator(population, model), plan, WORK)
    found, state = play(federate(tmp_path, plan, WORK, population, model), plan, WORK)
    assert expected[-1].exhausted > 0
    assert [r.exhausted for r in found] == [r.exhausted for r in expected]
    np.testing.assert_allclose(state.weights, wanted.weights, rtol=2e-5, atol=2e-6)


def test_another_draw_is_seen(tmp_path):
    """The comparison can fail: one device's noise is another one."""
    plan = plan_for("local", "norm")
    population, model = ragged(SIZES), softmax(6, 3)
    _, wanted = play(Simulator(population, model), plan, WORK)
    federation = federate(tmp_path, plan, WORK, population, model)
    for device in federation.network.devices.values():
        device.noise.client = 0
    _, state = play(federation, plan, WORK)
    assert np.abs(state.weights - wanted.weights).max() > 1e-3


def test_without_a_seed_every_sum_of_a_refined_number_has_its_noise():
    """Nine numbers a round with the system's own noise; false-alarm rate 1e-6, 10% less is seen."""
    plan = plan_for("central", "aocs")
    everyone = jax.numpy.arange(CLIENTS)
    members = draw_members(jax.random.key(0), 0, everyone, jax.numpy.ones(CLIENTS))
    draws = Draws(np.arange(CLIENTS), members, None)
    dials, rule = plan.dials(float), RULES["aocs"]
    values = np.linspace(0.05, 0.6, CLIENTS)
    beyond = []
    for _ in range(400):
        found = _settle(plan, values, members, draws)
        beyond.append((float(found.released) - values.sum()) / plan.clip_norm)
        public = rule.settle(float(found.released), dials, np)
        for below, certain in np.asarray(found.refined, float):
            p = rule.probability(values, public, 1.0, dials, np)
            beyond += [below - p[p < 1].sum(), certain - np.sum(p >= 1)]
            public = rule.refine(public, below, certain, dials, np)
    assert std_is(beyond, math.sqrt(5) * plan.norm_multiplier)
    assert not std_is(beyond, 1.1 * math.sqrt(5) * plan.norm_multiplier)
