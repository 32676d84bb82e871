"""The gate before the SuperLink: every kind of call that must not pass, and the one that must."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from locksfl.federation import certificates, flower, post
from locksfl.federation.server import gate as module
from locksfl.federation.server import place
from locksfl.federation.server.gate import FLEET, SECRET, SEEN, Gate
from locksfl.federation.server.gated import Hurried
from locksfl.federation.server.mail import COLLECT, SEND
from locksfl.federation.server.mailroom import Mailroom
from locksfl.federation.server.place import KeyFolder, Place, listen

PUBLIC, PRIVATE = ("192.0.2.1", 8000), ("127.0.0.1", 8000)  # the same number on purpose
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"


def nothing(*_):
    pass


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A gate before an app that says "passed", with the keys of alice and bob."""
    monkeypatch.setattr(place, "REREAD_SECONDS", 0.0)
    monkeypatch.setattr(place, "REREAD_SHARE", 0.0)
    keys = {}
    for name in ("alice", "bob"):
        certificates.make_node(tmp_path, name, days=1)
        keys[name] = load_ssh_private_key((tmp_path / f"{name}.key").read_bytes(), None)
    bodies = []

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        bodies.append((await receive())["body"])
        await module._answer(send, 200, [b'"passed"'])

    folder = KeyFolder(tmp_path)
    members = {public_key_to_bytes(key.public_key()): n for n, key in enumerate(keys.values(), 5)}
    room = Mailroom(SimpleNamespace(forget=list, replies=list, give=nothing, expect=nothing))
    gate = Gate(app, room, members, folder, PRIVATE, "the secret", "here", stock=True)
    return SimpleNamespace(gate=gate, room=room, keys=keys, folder=tmp_path, bodies=bodies)


def signed(key, ago=0.0, call=None, server="here"):
    """The headers of a call; one of our own devices signs its path and content too."""
    stamp = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
    public = b64encode(public_key_to_bytes(key.public_key())).decode()
    digest = hashlib.sha256(call[1]).hexdigest() if call else ""
    text = post.to_sign(stamp, call[0], digest, server) if call else stamp.encode()
    signature = b64encode(sign_message(key, text)).decode()
    return {
        post.DIGEST: digest,
        flower.PUBLIC_KEY_HEADER: public,
        flower.TIMESTAMP_HEADER: stamp,
        flower.SIGNATURE_HEADER: signature,
    }


def call(house, path, headers, body=b"", *, server=PUBLIC, method="POST", parts=None, **scope):
    """The status and the answer."""
    sent, waiting = [], list(parts or [body])
    headers = headers.items() if isinstance(headers, dict) else headers

    async def receive():
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers]
    given = {"type": "http", "headers": pairs, "server": server, "method": method, "path": path}
    given |= {"raw_path": path.encode(), "query_string": b"", "client": ("198.51.100.7", 5)}
    asyncio.run(house.gate(given | scope, receive, send))
    body = b"".join(message["body"] for message in sent[1:])
    return sent[0]["status"], json.loads(body) if body[:1] in (b"{", b'"') else body


def test_a_registered_device_passes_with_its_body_and_is_seen(house):
    alice = signed(house.keys["alice"])
    assert call(house, PULL, alice, parts=[b"ab", b"c"]) == (200, "passed")
    assert house.bodies == [b"abc"]
    _, told = call(house, SEEN, {SECRET: "the secret"}, server=PRIVATE)
    assert list(told["seen"]) == [public_key_to_bytes(house.keys["alice"].public_key()).hex()]


@pytest.mark.parametrize("path", ["stop-run", "unregister-node", "start-run", "register-node"])
def test_control_calls_need_the_secret_on_loopback(house, path):
    path, secret = f"/v1/control/{path}", {SECRET: "the secret"}
    for headers in ({}, secret, signed(house.keys["alice"])):
        assert call(house, path, headers)[0] == 403
    assert call(house, path, {}, server=PRIVATE)[0] == 403
    assert call(house, path, {SECRET: "guessed"}, server=PRIVATE)[0] == 403
    assert house.bodies == []
    assert call(house, path, secret, server=PRIVATE)[0] == 200


