"""A device's calls to its server (post.py): signed, over one connection, with limits."""

from __future__ import annotations

import hashlib
import ssl
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from locksfl.federation import certificates, flower, post

SECONDS = 30.0  # until a call has failed, besides the time that the server may wait
KIB = 1024


class Calls:
    """The calls of one device. Use as a context manager, or `close` it."""

    def __init__(self, address: str, ca: Path, key: ec.EllipticCurvePrivateKey) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca)
        timeout = httpx.Timeout(SECONDS, read=SECONDS + post.WAIT_SECONDS)
        self._client = httpx.Client(base_url=f"https://{address}", verify=context, timeout=timeout)
        self._key, self._server = key, certificates.fingerprint(ca)
        self._public = b64encode(flower.public_key_to_bytes(key.public_key())).decode("ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def hello(self) -> None:
        """Whether the server knows this device, and is here: otherwise an error."""
        self._call(post.HELLO, [], 0)

    def work(self, last: str) -> list[bytes]:
        """The objects of a question, the message first, if there is one within WAIT_SECONDS; not
        the question named `last` again."""
        body = self._call(post.WORK, [last.encode("ascii")], 2 * post.UNASKED)
        return _parts(body, post.most_parts(post.UNASKED))

    def objects(self, names: Sequence[str]) -> list[bytes]:
        """Objects of a question, by their names."""
        asked = "\n".join(names).encode("ascii")
        return _parts(
            self._call(post.OBJECTS, [asked], len(names) * (post.PIECE + KIB)), len(names)
        )

    def reply(self, question: str, parts: Sequence[bytes]) -> None:
        """Send the objects of a reply, the message first, to the question of that name."""
        self._call(post.REPLY, post.pack([question.encode("ascii"), *parts]), 0)

    def leave(self) -> None:
        """Have the server revoke this device's key."""
        self._call(post.LEAVE, [], 0)

    def _call(self, path: str, pieces: Sequence[bytes], most: int) -> bytes:
        """The answer; an httpx.HTTPError if there is none, or it is too long."""
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        stamp, named = datetime.now(UTC).isoformat(), digest.hexdigest()
        signature = flower.sign_message(self._key, post.to_sign(stamp, path, named, self._server))
        headers = {
            flower.PUBLIC_KEY_HEADER: self._public,
            flower.TIMESTAMP_HEADER: stamp,
            flower.SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
            post.DIGEST: named,
            "content-length": str(sum(len(piece) for piece in pieces)),
        }
        body = bytearray()
        with self._client.stream("POST", path, content=iter(pieces), headers=headers) as answer:
            answer.raise_for_status()
            for part in answer.iter_raw():
                body += part
                if len(body) > most:
                    raise httpx.RemoteProtocolError(f"{path}: more than {most} bytes in an answer")
        self._client.cookies.clear()  # a server gets no memory here
        return bytes(body)


def _parts(body: bytes, most: int) -> list[bytes]:
    """The parts of an answer. What is none comes from a broken server, or something before it: the
    device tries again later."""
    try:
        return post.unpack(body, most)
    except ValueError as error:
        raise httpx.RemoteProtocolError(str(error)) from None
