"""A device's answers in words, for its own log and for the server's status."""

from __future__ import annotations

from locksfl.federation.device import Refusal
from locksfl.federation.logs import say
from locksfl.federation.wire import Answer, Kept, Question, Respond


def told_of(device: Respond) -> Respond:
    """A device that logs each of its answers: the run, the round, the stage, and whether it was
    refused; nothing that depends on the data."""

    def answering(run: str, question: Question, kept: Kept) -> Answer:
        answer = device(run, question, kept)
        code, number = answer.refusal, question.terms.get("round")
        number = number if isinstance(number, int) else None  # a server may send anything
        told = "answered" if code is None else f"refused {refusal_name(code)}"
        fields = {"run": run, "round": number, "stage": question.stage, "refused": code}
        say(f"run {run}, round {number}, {question.stage}: {told}", **fields)
        return answer

    return answering


def refusal_name(code: int) -> str:
    """The name of a device's code."""
    try:
        return Refusal(code).name
    except ValueError:
        return "UNKNOWN"