def test_what_is_not_a_call_of_a_device_is_refused_even_if_signed(house):
    alice = signed(house.keys["alice"])
    for path in ("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/health", "/docs", SEEN):
        assert call(house, path, alice)[0] == 403
    assert call(house, "/v1/runtime/push-messages", alice)[0] == 403
    assert call(house, PULL, alice, method="GET")[0] == 403
    assert call(house, PULL, alice, raw_path=b"/v1/fleet/pull%2Dmessages")[0] == 403
    assert call(house, PULL, alice, query_string=b"a=b")[0] == 403
    assert call(house, PULL, alice, type="websocket")[0] == 403
    assert house.bodies == []


def test_only_registered_keys_that_sign_now(house):
    stranger, alice = ec.generate_private_key(ec.SECP384R1()), house.keys["alice"]
    assert call(house, PULL, {}) == (401, {"detail": "not signed"})
    assert call(house, PULL, signed(stranger))[0] == 403
    borrowed = signed(stranger) | {
        flower.PUBLIC_KEY_HEADER: signed(alice)[flower.PUBLIC_KEY_HEADER]
    }
    assert call(house, PULL, borrowed) == (401, {"detail": "the signature is not the key's"})
    for ago, said in ((-30.0, "clock is 30 s off"), (400.0, "clock is 400 s off")):
        status, told = call(house, PULL, signed(alice, ago))
        assert status == 401
        assert said in told["detail"]
    for stamp in ("0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00", "now"):
        assert call(house, PULL, signed(alice) | {flower.TIMESTAMP_HEADER: stamp})[0] == 401
    assert house.bodies == []
    assert call(house, PULL, signed(alice, -4.0))[0] == 200


def test_of_two_headers_the_first_counts(house):
    """As Flower reads them: what was checked is what is used."""
    stranger = signed(ec.generate_private_key(ec.SECP384R1()))
    both = [*stranger.items(), *signed(house.keys["alice"]).items()]
    assert call(house, PULL, both)[0] == 403
    assert call(house, PULL, both[::-1])[0] == 200


def test_a_key_is_revoked_and_another_added_while_it_runs(house):
    alice, bob = house.keys["alice"], house.keys["bob"]
    (house.folder / "bob.pub").unlink()
    assert call(house, PULL, signed(bob)) == (403, {"detail": "the key is not registered"})
    certificates.make_node(house.folder, "carol", days=1)
    carol = load_ssh_private_key((house.folder / "carol.key").read_bytes(), None)
    status, told = call(house, PULL, signed(carol))
    assert status == 503  # not an error of the device: it waits
    assert "takes part in the next" in told["detail"]
    (house.folder / "broken.pub").write_text("no key")  # and does not let the others down
    assert call(house, PULL, signed(alice))[0] == 200
    os.rename(house.folder, house.folder.with_name("gone"))
    # nobody passes, and nobody is told that their key was revoked
    told = {"detail": "the folder of keys cannot be read"}
    assert call(house, PULL, signed(alice)) == (500, told)


def test_bodies_have_limits(house):
    alice = signed(house.keys["alice"])
    for path, most in FLEET.items():
        large = alice | {"content-length": str(most + 1)}
        assert call(house, path, large)[0] == 413
        assert call(house, path, alice | {"content-length": "-1"})[0] == 413
    unstated = [b"x" * 10_000] * 2  # chunked: no length is stated
    assert call(house, PULL, alice, parts=unstated)[0] == 413
    assert house.bodies == []


def test_stock_supernodes_are_refused_unless_the_operator_says_so(house):
    alice = signed(house.keys["alice"])
    house.gate.stock = False
    for path in FLEET:
        assert call(house, path, alice) == (403, {"detail": "not a call of a device"})
    assert house.bodies == []


