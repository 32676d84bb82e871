"""The process on a device: it asks its server for work, and answers by this package's app alone.

A stock SuperNode fetches the bundle that a server (or anyone who reaches its port) names, and runs
it: code that could read the data and send it, whatever the guard says. This one fetches no bundle,
opens no port and starts no process. Each question is answered before the next is requested. If the
server is unavailable, it waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict

from locksfl.federation import certificates, flower, post
from locksfl.federation.device import consent
from locksfl.federation.device.calls import Calls
from locksfl.federation.post import fold, name_of, unfold

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

App = Callable[[Message, Context], Message]
Say = Callable[[str], None]
RETRY_SECONDS = 2.0
SHORTEST_WAIT = 1.0  # for work, if there is none
AGAIN = frozenset({401, 408, 429})  # after these, and errors of a server, a reply is sent again
REFUSALS = 5  # until a node accepts that it is rejected: a server may just be starting
log = logging.getLogger(__name__)


class Node:
    """One device's connection. `app` answers."""

    def __init__(self, address: str, ca: Path, key: Path, app: App) -> None:
        certificates.check_certificate(ca)
        self.address, self.ca, self.key, self.app = address, ca, key, app
        self._private, self._lock = _private(key), _lock(key.with_name(f"{key.name}.node"))
        self._context: Context | None = None
        self._unsent: tuple[str, list[bytes]] | None = None  # a question's name, and its reply

    def serve(self, say: Say = print) -> None:
        """Answer until interrupted, or until the device's owner withdraws consent."""
        waiting, refusals = False, 0
        while not consent.withdrawn(self.key):
            if not certificates.check_connection(self.address, self.ca):
                if not waiting:
                    say(f"{self.address}: no server there yet; waiting")
                waiting = True
                time.sleep(RETRY_SECONDS)
                continue
            try:
                with Calls(self.address, self.ca, self._private) as calls:
                    _sign_on(calls)
                    waiting, refusals = False, 0
                    say(f"{self.address}: connected")
                    self._answer_all(calls)
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

    def _answer_all(self, calls: Calls) -> None:
        last = self._deliver(calls)
        while not consent.withdrawn(self.key):
            began = time.monotonic()
            parts = calls.work(last)
            if not parts:
                if time.monotonic() - began < SHORTEST_WAIT:  # the server did not let it wait
                    time.sleep(RETRY_SECONDS)
                continue
            last = name_of(parts[0])  # it is not sent again, whatever becomes of it
            try:
                message = unfold(parts, calls.objects)
                reply = self.app(message, self._context_of(message))
                if consent.withdrawn(self.key):
                    return
                # Flower's own node reports how long it trained, which depends on the data
                self._unsent = last, fold(reply)
            except Exception as error:  # for example, it is garbage
                log.warning("a message was not answered: %r", error)
            self._deliver(calls)

    def _deliver(self, calls: Calls) -> str:
        """Send the reply that has not been sent, and return the name of its question. It is paid
        for: if the connection breaks, it is sent again over the next one, as it is."""
        if self._unsent is None:
            return ""
        name, parts = self._unsent
        try:
            calls.reply(name, parts)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in AGAIN or error.response.is_server_error:
                raise
            log.warning("an answer was not taken: %r", error)  # its stage is over
        self._unsent = None
        return name

    def _context_of(self, message: Message) -> Context:
        """The memory between the messages of a run; that of another run is discarded."""
        run, node = message.metadata.run_id, message.metadata.dst_node_id
        if self._context is None or self._context.run_id != run:
            self._context = Context(run, node, {}, RecordDict(), {})
        return self._context


def tell_left(address: str, ca: Path, key: Path) -> None:
    """Have a server revoke the key of a device that has left; a ValueError if it cannot be told. A
    server that does not know the key, or no more, has nothing to revoke."""
    certificates.check_certificate(ca)
    if not certificates.check_connection(address, ca):
        raise ValueError(f"{address}: no server there")
    try:
        with Calls(address, ca, _private(key)) as calls:
            calls.leave()
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.FORBIDDEN:
            return
        try:
            _check_clock(error.response)
        except _WrongClock as clock:
            raise ValueError(f"{address}: {clock}") from None
        raise ValueError(f"{address}: it answered {error.response.status_code}") from None
    except httpx.HTTPError as error:
        raise ValueError(f"{address}: the connection was lost ({error!r})") from None


def _private(key: Path) -> ec.EllipticCurvePrivateKey:
    certificates.check_private_key(key)
    private = load_ssh_private_key(key.read_bytes(), password=None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key}: expected a key on a NIST curve (certs --node)")
    return private


def _sign_on(calls: Calls) -> None:
    """See whether the server is here and knows this device."""
    try:
        calls.hello()
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise _NotNow from None
        if error.response.status_code == httpx.codes.NOT_FOUND:
            raise ValueError(
                f"{error.request.url.netloc.decode()}: has no {post.HELLO}; expected a server of "
                "the same version as this client"
            ) from None
        if error.response.is_server_error:  # the server, or a proxy before it, is starting
            raise
        _check_clock(error.response)
        raise _TurnedAway from None


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


def _lock(path: Path) -> IO[str]:
    """Hold a file next to the key: one process at a time uses a key."""
    held = path.open("a", encoding="utf-8")
    try:
        if fcntl is not None:  # not on Windows
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise ValueError(f"{path}: another process is using this node's key") from None
    return held
