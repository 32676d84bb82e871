"""Where a server listens, and which clients it knows: what is checked before anything is made."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from locksfl._files import sync_folder, write_atomically
from locksfl.federation import certificates
from locksfl.federation.wire import LostLink

REREAD_SECONDS = 1.0  # how soon a revoked key is refused ...
REREAD_SHARE = 50  # ... and so many times as long as it took to read 100,000 of them, for example
LEFT = "left"  # in the folder of keys: those of devices that have left
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a server listens, which clients it knows, and how long it waits."""

    certs: Path
    keys: Path  # a folder of public keys, one per client, numbered by the order of their names
    port: int = 8000
    host: str = "127.0.0.1"
    seconds: float = 60.0  # the deadline of a stage
    wait: float = 60.0  # for nodes to connect, before the first round
    log_format: str = "text"
    exclude: bool = False  # flagged devices are asked no more
    quorum: float = 1.0  # the share of answers after which a stage does not wait for the deadline
    stock: bool = False  # stock SuperNodes take part too
    min_waiting: int = 1  # devices, of all members: without them no round begins

    def check(self, clients: int | None) -> None:
        """Refuse keys that do not match, and a port that is taken, before anything is made."""
        self.public_keys(clients)
        if not 1 <= self.min_waiting <= (clients or 1):
            raise ValueError(
                f"--min-waiting {self.min_waiting}: expected 1 to {clients}, the number of devices"
            )
        listen(self.host, self.port).close()

    def members(self, clients: int | None, path: Path) -> dict[bytes, str]:
        """The clients of a run, by their keys: noted in a file when it begins. A run that goes on
        has the same, whatever has become of their keys meanwhile."""
        if path.is_file():
            certificates.check_server(self.certs)
            noted: dict[str, str] = json.loads(path.read_text("utf-8"))
            return {bytes.fromhex(key): name for key, name in noted.items()}
        found = self.public_keys(clients)
        noted = {key.hex(): name for key, name in found.items()}
        write_atomically(path, json.dumps(noted).encode(), secret=True)
        return found

    def public_keys(self, clients: int | None) -> dict[bytes, str]:
        """Every client's key and name; n is fixed, so there must be as many keys as clients."""
        certificates.check_server(self.certs)
        paths = [self.keys / name for name, *_ in _key_files(self.keys)]
        if len(paths) != clients:
            todo = "move the others out" if len(paths) > (clients or 0) else "add the missing ones"
            raise ValueError(
                f"--keys {self.keys}: {len(paths)} public keys (*.pub), expected one for each of "
                f"data.clients = {clients}; {todo}, or set data.clients to the number of devices "
                "of this run"
            )
        found: dict[bytes, str] = {}
        for path in paths:
            try:
                key = certificates.read_public_key(path)
            except OSError as error:
                raise _unreadable(path, error) from None
            if key in found:
                raise ValueError(
                    f"{path}: the same key as {found[key]}.pub; expected a different key per client"
                )
            found[key] = path.stem
        return found


class KeyFolder:
    """The keys in a folder as they are now: a key is revoked by removing its file. Those of devices
    that have left by themselves are in a folder within."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._keys: frozenset[bytes] = frozenset()
        self._due = -math.inf  # until then it is not read again

    def now(self) -> frozenset[bytes]:
        """The keys that are valid; the files are read again only if one of them has changed. A
        folder that cannot be read says nothing of who was revoked: `LostLink`."""
        began = time.monotonic()
        if began < self._due:
            return self._keys
        files = _key_files(self._folder)
        seen = (files, date.today())  # keys expire
        if seen != self._seen:
            self._seen = seen
            self._keys = frozenset(
                key for name, _, _ in files if (key := self._read(self._folder / name)) is not None
            )
        took = time.monotonic() - began
        self._due = began + max(REREAD_SECONDS, REREAD_SHARE * took)
        return self._keys

    def left(self) -> frozenset[bytes]:
        """The keys of devices that have left."""
        found = set()
        for path in (self._folder / LEFT).glob("*.pub"):
            with suppress(ValueError, OSError):  # it has expired since, for example
                found.add(certificates.read_public_key(path))
        return frozenset(found)

    def revoke(self, key: bytes) -> None:
        """Move the key of a device that leaves, durably."""
        left = self._folder / LEFT
        left.mkdir(exist_ok=True)
        for path in self._folder.glob("*.pub"):
            if self._read(path) == key:
                path.replace(left / path.name)
                log.warning("%s has left: %s is now in %s", path.stem, path.name, left)
        self._due = -math.inf
        sync_folder(left)
        sync_folder(self._folder)

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            return certificates.read_public_key(path)
        except (ValueError, FileNotFoundError) as error:  # expired, or removed meanwhile
            log.warning("%s", error)
            return None
        except OSError as error:
            raise _unreadable(path, error) from None


def _key_files(folder: Path) -> list[tuple[str, int, int]]:
    """The public keys in a folder, by name: each with the time and size of its file."""
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pub"):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        files.append((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size))
    except OSError as error:
        raise _unreadable(folder, error) from None
    return sorted(files)


def _unreadable(path: Path, error: OSError) -> LostLink:
    return LostLink(
        f"--keys: {path} cannot be read ({error.strerror}); expected a folder with a public key "
        "(*.pub) of each device"
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there: a port that is taken is named at once, as such."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ValueError(
            f"--host {host}: {error.strerror}; expected a name or address of this machine"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"--port {port}: already in use on {host}; expected a free port"
            ) from None
        raise ValueError(f"--host {host} --port {port}: {error.strerror}") from None
    return listener
