"""A device's node and a server that misbehaves, most of it without sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from typer.testing import CliRunner

from locksfl.cli.main import app
from locksfl.federation import certificates, flower, post
from locksfl.federation.device import consent
from locksfl.federation.device.calls import Calls
from locksfl.federation.device.node import (
    RETRY_SECONDS,
    Node,
    check,
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


@pytest.mark.parametrize("status", [302, 401, 403, 404, 408, 429, 502, None])
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
        (b"x", lambda calls: calls.hello()),
        (b"x", lambda calls: calls.reply("name", [])),
        (b"x", lambda calls: calls.leave()),
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
    monkeypatch.setattr(certificates, "check_connection", lambda *_: None)
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


class Port:
    """A TLS server on loopback that gives everybody the same bytes, whatever is asked."""

    def __init__(self, folder, answer):
        self.answer, self.calls = answer, 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError), plain, self._context.wrap_socket(plain, True) as secure:
                if secure.recv(65536):  # the device looks at the certificate first
                    self.calls += 1
                    secure.sendall(self.answer)
                    secure.shutdown(socket.SHUT_WR)


def http(status, body=b"", *headers):
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


REJECTED = "the server rejected this node; expected its public key to be registered there"
WRONG = [  # whatever a port may answer, and what is said of it
    (http(302, b"", "location: http://portal.example/"), "it answered 302"),
    (http(302, b"", "location: mailto:x"), "the connection was lost"),
    (http(302, b"", "location: http://xn--/"), "the connection was lost"),
    (http(200, b"<html>a hotel's page</html>"), "the connection was lost"),
    (http(403), REJECTED),
    (http(404), "has no /v1/locks/hello; expected a server of the same version"),
    (http(503), "the server has no place for this node now"),
    (http(502), "it answered 502"),
    (http(401), "it answered 401"),
    (http(401, b"", ahead := "date: Thu, 01 Jan 2099 00:00:00 GMT"), "this device's clock is"),
    (http(401, b"", ahead.replace("2099", "2020")), "this device's clock is"),
    (http(401, b"", "date: yesterday"), "it answered 401"),
    (http(401, b"", f"{ahead[:-3]}+{10**20}"), "it answered 401"),
    (b"SSH-2.0-dropbear\r\n", "the connection was lost"),
    (b"", "the connection was lost"),
]


def said_of(node, monkeypatch, times=7):
    """What a client says, started where nothing is right, until it has waited so many times."""
    said, waited = [], []

    def wait(seconds):
        assert seconds == RETRY_SECONDS
        waited.append(seconds)
        if len(waited) == times:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("locksfl.federation.device.node.time.sleep", wait)
        with pytest.raises(KeyboardInterrupt):
            node.serve(said.append)
    return said


@pytest.mark.parametrize(("bytes_", "told"), WRONG, ids=range(len(WRONG)))
def test_no_answer_of_a_port_ends_a_device_and_each_is_one_line(
    node, tmp_path, monkeypatch, bytes_, told
):
    """Finds what only ends a service for good: a redirect, a rejection or another version taken
    for something that a person has to correct on this machine."""
    with Port(tmp_path, bytes_) as port:
        node.address = port.address
        (line,) = said_of(node, monkeypatch)
        assert port.calls == 7
        with pytest.raises(ValueError, match=told) as once:
            check(port.address, node.ca, node.key)  # for a person: at once, and an error
    assert line.startswith(f"{port.address}: {told}")
    assert line.endswith("; waiting")
    assert str(once.value).startswith(f"{port.address}: {told}")


def test_a_device_waits_for_its_own_server_at_the_address(node, tmp_path, monkeypatch):
    """Another certificate, no TLS, nobody: said once each, also when one follows the other."""
    other = tmp_path / "other"
    certificates.make_server(other, ["localhost"], days=1)
    with Port(other, http(200)) as port, socket.create_server(("127.0.0.1", 0)) as plain:
        node.address = port.address
        (line,) = said_of(node, monkeypatch)
        assert "its certificate does not verify against" in line
        assert port.calls == 0  # nothing was sent
        threading.Thread(target=lambda: plain.accept()[0].sendall(b"HTTP/1.1 400\r\n")).start()
        node.address = f"localhost:{plain.getsockname()[1]}"
        (line,) = said_of(node, monkeypatch, times=1)
        assert "does not speak TLS" in line
    node.address = "localhost:1"
    assert said_of(node, monkeypatch) == [
        "localhost:1: no server there (Connection refused); waiting"
    ]


def test_a_check_that_finds_everything_in_order_says_so(node, tmp_path):
    with Port(tmp_path, http(200)) as port:
        told = CliRunner().invoke(app, checking(port.address, node))
        assert (told.exit_code, told.stderr) == (0, "")
    assert "the server is there and knows this device" in told.output


def test_a_check_that_fails_is_one_line_and_exit_code_2(node, tmp_path):
    with Port(tmp_path, http(403)) as port:
        told = CliRunner().invoke(app, checking(port.address, node))
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1)
    assert REJECTED in told.stderr
    told = CliRunner().invoke(app, checking("name.invalid", node))
    assert told.exit_code == 2
    assert told.stderr.startswith("locks: name.invalid:8000: no server there (")


def checking(address, node):
    files = ["--ca", str(node.ca), "--key", str(node.key)]
    return ["federation", "check", address, *files]
