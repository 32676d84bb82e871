"""Questions and answers as Flower messages. What cannot be read is None: a device refuses it, a
server counts it as rejected. Arrays are read only after their type and size were looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from locksfl.engines.flower.network import STAGES, Answer, Question, Stage

TYPES: dict[Stage, str] = {"norm": "query.norm", "update": "train.update", "end": "query.end"}
TERMS, ASKED, MODEL, ANSWER, RELEASED = "terms", "asked", "model", "answer", "released"
HEADER = 4096  # bytes that a stored array may have beside its numbers


def to_content(question: Question) -> RecordDict:
    """The content of a question's message."""
    asked: dict[str, Any] = {
        name: getattr(question, name)
        for name in ("estimator", "probability", "bound")
        if getattr(question, name) is not None
    }
    content = RecordDict({TERMS: ConfigRecord(dict(question.terms)), ASKED: ConfigRecord(asked)})
    if question.weights is not None:
        content[MODEL] = _record(question.weights)
    return content


def to_question(message: Message) -> Question | None:
    """The question in a message, or None. Nothing in it is believed."""
    stage = next((s for s in STAGES if TYPES[s] == message.metadata.message_type), None)
    if stage is None or not message.has_content():
        return None
    content = message.content
    terms, asked = content.get(TERMS), content.get(ASKED)
    if not isinstance(terms, ConfigRecord) or not isinstance(asked, ConfigRecord):
        return None
    weights = _array(content.get(MODEL), np.float32, None)
    estimator = asked.get("estimator")
    return Question(
        stage,
        dict(terms),
        weights,
        estimator if isinstance(estimator, str) else None,
        _number(asked.get("probability")),
        _number(asked.get("bound")),
    )


def to_reply(answer: Answer, message: Message) -> Message:
    """The reply to a message: an array, or the number of a refusal and nothing else."""
    refusal = {} if answer.refusal is None else {"refusal": answer.refusal}
    content = RecordDict({ANSWER: ConfigRecord(dict(refusal))})
    if answer.released is not None:
        content[RELEASED] = _record(answer.released)
    return Message(content, reply_to=message)


def to_answer(message: Message, size: int) -> Answer:
    """The answer in a reply; of an update with more than `size` numbers nothing is read."""
    if not message.has_content():
        return Answer()
    content = message.content
    told = content.get(ANSWER)
    refusal = told.get("refusal") if isinstance(told, ConfigRecord) else None
    if type(refusal) is int:
        return Answer(refusal=refusal)
    kind = np.float64 if message.metadata.message_type == TYPES["norm"] else np.float32
    return Answer(released=_array(content.get(RELEASED), kind, size))


def _record(values: np.ndarray) -> ArrayRecord:
    return ArrayRecord([np.ascontiguousarray(values)])


def _array(record: Any, kind: type[np.floating[Any]], most: int | None) -> np.ndarray | None:
    """The one flat array of a record, if it is one of this kind and not too large."""
    if not isinstance(record, ArrayRecord) or len(record) != 1:
        return None
    (stored,) = record.values()
    if not isinstance(stored, Array) or stored.dtype != np.dtype(kind).name:
        return None
    if most is not None and len(stored.data) > most * np.dtype(kind).itemsize + HEADER:
        return None
    try:
        values = stored.numpy()
    except (TypeError, ValueError, EOFError, OSError):
        return None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != kind:
        return None
    return values


def _number(value: Any) -> float | None:
    return value if type(value) is float else None
