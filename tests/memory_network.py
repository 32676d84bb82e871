"""Devices in this process in place of a network, and questions as the messages of one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import RecordDict

from locksfl.federation.messages import to_contents
from locksfl.federation.wire import Answer, Question, Respond


class MemoryNetwork:
    """A `Network` of devices, each with its memory between the stages of a round."""

    def __init__(self, devices: Mapping[int, Respond], run: str = "memory") -> None:
        self.devices, self.run = devices, run
        self.kept: dict[int, dict[str, np.ndarray]] = {number: {} for number in devices}

    def ask(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[int, Answer]:
        """Every device answers at once."""
        del seconds, round_number
        return {
            number: self.devices[number](self.run, question, self.kept[number])
            for number, question in questions.items()
        }


def to_content(question: Question) -> RecordDict:
    """The content of one question's message."""
    return next(to_contents([question]))