def test_nobody_replies_for_another_device(house):
    """Nor with a tree of objects through which Flower would never find its way."""

    def tree(name, *below):
        return flower.ObjectTree(object_id=name, children=below)

    def reply(caller, sender, *trees, name="a"):
        messages = [Message(metadata=Metadata(src_node_id=sender, message_id=name))]
        request = flower.fleet.PushMessagesRequest(
            node=NodeProto(node_id=caller), messages_list=messages, message_object_trees=trees
        )
        return request.SerializeToString()

    alice, good = signed(house.keys["alice"]), tree("a", tree("b"), tree("c"))
    many = tree("a", *(tree(str(i)) for i in range(post.most_parts(0))))
    for body, status in (
        (reply(7, 8, good), 403),
        (b"\xff\xff", 400),
        (b"", 400),
        (reply(7, 7), 400),
        (reply(7, 7, good, good), 400),
        (reply(7, 7, good, name="another"), 400),
        (reply(7, 7, tree("a", tree("b", tree("c")), tree("d", tree("c")))), 400),
        (reply(7, 7, many), 400),
    ):
        assert call(house, PUSH, alice, body)[0] == status
    assert house.bodies == []
    assert call(house, PUSH, alice, reply(7, 7, good))[0] == 200


def ours(house, name, path, body=b"", **given):
    """A call of one of our own devices."""
    return call(house, path, signed(house.keys[name], call=(path, body)), body, **given)


def begin_stage(house, *parts):
    """Alice is node 5, bob node 6."""
    body = b"".join(post.pack([b"100", *parts]))
    assert call(house, SEND, {SECRET: "the secret"}, body, server=PRIVATE) == (200, b"")


def test_devices_get_their_own_questions_and_answer_them(house):
    question, other = b"Message  1\0a", b"Message  1\0b"
    names = [post.name_of(part) for part in (question, other)]
    begin_stage(house, f"5 {names[0]}\n6 {names[1]}".encode(), question, other)
    assert ours(house, "alice", post.HELLO) == (200, b"")
    assert post.unpack(ours(house, "alice", post.WORK)[1]) == [question]
    assert post.unpack(ours(house, "bob", post.WORK)[1]) == [other]
    for name in (*names, "unknown"):  # neither a piece of bob's model
        assert ours(house, "bob", post.OBJECTS, name.encode())[0] == 410
    reply = b"".join(post.pack([names[0].encode(), b"an answer"]))
    assert ours(house, "bob", post.REPLY, reply)[0] == 410  # not the question of bob
    assert ours(house, "alice", post.REPLY, reply) == (200, b"")
    assert ours(house, "alice", post.REPLY, reply)[0] == 410  # once
    collected = call(house, COLLECT, {SECRET: "the secret"}, server=PRIVATE)[1]
    node, letter = post.unpack(collected)
    assert (node, post.unpack(letter)) == (b"5", [b"an answer"])
    late = b"".join(post.pack([names[1].encode(), b"late"]))
    begin_stage(house, b"")
    assert ours(house, "bob", post.REPLY, late)[0] == 410
    assert call(house, COLLECT, {SECRET: "the secret"}, server=PRIVATE)[1] == b""


def test_what_is_signed_is_the_call(house):
    """Not only the time: neither for another call, nor with another content."""
    alice = house.keys["alice"]
    begin_stage(house, b"5 name")
    headers = signed(alice, call=(post.REPLY, b"mine"))
    for path, body, said in (
        (post.OBJECTS, b"mine", "the signature is not the key's"),
        (post.REPLY, b"other", "the signature is not of this call"),
    ):
        assert call(house, path, headers, body) == (401, {"detail": said})
    assert call(house, post.HELLO, signed(alice))[0] == 401  # the time alone
    elsewhere = signed(alice, call=(post.HELLO, b""), server="there")
    assert call(house, post.HELLO, elsewhere)[0] == 401  # handed on by another server
    assert call(house, PULL, headers)[0] == 401
    stranger = ec.generate_private_key(ec.SECP384R1())
    assert call(house, post.WORK, signed(stranger, call=(post.WORK, b"")))[0] == 403
    assert ours(house, "alice", post.REPLY, b"x" * 101)[0] == 413  # as much as the stage allows
    assert ours(house, "bob", post.REPLY, b"x" * 101)[0] == 410  # not asked: nothing is read
    for path in (SEND, COLLECT):
        assert ours(house, "alice", path)[0] == 403
        assert call(house, path, {}, server=PRIVATE)[0] == 403


