"""Stock SuperNodes: their questions and answers go through Flower's own state and calls."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from flwr.app import Message, RecordDict

from locksfl.federation import flower
from locksfl.federation.post import fold, pack

log = logging.getLogger(__name__)


class Stock:
    """What Flower's state holds of a stage, for the devices that ask there."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._given: dict[int, tuple[str, int]] = {}  # by node: the question's name, and its run
        self._named: dict[
            int, list[str]
        ] = {}  # by node: the objects of its reply, as it named them
        self._answered: set[int] = set()  # whose objects may still be arriving

    def register(self, key: bytes) -> int:
        """Let Flower know a device. Returns its number there."""
        return int(self._state.create_node(*flower.NOBODY, key, flower.HEARTBEAT_DEFAULT_INTERVAL))

    def forget(self) -> None:
        """The stage is over."""
        names = {name for name, _ in self._given.values()}
        self._state.delete_messages(names)
        for name in names:
            self._state.object_store.delete(name)
        self._given, self._named, self._answered = {}, {}, set()

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

    def expect(self, node: int, names: list[str]) -> None:
        """These are the objects of a node's reply, the message first (gate.py has checked them)."""
        self._named[node] = names

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """The replies that have arrived whole, each with its node; nothing for what is no reply."""
        for node, (name, run) in self._given.items():
            try:
                reply = self._reply(node, name, run)
            except Exception as error:  # a device may send anything
                log.warning("the reply of a stock SuperNode cannot be read: %r", error)
                reply = b""
            if reply is not None:
                yield node, reply

    def _reply(self, node: int, name: str, run: int) -> bytes | None:
        if node not in self._answered:
            found: list[Message] = []
            with suppress(KeyError):  # the question has expired
                found = self._state.get_message_res({name}, run)
            if not found:
                return None
            if found[0].has_error():  # Flower's, or an exception there: no objects follow
                return b"".join(pack(fold(found[0])))
            self._answered.add(node)
        parts = [self._state.get_object(run, part) for part in self._named[node]]
        if not all(parts):
            return None
        self._state.object_store.delete(self._named[node][0])
        return b"".join(pack(parts))


def _tree(name: str, objects: Mapping[str, bytes]) -> flower.ObjectTree:
    _, below, _ = flower.get_object_head_values_from_object_content(objects[name])
    return flower.ObjectTree(object_id=name, children=[_tree(part, objects) for part in below])
