"""Random faults between the real server loop and real guards: rounds go on, and nothing is unpaid.

Under every message a fault may be drawn: the device is killed at a random line, the message comes
late, twice, out of order or garbled, or the answer is NaN, of another shape or size, or an error;
and the server is killed between two stages and resumed. The books are kept by `faults.Watch`.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from faults import ODD, POLICY, WATCHED, Killed, Watch, charged

from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.federation.device import Guard, Witness, answering
from locksfl.federation.device.answering import Device
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.wire import Answer
from locksfl.models.build import softmax
from locksfl.privacy.ledger import LEDGER
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from memory_network import MemoryNetwork

CLIENTS, SIZE = 6, 21
KINDS = ("kill", "delay", "garbage", "replay", "reorder", "bad answer", "drop")
PLAN = Arm.of(
    "arm",
    rule="norm",
    trust="local",
    clients=CLIENTS,
    rounds=400,
    cohort=5.0,
    uploads=3.0,
    clip_norm=1.0,
    step=0.1,
    floor=0.2,
    norm_low=0.6,
    noise_multiplier=60.0,
    norm_multiplier=80.0,
)


class WatchedNoise:
    """Small and quick draws; every one is reported before it is returned."""

    def __init__(self, number, path, watch, rng):
        self.number, self.path, self.watch, self.rng = number, path, watch, rng
        self.asked = None

    def steps(self, std, grid, size):
        self.watch.drawn(self.number, self.asked, self.path, std)
        return np.full(size, round(self.rng.gauss(0, std) / grid / 1e3), np.int64)


class FaultyNetwork(MemoryNetwork):
    """Devices behind a wire on which anything can happen."""

    def __init__(self, devices, rng, run, faults):
        super().__init__(devices, run)
        self.rng, self.faults, self.injected = rng, faults, Counter()
        self.sent, self.late = [], []

    def ask(self, questions, seconds, round_number):
        del seconds, round_number
        if self.faults and self.rng.random() < 0.04:
            self._inject("server killed")
            raise Killed
        answers = {}
        for number, question in questions.items():
            self.sent.append((number, question))
            answer = self._deliver(number, question)
            if answer is not None:
                answers[number] = answer
            if self.late and self.rng.random() < 0.3:
                self._answer(*self.late.pop())  # too late: never handed out
        return answers

    def _inject(self, kind):
        self.faults -= 1
        self.injected[kind] += 1

    def _deliver(self, number, question):
        if not self.faults or self.rng.random() < 0.4:
            return self._answer(number, question)
        kind = self.rng.choice(KINDS)
        self._inject(kind)
        if kind == "kill":
            return self._kill(number, question)
        if kind == "delay":
            return self.late.append((number, question))
        if kind == "drop":
            return None
        if kind == "garbage":
            return self._answer(number, self._garbled(question))
        if kind == "reorder":
            self._answer(number, self.rng.choice(self.sent)[1])
        answer = self._answer(number, question)
        if kind == "replay":
            return [answer, *(self._answer(number, question) for _ in range(2))][
                self.rng.randrange(3)
            ]
        return self._spoiled(answer) if kind == "bad answer" else answer

    def _answer(self, number, question):
        device = self.devices[number]
        device.noise.asked = SimpleNamespace(
            run=self.run, table=question.terms, stage=question.stage, bound=question.bound
        )
        return device(self.run, question, self.kept[number])

    def _kill(self, number, question):
        left = [self.rng.randrange(1, 300)]

        def line(_frame, event, _value):
            left[0] -= event == "line"
            if left[0] == 0:
                raise Killed
            return line

        def call(frame, _event, _value):
            return line if frame.f_code.co_filename.endswith(WATCHED) else None

        before = sys.gettrace()
        sys.settrace(call)
        try:
            self._answer(number, question)
        except Killed:
            pass
        finally:
            sys.settrace(before)
        self.kept[number].clear()

    def _garbled(self, question):
        terms = dict(question.terms)
        key = self.rng.choice([*terms, "unknown"])
        terms[key] = self.rng.choice([*ODD, terms["round"] + 1, terms["round"] - 1])
        odd = self.rng.choice([None, math.nan, -1.0, 1e300, 1e-300])
        stage = self.rng.choice([question.stage, "norm", "update", "end"])
        return self.rng.choice(
            [
                dataclasses.replace(question, terms=terms),
                dataclasses.replace(question, bound=odd),
                dataclasses.replace(question, probability=odd),
                dataclasses.replace(question, weights=None),
                dataclasses.replace(question, stage=stage, estimator="capped"),
            ]
        )

    def _spoiled(self, answer):
        return self.rng.choice(
            [
                Answer(),
                Answer(refusal=999),
                Answer(released=np.full(SIZE, np.nan, np.float32)),
                Answer(released=np.full(SIZE, 1e30, np.float32)),
                Answer(released=np.zeros(SIZE + 1, np.float32)),
                Answer(released=np.zeros(SIZE, np.float64)),
                Answer(released=np.array([math.inf])),
                Answer(released=np.array([-3.0])),
                answer,
            ]
        )


def play_with_faults(folder, seed, faults, monkeypatch=None, guard=Guard):
    """Rounds until all faults were met; a killed server is resumed under a new run."""
    rng, watch = random.Random(seed), Watch()
    population, model = ragged(np.full(CLIENTS, 4)), softmax(6, 3)
    assert model.size == SIZE
    devices = {}
    for i in range(CLIENTS):
        path = folder / f"{i}.sqlite"
        ledger = Witness(path, folder / f"{i}.key")
        ledger.create()
        noise = WatchedNoise(i, path, watch, rng)
        devices[i] = Device(lambda w, t, i=i: np.full(SIZE, 0.03 * (i + 1)), POLICY, ledger, noise)
    if monkeypatch is not None:
        monkeypatch.setattr(answering, "Guard", guard)
    server, randomness = Server(rounds=PLAN.rounds), Randomness.seeded(seed)
    injected, state, done, rounds = Counter(), None, 0, []
    for run in range(1000):
        network = FaultyNetwork(devices, rng, f"run {run}", faults)
        federation = Federation(
            population, model, network, [PLAN], folder=folder, experiment="x",
            privacy=PrivacyConfig(trust="local"), seconds=1.0,
        )  # fmt: skip
        try:
            blocks = federation.play(
                PLAN, None, server, randomness,
                evaluate_every=1000, state=state, first_round=done,
            )  # fmt: skip
            for block in blocks:
                state, done = jax.tree.map(np.asarray, block.state), done + 1
                rounds += block.rounds
                if not network.faults:
                    break
        except Killed:
            pass
        injected += network.injected
        faults = network.faults
        if not faults:
            return watch, injected, rounds, state
    raise AssertionError("the faults were never met")


def test_200_faults_through_the_server_loop(tmp_path):
    watch, injected, rounds, state = play_with_faults(tmp_path, seed=2, faults=200)
    assert sum(injected.values()) == 200
    assert set(injected) == {*KINDS, "server killed"}
    assert watch.violations == []
    assert len(watch.draws) > 60  # it was no quiet time
    assert np.isfinite(state.weights).all()
    tallies = [round.stages[stage] for round in rounds for stage in round.stages]
    assert sum(t["missing"] for t in tallies) > 20
    assert sum(t["rejected"] for t in tallies) > 5
    for t in tallies:
        assert t["asked"] == t["answered"] + t["missing"] + t["rejected"] + sum(
            t["refused"].values()
        )
    for i in range(CLIENTS):
        assert charged(tmp_path / f"{i}.sqlite") <= POLICY.budget.mu_squared * (1 + 1e-9)
    with ServerLedger.open_for(tmp_path / LEDGER, "x") as ledger:  # whole; no round reserved twice
        (arm,) = ledger.books.arms
        norms = np.zeros(CLIENTS, int)
        for log in rounds:
            norms[log.cohort] += 1
        np.testing.assert_array_equal(arm.norms, norms)


class PaysNothing(Guard):
    """A guard that forgets to debit the update."""

    def release_update(self, terms, _contribution, bound):
        from locksfl.round.noise import add_noise, gaussian_std

        self.check(terms, "update")
        return add_noise(
            np.ones(SIZE), gaussian_std(terms.noise_multiplier, bound), self._noise
        ).astype(np.float32)


def test_a_planted_fault_is_found(tmp_path, monkeypatch):
    watch, *_ = play_with_faults(tmp_path, 2, 200, monkeypatch, PaysNothing)
    assert any("unpaid release" in told for told in watch.violations)


@pytest.mark.parametrize(
    "released",
    [
        np.full(SIZE, np.nan, np.float32),
        np.full(SIZE, np.inf, np.float32),
        np.zeros(SIZE - 1, np.float32),
        np.zeros((1, SIZE), np.float32),
        np.zeros(SIZE, np.float64),
        np.full(SIZE, 1e6, np.float32),
    ],
)
def test_a_bad_update_is_left_out(released):
    from locksfl.federation.server.rounds import check_updates

    asked, bounds = np.ones(2, bool), np.full(2, 2.0)
    good = Answer(released=np.ones(SIZE, np.float32))
    found = check_updates(PLAN, asked, {0: good, 1: Answer(released=released)}, SIZE, bounds)
    np.testing.assert_array_equal(found.received, [True, False])
    np.testing.assert_array_equal(found.summed, np.ones(SIZE))
    assert found.tally.rejected == 1
