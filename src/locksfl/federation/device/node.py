"""The process on a device: to the server a SuperNode, but it runs only this package's app.

A stock SuperNode fetches the bundle that a server (or anyone who reaches its port) names, and runs
it: code that could read the data and send it, whatever the guard says. This one speaks the same
Fleet API, with Flower's client for it, but fetches no bundle, opens no port and starts no process.
Each message is answered before the next is requested. If the server is unavailable, it waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict

from locksfl.federation import certificates, flower
from locksfl.federation.device.pulling import pull
from locksfl.federation.flower import FleetHttpClient, NodeProto, fleet

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

App = Callable[[Message, Context], Message]
Say = Callable[[str], None]
RETRY_SECONDS = 2.0
REFUSALS = 5  # until a node accepts that it is rejected: a server may just be starting
log = logging.getLogger(__name__)


class Node:
    """One device's connection. `app` answers; `poll` is the time between requests, in seconds."""

    def __init__(self, address: str, ca: Path, key: Path, app: App, poll: float = 1.0) -> None:
        certificates.check_certificate(ca)
        certificates.check_private_key(key)
        private = load_ssh_private_key(key.read_bytes(), password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key}: expected a key on a NIST curve (certs --node)")
        self.address, self.ca, self.app, self.poll = address, ca, app, poll
        self._keys = (private, private.public_key())
        self._number = _Number(key.with_name(f"{key.name}.node"))
        self._context: Context | None = None

    def serve(self, say: Say = print) -> None:
        """Answer until interrupted."""
        waiting, refusals = False, 0
        while True:
            if not certificates.check_connection(self.address, self.ca):
                if not waiting:
                    say(f"{self.address}: no server there yet; waiting")
                waiting = True
                time.sleep(RETRY_SECONDS)
                continue
            try:
                with self._connected() as (client, node):
                    waiting, refusals = False, 0
                    say(f"{self.address}: connected as node {node.node_id}")
                    self._answer_all(client, node)
            except _WrongClock as error:
                if not waiting:
                    say(f"{self.address}: {error}; waiting")
                waiting = True
            except _NotNow:
                if not waiting:
                    say(f"{self.address}: the server has no place for this node now; waiting")
                waiting = True
            except _TurnedAway:
                refusals += 1
                if refusals == REFUSALS:
                    raise ValueError(
                        f"{self.address}: the server rejected this node; expected its public "
                        "key to be registered there (locks federation server --keys)"
                    ) from None
            except httpx.HTTPError as error:
                log.info("the connection was lost: %s", error)
                say(f"{self.address}: the connection was lost; trying again")
            time.sleep(RETRY_SECONDS)

    @contextmanager
    def _connected(self) -> Iterator[tuple[FleetHttpClient, NodeProto]]:
        """Sign on, with a heartbeat; sign off at the end, if the server is still available."""
        interceptors: list[flower.ProtobufClientInterceptor] = [
            flower.RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            flower.NodeAuthHttpInterceptor(*self._keys),
        ]
        with FleetHttpClient.from_server_address(
            self.address, False, self.ca.read_bytes(), interceptors=interceptors
        ) as client:
            node = self._activate(client)

            def beat() -> bool:
                with suppress(httpx.HTTPError):
                    client.SendNodeHeartbeat(
                        flower.SendNodeHeartbeatRequest(
                            node=node, heartbeat_interval=flower.HEARTBEAT_DEFAULT_INTERVAL
                        )
                    )
                    return True
                return False

            heart = flower.HeartbeatSender(beat)
            heart.start()
            try:
                yield client, node
            finally:
                if heart.is_running:
                    heart.stop()
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(fleet.DeactivateNodeRequest(node_id=node.node_id))

    def _activate(self, client: FleetHttpClient) -> NodeProto:
        """Sign on. For a minute after a crash the SuperLink considers a node connected and admits
        no other with the same key, so the previous node is signed off first."""
        before = self._number.read()
        if before is not None:
            with suppress(httpx.HTTPError):
                client.DeactivateNode(fleet.DeactivateNodeRequest(node_id=before))
        request = fleet.ActivateNodeRequest(
            public_key=flower.public_key_to_bytes(self._keys[1]),
            heartbeat_interval=flower.HEARTBEAT_DEFAULT_INTERVAL,
        )
        try:
            node = NodeProto(node_id=client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise _NotNow from None
            if error.response.is_server_error:  # the server, or a proxy before it, is starting
                raise
            _check_clock(error.response)
            raise _TurnedAway from None
        self._number.write(node.node_id)
        return node

    def _answer_all(self, client: FleetHttpClient, node: NodeProto) -> None:
        while True:
            answer = client.PullMessages(fleet.PullMessagesRequest(node=node))
            if not answer.messages_list:
                time.sleep(self.poll)
                continue
            try:
                head = flower.message_from_proto(answer.messages_list[0])
                message, done = pull(client, node, head, answer.message_object_trees[0])
                reply = self.app(message, self._context_of(message.metadata.run_id, node))
                done()
                _push(client, node, reply)
            except httpx.TransportError:
                raise
            except Exception as error:  # for example, its run has ended, or it is garbage
                log.warning("a message was not answered: %r", error)
                time.sleep(self.poll)  # do not hurry if a server sends nothing else

    def _context_of(self, run: int, node: NodeProto) -> Context:
        """The memory between the messages of a run; that of another run is discarded."""
        if self._context is None or self._context.run_id != run:
            self._context = Context(run, node.node_id, {}, RecordDict(), {})
        return self._context


def _push(client: FleetHttpClient, node: NodeProto, reply: Message) -> None:
    """Send a reply: its head first, then the parts that the server does not have. The duration of
    the training, which Flower's own node reports, depends on the data and is not sent."""
    run = reply.metadata.run_id
    with flower.no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted = client.PushMessages(
            fleet.PushMessagesRequest(
                node=node,
                messages_list=[flower.message_to_proto(flower.remove_content_from_message(reply))],
                message_object_trees=[flower.get_object_tree(reply)],
            )
        )
        flower.push_objects(
            flower.get_all_nested_objects(reply),
            flower.make_push_object_fn_protobuf(client.PushObject, node, run, wanted.session_id),
            object_ids_to_push=set(wanted.objects_to_push),
        )


class _NotNow(Exception):
    """The server knows the key, and takes it in its next run; or it is starting."""


class _TurnedAway(Exception):
    """The server does not know this node's key."""


class _WrongClock(Exception):
    """Requests are signed with the time, and the server has another."""


def _check_clock(response: httpx.Response) -> None:
    """Compare this device's clock with the time in a server's answer: whoever is turned away for
    the time of its signature gets the same answer as one whose key is not known."""
    try:
        there = parsedate_to_datetime(response.headers["date"])
        ahead = (datetime.now(UTC) - there).total_seconds()
    except (KeyError, ValueError, TypeError):
        return
    if not -flower.TIMESTAMP_TOLERANCE < ahead < flower.SYSTEM_TIME_TOLERANCE:
        apart = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        raise _WrongClock(
            f"this device's clock is {apart} the server's, which therefore rejects what it signs; "
            f"expected at most {flower.SYSTEM_TIME_TOLERANCE} s ahead (set the clock, use NTP)"
        )


class _Number:
    """The node's number, in a file next to its key; one process at a time holds it."""

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
