"""What a server's message may cost a device: what is refused is not downloaded, nothing that a
header claims is allocated, memory is a small multiple of the model, and time tells little."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from locksfl.federation import flower
from locksfl.federation.device import Policy, Refusal, RoundTerms, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.client_app import client_app
from locksfl.federation.messages import NUMBERS, TYPES, numbers, to_answer, to_question
from locksfl.federation.post import fold, name_of, names_within, unfold
from locksfl.federation.wire import Answer, Later, Question
from locksfl.round import noise
from memory_network import to_content

POLICY = Policy(1.0, 1.0, 100, 1e5, 1e-5, min_norm_multiplier=1.0)


class Letter:
    """The objects of one message: what arrives with it, and what is fetched afterwards."""

    def __init__(self, content, stage):
        self.message = Message(content, 5, TYPES[stage])
        self.objects = {name_of(part): part for part in fold(self.message)}
        self.root, self.fetched = next(iter(self.objects)), []

    @property
    def parts(self):
        """As the mailroom sends them: everything but the pieces of a large model."""
        above, _ = names_within(self.root, self.objects)
        return [self.objects[name] for name in above]

    def fetch(self, names):
        self.fetched += names
        return [self.objects[name] for name in names]


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(flower.TaskIdentity, name, 7)


def device(folder, update=lambda w, _: w * np.float32(0.01), policy=POLICY, **more):
    ledger = Witness(folder / "l.sqlite", folder / "k.key")
    ledger.create()
    return Device(update, policy, ledger, **more)


def asked(size, multiplier=1.0, number=1, rng=0):
    weights = np.random.default_rng(rng).normal(size=size).astype(np.float32)
    terms = RoundTerms("7", number, False, 1.0, multiplier).as_dict()
    return Question("update", terms, weights, "capped", 1.0, 1.0)


def reply_to(mine, letter):
    message = unfold(letter.parts, letter.fetch)
    return client_app(lambda _: mine)(message, Context(7, 5, {}, RecordDict(), {}))


def never(*_):
    raise AssertionError("downloaded or trained in vain")


@pytest.mark.parametrize(
    ("policy", "multiplier", "code"),
    [
        (replace(POLICY, max_parameters=4_999), 1.0, Refusal.MODEL),
        (POLICY, 0.5, Refusal.NOISE),
    ],
)
def test_what_is_refused_is_not_downloaded(tmp_path, policy, multiplier, code):
    letter = Letter(to_content(asked(5_000, multiplier)), "update")
    answer = to_answer(reply_to(device(tmp_path, never, policy), letter), 5_000)
    assert answer.refusal == code
    assert letter.fetched == []


def test_a_model_comes_in_pieces_and_unchanged(tmp_path):
    """Three pieces of 5 MiB, two of which are the same, as in a model that begins with zeros."""
    question = asked(3_000_000)
    question.weights[:2_700_000] = 0
    seen = []

    def update(weights, _):
        seen.append(weights.copy())
        weights[:] = 0  # its own copy
        return weights

    letter = Letter(to_content(question), "update")
    later = to_question(unfold(letter.parts, letter.fetch)).weights
    assert isinstance(later, Later)
    assert (later.size, letter.fetched) == (3_000_000, [])
    quiet = device(tmp_path, update, noise=Still())
    assert to_answer(reply_to(quiet, letter), 3_000_000).released.size == 3_000_000
    np.testing.assert_array_equal(seen[0], question.weights)


class Still:
    def steps(self, _std, _grid, size):
        return np.zeros(size, np.int64)


def header(shape, kind="<f4", version=b"\x01\x00"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode()


ODD = [
    header((10**11,)) + b"1234",  # 400 GB in four bytes
    header((2, 1)) + bytes(8),
    header((1,), "<f8") + bytes(8),
    header((1,), "|O") + bytes(8),
    header((3,)) + bytes(8),
    header((1,)) + bytes(8),
    header((2,), version=b"\x03\x00") + bytes(8),
    header((-2,)) + bytes(8),
    b"",
    b"\x93NUMPY",
    bytes(200),
    # numpy's parser fails on these in ways of its own
    *(b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n1234" for text in (b"{[]:1}", b"(" * 99)),
    b"\x93NUMPY\x01\x00v\x00" + b"{'descr': [('a', '<f4')], 'shape'".ljust(117) + b"\n",
]


@pytest.mark.parametrize("data", ODD)
def test_a_header_allocates_nothing_and_is_malformed(tmp_path, data):
    """Whole in the message, as a stock SuperNode gets it, and in pieces."""
    assert numbers(header((2,)) + bytes(8)).size == 2  # what would be right
    tracemalloc.start()
    assert numbers(data) is None
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    content = to_content(replace(asked(2), weights=None))
    content[NUMBERS] = ArrayRecord({"0": Array("float32", (2,), "numpy.ndarray", data)})
    mine = device(tmp_path, never)
    letter = Letter(content, "update")
    whole = client_app(lambda _: mine)(letter.message, Context(7, 5, {}, RecordDict(), {}))
    for reply in (whole, reply_to(mine, letter)):
        assert to_answer(reply, 2).refusal == Refusal.MALFORMED
    assert to_answer(Message(content, 5, "train.update"), 2).released is None  # at a server


def swap(letter, name, content):
    """Put another content in an object's place, under its own name, up to the message."""
    objects, new = {}, {name: content}
    for old, part in reversed(letter.objects.items()):  # what is below comes first
        for was, now in new.items():
            part = part.replace(was.encode(), name_of(now).encode())
        new[old] = content if old == name else part
        objects[name_of(new[old])] = new[old]
    letter.objects = dict(reversed(objects.items()))
    letter.root = next(iter(letter.objects))


