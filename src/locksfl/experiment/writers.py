"""Functions for `on_round`: each takes the record of a round and writes it where it can be watched.

    locksfl.train(population, ..., on_round=csv_writer("rounds.csv"))

A record belongs to the server (`records.round_record`). What is written is what an observer may see
of a round: epsilon, what was released, and the counts that are estimated from it. Accuracy and
loss are written too: show them only if the held-out records are public.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable
from pathlib import Path

from locksfl._loading import optional
from locksfl._tables import Record
from locksfl.experiment.records import COUNTED, shown

COLUMNS = ("arm", "round", "accuracy", "r2", "loss", "epsilon", *COUNTED)


def values_of(record: Record) -> Record:
    """The COLUMNS of a record; None where a round has no such number."""
    row = {**record, **shown(record)}
    return {name: row.get(name) for name in COLUMNS}


def csv_writer(path: str | Path) -> Callable[[Record], None]:
    """One line for each round, in a new file with a line of names; each is there when it returns.
    A round that was not evaluated has an empty accuracy; an infinite epsilon is "inf"."""
    with Path(path).open("x", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(COLUMNS)

    def write(record: Record) -> None:
        with Path(path).open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(values_of(record).values())

    return write


def tensorboard_writer(folder: str | Path) -> Callable[[Record], None]:
    """Scalars for TensorBoard, ARM/NAME by round. It needs the extra "tensorboard"."""
    events = optional("tensorboardX.event_file_writer", "tensorboard")
    summary = optional("tensorboardX.summary", "tensorboard")
    Path(folder).mkdir(parents=True, exist_ok=True)
    # not SummaryWriter: its thread may still be writing when the process ends
    file = events.EventsWriter(str(Path(folder) / "events"))

    def write(record: Record) -> None:
        values = values_of(record)
        arm, number = values.pop("arm"), values.pop("round")
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                scalar = summary.scalar(f"{arm}/{name}", value)
                event = events.event_pb2.Event(wall_time=time.time(), step=number, summary=scalar)
                file.write_event(event)
        file.flush()

    return write
