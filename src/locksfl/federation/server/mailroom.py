"""The questions of a stage and the answers to them, in the process of the gate.

    send      the server's questions, all at once; those of the stage before are no longer there.
              None: the stage is over, and nobody can answer any more
    work      a device waits for its question, and takes it
    objects   pieces of a large model
    reply     a device's answer: the first to the question that it was asked counts
    collect   the server takes the answers that have arrived

A device is known by its key, never by what a message says: nobody answers for another, or gets what
belongs to another's question. Whoever calls for work again gets the question again, unless it says
that it has it: a device that was restarted, or whose connection broke, does not hold up the stage.
Whatever it answers goes through its guard, which draws noise once. Nothing outlives its stage, so
memory does not grow with the rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from locksfl.federation import post
from locksfl.federation.post import names_within, pack, unpack
from locksfl.federation.server.stock import Stock

BATCH = 64 * 1024 * 1024  # bytes after which the rest is left for the next call


class Over(Exception):
    """The stage of this question is over, or it was answered before."""


@dataclass
class Mailroom:
    """One stage at a time. Nodes are Flower's numbers of the devices."""

    stock: Stock
    most: int = 0  # bytes of a reply in this stage
    _questions: dict[int, str] = field(default_factory=dict)  # node to name; not answered yet
    _objects: dict[str, bytes] = field(default_factory=dict)
    _replies: dict[int, bytes] = field(default_factory=dict)  # not collected yet
    _waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    @property
    def waiting(self) -> Collection[int]:
        """The nodes that wait for work now."""
        return self._waiting.keys()

    def send(self, body: bytes) -> None:
        """Begin a stage: the most bytes of a reply; pairs of node and question; the objects. Or,
        with nothing, end it: replies that have arrived can still be collected."""
        self._questions, self._objects = {}, {}
        self.stock.forget()
        if not body:
            return
        most, pairs, *objects = unpack(body)
        self.most, self._replies = int(most), {}
        self._objects = {post.name_of(part): part for part in objects}
        named = (pair.split() for pair in pairs.decode("ascii").splitlines())
        self._questions = {int(node): name for node, name in named}
        for node, event in self._waiting.items():
            if node in self._questions:
                event.set()

    def expects(self, node: int) -> bool:
        """Whether this node was asked, and has not answered."""
        return node in self._questions

    async def work(
        self, node: int, last: str, gone: Callable[[], Awaitable[object]]
    ) -> list[bytes]:
        """The objects of a node's question, or nothing after a while. `gone` returns when the
        caller has hung up. If a device calls twice, the later call counts."""
        mine = asyncio.Event()
        if node in self._waiting:
            self._waiting[node].set()
        self._waiting[node] = mine
        if self._questions.get(node, last) == last:
            await _either(mine.wait(), gone())
        if self._waiting.get(node) is not mine:
            return []
        del self._waiting[node]
        name = self._questions.get(node, last)
        if name == last:
            return []
        above, pieces = names_within(name, self._objects)
        parts = [self._objects[part] for part in above]
        model = [self._objects[part] for part in pieces]
        if sum(map(len, model)) <= post.UNASKED:
            parts += model
        return pack(parts)

    def objects(self, node: int, body: bytes) -> list[bytes]:
        """Pieces of the model in a node's question, by their names, each once."""
        if not self.expects(node):
            raise Over
        names = body.decode("ascii", "replace").split("\n")
        _, pieces = names_within(self._questions[node], self._objects)
        if len({*names}) < len(names) or not {*names} <= {*pieces}:
            raise Over
        return pack(self._objects[name] for name in names)

    def reply(self, node: int, body: bytes) -> None:
        """Keep a reply until it is collected."""
        start = b"".join(pack([self._questions.get(node, "").encode("ascii")]))
        if not self.expects(node) or not body.startswith(start):
            raise Over
        del self._questions[node]
        self._replies[node] = body[len(start) :]

    def collect(self) -> list[bytes]:
        """Replies that have arrived, each after its node."""
        for node, reply in self.stock.replies():
            if self._questions.pop(node, None) is not None:
                self._replies[node] = reply if len(reply) <= self.most else b""
        parts: list[bytes] = []
        length = 0
        while self._replies and length < BATCH:
            node, reply = self._replies.popitem()
            parts += [str(node).encode("ascii"), reply]
            length += len(reply)
        return pack(parts)

    def hand_over(self, node: int) -> None:
        """Give a node's question to Flower: this device is a stock SuperNode, and asks there."""
        if self.expects(node):
            self.stock.give(node, self._questions[node], self._objects)


async def _either(*waits: Awaitable[object]) -> None:
    """Until one of these is done, but no longer than WAIT_SECONDS."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=post.WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