def test_one_large_call_of_a_device_at_a_time(house):
    """While the body of a reply arrives, the device's second one is refused; another's is not."""
    begin_stage(house, b"5 name\n6 name")
    reply = b"".join(post.pack([b"name", b"x"]))

    with house.gate._alone(5):
        assert ours(house, "alice", post.REPLY, reply)[0] == 429
        assert ours(house, "alice", post.OBJECTS, b"name")[0] == 429
        assert ours(house, "bob", post.REPLY, reply) == (200, b"")
    with pytest.raises(ZeroDivisionError), house.gate._alone(5):
        1 / 0  # noqa: B018
    assert ours(house, "alice", post.REPLY, reply) == (200, b"")  # it is over, however it ended


def test_who_takes_nothing_is_cut_off(monkeypatch):
    """An answer is handed over in small parts, and not without end."""
    monkeypatch.setattr(module, "CHUNK_SECONDS", 0.01)
    sent = []

    async def send(message):
        sent.append(message)
        if len(sent) == 3:
            await asyncio.Event().wait()

    large = bytes(5 * module.CHUNK)
    asyncio.run(module._answer(send, 200, [large, large]))
    assert [len(m.get("body", b"")) for m in sent] == [0, module.CHUNK, module.CHUNK]
    assert sent[-1]["more_body"]


def keys_in(folder):
    return sorted(path.stem for path in folder.glob("*.pub"))


def test_a_device_leaves_and_nobody_else_does(house, monkeypatch):
    left = house.folder / "left"
    assert ours(house, "alice", post.HELLO)[0] == 200
    monkeypatch.setattr(place, "REREAD_SECONDS", 3600.0)  # not only when the folder is read again
    assert ours(house, "alice", post.LEAVE) == (200, b"")
    assert (keys_in(house.folder), keys_in(left)) == (["bob"], ["alice"])
    for path in (post.HELLO, post.WORK, post.LEAVE):  # at once, and again
        assert ours(house, "alice", path) == (403, {"detail": "the key is not registered"})
    assert ours(house, "bob", post.HELLO)[0] == 200
    assert house.gate.folder.left() == {public_key_to_bytes(house.keys["alice"].public_key())}
    house.gate.folder._due = 0.0  # an hour later
    os.rename(left / "alice.pub", house.folder / "alice.pub")  # the operator takes her back
    assert ours(house, "alice", post.HELLO)[0] == 200
    assert house.gate.folder.left() == frozenset()


def test_nobody_else_makes_a_device_leave(house):
    """Not a stranger, not another device, not an old call, nor one that was signed for something
    else; nor does what leaves in the name of a key that is not its own."""
    alice, stranger = house.keys["alice"], ec.generate_private_key(ec.SECP384R1())
    leave = (post.LEAVE, b"")
    hers = {flower.PUBLIC_KEY_HEADER: signed(alice)[flower.PUBLIC_KEY_HEADER]}
    for headers, status in (
        ({}, 401),
        (signed(stranger, call=leave), 403),
        (signed(stranger, call=leave) | hers, 401),
        (signed(house.keys["bob"], call=leave) | hers, 401),
        (signed(alice), 401),  # the time alone, as stock SuperNodes sign
        (signed(alice, call=(post.HELLO, b"")), 401),
        (signed(alice, call=(post.LEAVE, b"other")), 401),
        (signed(alice, ago=301.0, call=leave), 401),  # a replay
        (signed(alice, ago=-6.0, call=leave), 401),
    ):
        assert call(house, post.LEAVE, headers)[0] == status
    assert ours(house, "alice", post.LEAVE, b"x")[0] == 413
    assert call(house, post.LEAVE, {SECRET: "the secret"})[0] == 401
    assert call(house, post.LEAVE, signed(alice, call=leave), method="GET")[0] == 403
    assert keys_in(house.folder) == ["alice", "bob"]
    assert not (house.folder / "left").exists()
    assert call(house, post.LEAVE, signed(alice, ago=299.0, call=leave))[0] == 200
    assert keys_in(house.folder) == ["bob"]


