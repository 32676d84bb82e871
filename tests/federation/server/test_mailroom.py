"""Waiting for work: who gets a question, when, and what becomes of calls that nobody waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from locksfl.federation import post
from locksfl.federation.post import name_of, pack, unpack
from locksfl.federation.server.mailroom import Mailroom, Over

QUESTION = b"Message  1\0q"
NAME = name_of(QUESTION)


def stage(*parts, pairs=f"5 {NAME}"):
    return b"".join(pack([b"100", pairs.encode(), *parts]))


def parts(answer):
    return unpack(b"".join(answer))


def room():
    return Mailroom(SimpleNamespace(forget=list, replies=list, give=lambda *given: None))


async def never():
    await asyncio.Event().wait()


def test_a_call_that_waits_gets_the_question_when_it_is_sent():
    async def play():
        made = room()
        calls = [asyncio.create_task(made.work(node, "", never)) for node in (5, 6)]
        await asyncio.sleep(0)
        assert not calls[0].done()
        made.send(stage(QUESTION))
        assert parts(await calls[0]) == [QUESTION]
        assert not calls[1].done()  # another's question
        calls[1].cancel()

    asyncio.run(play())


def test_after_a_while_a_call_gets_nothing(monkeypatch):
    monkeypatch.setattr(post, "WAIT_SECONDS", 0.01)
    assert asyncio.run(room().work(5, "", never)) == []


def test_a_question_is_there_until_it_is_answered_or_known():
    """For a device that was restarted; the same process does not get it twice."""

    async def play(monkeypatch):
        made = room()
        made.send(stage(QUESTION))
        monkeypatch.setattr(post, "WAIT_SECONDS", 0.01)
        assert parts(await made.work(5, "", never)) == [QUESTION]
        assert await made.work(5, NAME, never) == []
        assert parts(await made.work(5, "", never)) == [QUESTION]
        made.reply(5, b"".join(pack([NAME.encode(), b"answer"])))
        assert await made.work(5, "", never) == []

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(play(monkeypatch))


def test_of_two_calls_of_one_device_the_later_gets_the_question():
    """The earlier one's connection may be broken; and one that hung up gets nothing."""

    async def play():
        made, hung_up = room(), asyncio.Event()
        first = asyncio.create_task(made.work(5, "", never))
        await asyncio.sleep(0)
        second = asyncio.create_task(made.work(5, "", hung_up.wait))
        assert await first == []
        hung_up.set()
        assert await second == []
        assert not made._waiting
        made.send(stage(QUESTION))
        assert parts(await made.work(5, "", never)) == [QUESTION]

    asyncio.run(play())


def test_a_large_model_is_not_sent_unasked():
    def letter(size):
        piece = b"ArrayChunk  1\0" + b"x" * size
        array = f"Array {name_of(piece)} 1\0y".encode()
        message = f"Message {name_of(array)} 1\0z".encode()
        return message, array, piece

    for size, sent in ((1000, 3), (post.UNASKED, 2)):
        made = room()
        message, array, piece = letter(size)
        made.send(stage(piece, array, message, pairs=f"5 {name_of(message)}"))
        assert parts(asyncio.run(made.work(5, "", never))) == [message, array, piece][:sent]
        name = name_of(piece).encode()
        assert parts(made.objects(5, name)) == [piece]
        for node, names in ((6, name), (5, name + b"\n" + name), (5, name_of(array).encode())):
            with pytest.raises(Over):  # another's, twice, no piece
                made.objects(node, names)


def test_collecting_is_in_parts_and_nothing_outlives_its_stage(monkeypatch):
    monkeypatch.setattr("locksfl.federation.server.mailroom.BATCH", 10)
    made = room()
    made.send(stage(QUESTION, pairs="\n".join(f"{node} {NAME}" for node in range(3))))
    for node in range(3):
        made.reply(node, b"".join(pack([NAME.encode(), b"12345678"])))
    sizes = [len(parts(made.collect())) for _ in range(4)]
    assert sizes == [2, 2, 2, 0]
    made.send(stage(QUESTION, pairs=f"0 {NAME}"))
    made.reply(0, b"".join(pack([NAME.encode(), b"12345678"])))
    made.send(stage(pairs=""))
    assert made.collect() == []
    assert not made._objects
    assert not made._questions


def test_when_a_stage_is_over_nobody_answers_and_nothing_that_arrived_is_lost():
    made = room()
    made.send(stage(QUESTION, pairs=f"0 {NAME}\n1 {NAME}"))
    made.reply(0, b"".join(pack([NAME.encode(), b"in time"])))
    made.send(b"")
    with pytest.raises(Over):
        made.reply(1, b"".join(pack([NAME.encode(), b"late"])))
    node, letter = parts(made.collect())
    assert (node, unpack(letter)) == (b"0", [b"in time"])


def test_a_stock_reply_beyond_the_limit_is_none():
    made = room()
    made.stock.replies = lambda: [(5, b"x" * 100), (6, b"x" * 101)]
    made.send(stage(QUESTION, pairs=f"5 {NAME}\n6 {NAME}"))
    found = parts(made.collect())
    assert dict(zip(found[::2], found[1::2], strict=True)) == {b"5": b"x" * 100, b"6": b""}


@pytest.mark.parametrize("body", [b"\0", pack([b"ab"])[0], b"".join(pack([b"ab"]))[:-1]])
def test_what_is_cut_off_is_refused(body):
    with pytest.raises(ValueError, match="a part"):
        unpack(body)
    with pytest.raises(ValueError, match="more than 1 parts"):
        unpack(b"".join(pack([b"", b"ab"])), 1)
    assert unpack(b"".join(pack([b"", b"ab"]))) == [b"", b"ab"]
