"""The device's half as Flower's ClientApp: parse, answer through the guard, reply.

It is deliberately thin and part of the installed package. `locks federation client` runs it and
nothing else; a stock SuperNode loads it because the bundle names it, but would just as readily run
another bundle (docs/federation.md, trust).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from locksfl.federation.device import Refusal
from locksfl.federation.device.files import DeviceFiles
from locksfl.federation.messages import to_question, to_reply
from locksfl.federation.wire import Answer, Kept, Respond

log = logging.getLogger(__name__)
STATE = "locks"


@contextmanager
def _kept(context: Context) -> Iterator[Kept]:
    """A device's memory between the stages, in Flower's Context: it never leaves the device."""
    state = context.state
    stored = state.array_records.get(STATE, ArrayRecord())
    kept = {name: np.frombuffer(array.data, array.dtype) for name, array in stored.items()}
    try:
        yield kept
    finally:
        arrays = {
            name: Array(str(value.dtype), value.shape, "bytes", value.tobytes())
            for name, value in kept.items()
        }
        state[STATE] = ArrayRecord(arrays)


def client_app(device: Callable[[Context], Respond]) -> ClientApp:
    """The app of one device; `device` is called with every message's context."""

    def answer(message: Message, context: Context) -> Message:
        try:
            question = to_question(message)
            if question is None:
                return to_reply(Answer(refusal=int(Refusal.MALFORMED)), message)
            run = str(message.metadata.run_id)
            with _kept(context) as kept:
                return to_reply(device(context)(run, question, kept), message)
        except Exception:  # its text would travel to the server
            log.exception("a message could not be answered")
            return to_reply(Answer(refusal=int(Refusal.LEDGER)), message)

    made = ClientApp()
    made.query("norm")(answer)
    made.train("update")(answer)
    made.query("end")(answer)
    return made


@functools.cache
def device_of(files: DeviceFiles) -> Respond:
    """The device with these files; opened once in a process."""
    return files.open()


def _configured(context: Context) -> Respond:
    """The device that a stock SuperNode's --node-config describes, as `locks federation client`'s
    options do: policy, ledger, key, and data with experiment, or update."""
    names = ("policy", "ledger", "key", "data", "experiment", "update")
    given = {k: str(v) for k, v in context.node_config.items() if k in names}
    update = given.pop("update", None)
    return device_of(DeviceFiles(**{k: Path(v) for k, v in given.items()}, update=update))


app = client_app(_configured)
