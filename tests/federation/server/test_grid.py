"""The network over Flower's Grid, where a reply cannot even be unpacked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from locksfl.federation.messages import TYPES, to_answer, to_content, to_question, to_reply
from locksfl.federation.server.grid import GridNetwork
from locksfl.federation.wire import Answer, Question


class Grid:
    """Three nodes; what the second one sent raises when it is unpacked."""

    run = SimpleNamespace(run_id=1)

    def push_messages(self, messages):
        return [f"id-{i}" for i, _ in enumerate(messages)]

    def pull_messages(self, ids):
        if "id-1" in ids:
            raise KeyError("no such object")
        asked = Message(RecordDict(), 7, "query.norm")
        for i in ids:
            reply = to_reply(Answer(released=np.array([0.5])), asked)
            reply.metadata.__dict__["_reply_to_message_id"] = i
            yield reply


def test_garbage_of_one_device_does_not_end_the_round(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    network = GridNetwork(Grid(), [1, 2, 3], 4)
    answers = network.ask(dict.fromkeys(range(3), Question("norm", {})), 5.0, 1)
    assert answers[1] == Answer()
    assert float(answers[0].released[0]) == float(answers[2].released[0]) == 0.5


def test_a_rule_travels_and_nothing_is_an_answer(monkeypatch):
    """A device that decides by itself is told the rule, and may answer an empty update."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    asked = Question("update", {"round": 1}, np.ones(3, np.float32), "capped", 1.0, 2.0, "coin")
    message = Message(to_content(asked), 7, TYPES["update"])
    found = to_question(message)
    assert (found.rule, found.probability, found.bound) == ("coin", 1.0, 2.0)
    assert found.terms == {"round": 1}
    reply = to_reply(Answer(released=np.zeros(0, np.float32)), message)
    answer = to_answer(reply, 3)
    assert answer.refusal is None
    assert answer.released.shape == (0,)
    drawn = to_question(Message(to_content(replace(asked, rule=None)), 7, TYPES["update"]))
    assert drawn.rule is None
