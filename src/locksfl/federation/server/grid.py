"""The network over Flower's Grid: push, then pull until all have answered or time is up.

Flower's own `send_and_receive` sleeps three seconds between pulls. Replies are matched to the
messages that they answer, because an error raised by the SuperLink comes from no node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from locksfl.federation.flower import ErrorCode
from locksfl.federation.messages import TYPES, to_answer, to_content
from locksfl.federation.wire import Answer, Question

PULL_SECONDS = 0.2
GONE = (  # reported by the SuperLink: no answer will come
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def _gone(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in GONE


class GridNetwork:
    """Client i is node `nodes[i]`."""

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        size: int,
        *,
        check: Callable[[], None] = lambda: None,
        revoked: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        self.run = str(grid.run.run_id)
        self._grid, self._nodes, self._size = grid, list(nodes), size
        self._check, self._revoked = check, revoked

    def ask(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[int, Answer]:
        """Ask all, and wait for all, but no longer than `seconds`. A client whose key was revoked
        is away: it is not waited for."""
        away = self._revoked()
        questions = {i: question for i, question in questions.items() if i not in away}
        if not questions:
            return {}
        ends = time.monotonic() + seconds
        waiting = self._push(questions, seconds, round_number)
        answers: dict[int, Answer] = {}
        while waiting and time.monotonic() < ends:
            replies, garbage = self._pull(list(waiting))
            answers |= {waiting.pop(i): Answer() for i in garbage}
            for reply in replies:
                number = waiting.pop(reply.metadata.reply_to_message_id, None)
                if number is not None and not _gone(reply):
                    answers[number] = to_answer(reply, self._size)
            away = self._revoked()
            waiting = {i: number for i, number in waiting.items() if number not in away}
            if waiting:
                self._check()
                time.sleep(PULL_SECONDS)
        return answers

    def _pull(self, ids: list[str]) -> tuple[list[Message], list[str]]:
        """The replies that arrived, and the questions whose reply cannot be unpacked. Flower
        unpacks all or none: if one device sent garbage, each reply is requested separately."""
        try:
            return list(self._grid.pull_messages(ids)), []
        except httpx.HTTPError:
            raise
        except Exception:
            if len(ids) == 1:
                return [], ids
        each = [self._pull([i]) for i in ids]
        return [r for replies, _ in each for r in replies], [i for _, bad in each for i in bad]

    def _push(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[str, int]:
        """The ids of the messages, each with the client that it was sent to."""
        numbers = list(questions)
        messages = [
            Message(
                to_content(questions[number]),
                self._nodes[number],
                TYPES[questions[number].stage],
                ttl=seconds,
                group_id=str(round_number),
            )
            for number in numbers
        ]
        ids = list(self._grid.push_messages(messages))
        return {i: number for i, number in zip(ids, numbers, strict=True) if i}
