"""The server's end of the mailroom: what a Flower Grid does, with one call for a whole stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from flwr.app import Message, RecordDict

from locksfl.federation import flower, post
from locksfl.federation.post import pack, unfold, unpack

SEND, COLLECT = "/locks/send", "/locks/collect"  # on the private listener
MORE = 64 * 1024  # bytes of a reply besides its numbers and one hundredth of these, for pieces

Call = Callable[[str, Sequence[bytes]], bytes]


class Mail:
    """`push_messages` begins a stage, `pull_messages` takes what has arrived of it."""

    def __init__(self, call: Call, run: Any, size: int) -> None:
        self.run, self._call = run, call
        self._most, self._parts = MORE + size * 4 * 101 // 100, post.most_parts(4 * size)
        self._asked: dict[int, str] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask all at once; nobody can answer an earlier question any more. Without messages the
        stage is over, and what has arrived can still be pulled."""
        messages = list(messages)
        if not messages:
            self._call(SEND, [])
            return []
        objects: dict[str, bytes] = {}
        self._asked = {}
        with flower.no_object_id_recompute():  # what they share is hashed once
            for message in messages:
                for name, item in flower.get_all_nested_objects(message).items():
                    if name not in objects:
                        objects[name] = item.deflate()
                self._asked[message.metadata.dst_node_id] = message.object_id
        pairs = "\n".join(f"{node} {name}" for node, name in self._asked.items())
        parts = [str(self._most).encode(), pairs.encode(), *objects.values()]
        self._call(SEND, pack(parts))
        return list(self._asked.values())

    def pull_messages(self, ids: Iterable[str]) -> Iterator[Message]:
        """The replies that have arrived. One that is no message is an error of its device."""
        del ids  # of this stage, all that are waited for
        parts = unpack(self._call(COLLECT, []))
        for node, letter in zip(parts[::2], parts[1::2], strict=True):
            reply = _message(letter, self._parts)
            # by whom and to what is known from its key, whatever the reply says
            reply.metadata.__dict__["_reply_to_message_id"] = self._asked[int(node)]
            yield reply


def _message(letter: bytes, most: int) -> Message:
    with suppress(Exception):  # a device may send anything
        return unfold(unpack(letter, most), lambda names: ())
    return Message(RecordDict(), 1, "query")
