"""The network over Flower's Grid, where a reply cannot even be unpacked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from locksfl.federation.messages import TYPES, to_answer, to_content, to_question, to_reply
from locksfl.federation.server.grid import GridNetwork
from locksfl.federation.server.superlink import SuperLink
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


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("raise SystemExit(3)", None, "has ended (exit code 3); its log, LOG, ends: the cause"),
        ("import os; os.kill(os.getpid(), 9)", 403, "has ended (killed by SIGKILL)"),
        ("input()", 403, "refused /v1/x (403): its run has been stopped; its log: LOG"),
        ("input()", 500, "refused /v1/x (500); its log: LOG"),
        ("input()", None, "does not answer (ReadTimeout('slow')); its log: LOG"),
    ],
)
def test_why_nothing_goes_on_is_one_line(tmp_path, ends, status, said):
    link = SuperLink.__new__(SuperLink)
    link.home, log = tmp_path, tmp_path / "superlink.log"
    log.write_text("before\nthe cause\n\n")
    request = httpx.Request("POST", "https://127.0.0.1/v1/x")
    error = httpx.ReadTimeout("slow")
    if status is not None:
        answer = httpx.Response(status, request=request)
        error = httpx.HTTPStatusError("", request=request, response=answer)
    with subprocess.Popen([sys.executable, "-c", ends], stdin=subprocess.PIPE) as link._process:
        if ends != "input()":
            link._process.wait()
        told = str(link._lost(error))
    assert told.startswith(f"the SuperLink {said.replace('LOG', str(log))}")
    assert "\n" not in told
