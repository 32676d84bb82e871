"""The gate before the SuperLink: who may call what. An ASGI filter around Flower's own app.

Flower has no login: whoever reaches its port may unregister nodes, stop the run or start another.
And what its devices sign is a time, not the call. So one process has two listeners, and on

    --host:--port   only the calls of a device that takes part (FLEET) pass, POST, signed now by a
                    key that is registered and still in the folder of keys, as long as a call of
                    that kind can be, and for replies: its own, not another device's
    loopback        the server's own calls pass: each has the secret of this run

Everything else is refused before a byte of its body is read. A key that has been added meanwhile
gets 503, by which a device knows that it may wait; the number of clients is fixed within a run. A
key that has been removed gets 403.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from locksfl.federation import flower
from locksfl.federation.server.place import KeyFolder

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SECRET = "locks-secret"  # the header of the server's own calls
SEEN = "/locks/seen"  # of these: when the gate last let each device pass
PUSH_MESSAGES, PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
KIB = 1024
FLEET = {  # the calls of a device, and the most bytes of each; Flower's chunks have 5 MiB
    "/v1/fleet/activate-node": 16 * KIB,
    "/v1/fleet/deactivate-node": 16 * KIB,
    "/v1/fleet/send-node-heartbeat": 16 * KIB,
    "/v1/fleet/pull-messages": 16 * KIB,
    "/v1/fleet/pull-object": 16 * KIB,
    "/v1/fleet/confirm-message-received": 16 * KIB,
    "/v1/fleet/get-run": 16 * KIB,  # this call and the next: Flower's own SuperNode
    "/v1/fleet/get-fab": 16 * KIB,
    PUSH_MESSAGES: 1024 * KIB,
    PUSH_OBJECT: 24 * 1024 * KIB,
}
AHEAD, BEHIND = 5.0, 300.0  # seconds that a device's clock may be ahead, or its call under way
CHUNK_SECONDS = 30.0  # until the next part of a body
REREAD_SECONDS = 1.0  # how soon a revoked key is refused
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
    members: frozenset[bytes]  # the keys of this run
    folder: KeyFolder  # the keys that may be used now
    private: tuple[str, int]  # the listener of the server's own calls
    secret: str
    seen: dict[bytes, float] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _read: float = -REREAD_SECONDS
    _now: frozenset[bytes] = frozenset()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One call; or the start and end of the server, which are always passed on."""
        try:
            if scope["type"] == "http":
                # of headers with the same name the first counts, as it does for Flower
                headers = {name.decode("latin-1"): v for name, v in reversed(scope["headers"])}
                if tuple(scope["server"]) != self.private:
                    receive = await self._checked(scope, headers, receive)
                elif not hmac.compare_digest(headers.get(SECRET, b""), self.secret.encode()):
                    raise Refused(403, "not the server itself")
                elif scope["path"] == SEEN:
                    told = {key.hex(): when for key, when in self.seen.items()}
                    await _answer(send, 200, {"seen": told, "refused": self.refused})
                    return
            elif scope["type"] != "lifespan":
                raise Refused(403, "not HTTP")
        except Refused as why:
            self._note(scope, str(why))
            await _answer(send, why.status, {"detail": str(why)})
        else:
            await self.app(scope, receive, send)

    async def _checked(
        self, scope: MutableMapping[str, Any], headers: dict[str, bytes], receive: Receive
    ) -> Receive:
        """The body of a device's call, or why it is refused."""
        path = scope["path"]
        plain = scope["raw_path"] == path.encode() and not scope["query_string"]
        if path not in FLEET or not plain or scope["method"] != "POST":
            raise Refused(403, "not a call of a device")
        key = self._caller(headers)
        body = await _body(receive, headers, FLEET[path])
        if path == PUSH_MESSAGES:
            _check_own(body)
        self.seen[key] = time.time()
        return _once(body, receive)

    def _caller(self, headers: dict[str, bytes]) -> bytes:
        """The key that signed this call. Flower then compares the node's number with it."""
        if time.monotonic() - self._read >= REREAD_SECONDS:
            self._read, self._now = time.monotonic(), self.folder.now()
        try:
            key = b64decode(headers[flower.PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[flower.SIGNATURE_HEADER], validate=True)
            stamp = headers[flower.TIMESTAMP_HEADER]
            signed = datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.now(UTC) - signed).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError):
            raise Refused(401, "not signed") from None
        if key not in self._now:
            raise Refused(403, "the key is not registered")
        if not flower.verify_signature(flower.bytes_to_public_key(key), stamp, signature):
            raise Refused(401, "the signature is not the key's")
        if not -AHEAD < age < BEHIND:
            raise Refused(401, f"the device's clock is {abs(age):.0f} s off")
        if key not in self.members:
            raise Refused(503, "the key was added during this run: it takes part in the next")
        return key

    def _note(self, scope: MutableMapping[str, Any], why: str) -> None:
        """Count a refusal; log the 1st, 2nd, 4th, 8th of a kind: nobody fills the disk so."""
        kind = why if "clock" not in why else "the device's clock is off"
        self.refused[kind] += 1
        count = self.refused[kind]
        if count & (count - 1) == 0:
            caller, path = (scope.get("client") or ["?"])[0], str(scope.get("path"))[:80]
            log.warning("refused %r from %s: %s (%d times so far)", path, caller, why, count)


async def _body(receive: Receive, headers: dict[str, bytes], most: int) -> bytes:
    """The whole body, if it is no longer than it may be."""
    stated = headers.get("content-length", b"0")
    if not stated.isdigit() or int(stated) > most:
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
        if length > most:
            raise Refused(413, f"the body is too large, expected at most {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_own(body: bytes) -> None:
    """A reply names its sender; Flower compares only the caller with its key, and the sender with
    the question. The number of another device's question can be guessed, from one's own."""
    try:
        request = flower.fleet.PushMessagesRequest.FromString(body)
    except flower.DecodeError:
        raise Refused(400, "not a message") from None
    if any(m.metadata.src_node_id != request.node.node_id for m in request.messages_list):
        raise Refused(403, "a reply in another device's name")


def _once(body: bytes, receive: Receive) -> Receive:
    """A body that has been read, for the app to read; after it, only the caller's going away."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


async def _answer(send: Send, status: int, value: object) -> None:
    """A short answer; the connection is closed after it, whatever the caller still sends."""
    content = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
