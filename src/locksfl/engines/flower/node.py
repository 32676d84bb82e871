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
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
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
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from locksfl.engines.flower import certificates

App = Callable[[Message, Context], Message]
RETRY_SECONDS = 3.0
log = logging.getLogger(__name__)


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
        self._contexts: dict[int, Context] = {}
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # one line of ours instead of pages

    def serve(self, say: Callable[[str], None] = print) -> None:
        """Answer until interrupted; a server that is away is waited for."""
        waited = False
        while True:
            if not certificates.check_connection(self.address, self.ca):
                if not waited:
                    say(f"{self.address}: no server there yet; waiting")
                waited = True
                time.sleep(RETRY_SECONDS)
                continue
            waited = False
            try:
                self._connected(say)
            except SystemExit:  # how Flower ends a connection that was not let in
                raise ValueError(
                    f"{self.address}: the server turned this node away; expected its public key "
                    "to be registered there (locks federation server --keys)"
                ) from None
            say(f"{self.address}: the connection was lost; trying again")
            time.sleep(RETRY_SECONDS)

    def _connected(self, say: Callable[[str], None]) -> None:
        with http_request_response(
            self.address, False, self.ca.read_bytes(), self._keys
        ) as connection:
            node, receive, send, _, _, pull, push, confirm = connection
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

    def _context(self, run: int, node: int) -> Context:
        """What is kept between the messages of a run; another run's is forgotten."""
        if run not in self._contexts:
            self._contexts = {run: Context(run, node, {}, RecordDict(), {})}
        return self._contexts[run]
