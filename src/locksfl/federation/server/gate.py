"""The gate before the SuperLink: who may call what. An ASGI filter around Flower's own app.

Flower has no login: whoever reaches its port may unregister nodes, stop the run or start another.
And what its devices sign is a time, not the call. So one process has two listeners, and on

    --host:--port   only the calls of a device that takes part, POST, signed now by a key that is
                    registered and still in the folder of keys, as long as a call of that kind can
                    be: those of our devices (POST_OFFICE), which the mailroom answers, and with
                    --stock those of stock SuperNodes (FLEET), which Flower answers; replies only
                    in one's own name
    loopback        the server's own calls: each has the secret of this run

Everything else is refused before a byte of its body is read. A key that has been added meanwhile
gets 503, by which a device knows that it may wait; the number of clients is fixed within a run. A
key that has been removed gets 403. A device removes its own key by LEAVE, after which it releases
nothing to anybody: whoever repeats this call within its five minutes tells no lie.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from locksfl.federation import flower, post
from locksfl.federation.server.mail import COLLECT, SEND
from locksfl.federation.server.mailroom import Mailroom, Over
from locksfl.federation.server.place import KeyFolder
from locksfl.federation.wire import LostLink

Scope = MutableMapping[str, Any]
Message = Scope
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SECRET = "locks-secret"  # the header of the server's own calls
SEEN = "/locks/seen"  # of these: when the gate last let each device pass
PULL_MESSAGES, PUSH_MESSAGES = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
KIB = 1024
POST_OFFICE = {post.HELLO: 0, post.LEAVE: 0, post.WORK: KIB, post.OBJECTS: KIB, post.REPLY: None}
FLEET = {  # the calls of a stock SuperNode, and the most bytes of each; its chunks have 5 MiB
    "/v1/fleet/activate-node": 16 * KIB,
    "/v1/fleet/deactivate-node": 16 * KIB,
    "/v1/fleet/send-node-heartbeat": 16 * KIB,
    PULL_MESSAGES: 16 * KIB,
    "/v1/fleet/pull-object": 16 * KIB,
    "/v1/fleet/confirm-message-received": 16 * KIB,
    "/v1/fleet/get-run": 16 * KIB,
    "/v1/fleet/get-fab": 16 * KIB,
    PUSH_MESSAGES: 1024 * KIB,
    "/v1/fleet/push-object": 24 * 1024 * KIB,
}
AHEAD, BEHIND = 5.0, 300.0  # seconds that a device's clock may be ahead, or its call under way
CHUNK_SECONDS = 30.0  # until the next part of a body has arrived, or an answer's has been taken
CHUNK = 256 * KIB  # of an answer: no more is kept for a caller that takes it slowly
STOCK_SECONDS = 10.0  # a stock SuperNode that called so long ago is still there
OVER = "the stage of this question is over"
log = logging.getLogger(__name__)


class Refused(Exception):
    """This call does not pass."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Gate:
    """Lets calls pass to `app`, the SuperLink's, or refuses them."""

    app: App
    mailroom: Mailroom
    members: Mapping[bytes, int]  # the keys of this run, and Flower's numbers of their nodes
    folder: KeyFolder  # the keys that may be used now
    private: tuple[str, int]  # the listener of the server's own calls
    secret: str
    server: str  # what devices know it by
    stock: bool = False  # whether stock SuperNodes take part
    seen: dict[bytes, float] = field(default_factory=dict)  # by time.monotonic()
    refused: Counter[str] = field(default_factory=Counter)
    _busy: set[int] = field(default_factory=set)  # nodes with a large call or answer under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call; or the start and end of the server, which are always passed on."""
        try:
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
                return
            if scope["type"] != "http":
                raise Refused(403, "not HTTP")
            # of headers with the same name the first counts, as it does for Flower
            headers = {name.decode("latin-1"): v for name, v in reversed(scope["headers"])}
            private = tuple(scope["server"]) == self.private
            await (self._own if private else self._device)(scope, headers, receive, send)
        except Refused as why:
            self._note(scope, str(why))
            await _answer(send, why.status, [json.dumps({"detail": str(why)}).encode()], last=True)

    async def _own(
        self,
        scope: Scope,
        headers: dict[str, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        """The server's own call."""
        if not hmac.compare_digest(headers.get(SECRET, b""), self.secret.encode()):
            raise Refused(403, "not the server itself")
        if scope["path"] == SEEN:
            await _answer(send, 200, [json.dumps(self._told()).encode()])
        elif scope["path"] == COLLECT:
            await _answer(send, 200, self.mailroom.collect())
        elif scope["path"] == SEND:
            self.mailroom.send(await _body(receive, headers, None))
            await _answer(send, 200, [])
        else:
            await self.app(scope, receive, send)

    def _told(self) -> dict[str, Any]:
        """Of each device that has called how many seconds ago; of all, Flower's numbers."""
        now, here = time.monotonic(), self.mailroom.waiting
        seen = {key: now - when for key, when in self.seen.items()}
        waiting = {key for key, node in self.members.items() if node in here}
        seen |= dict.fromkeys(waiting, 0.0)
        if self.stock:  # a stock SuperNode waits nowhere: it calls again
            waiting = {key for key, ago in seen.items() if ago < STOCK_SECONDS}
        return {
            "seen": {key.hex(): ago for key, ago in seen.items()},
            "waiting": [key.hex() for key in waiting],
            "nodes": {key.hex(): node for key, node in self.members.items()},
            "refused": self.refused,
        }

    async def _device(
        self,
        scope: Scope,
        headers: dict[str, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        """A device's call."""
        path = scope["path"]
        plain = scope["raw_path"] == path.encode() and not scope["query_string"]
        ours = path in POST_OFFICE
        known = ours or (self.stock and path in FLEET)
        if not known or not plain or scope["method"] != "POST":
            raise Refused(403, "not a call of a device")
        digest = headers.get(post.DIGEST, b"").decode("latin-1")
        key = self._caller(headers, path, digest if ours else None)
        node = self.members.get(key, -1)  # whoever is no member may leave all the same
        with self._alone(node) if path in (post.OBJECTS, post.REPLY) else nullcontext():
            if path == post.REPLY and not self.mailroom.expects(node):
                raise Refused(410, OVER)  # before its body is read
            most = POST_OFFICE[path] if ours else FLEET[path]
            body = await _body(receive, headers, self.mailroom.most if most is None else most)
            if ours and hashlib.sha256(body).hexdigest() != digest:
                raise Refused(401, "the signature is not of this call")
            if node != -1:
                self.seen[key] = time.monotonic()
            if ours:
                await _answer(send, 200, await self._answered(path, key, node, body, receive))
                return
        if path == PUSH_MESSAGES:
            self.mailroom.stock.expect(node, _checked(body, self.mailroom.most))
        if path == PULL_MESSAGES:
            self.mailroom.hand_over(node)
        await self.app(scope, _once(body, receive), send)

    async def _answered(
        self, path: str, key: bytes, node: int, body: bytes, receive: Receive
    ) -> Sequence[bytes]:
        """What a call of our own device gets."""
        try:
            if path == post.WORK:
                return await self.mailroom.work(node, body.decode("ascii", "replace"), receive)
            if path == post.OBJECTS:
                return self.mailroom.objects(node, body)
            if path == post.REPLY:
                self.mailroom.reply(node, body)
            if path == post.LEAVE:
                self._leave(key)
            return []
        except Over:
            raise Refused(410, OVER) from None

    @contextmanager
    def _alone(self, node: int) -> Iterator[None]:
        """One large call or answer of a device at a time: memory is bounded by their number."""
        if node in self._busy:
            raise Refused(429, "another call of this device is under way")
        self._busy.add(node)
        try:
            yield
        finally:
            self._busy.discard(node)

    def _leave(self, key: bytes) -> None:
        """Revoke the caller's key, at once."""
        try:
            self.folder.revoke(key)
        except OSError as error:
            log.error("a device could not leave: %s", error)
            raise Refused(500, "the key could not be moved") from None

    def _caller(self, headers: dict[str, bytes], path: str, digest: str | None) -> bytes:
        """The key that signed this call: the time, the path, the digest of what follows, and this
        server; a stock SuperNode only the time, and Flower then compares the node's number with its
        key."""
        try:
            key = b64decode(headers[flower.PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[flower.SIGNATURE_HEADER], validate=True)
            stamp = headers[flower.TIMESTAMP_HEADER].decode("ascii")
            age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
            text = (
                stamp.encode() if digest is None else post.to_sign(stamp, path, digest, self.server)
            )
        except (KeyError, ValueError, TypeError, OverflowError):
            raise Refused(401, "not signed") from None
        try:
            valid = self.folder.now()
        except LostLink:  # nobody is let in, and nobody is told that their key was revoked
            raise Refused(500, "the folder of keys cannot be read") from None
        if key not in valid:
            raise Refused(403, "the key is not registered")
        if not flower.verify_signature(flower.bytes_to_public_key(key), text, signature):
            raise Refused(401, "the signature is not the key's")
        if not -AHEAD < age < BEHIND:
            raise Refused(401, f"the device's clock is {abs(age):.0f} s off")
        if key not in self.members and path != post.LEAVE:
            raise Refused(503, "the key was added during this run: it takes part in the next")
        return key

    def _note(self, scope: Scope, why: str) -> None:
        """Count a refusal; log the 1st, 2nd, 4th, 8th of a kind: nobody fills the disk so."""
        kind = why if "clock" not in why else "the device's clock is off"
        self.refused[kind] += 1
        count = self.refused[kind]
        if count & (count - 1) == 0:
            caller, path = (scope.get("client") or ["?"])[0], str(scope.get("path"))[:80]
            log.warning("refused %r from %s: %s (%d times so far)", path, caller, why, count)


async def _body(receive: Receive, headers: dict[str, bytes], most: int | None) -> bytes:
    """The whole body, if it is no longer than it may be."""
    stated = headers.get("content-length", b"0")
    if not stated.isdigit() or (most is not None and int(stated) > most):
        raise Refused(413, f"the body is too large, expected at most {most} bytes")
    parts, length = [], 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), CHUNK_SECONDS)
        except TimeoutError:
            raise Refused(408, "the body did not arrive") from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "the caller has gone")
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if most is not None and length > most:
            raise Refused(413, f"the body is too large, expected at most {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


def _checked(body: bytes, most: int) -> list[str]:
    """The names of the objects of a stock SuperNode's reply, the message first.

    A reply names its sender; Flower compares only the caller with its key, and the sender with the
    question. The number of another device's question can be guessed, from one's own. And Flower
    walks through whatever tree of objects a reply names: here none is named twice.
    """
    try:
        request = flower.fleet.PushMessagesRequest.FromString(body)
        (message,), (tree,) = request.messages_list, request.message_object_trees
        names = [item.object_id for item in flower.iterate_object_tree(tree)][::-1]
    except (flower.DecodeError, ValueError, RecursionError):
        raise Refused(400, "not one message with its objects") from None
    if message.metadata.src_node_id != request.node.node_id:
        raise Refused(403, "a reply in another device's name")
    once = len({*names}) == len(names) <= post.most_parts(most)
    if not once or names[0] != message.metadata.message_id:
        raise Refused(400, "not the objects of one message")
    return names


def _once(body: bytes, receive: Receive) -> Receive:
    """A body that has been read, for the app to read; after it, only the caller's going away."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


async def _answer(send: Send, status: int, pieces: Sequence[bytes], last: bool = False) -> None:
    """An answer, as fast as the caller takes it; the connection is closed after the last one,
    whatever the caller still sends."""
    headers = [(b"content-length", str(sum(map(len, pieces))).encode())]
    if last:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    with suppress(TimeoutError):  # it takes nothing: it is cut off
        for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                part = piece[start : start + CHUNK]
                message = {"type": "http.response.body", "body": part, "more_body": True}
                await asyncio.wait_for(send(message), CHUNK_SECONDS)
        await send({"type": "http.response.body", "body": b""})
