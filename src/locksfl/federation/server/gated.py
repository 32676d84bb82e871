"""The process of a SuperLink: Flower's app behind the gate, on two sockets that its parent opened.

python -m locksfl.cli.as_child superlink GATE.json --isolation process ...

The sockets are open before this process starts, so that a port that is taken is the parent's error,
and nobody else can take the private one.
"""

from __future__ import annotations

import json
import logging
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from locksfl.federation import flower
from locksfl.federation.server.gate import Gate
from locksfl.federation.server.mailroom import Mailroom
from locksfl.federation.server.place import KeyFolder
from locksfl.federation.server.stock import Stock

FIRST_SECONDS, HEADER_BYTES = 20.0, 64 * 1024  # until the first request's header has ended
CONNECTIONS = 256, 8  # and so many for each device: it has one, a stock SuperNode two
log = logging.getLogger(__name__)


class Hurried(HttpToolsProtocol):
    """Connections that never ask for anything, or whose header does not end, are closed, and so are
    public ones beyond a number. (A later request on a connection comes from a device that has
    passed: refusals close it.)"""

    private: object = None  # the address of the server's own listener, which is never full
    most = 0
    public: ClassVar[set[HttpToolsProtocol]] = set()
    _received = 0

    def connection_made(self, transport):  # type: ignore[no-untyped-def]
        """As uvicorn's, with a deadline for the first request."""
        super().connection_made(transport)
        if transport.get_extra_info("sockname") != self.private:
            self.public.add(self)
        if len(self.public) > self.most and self in self.public:
            transport.abort()
            return
        self.loop.call_later(FIRST_SECONDS, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self.public.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, with a limit for the first header."""
        super().data_received(data)
        self._received += len(data)
        if self._received > HEADER_BYTES:
            self._expire()

    def _expire(self) -> None:
        if self.cycle is None:
            self.transport.close()


def main(arguments: Sequence[str]) -> None:
    """Serve until the parent ends this process."""
    path, *options = arguments
    given = json.loads(Path(path).read_text("utf-8"))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    public, private = (socket.socket(fileno=number) for number in given["sockets"])
    app = flower.superlink_app(options)
    stock = Stock(app.state.linkstate_factory.state())
    members = {key: stock.register(key) for key in map(bytes.fromhex, given["members"])}
    gate = Gate(
        app,
        Mailroom(stock),
        members,
        KeyFolder(Path(given["keys"])),
        private.getsockname(),
        given["secret"],
        given["server"],
        given["stock"],
    )
    _allow_connections(len(members))
    Hurried.private = private.getsockname()
    Hurried.most = CONNECTIONS[0] + CONNECTIONS[1] * len(members)
    config = uvicorn.Config(
        gate,
        http=Hurried,
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=given["certificate"],
        ssl_keyfile=given["key"],
        log_level="error",  # below that, anybody could fill the log
        timeout_keep_alive=60,  # longer than a caller keeps a connection that it does not use
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[public, private])


def _allow_connections(devices: int) -> None:
    """Raise the number of open files as far as this user may: a device has a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < 2 * devices + CONNECTIONS[0]:
        log.warning(
            "%d devices, and at most %d open files: raise the limit (ulimit -Hn, LimitNOFILE=)",
            devices,
            most,
        )
