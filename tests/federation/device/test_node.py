"""A device's node and a server that misbehaves, without sockets: `tests/federation` has those."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from locksfl.federation import certificates, flower, post
from locksfl.federation.device import consent
from locksfl.federation.device.calls import Calls
from locksfl.federation.device.node import (
    RETRY_SECONDS,
    Node,
    _sign_on,
    _TurnedAway,
    _WrongClock,
    tell_left,
)
from locksfl.federation.post import fold, name_of


@pytest.fixture
def node(tmp_path):
    certificates.make_server(tmp_path, ["localhost"], days=1)
    certificates.make_node(tmp_path, "device", days=1)
    return Node("localhost:1", tmp_path / certificates.CA, tmp_path / "device.key", answer)


def answer(message, _):
    return Message(RecordDict(), reply_to=message)


class Server:
    """Gives these questions to whoever asks for work, then is gone; says hello with a status."""

    def __init__(self, questions=(), status=200, date=None, replied=200):
        self.questions, self.status, self.replied = list(questions), status, replied
        self.headers = {} if date is None else {"date": date}
        self.calls = []

    def work(self, last):
        self.calls.append(("work", last))
        if not self.questions:
            raise httpx.ConnectError("gone")
        return self.questions.pop(0)

    def reply(self, question, _):
        self.calls.append(("reply", question))
        self._answer(self.replied)

    def objects(self, _):
        raise AssertionError("nothing is fetched here")

    def hello(self):
        self._answer(self.status)

    def _answer(self, status):
        request = httpx.Request("POST", "https://localhost")
        httpx.Response(status, headers=self.headers, request=request).raise_for_status()


def question(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(flower.TaskIdentity, name, 7)
    return fold(Message(RecordDict(), 5, "query.norm", ttl=60.0))


def test_garbage_does_not_end_the_node(node, monkeypatch):
    """No message at all, half of one, an array in its place; the question after them is answered,
    and none is asked for again."""
    good = question(monkeypatch)
    bad = [[b"garbage"], good[:1], good[1:], [b"Array  2\0{}"]]
    server = Server([*bad, [], good])
    with pytest.raises(httpx.ConnectError):
        node._answer_all(server)
    assert [called for called in server.calls if called[0] == "reply"] == [
        ("reply", name_of(good[0]))
    ]
    lasts = [last for call, last in server.calls if call == "work"]
    assert lasts == ["", *(name_of(parts[0]) for parts in bad), lasts[4], name_of(good[0])]


def test_a_stage_that_is_over_does_not_end_the_node(node, monkeypatch):
    server = Server([question(monkeypatch)], replied=410)
    with pytest.raises(httpx.ConnectError):
        node._answer_all(server)
    assert [call for call, _ in server.calls] == ["work", "reply", "work"]


@pytest.mark.parametrize("status", [401, 408, 429, 502, None])
def test_a_reply_that_was_not_taken_is_sent_again_as_it_is(node, monkeypatch, status):
    """It is paid for, and no second one can be had. The question is not asked for again."""
    asked, sent, answered = question(monkeypatch), [], []
    name = name_of(asked[0])

    def once(message, context):
        answered.append(name)
        return answer(message, context)

    node.app = once

    class Noting(Server):
        def reply(self, question, parts):
            sent.append(list(parts))
            super().reply(question, parts)

        def _answer(self, status):
            if status is None:
                raise httpx.ReadError("cut")
            super()._answer(status)

    broken, whole = Noting([asked], replied=status), Noting()
    for server in (broken, whole):
        with pytest.raises(httpx.HTTPError):
            node._answer_all(server)
    assert sent[0] == sent[1]
    assert answered == [name]
    assert broken.calls == [("work", ""), ("reply", name)]
    assert whole.calls == [("reply", name), ("work", name)]


def test_a_server_that_lets_nobody_wait_is_not_asked_without_end(node, monkeypatch):
    server, slept = Server([[], [], []]), []
    monkeypatch.setattr("locksfl.federation.device.node.time.sleep", slept.append)
    with pytest.raises(httpx.ConnectError):
        node._answer_all(server)
    assert slept == [RETRY_SECONDS] * 3


@pytest.mark.parametrize(
    ("body", "call"),
    [
        (bytes(5), lambda calls: calls.work("")),
        (b"<html>a hotel's page</html>", lambda calls: calls.work("")),
        (bytes(8) * 100, lambda calls: calls.work("")),  # a hundred parts of nothing
        (bytes(2 * post.UNASKED + 1), lambda calls: calls.work("")),
        (bytes(2000), lambda calls: calls.hello()),
        (bytes(8) * 2, lambda calls: calls.objects(["a"])),
    ],
)
def test_an_answer_that_is_none_does_not_end_the_node(node, body, call):
    """It comes from a broken server, or something before it: the device tries again."""
    answer = httpx.Response(200, stream=httpx.ByteStream(body), headers={"set-cookie": "a=b"})
    calls = Calls(node.address, node.ca, node._private)
    calls._client = httpx.Client(
        base_url="https://localhost", transport=httpx.MockTransport(lambda _: answer)
    )
    with pytest.raises(httpx.RemoteProtocolError):
        call(calls)


def test_a_node_whose_owner_leaves_while_it_answers_sends_nothing_and_ends(node, monkeypatch):
    server, said = Server([question(monkeypatch), question(monkeypatch)]), []

    def withdrawing(message, context):
        consent.withdraw(node.key)
        return answer(message, context)

    node.app = withdrawing
    node._answer_all(server)
    assert [call for call, _ in server.calls] == ["work"]
    node.serve(said.append)  # whether or not there is a server
    assert said == []


@pytest.mark.parametrize(
    ("status", "seconds", "told"),
    [
        (200, 0, None),
        (403, 0, None),  # revoked already
        (401, 400, "this device's clock is"),
        (401, 0, "it answered 401"),
        (500, 0, "it answered 500"),
        (None, 0, "the connection was lost"),
    ],
)
def test_a_server_is_told_that_a_device_has_left_or_why_not(
    node, tmp_path, monkeypatch, status, seconds, told
):
    there = (datetime.now(UTC) - timedelta(seconds=seconds)).replace(microsecond=0)

    def leave(_):
        if status is None:
            raise httpx.ConnectError("gone")
        Server(status=status, date=format_datetime(there, usegmt=True)).hello()

    monkeypatch.setattr(Calls, "leave", leave)
    monkeypatch.setattr(certificates, "check_connection", lambda *_: True)
    files = (node.address, tmp_path / certificates.CA, node.key)
    if told is None:
        tell_left(*files)
        return
    with pytest.raises(ValueError, match=f"localhost:1: {told}"):
        tell_left(*files)


@pytest.mark.usefixtures("node")
def test_a_key_is_used_by_one_process(tmp_path):
    with pytest.raises(ValueError, match="another process is using this node's key"):
        Node("localhost:1", tmp_path / certificates.CA, tmp_path / "device.key", answer)


def test_a_server_of_another_version_is_one_line():
    with pytest.raises(ValueError, match="expected a server of the same version"):
        _sign_on(Server(status=404))


@pytest.mark.parametrize(
    ("seconds", "told"), [(30, "30 s ahead of"), (-400, "400 s behind"), (0, None), (-60, None)]
)
def test_a_wrong_clock_gets_the_true_reason(seconds, told):
    """The server answers 401 to a wrong time and to an unknown key; its own time tells which."""
    there = datetime.now(UTC) - timedelta(seconds=seconds)
    server = Server(status=401, date=format_datetime(there.replace(microsecond=0), usegmt=True))
    with pytest.raises(_TurnedAway if told is None else _WrongClock) as caught:
        _sign_on(server)
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

    monkeypatch.setattr("locksfl.federation.device.node._sign_on", activate)
    monkeypatch.setattr(certificates, "check_connection", lambda *_: True)
    monkeypatch.setattr("locksfl.federation.device.node.RETRY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        node.serve(said.append)
    assert said == ["localhost:1: this device's clock is 30 s ahead; waiting"]


@pytest.mark.parametrize(("status", "error"), [(403, _TurnedAway), (502, httpx.HTTPStatusError)])
def test_only_a_server_that_knows_us_turns_us_away(status, error):
    """A proxy whose server is not there yet is waited for."""
    with pytest.raises(error):
        _sign_on(Server(status=status))
