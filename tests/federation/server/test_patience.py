"""How long stages wait, by a clock of the test's own: no real second passes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity

from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.federation.messages import to_reply
from locksfl.federation.server import grid, patience
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.grid import GridNetwork
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.patience import LONGEST_REST, Patience
from locksfl.federation.wire import Answer, Question
from locksfl.models.build import softmax
from locksfl.privacy.ledger import LEDGER
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from memory_network import MemoryNetwork

DEADLINE, NEVER = 60.0, float("inf")


class Fleet:
    """Devices that answer after so many seconds, behind Flower's interface, and a clock. A device
    that has nothing to do waits for work, and so is seen; one that is busy was last seen when it
    took its question. `off`: was here before the first round, and then it was switched off."""

    def __init__(self, *seconds, refuse=(), off=()):
        self.seconds, self.refuse, self.now = list(seconds), set(refuse), 1000.0
        self.run, self.asked, self._due = SimpleNamespace(run_id=1), [], {}
        self._took = dict.fromkeys(off, (999.0, NEVER))  # the last question: when, and until when

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def seen(self):
        found = {i: 0.0 for i, seconds in enumerate(self.seconds) if seconds < NEVER}
        busy = {i: took for i, (took, until) in self._took.items() if until > self.now}
        return found | {i: self.now - took for i, took in busy.items()}

    def push_messages(self, messages):
        if not messages:  # the stage is over; what has arrived can be pulled
            self._due = {name: due for name, due in self._due.items() if due[0] <= self.now}
            return []
        self._due = {}
        for message in messages:
            node = message.metadata.dst_node_id
            due = self.now + self.seconds[node]
            self._due[message.object_id] = due, message
            self._took.setdefault(node, (self.now, due))
            if self._took[node][1] <= self.now:
                self._took[node] = self.now, due
        self.asked.append([message.metadata.dst_node_id for message in messages])
        return list(self._due)

    def pull_messages(self, ids):
        ready = [i for i in ids if i in self._due and self._due[i][0] <= self.now]
        for name in ready:
            _, message = self._due.pop(name)
            refused = message.metadata.dst_node_id in self.refuse
            answer = Answer(refusal=6) if refused else Answer(released=np.array([0.5]))
            reply = to_reply(answer, message)
            reply.metadata.__dict__["_reply_to_message_id"] = name
            yield reply

    def play(self, monkeypatch, rounds, quorum=1.0, central=False):
        """Ask everybody in each round. Returns the seconds of each."""
        for module in (grid, patience):
            monkeypatch.setattr(module, "time", self)
        keeper = Patience(quorum, None if central else self.seen)
        network = GridNetwork(self, range(len(self.seconds)), 1, patience=keeper)
        question, took, self.answers = Question("norm", {}), [], []
        for number in range(1, rounds + 1):
            began = self.now
            everybody = dict.fromkeys(range(len(self.seconds)), question)
            self.answers.append(sorted(network.ask(everybody, DEADLINE, number)))
            took.append(self.now - began)
        return took


@pytest.fixture(autouse=True)
def task(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def test_a_silent_device_costs_the_deadline_once(monkeypatch):
    fleet = Fleet(1.0, 2.0, NEVER, off=[2])
    took = fleet.play(monkeypatch, 50)
    assert DEADLINE < took[0] < DEADLINE + 1
    assert max(took[1:]) < 3
    assert fleet.asked == [[0, 1, 2]] + [[0, 1]] * 49


def test_without_it_every_round_would_cost_the_deadline(monkeypatch):
    monkeypatch.setattr(Patience, "away", lambda *given: set())
    fleet = Fleet(1.0, 2.0, NEVER, off=[2])
    assert min(fleet.play(monkeypatch, 5)) > DEADLINE


def test_a_device_that_was_never_here_costs_nothing(monkeypatch):
    assert max(Fleet(1.0, NEVER).play(monkeypatch, 3)) < 2


def test_a_device_that_comes_back_is_asked_again_at_once(monkeypatch):
    ago = {0: 5.0, 1: 5.0}
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: 10.0))
    keeper = Patience(seen=lambda: ago)
    keeper.note("norm", [0, 1], [0], 1)
    assert keeper.away([0, 1], 2) == {1}
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: 12.0))
    ago[1] = 1.0
    assert keeper.away([0, 1], 2) == set()


def test_a_device_that_is_always_late_rests_for_longer_and_longer(monkeypatch):
    """It pays for answers that nobody gets. After an answer in time it is as before."""
    fleet = Fleet(1.0, DEADLINE + 5)
    took = fleet.play(monkeypatch, 200)
    late = [number for number, seconds in enumerate(took, 1) if seconds > DEADLINE]
    # it is busy for 5 rounds after each; then the rest counts: 7, 15, 31, 63
    assert late == [1, 7, 13, 19, 27, 43, 75, 139]
    assert np.diff(late).max() == LONGEST_REST + 1
    keeper = Patience()
    for number in (1, 2, 4):
        keeper.note("update", [0], [], number)
    keeper.note("norm", [0], [0], 5)  # to answer something else changes nothing
    assert keeper.away([0], 7) == {0}
    keeper.note("update", [0], [0], 8)
    keeper.note("update", [0], [], 9)
    assert keeper.away([0], 10) == set()


def test_under_central_trust_a_silent_device_costs_the_deadline_now_and_then(monkeypatch):
    took = Fleet(1.0, 2.0, NEVER, off=[2]).play(monkeypatch, 200, central=True)
    late = [number for number, seconds in enumerate(took, 1) if seconds > DEADLINE]
    assert late == [1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_under_central_trust_nobody_decides_whether_another_is_in_a_sum(monkeypatch):
    """Device 1 does the same in every world: it is late in one round. Device 0 is quick or slow."""

    def rounds_of_device_1(seconds, central):
        fleet = Fleet(seconds, DEADLINE + 5)
        play = fleet.push_messages

        def once_late(messages):
            sent = play(messages)
            fleet.seconds[1] = 1.0
            return sent

        fleet.push_messages = once_late
        fleet.play(monkeypatch, 9, central=central)
        return [number for number, found in enumerate(fleet.answers, 1) if 1 in found]

    worlds = [rounds_of_device_1(seconds, central=True) for seconds in (1.0, 6.0, 12.0)]
    assert worlds == [list(range(2, 10))] * 3
    assert rounds_of_device_1(1.0, False) != rounds_of_device_1(6.0, False)  # why it is not used


def test_a_quorum_gives_the_others_as_long_again(monkeypatch):
    fleet = Fleet(1.0, 2.0, 3.0, 4.0, 5.5, 30.0)
    (took,) = fleet.play(monkeypatch, 1, quorum=0.6)  # 4 of 6, after 4 s: until 8 s
    assert fleet.answers == [[0, 1, 2, 3, 4]]
    assert took == pytest.approx(8, abs=0.5)
    (all_of_them,) = Fleet(1.0, 2.0, 3.0, 4.0, 5.5, 30.0).play(monkeypatch, 1)
    assert all_of_them == pytest.approx(30, abs=0.5)


def test_a_quorum_of_quick_devices_still_waits_a_second(monkeypatch):
    fleet = Fleet(0.1, 0.1, 0.9, 5.0)
    fleet.play(monkeypatch, 1, quorum=0.5)
    assert fleet.answers == [[0, 1, 2]]


def test_refusals_are_no_part_of_a_quorum(monkeypatch):
    """Eight refuse at once. Of the two that are left, half is one, not none."""
    fleet = Fleet(*[0.1] * 8, 10.0, 15.0, refuse=range(8))
    (took,) = fleet.play(monkeypatch, 1, quorum=0.5)
    assert fleet.answers == [list(range(10))]
    assert took > 15


def test_the_deadline_holds_after_a_quorum_too(monkeypatch):
    fleet = Fleet(50.0, NEVER, off=[1])
    (took,) = fleet.play(monkeypatch, 1, quorum=0.5)
    assert took == pytest.approx(DEADLINE, abs=0.5)


@pytest.mark.parametrize("credits", [False, True])
def test_over_a_network_nobody_gets_credit_for_the_noise_of_others(tmp_path, credits):
    plan = Arm.of(
        "arm", rule="uniform", trust="local", clients=4, rounds=2, cohort=4.0, uploads=4.0,
        clip_norm=1.0, step=1.0, noise_multiplier=2.0,
    )  # fmt: skip
    model = softmax(5, 2)
    sent = Answer(released=np.zeros(model.size, np.float32))
    federation = Federation(
        ragged(np.full(4, 2), 5, 2), model, MemoryNetwork(dict.fromkeys(range(4), lambda *_: sent)),
        [plan], folder=tmp_path, experiment="x", privacy=PrivacyConfig(trust="local"),
        seconds=1.0, credits=credits,
    )  # fmt: skip
    list(federation.play(plan, None, Server(rounds=2), Randomness.seeded(0)))
    with ServerLedger.open_for(tmp_path / LEDGER, "x") as ledger:
        commits = {e.uploaders for e in ledger.entries() if e.kind == "commit"}
    assert commits == ({4} if credits else {1})
