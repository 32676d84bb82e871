"""A device's node and a server that misbehaves, without sockets: `tests/federation` has those."""

from __future__ import annotations

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.proto.node_pb2 import Node as NodeProto

from locksfl.federation import certificates
from locksfl.federation.device.node import Node, _TurnedAway


@pytest.fixture
def node(tmp_path):
    certificates.make_server(tmp_path, ["localhost"], days=1)
    certificates.make_node(tmp_path, "device", days=1)
    return Node("localhost:1", tmp_path / certificates.CA, tmp_path / "device.key", answer, poll=0)


def answer(*_):
    raise AssertionError("nothing here can be answered")


class Server:
    """Gives these answers to whoever asks for messages, then is gone; signs on with a status."""

    def __init__(self, answers=(), status=200):
        self.answers, self.status = list(answers), status

    def PullMessages(self, _):
        if not self.answers:
            raise httpx.ConnectError("gone")
        return self.answers.pop(0)

    def ActivateNode(self, _):
        request = httpx.Request("POST", "https://localhost")
        raise httpx.HTTPStatusError(
            "no", request=request, response=httpx.Response(self.status, request=request)
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


@pytest.mark.parametrize(("status", "error"), [(403, _TurnedAway), (502, httpx.HTTPStatusError)])
def test_only_a_server_that_knows_us_turns_us_away(node, status, error):
    """A proxy whose server is not there yet is waited for."""
    with pytest.raises(error):
        node._activate(Server(status=status))
