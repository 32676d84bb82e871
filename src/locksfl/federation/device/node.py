"""The process on a device: it asks its server for work, and answers by this package's app alone.

A stock SuperNode fetches the bundle that a server (or anyone who reaches its port) names, and runs
it: code that could read the data and send it, whatever the guard says. This one fetches no bundle,
opens no port and starts no process. Each question is answered before the next is requested. If the
server is unavailable, or something else answers in its place, it waits.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict

from locksfl.federation import certificates, flower, post
from locksfl.federation.certificates import NoServer, read_private_key
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
OVER = frozenset({410, 413})  # after these a reply is of no use; after others it is sent again
log = logging.getLogger(__name__)


class Node:
    """One device's connection. `app` answers."""

    def __init__(self, address: str, ca: Path, key: Path, app: App) -> None:
        certificates.check_certificate(ca)
        certificates.host_and_port(address)
        self.address, self.ca, self.key, self.app = address, ca, key, app
        self._private = read_private_key(key)
        self._lock = _lock(key.with_name(f"{key.name}.node"))
        self._context: Context | None = None
        self._unsent: tuple[str, list[bytes]] | None = None  # a question's name, and its reply

    def serve(self, say: Say = print) -> None:
        """Answer until interrupted, or until the device's owner withdraws consent. Whatever answers
        at the address, or nothing: one line, wait, try again."""
        said = ""
        while not consent.withdrawn(self.key):
            try:
                with reaching(self.address, self.ca, self._private) as calls:
                    calls.hello()
                    say(f"{self.address}: connected")
                    said = ""
                    self._answer_all(calls)
            except NoServer as error:
                cause = re.sub(r"\d", "", str(error))  # seconds and statuses come and go
                if cause != said:
                    say(f"{error}; waiting")
                said = cause
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
            if error.response.status_code not in OVER:
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


@contextmanager
def reaching(address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> Iterator[Calls]:
    """Calls to the server at an address; `NoServer` says why one had no answer."""
    certificates.check_connection(address, ca)
    try:
        with Calls(address, ca, key) as calls:
            yield calls
    except httpx.HTTPStatusError as error:
        raise NoServer(f"{address}: {_why(error.response)}") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # these: of a redirect
        raise NoServer(f"{address}: the connection was lost ({error!r})") from None


def check(address: str, ca: Path, key: Path) -> None:
    """Try once whether the server answers and knows this device; `NoServer` says why not."""
    certificates.check_certificate(ca)
    with reaching(address, ca, read_private_key(key)) as calls:
        calls.hello()


def tell_left(address: str, ca: Path, key: Path) -> None:
    """Have a server revoke the key of a device that has left; a ValueError if it cannot be told. A
    server that does not know the key, or no more, has nothing to revoke."""
    certificates.check_certificate(ca)
    with reaching(address, ca, read_private_key(key)) as calls:
        try:
            calls.leave()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise


def _why(response: httpx.Response) -> str:
    """What an answer that is none says, for a person."""
    code = response.status_code
    if code == httpx.codes.SERVICE_UNAVAILABLE:
        return "the server has no place for this node now"
    if code == httpx.codes.FORBIDDEN:
        return (
            "the server rejected this node; expected its public key to be registered there "
            "(locks federation server --keys)"
        )
    if code == httpx.codes.NOT_FOUND:
        return f"has no {post.HELLO}; expected a server of the same version as this client"
    wrong = _wrong_clock(response) if code == httpx.codes.UNAUTHORIZED else None
    return wrong or f"it answered {code}"


def _wrong_clock(response: httpx.Response) -> str | None:
    """Compare this device's clock with the time in a server's answer: whoever is turned away for
    the time of its signature gets the same answer as one whose signature is wrong."""
    try:
        there = parsedate_to_datetime(response.headers["date"])
        ahead = (datetime.now(UTC) - there).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    if -flower.TIMESTAMP_TOLERANCE < ahead < flower.SYSTEM_TIME_TOLERANCE:
        return None
    apart = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return (
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
