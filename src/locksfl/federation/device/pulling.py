"""A server's message in two steps: its words first, the model only if the device wants it.

Flower stores a message as a tree of objects, each pulled by itself: the message, its records, its
arrays, and the pieces of each array. Flower's own client pulls all of them and then unpacks. Here
everything but the pieces is pulled, which tells what is asked and how large the model is; policy,
ledger and size are checked with that, and the pieces follow, a few at a time, into one buffer.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from locksfl.federation import flower
from locksfl.federation.flower import FleetHttpClient, NodeProto, ObjectTree
from locksfl.federation.messages import HEADER

PIECES = 4  # levels below a message: content, records, arrays, pieces
MOST_OBJECTS = 16  # a question has five besides the pieces
AT_ONCE = 4  # pieces of 5 MiB

Pull = Callable[[str], bytes]


def pull(
    client: FleetHttpClient, node: NodeProto, head: Message, tree: ObjectTree
) -> tuple[Message, Callable[[], None]]:
    """The message whose head has arrived, with arrays that are pulled when `fetch` is called, and a
    function that tells the server that no more will be pulled."""
    run = head.metadata.run_id
    get = flower.make_pull_object_fn_protobuf(client.PullObject, node, run)
    told = flower.make_confirm_message_received_fn_protobuf(
        client.ConfirmMessageReceived, node, run
    )
    ids = _above_the_pieces(tree, 0)
    if len(ids) > MOST_OBJECTS:
        raise ValueError(f"{len(ids)} objects in a message, expected at most {MOST_OBJECTS}")
    message = _inflate(tree, flower.pull_objects(list(set(ids)), get), get)
    if not isinstance(message, Message):
        raise TypeError("not a message")
    message.metadata.__dict__["_message_id"] = head.metadata.message_id
    return message, lambda: told(tree.object_id)


def _above_the_pieces(tree: ObjectTree, level: int) -> list[str]:
    if level == PIECES:
        return []
    below = [i for child in tree.children for i in _above_the_pieces(child, level + 1)]
    return [tree.object_id, *below]


def _inflate(tree: ObjectTree, contents: dict[str, bytes], get: Pull) -> flower.InflatableObject:
    """An object of Flower's, from its content and its children."""
    content = contents[tree.object_id]
    kind, pieces, _ = flower.get_object_head_values_from_object_content(content)
    if kind == Array.__qualname__:
        return _array(content, pieces, get)
    known = {c.__qualname__: c for c in (Message, RecordDict, ArrayRecord, ConfigRecord)}
    children = {child.object_id: _inflate(child, contents, get) for child in tree.children}
    made = known.get(kind, MetricRecord).inflate(content, children)
    if isinstance(made, ArrayRecord):  # it holds copies
        for name, of in json.loads(flower.get_object_body(content, ArrayRecord)).items():
            made[name].__dict__["fetch"] = children[of].__dict__["fetch"]
    return made


def _array(content: bytes, pieces: list[str], get: Pull) -> Array:
    """An array without its data, and with `fetch`, which pulls them."""
    facts = json.loads(flower.get_object_body(content, Array))
    array = Array(str(facts["dtype"]), tuple(facts["shape"]), str(facts["stype"]), b"")
    order = [pieces[i] for i in facts["arraychunk_ids"]]

    def fetch(most: int) -> bytearray:
        """The data: at most `most` bytes and a header."""
        data = bytearray()
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            found = flower.pull_objects(list(set(some)), get)
            for name in some:
                data += flower.get_object_body(found[name], flower.ArrayChunk)
                if len(data) > most + HEADER:
                    raise ValueError(f"more than {most + HEADER} bytes of an array")
        return data

    array.__dict__["fetch"] = fetch
    return array