def test_who_takes_part_only_in_the_next_run_can_leave_before_it(house):
    certificates.make_node(house.folder, "carol", days=1)
    house.keys["carol"] = load_ssh_private_key((house.folder / "carol.key").read_bytes(), None)
    assert ours(house, "carol", post.HELLO)[0] == 503
    assert ours(house, "carol", post.LEAVE)[0] == 200
    assert ours(house, "carol", post.HELLO)[0] == 403
    assert keys_in(house.folder) == ["alice", "bob"]


def test_a_key_that_cannot_be_moved_is_not_said_to_be(house, caplog):
    (house.folder / "left").write_text("not a folder")
    assert ours(house, "alice", post.LEAVE) == (500, {"detail": "the key could not be moved"})
    assert "a device could not leave" in caplog.text
    assert ours(house, "alice", post.HELLO)[0] == 200


def test_refusals_are_counted_and_do_not_fill_the_log(house, caplog):
    for _ in range(100):
        call(house, "/v1/control/stop-run", {})
    assert house.gate.refused == {"not a call of a device": 100}
    assert len(caplog.records) == 7  # 1, 2, 4, 8, 16, 32, 64
    assert "'/v1/control/stop-run' from 198.51.100.7" in caplog.text


def test_a_taken_port_is_named(tmp_path):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port}: already in use on 127.0.0.1"):
            listen("127.0.0.1", port)
        certificates.make_server(tmp_path, ["localhost"], days=1)
        certificates.make_node(tmp_path, "alice", days=1)
        with pytest.raises(ValueError, match=f"--port {port}: already in use"):
            Place(tmp_path, tmp_path, port).check(1)
    for host in ("192.0.2.77", "no.such.host.invalid"):
        with pytest.raises(ValueError, match=f"--host {host}"):
            listen(host, 0)


def test_public_connections_are_limited_and_the_servers_own_are_not(monkeypatch):
    closed = []

    def connect(address):
        made = object.__new__(Hurried)
        made.loop = SimpleNamespace(call_later=lambda *_: None)
        transport = SimpleNamespace(
            get_extra_info=lambda name: address, abort=lambda: closed.append(address)
        )
        made.connection_made(transport)
        return made

    for name in ("connection_made", "connection_lost"):
        monkeypatch.setattr(HttpToolsProtocol, name, lambda *_: None)
    monkeypatch.setattr(Hurried, "public", set())
    monkeypatch.setattr(Hurried, "private", PRIVATE)
    monkeypatch.setattr(Hurried, "most", 2)
    first, second, third = (connect(PUBLIC) for _ in range(3))
    assert closed == [PUBLIC]
    connect(PRIVATE)
    assert closed == [PUBLIC]
    for one in (third, first):  # the one that was closed, and another
        one.connection_lost(None)
    connect(PUBLIC)
    assert closed == [PUBLIC]
    assert second in Hurried.public


def test_a_handshake_that_is_cut_is_a_server_that_is_away(tmp_path):
    """Not one that speaks no TLS, after which a device would end for good."""
    certificates.make_server(tmp_path, ["127.0.0.1"], days=1)
    with listen("127.0.0.1", 0) as server:

        def cut():
            connection, _ = server.accept()
            connection.recv(65536)
            connection.close()

        thread = threading.Thread(target=cut)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(certificates.NobodyThere, match="the connection was cut"):
            certificates.check_connection(address, tmp_path / "ca.pem")
        thread.join()