def test_more_than_was_announced_is_not_read_to_its_end(tmp_path):
    """One piece, named a thousand times: a small message that would unpack to 5 GB. The same from a
    device, to the server."""
    letter = Letter(to_content(asked(1_310_720)), "update")
    (name,) = (k for k, v in letter.objects.items() if v.startswith(b"Array "))
    head, _, body = letter.objects[name].partition(b"\0")
    facts = json.loads(body) | {"arraychunk_ids": [0] * 1000}
    text = json.dumps(facts).encode()
    head = head.rpartition(b" ")[0] + b" " + str(len(text)).encode()
    swap(letter, name, head + b"\0" + text)
    assert to_answer(reply_to(device(tmp_path, never), letter), 10**7).refusal == Refusal.MALFORMED
    assert len(letter.fetched) == 0  # more pieces than so many numbers have
    tracemalloc.start()
    assert to_answer(unfold(list(letter.objects.values()), never), 1_310_720) == Answer()
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()


def test_many_records_are_not_unpacked():
    content = RecordDict()
    for i in range(20):
        content[str(i)] = ArrayRecord([np.full(1, i, np.float32)])
    letter = Letter(content, "update")
    with pytest.raises(ValueError, match="more than 16 objects"):
        unfold(letter.parts, never)
    assert letter.fetched == []


def peak(mine, number, size=1_000_000):
    letter = Letter(to_content(asked(size, number=number)), "update")
    tracemalloc.start()
    reply = reply_to(mine, letter)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert to_answer(reply, size).released.size == size
    return found / (4 * size)


def test_memory_is_a_small_multiple_of_the_model(tmp_path, monkeypatch):
    """From the download to the reply, noise included: below 8 models; all draws at once: 26."""
    mine = device(tmp_path)
    assert peak(mine, 1) < 8
    monkeypatch.setattr(noise, "BLOCK", 2**30)
    assert peak(mine, 2) > 15


@pytest.mark.parametrize(("took", "waited"), [(0.2, 4.8), (0.7, 4.3), (5.0, 0.0), (6.0, 4.0)])
def test_an_answer_leaves_after_a_multiple_of_answer_seconds(tmp_path, took, waited):
    """200 records or 40,000: the server's clock reads the same."""
    now, waits = [100.0], []

    def update(weights, _):
        now[0] += took
        return weights

    policy = replace(POLICY, answer_seconds=5.0)
    clock = {"clock": lambda: now[0], "wait": waits.append}
    mine = device(tmp_path, update, policy, **clock)
    assert mine("7", asked(3), {}).released is not None
    assert waits == [pytest.approx(waited)]
    assert mine("7", asked(3), {}).refusal == Refusal.REPEATED  # padded too, to the same time
    assert len(waits) == 2
    assert mine("7", Question("end", asked(3).terms), {}).refusal is None
    assert len(waits) == 2


@pytest.mark.parametrize("tells", [False, True])
def test_what_is_left_is_told_only_if_the_owner_says_so(tmp_path, tells):
    """In a release, and as the ledger has it: never in a refusal."""
    policy = replace(POLICY, max_rounds=5, tell_rounds_left=tells)
    mine = device(tmp_path, lambda weights, _: weights, policy)
    told = [mine("7", asked(3, number=number), {}) for number in (1, 2, 2)]
    assert [a.rounds_left for a in told] == ([4, 3, None] if tells else [None] * 3)
    assert told[2].refusal == Refusal.REPEATED
    # and it travels, through both ends
    letter = Letter(to_content(asked(3, number=3)), "update")
    arrived = to_answer(reply_to(mine, letter), 3)
    assert (arrived.rounds_left, arrived.released.shape) == (2 if tells else None, (3,))
