"""Stock SuperNodes: their questions and answers go through Flower's own state and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from flwr.app import Message, RecordDict

from locksfl.federation import flower
from locksfl.federation.post import fold, pack


class Stock:
    """What Flower's state holds of a stage, for the devices that ask there."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._given: dict[int, tuple[str, int]] = {}  # by node: the question's name, and its run
        self._arriving: dict[int, list[str]] = {}  # by node: the objects of its reply

    def register(self, key: bytes) -> int:
        """Let Flower know a device. Returns its number there."""
        return int(self._state.create_node(*flower.NOBODY, key, flower.HEARTBEAT_DEFAULT_INTERVAL))

    def forget(self) -> None:
        """The stage is over."""
        names = {name for name, _ in self._given.values()}
        self._state.delete_messages(names)
        for name in names:
            self._state.object_store.delete(name)
        self._given, self._arriving = {}, {}

    def give(self, node: int, name: str, objects: Mapping[str, bytes]) -> None:
        """Put a question where Flower's calls find it."""
        if node in self._given:
            return
        _, below, _ = flower.get_object_head_values_from_object_content(objects[name])
        message = Message.inflate(objects[name], {child: RecordDict() for child in below})
        message.metadata.__dict__["_message_id"] = name
        run = message.metadata.run_id
        session = self._state.start_session(run)
        tree = _tree(name, objects)
        _, wanted = self._state.store_message_and_object_tree(message, tree, session)
        for part in wanted:
            self._state.store_object(run, session, part, objects[part])
        self._given[node] = name, run

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """The replies that have arrived whole, each with its node."""
        for node, (name, run) in list(self._given.items()):
            if node not in self._arriving:
                found: list[Message] = []
                with suppress(KeyError):  # the question has expired
                    found = self._state.get_message_res({name}, run)
                if not found:
                    continue
                reply = found[0]
                if reply.has_error():  # Flower's, or an exception there: no objects follow
                    yield node, b"".join(pack(fold(reply)))
                    continue
                tree = self._state.object_store.get_object_tree(reply.metadata.message_id)
                names = [item.object_id for item in flower.iterate_object_tree(tree)]
                self._arriving[node] = names[::-1]  # the message first
            parts = [self._state.get_object(run, part) for part in self._arriving[node]]
            if all(parts):
                self._state.object_store.delete(self._arriving[node][0])
                yield node, b"".join(pack(parts))


def _tree(name: str, objects: Mapping[str, bytes]) -> flower.ObjectTree:
    _, below, _ = flower.get_object_head_values_from_object_content(objects[name])
    return flower.ObjectTree(object_id=name, children=[_tree(part, objects) for part in below])
