"""What an operator relies on: strangers at the port, keys that come and go, an end that is told.
One federation of real processes for all of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from loopback import Loopback, processes_with

from locksfl.experiment.folder import RunFolder
from locksfl.federation import certificates, flower
from locksfl.federation.server.devices import status
from locksfl.federation.server.gate import SECRET

pytestmark = pytest.mark.federation


def signed(path):
    key = load_ssh_private_key(path.read_bytes(), None)
    stamp = datetime.now(UTC).isoformat()
    return {
        flower.PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        flower.TIMESTAMP_HEADER: stamp,
        flower.SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
    }


def post(loop, path, message=None, headers=None, length=None, port=None):
    """The status of one call, with TLS, as anybody can make it."""
    context = ssl.create_default_context(cafile=str(loop.certs / certificates.CA))
    connection = http.client.HTTPSConnection("127.0.0.1", port or loop.port, context=context)
    body = b"" if message is None else message.SerializeToString()
    connection.putrequest("POST", path)
    given = {"content-type": "application/protobuf", **(headers or {})}
    given["content-length"] = str(len(body) if length is None else length)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def endless_header(loop):
    """What comes back."""
    context = ssl.create_default_context(cafile=str(loop.certs / certificates.CA))
    with (
        socket.create_connection(("127.0.0.1", loop.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nx: " + b"x" * 100_000)
        return secure.recv(1)


def private_port(pid, public):
    """The other port on which it listens."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {int(row[1].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in sockets}
    listening = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}
    (port,) = (ports & listening) - {public}
    return port


def rounds(loop):
    path = loop.run / "rounds.jsonl"
    found = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in found if line.endswith("}")]


def later_round(loop, answered):
    """Wait for a round that began after now, with so many answers."""
    begun = len(rounds(loop)) + 1
    loop.until("a later round", lambda: len(rounds(loop)) > begun)
    assert rounds(loop)[-1]["secret"]["stages"]["update"]["answered"] == answered


def strangers_are_refused(loop):
    """Every call that is not a device's own, while the devices go on."""
    control, fleet = flower.control, flower.fleet
    private = private_port(loop.superlink(), loop.port)
    calls = {
        "stop-run": control.StopRunRequest(run_id=1),
        "unregister-node": control.UnregisterNodeRequest(node_id=1),
        "register-node": control.RegisterNodeRequest(public_key=b"x"),
        "start-run": control.StartRunRequest(),
        "list-nodes": control.ListNodesRequest(),
    }
    own = signed(loop.keys / "node-001.key")
    for name, message in calls.items():
        for headers in ({}, {SECRET: "guessed"}, own):
            for port in (loop.port, private):
                assert post(loop, f"/v1/control/{name}", message, headers, port=port) == 403
    certificates.make_node(loop.folder, "stranger", days=1)
    stranger = signed(loop.folder / "stranger.key")
    node = NodeProto(node_id=5)
    pull = fleet.PullMessagesRequest(node=node)
    assert post(loop, "/v1/fleet/pull-messages", pull) == 401
    assert post(loop, "/v1/fleet/pull-messages", pull, stranger) == 403
    assert post(loop, "/v1/fleet/pull-messages", pull, own) == 401  # Flower: not this key's node
    for headers in ({}, stranger, own):
        assert post(loop, "/v1/fleet/unregister-node", headers=headers) == 403
        assert post(loop, "/v1/fleet/deactivate-node", headers=headers) in (401, 403)
    assert post(loop, "/v1/fleet/push-object", headers=stranger, length=10**12) == 403
    assert post(loop, "/v1/fleet/push-object", headers=own, length=10**12) == 413
    assert endless_header(loop) == b""
    forged = [Message(metadata=Metadata(src_node_id=6, message_id="a"))]
    trees = [flower.ObjectTree(object_id="a")]
    reply = fleet.PushMessagesRequest(node=node, messages_list=forged, message_object_trees=trees)
    assert post(loop, "/v1/fleet/push-messages", reply, own) == 403


def test_strangers_keys_and_ends(tmp_path):
    with Loopback(tmp_path, nodes=2, rounds=2000) as loop:
        server = loop.server("--seconds", "60", "--log-format", "json", "--stock")
        loop.client(0)
        revoked = loop.client(1)
        loop.until("a first round", lambda: rounds(loop))
        strangers_are_refused(loop)
        later_round(loop, answered=2)

        # a key that is removed is a client that is away; one that is added waits
        before = status(RunFolder.open(loop.run))
        assert before["state"] == "running"
        assert all(device["last_seen"] for device in before["devices"])
        (loop.keys / "node-001.pub").rename(tmp_path / "node-001.pub")
        (tmp_path / "stranger.pub").rename(loop.keys / "stranger.pub")
        rejected = "the server rejected this node"
        loop.until("a rejection", lambda: rejected in loop.log("client-1.log"))
        assert revoked.poll() is None  # it waits: its key may come back
        later_round(loop, answered=1)  # sooner than the deadline: nobody waits for it
        assert rounds(loop)[-1]["secret"]["stages"]["norm"]["missing"] == 1
        assert post(loop, "/v1/fleet/pull-messages", None, signed(tmp_path / "stranger.key")) == 503
        staying, away = status(RunFolder.open(loop.run))["devices"]
        assert staying["missing"] == []
        assert away["missing"]
        assert "update: answered" in loop.log("client-0.log")

        # a SuperLink that is killed
        os.kill(loop.superlink(), signal.SIGKILL)
        assert server.wait(60) == 2
        told, log = loop.log("server.log").splitlines()[-1], loop.run / "flower" / "server.log"
        assert "the SuperLink has ended (killed by SIGKILL)" in told
        assert f"--resume --out {loop.run}" in told
        assert RunFolder.open(loop.run).load_checkpoint()
        last = json.loads(log.read_text().splitlines()[-1])
        assert last["level"] == "ERROR"
        assert "killed by SIGKILL" in last["message"]

        # the run goes on with the clients that it has left; another one hangs: Ctrl-C, twice
        played = len(rounds(loop))
        again = loop.server("--seconds", "60", "--wait", "600", "--resume")  # not for who is gone
        loop.until("a round of the resumed run", lambda: len(rounds(loop)) > played)
        os.kill(loop.superlink(), signal.SIGSTOP)
        again.send_signal(signal.SIGINT)
        again.send_signal(signal.SIGINT)
        assert again.wait(60) == 130
        assert "stopped; continue with: locks federation server" in loop.log("server.log")
        loop.until("the end of all", lambda: not processes_with(str(loop.run / "flower")))
        assert RunFolder.open(loop.run).load_checkpoint()
