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
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from locksfl.federation.messages import TYPES, to_answer, to_question, to_reply
from locksfl.federation.post import fold, name_of, pack, unfold, unpack
from locksfl.federation.server.grid import GridNetwork
from locksfl.federation.server.mail import COLLECT, Mail
from locksfl.federation.server.superlink import SuperLink
from locksfl.federation.wire import Answer, Question
from memory_network import to_content


class Room:
    """The mailroom's end of Mail: two devices answer, what the third sends is no message."""

    def __init__(self):
        self.stages, self.letters, self.over = [], [], 0

    def __call__(self, path, pieces):
        if path == COLLECT:
            found, self.letters = self.letters, []
            return b"".join(pack(found))
        if not pieces:
            self.over += 1
            return b""
        most, pairs, *objects = unpack(b"".join(pieces))
        self.stages.append((int(most), pairs.decode().split(), objects))
        (name, *_) = pairs.decode().split()[1::2]
        asked = unfold([part for part in objects if name_of(part) == name] + objects, None)
        reply = fold(to_reply(Answer(released=np.array([0.5])), asked))
        garbage = [b"11", b"\0" * 7]
        self.letters = [b"12", b"".join(pack(reply)), *garbage, b"13", b"".join(pack(reply))]
        return b""


@pytest.fixture
def mail(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    room = Room()
    return Mail(room, SimpleNamespace(run_id=1), 4), room


def test_garbage_of_one_device_does_not_end_the_round(mail):
    network = GridNetwork(mail[0], [11, 12, 13], 4)
    answers = network.ask(dict.fromkeys(range(3), Question("norm", {})), 5.0, 1)
    assert answers[0] == Answer()
    assert float(answers[1].released[0]) == float(answers[2].released[0]) == 0.5


def test_a_model_is_sent_once_for_all(mail):
    """A thousand devices, one model; and when the time is up, nobody can answer any more."""
    weights = np.zeros(100_000, np.float32)
    asked = {i: Question("update", {}, weights, "capped", 1 / (i + 2), 1.0) for i in range(1000)}
    network, room = GridNetwork(mail[0], list(range(11, 1011)), 4), mail[1]
    assert set(network.ask(asked, 0.05, 1)) == {0, 1, 2}
    ((_, pairs, objects),) = room.stages
    assert pairs[::2] == [str(node) for node in range(11, 1011)]
    assert sum(map(len, objects)) < 400_000 + 1000 * 2_000
    assert room.over == 1


def test_what_was_in_time_is_not_lost_in_batches(mail):
    """Answers come in batches, and the deadline passes while they are read."""
    network, room = GridNetwork(mail[0], list(range(11, 15)), 4), mail[1]
    batches = []

    def call(path, pieces):
        if path != COLLECT:
            room(path, pieces)
            if pieces:
                batches.extend([[], room.letters[:2], room.letters[2:4], room.letters[4:]])
            return b""
        return b"".join(pack(batches.pop(0) if batches else []))

    mail[0]._call = call
    found = network.ask(dict.fromkeys(range(4), Question("norm", {})), 0.0, 1)
    assert set(found) == {0, 1, 2}
    assert room.over == 1


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
