"""A device's node and a server that misbehaves, without sockets: `tests/federation` has those."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.proto.node_pb2 import Node as NodeProto

from locksfl.federation import certificates
from locksfl.federation.device.node import Node, _TurnedAway, _WrongClock


@pytest.fixture
def node(tmp_path):
    certificates.make_server(tmp_path, ["localhost"], days=1)
    certificates.make_node(tmp_path, "device", days=1)
    return Node("localhost:1", tmp_path / certificates.CA, tmp_path / "device.key", answer, poll=0)


def answer(*_):
    raise AssertionError("nothing here can be answered")


class Server:
    """Gives these answers to whoever asks for messages, then is gone; signs on with a status."""

    def __init__(self, answers=(), status=200, date=None):
        self.answers, self.status = list(answers), status
        self.headers = {} if date is None else {"date": date}

    def PullMessages(self, _):
        if not self.answers:
            raise httpx.ConnectError("gone")
        return self.answers.pop(0)

    def ActivateNode(self, _):
        request = httpx.Request("POST", "https://localhost")
        raise httpx.HTTPStatusError(
            "no",
            request=request,
            response=httpx.Response(self.status, headers=self.headers, request=request),
        )


def test_garbage_does_not_end_the_node(node):
    """No content and an error at once, which no message has; and a head without its tree."""
    both = Message()
    both.content.SetInParent()
    both.error.code = 1
    server = Server(
        [
            PullMessagesResponse(messages_list=[both], message_object_trees=[ObjectTree()]),
            PullMessagesResponse(messages_list=[Message()]),
        ]
    )
    with pytest.raises(httpx.ConnectError):
        node._answer_all(server, NodeProto(node_id=1))
    assert not server.answers


@pytest.mark.parametrize(
    ("seconds", "told"), [(30, "30 s ahead of"), (-400, "400 s behind"), (0, None), (-60, None)]
)
def test_a_wrong_clock_gets_the_true_reason(node, seconds, told):
    """The server answers 401 to a wrong time and to an unknown key; its own time tells which."""
    there = datetime.now(UTC) - timedelta(seconds=seconds)
    server = Server(status=401, date=format_datetime(there.replace(microsecond=0), usegmt=True))
    with pytest.raises(_TurnedAway if told is None else _WrongClock) as caught:
        node._activate(server)
    if told is not None:
        shown = str(caught.value).replace(f"{abs(seconds) + 1} s", f"{abs(seconds)} s")
        assert shown.replace("399 s", "400 s").startswith(f"this device's clock is {told} the")


def test_a_node_with_a_wrong_clock_says_so_once_and_waits(node, monkeypatch):
    """It is not told that its key is unknown, and does not end."""
    said, tries = [], []

    def activate(_):
        tries.append(1)
        if len(tries) == 9:
            raise KeyboardInterrupt
        raise _WrongClock("this device's clock is 30 s ahead")

    monkeypatch.setattr(node, "_activate", activate)
    monkeypatch.setattr(certificates, "check_connection", lambda *_: True)
    monkeypatch.setattr("locksfl.federation.device.node.RETRY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        node.serve(said.append)
    assert said == ["localhost:1: this device's clock is 30 s ahead; waiting"]


@pytest.mark.parametrize(("status", "error"), [(403, _TurnedAway), (502, httpx.HTTPStatusError)])
def test_only_a_server_that_knows_us_turns_us_away(node, status, error):
    """A proxy whose server is not there yet is waited for."""
    with pytest.raises(error):
        node._activate(Server(status=status))
