"""How questions and answers travel: a Flower message in one piece, by calls of our own.

Flower stores a message as a tree of objects, and its nodes fetch and send each of them by a call
of its own: about 27 calls for a question and its answer. Here all objects of a message are parts of
one body. A device makes two calls: WORK, which waits at the server until there is a question, and
REPLY. Only a large model follows by OBJECTS, in pieces: with the question comes its size, and
policy, ledger and size are checked before any piece is fetched. HELLO is a device's first call,
LEAVE its last.

A part's name is the hash of its content, as in Flower: names are not sent, and nobody can put
another content in their place. A device signs the time, the call, its content and the server.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from locksfl.federation import flower
from locksfl.federation.messages import HEADER

HELLO, WORK = "/v1/locks/hello", "/v1/locks/work"
OBJECTS, REPLY = "/v1/locks/objects", "/v1/locks/reply"
LEAVE = "/v1/locks/leave"
DIGEST = "locks-digest"  # the header with the hash of a call's content
WAIT_SECONDS = 20.0  # for which WORK waits; then it answers nothing, and the device calls again
UNASKED = 1024 * 1024  # bytes of a model that are sent with its question, before the device agrees
AT_ONCE = 4  # pieces of 5 MiB that are fetched together
MOST_OBJECTS = 16  # of a message, besides the pieces of its arrays: a question has five
PIECE = 5 * 1024 * 1024  # bytes of a piece, by Flower's choice

Fetch = Callable[[Sequence[str]], Sequence[bytes]]  # objects, by their names
_LENGTH = struct.Struct(">Q")


def pack(parts: Iterable[bytes]) -> list[bytes]:
    """Parts as the pieces of one body: before each of them, its length."""
    return [piece for part in parts for piece in (_LENGTH.pack(len(part)), part)]


def unpack(body: bytes, most: float = math.inf) -> list[bytes]:
    """The parts of a body; a ValueError if it is none, or has more than `most`."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        if len(parts) == most:
            raise ValueError(f"more than {most} parts")
        start = at + _LENGTH.size
        if start > len(body):
            raise ValueError("a part without its length")
        at = start + _LENGTH.unpack_from(body, at)[0]
        if at > len(body):
            raise ValueError("a part is cut off")
        parts.append(body[start:at])
    return parts


def name_of(part: bytes) -> str:
    """The name of an object: the hash of its content."""
    return hashlib.sha256(part).hexdigest()


def to_sign(stamp: str, path: str, digest: str, server: str) -> bytes:
    """What a device signs for a call. `server`: the fingerprint of its authority, so that no server
    can hand the call on to another one that knows the same key."""
    return f"{stamp} {path} {digest} {server}".encode("ascii")


def most_parts(size: int) -> int:
    """How many objects a message with so many bytes of numbers can have."""
    return MOST_OBJECTS + most_pieces(size)


def most_pieces(size: int) -> int:
    """How many pieces so many bytes can have, and a header."""
    return (size + HEADER) // PIECE + 1


def fold(message: Message) -> list[bytes]:
    """All objects of a message, itself first."""
    with flower.no_object_id_recompute():
        return [item.deflate() for item in flower.get_all_nested_objects(message).values()][::-1]


def names_within(name: str, objects: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Of a message's objects those above the pieces of its arrays, itself first; and the pieces."""
    above: list[str] = [name]
    pieces: list[str] = []
    for found in above:  # it grows
        kind, parts, _ = flower.get_object_head_values_from_object_content(objects[found])
        into = pieces if kind == "Array" else above
        into.extend(part for part in parts if part not in into)
    return above, pieces


def unfold(parts: Sequence[bytes], fetch: Fetch) -> Message:
    """The message that is the first of these objects. Its arrays have a `fetch` in place of data:
    nothing is put together that is not wanted, or is larger than it may be. Pieces that are not
    among the objects are got by `fetch` then."""
    objects = {name_of(part): part for part in parts}
    made: dict[str, flower.InflatableObject] = {}  # each only once, however often it is named
    begun: set[str] = set()

    def inflate(name: str) -> flower.InflatableObject:
        if name not in made:
            begun.add(name)
            if len(begun) > MOST_OBJECTS:
                raise ValueError(f"more than {MOST_OBJECTS} objects in a message")
            made[name] = _inflate(objects[name], inflate, objects, fetch)
        return made[name]

    name = name_of(parts[0])
    message = inflate(name)
    if not isinstance(message, Message):
        raise TypeError("not a message")
    message.metadata.__dict__["_message_id"] = name
    return message


def _inflate(
    content: bytes,
    inflate: Callable[[str], flower.InflatableObject],
    here: Mapping[str, bytes],
    fetch: Fetch,
) -> flower.InflatableObject:
    """An object of Flower's, from its content and what is below it."""
    kind, below, _ = flower.get_object_head_values_from_object_content(content)
    if kind == Array.__qualname__:
        return _array(content, below, here, fetch)
    known = {c.__qualname__: c for c in (Message, RecordDict, ArrayRecord, ConfigRecord)}
    children = {name: inflate(name) for name in below}
    made = known.get(kind, MetricRecord).inflate(content, children)
    if isinstance(made, ArrayRecord):  # it holds copies
        for name, of in json.loads(flower.get_object_body(content, ArrayRecord)).items():
            made[name].__dict__["fetch"] = children[of].__dict__["fetch"]
    return made


def _array(content: bytes, pieces: list[str], here: Mapping[str, bytes], fetch: Fetch) -> Array:
    """An array without its data, and with `fetch`, which gets them."""
    facts = json.loads(flower.get_object_body(content, Array))
    array = Array(str(facts["dtype"]), tuple(facts["shape"]), str(facts["stype"]), b"")
    order = [pieces[i] for i in facts["arraychunk_ids"]]

    def get(most: int) -> bytearray:
        """The data: at most `most` bytes and a header."""
        if len(order) > most_pieces(most):
            raise ValueError(f"{len(order)} pieces of an array of {most} bytes")
        data = bytearray()
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            absent = sorted({name for name in some if name not in here})
            found = {name_of(part): part for part in fetch(absent)} if absent else {}
            for name in some:
                piece = here[name] if name in here else found[name]
                data += flower.get_object_body(piece, flower.ArrayChunk)
                if len(data) > most + HEADER:
                    raise ValueError(f"more than {most + HEADER} bytes of an array")
        return data

    array.__dict__["fetch"] = get
    return array
