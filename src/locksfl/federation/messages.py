"""Questions and answers as Flower messages. What cannot be read is None: a device refuses it, a
server counts it as rejected. Arrays are read only after their type and size have been checked, and
are not copied: nothing that a header claims is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from locksfl.federation.wire import STAGES, Answer, Later, Question, Stage

TYPES: dict[Stage, str] = {"norm": "query.norm", "update": "train.update", "end": "query.end"}
WORDS, NUMBERS = "words", "numbers"  # the two records of a message
ASKED = ("estimator", "probability", "bound", "rule", "model")  # besides the terms
Fetch = Callable[[int], bytearray]  # of an array: its data, if they are no longer than that
HEADER = 4096  # bytes that a stored array may have besides its numbers


def to_contents(questions: Iterable[Question]) -> Iterator[RecordDict]:
    """The contents of the messages of questions; models that are one object are one record."""
    models: dict[int, ArrayRecord] = {}
    for question in questions:
        words = dict(question.terms)
        for name in ASKED:
            if (value := getattr(question, name)) is not None:
                words[name] = value
        content = RecordDict({WORDS: ConfigRecord(words)})
        if (model := question.weights) is not None:
            if id(model) not in models:
                models[id(model)] = ArrayRecord([np.ascontiguousarray(model)])
            content[NUMBERS] = models[id(model)]
        yield content


def to_question(message: Message) -> Question | None:
    """The question in a message, or None. Nothing in it is trusted."""
    stage = next((s for s in STAGES if TYPES[s] == message.metadata.message_type), None)
    words = message.content.get(WORDS) if message.has_content() else None
    if stage is None or not isinstance(words, ConfigRecord):
        return None
    terms = dict(words)
    estimator, probability, bound, rule, model = (terms.pop(name, None) for name in ASKED)
    return Question(
        stage,
        terms,
        _model(message.content.get(NUMBERS)),
        estimator if isinstance(estimator, str) else None,
        probability if type(probability) is float else None,
        bound if type(bound) is float else None,
        rule if rule is None or isinstance(rule, str) else "",  # no rule: refused
        model if model is None or isinstance(model, str) else "",  # no model's name: refused
    )


def to_reply(answer: Answer, message: Message) -> Message:
    """The reply to a message: a number, an array, or the number of a refusal and nothing else; with
    a release, how many rounds are left, if the device tells it."""
    content, words = RecordDict(), ConfigRecord()
    if answer.refusal is not None:
        words["refusal"] = answer.refusal
    elif answer.released is not None:
        if answer.rounds_left is not None:
            words["rounds_left"] = answer.rounds_left
        if message.metadata.message_type != TYPES["update"]:
            words["released"] = [float(x) for x in answer.released]
        else:
            content[NUMBERS] = ArrayRecord([np.ascontiguousarray(answer.released)])
    if words:
        content[WORDS] = words
    return Message(content, reply_to=message)


def to_answer(message: Message, size: int) -> Answer:
    """The answer in a reply; an update with more than `size` numbers is not read at all."""
    if not message.has_content():
        return Answer()
    words = message.content.get(WORDS)
    told = dict(words) if isinstance(words, ConfigRecord) else {}
    refusal, released, left = (told.get(name) for name in ("refusal", "released", "rounds_left"))
    if type(refusal) is int:
        return Answer(refusal=refusal)
    left = left if type(left) is int and left >= 0 else None
    if released is None:
        return Answer(_update(message.content.get(NUMBERS), size), rounds_left=left)
    if (
        isinstance(released, list)
        and len(released) <= 1
        and all(type(x) is float for x in released)
    ):
        return Answer(np.array(released, np.float64), rounds_left=left)
    return Answer()


def _update(record: Any, size: int) -> np.ndarray | None:
    """The update in a reply, if it has at most `size` numbers."""
    stored = _stored(record)
    if stored is None or len(stored.data) > 4 * size + HEADER:
        return None
    fetch: Fetch | None = getattr(stored, "fetch", None)
    try:
        return numbers(stored.data if fetch is None else fetch(4 * size))
    except (ValueError, KeyError):  # it is larger, or a piece is missing
        return None


def _stored(record: Any) -> Array | None:
    """The one float32 array of a record, if it is one."""
    if not isinstance(record, ArrayRecord) or len(record) != 1:
        return None
    (stored,) = record.values()
    return stored if isinstance(stored, Array) and stored.dtype == "float32" else None


def _model(record: Any) -> np.ndarray | Later | None:
    """The model in a question; one that is still at the server has a `fetch` (post.py)."""
    stored = _stored(record)
    if stored is None:
        return None
    fetch: Fetch | None = getattr(stored, "fetch", None)
    if fetch is None:
        return numbers(stored.data)
    shape = stored.shape
    if len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        return None
    size = shape[0]

    def get() -> np.ndarray | None:
        found = numbers(fetch(4 * size))
        return found if found is not None and found.size == size else None

    return Later(size, get)


def numbers(data: bytes | bytearray) -> np.ndarray | None:
    """The flat float32 array in the .npy format, not copied; None if it is anything else. The
    header is compared with the one that it must be, so none is parsed."""
    count, rest = divmod(len(data) - START, 4)
    if count < 0 or rest or bytes(data[:START]) != _header(count):
        return None
    return np.frombuffer(data, np.float32, offset=START)


def _header(count: int) -> bytes:
    """What stands before so many numbers: it has the same length for every count."""
    start = BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(start, facts)
    return start.getvalue()


START = len(_header(0))  # bytes before the numbers
