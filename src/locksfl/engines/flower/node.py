"""The process on a device: it speaks to the SuperLink as a SuperNode does, with Flower's own
connection, and runs this package's app and nothing else.

A stock SuperNode fetches the bundle that a server (or whoever reaches its port) names, and runs it:
code that could read the data and send it, whatever the guard says. This one never fetches a bundle.
It opens no port and starts no process. Each message is answered before the next is asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from locksfl.engines.flower import certificates

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

App = Callable[[Message, Context], Message]
RETRY_SECONDS = 2.0
REFUSALS = 5  # until a node believes that it is not wanted
log = logging.getLogger(__name__)


class _Number:
    """The node's number, in a file beside its key; one process at a time holds it."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._file = path.open("r+", encoding="utf-8")
        try:
            if fcntl is not None:  # not on Windows
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another process is using this node's key") from None

    def read(self) -> int | None:
        self._file.seek(0)
        text = self._file.read().strip()
        return int(text) if text.isdigit() else None

    def write(self, number: int) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{number}\n")
        self._file.flush()


class Node:
    """One device's connection. `app` answers; `poll` is how often work is asked for, in seconds."""

    def __init__(self, address: str, ca: Path, key: Path, app: App, poll: float = 0.5) -> None:
        certificates.check_certificate(ca)
        certificates.check_private_key(key)
        private = load_ssh_private_key(key.read_bytes(), password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key}: expected a key on a NIST curve (certs --node)")
        self.address, self.ca, self.app, self.poll = address, ca, app, poll
        self._keys = (private, private.public_key())
        self._number = _Number(key.with_name(f"{key.name}.node"))
        self._contexts: dict[int, Context] = {}
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # one line of ours instead of pages

    def serve(self, say: Callable[[str], None] = print) -> None:
        """Answer until interrupted. A server that is away is waited for; one that does not let this
        node in is asked a few times more, since it may just be starting."""
        waiting, refusals = False, 0
        while True:
            if not certificates.check_connection(self.address, self.ca):
                if not waiting:
                    say(f"{self.address}: no server there yet; waiting")
                waiting = True
                time.sleep(RETRY_SECONDS)
                continue
            waiting = False
            if self._admitted():
                refusals = 0
                self._connected(say)
                say(f"{self.address}: the connection was lost; trying again")
            else:
                refusals += 1
            if refusals == REFUSALS:
                raise ValueError(
                    f"{self.address}: the server turned this node away; expected its public key "
                    "to be registered there (locks federation server --keys)"
                )
            time.sleep(RETRY_SECONDS)

    def _connected(self, say: Callable[[str], None]) -> None:
        with http_request_response(
            self.address, False, self.ca.read_bytes(), self._keys
        ) as connection:
            node, receive, send, _, _, pull, push, confirm = connection
            self._number.write(node)
            say(f"{self.address}: connected as node {node}")
            while True:
                received = receive()
                if received is None:
                    time.sleep(self.poll)
                    continue
                head, tree = received
                run = head.metadata.run_id
                try:
                    ids = [part.object_id for part in iterate_object_tree(tree)]
                    parts = pull_objects(ids, pull_object_fn=partial(pull, run))
                    confirm(run, head.metadata.message_id)
                    message = inflate_object_from_contents(head.metadata.message_id, parts)
                    if not isinstance(message, Message):
                        continue
                    message.metadata.__dict__["_message_id"] = head.metadata.message_id
                    began = time.perf_counter()
                    reply = self.app(message, self._context(run, node))
                    with no_object_id_recompute():
                        reply.metadata.__dict__["_message_id"] = reply.object_id
                        wanted, session = send(
                            reply, get_object_tree(reply), time.perf_counter() - began
                        )
                        push_objects(
                            get_all_nested_objects(reply),
                            partial(push, run, session),
                            object_ids_to_push=wanted,
                        )
                except (RunNotRunningException, ObjectPullError, ObjectPushError) as error:
                    log.warning("a message of run %d was not answered: %s", run, error)

    def _admitted(self) -> bool:
        """Whether the server lets this node in; afterwards it is signed off.

        Signed off first as well: for a minute after a crash the SuperLink takes a node for
        connected, and lets nobody in with the same key. Flower's own connection would end the
        process at a refusal, a few seconds later.
        """
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(*self._keys),
        ]
        with FleetHttpClient.from_server_address(
            self.address, False, self.ca.read_bytes(), interceptors=interceptors
        ) as client:
            number = self._number.read()
            if number is not None:
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=number))
            public = public_key_to_bytes(self._keys[1])
            request = ActivateNodeRequest(
                public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
            try:
                number = client.ActivateNode(request).node_id
                client.DeactivateNode(DeactivateNodeRequest(node_id=number))
            except httpx.HTTPError:
                return False
        return True

    def _context(self, run: int, node: int) -> Context:
        """What is kept between the messages of a run; another run's is forgotten."""
        if run not in self._contexts:
            self._contexts = {run: Context(run, node, {}, RecordDict(), {})}
        return self._contexts[run]
