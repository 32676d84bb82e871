"""The network over Flower's messages: push, then pull until all have answered or time is up.

The messages go through the mailroom (mail.py), or in Flower's simulation through its Grid. Replies
are matched to the messages that they answer, because an error of Flower's comes from no node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from flwr.app import Message

from locksfl.federation.flower import ErrorCode
from locksfl.federation.messages import TYPES, to_answer, to_contents
from locksfl.federation.server.patience import Patience
from locksfl.federation.wire import Answer, Question

PULL_SECONDS = 0.2
GONE = (  # reported by the SuperLink: no answer will come
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


class Messages(Protocol):
    """What carries messages: Mail, or Flower's Grid."""

    @property
    def run(self) -> Any:
        """Its `run_id` is what the devices' ledgers call this run."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages. Returns their ids."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these that have arrived."""


def _gone(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in GONE


class GridNetwork:
    """Client i is node `nodes[i]`."""

    def __init__(
        self,
        grid: Messages,
        nodes: Sequence[int],
        size: int,
        *,
        check: Callable[[], None] = lambda: None,
        revoked: Callable[[], Collection[int]] = lambda: (),
        patience: Patience | None = None,
    ) -> None:
        self.run = str(grid.run.run_id)
        self._grid, self._nodes, self._size = grid, list(nodes), size
        self._check, self._revoked = check, revoked
        self._patience = patience or Patience()

    def ask(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[int, Answer]:
        """Ask all that are here, and wait for all of them, but no longer than `seconds` or than
        patience lasts. A client whose key was revoked is away: it is not waited for."""
        away = {*self._revoked(), *self._patience.away(questions, round_number)}
        questions = {i: question for i, question in questions.items() if i not in away}
        if not questions:
            return {}
        began, quorate = time.monotonic(), False
        waiting = self._push(questions, seconds, round_number)
        answers: dict[int, Answer] = {}
        while True:
            self._collect(waiting, answers)
            away = {*self._revoked()}
            waiting = {i: number for i, number in waiting.items() if number not in away}
            took = time.monotonic() - began
            released = sum(answer.released is not None for answer in answers.values())
            if not quorate and self._patience.enough(released, released + len(waiting)):
                quorate, seconds = True, min(seconds, self._patience.longest(took))
            if not waiting or took > seconds:
                break
            self._check()
            time.sleep(PULL_SECONDS)
        if waiting:  # the stage is over: nobody shall answer any more, and pay for it
            self._grid.push_messages([])
            self._collect(waiting, answers)  # these were in time
        stage = next(iter(questions.values())).stage
        self._patience.note(stage, questions, answers, round_number)
        return answers

    def _collect(self, waiting: dict[str, int], answers: dict[int, Answer]) -> None:
        """Take the answers that have arrived. They come in batches."""
        while waiting and (found := list(self._grid.pull_messages(list(waiting)))):
            for reply in found:
                number = waiting.pop(reply.metadata.reply_to_message_id, None)
                if number is not None and not _gone(reply):
                    answers[number] = to_answer(reply, self._size)

    def _push(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[str, int]:
        """The ids of the messages, each with the client that it was sent to."""
        group = str(round_number)
        contents = to_contents(questions.values())
        messages = [
            Message(content, self._nodes[i], TYPES[question.stage], ttl=seconds, group_id=group)
            for (i, question), content in zip(questions.items(), contents, strict=True)
        ]
        ids = self._grid.push_messages(messages)
        return {i: number for i, number in zip(ids, questions, strict=True) if i}
