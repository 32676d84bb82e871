"""The writers for `on_round`: what they write can be read again, and has no secret count."""

from __future__ import annotations

import csv
import math

import pytest
from tensorboardX.proto.event_pb2 import Event

from locksfl.experiment.writers import COLUMNS, csv_writer, tensorboard_writer

SECRET = {"cohort": 31, "uploads": 17, "bytes_up": 1, "bytes_down": 2}
PUBLIC = {"cohort": 30.0, "uploads": 19.5, "bytes_up": 10, "bytes_down": 20}
RECORDS = [
    {"arm": "locks", "round": 1, "accuracy": None, "loss": None, "epsilon": 0.5, **SECRET,
     "public": PUBLIC},
    {"arm": "locks", "round": 2, "accuracy": 0.75, "loss": 1.5, "epsilon": math.inf, **PUBLIC},
]  # fmt: skip


def test_csv_has_a_line_for_each_round_and_the_counts_that_may_be_shown(tmp_path):
    write = csv_writer(tmp_path / "rounds.csv")
    for number, record in enumerate(RECORDS):
        write(record)
        with (tmp_path / "rounds.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == number + 1  # on disk after each round
    assert tuple(lines[0]) == COLUMNS
    assert lines[0] == {
        "arm": "locks", "round": "1", "accuracy": "", "r2": "", "loss": "", "epsilon": "0.5",
        "cohort": "30.0", "uploads": "19.5", "bytes_up": "10", "bytes_down": "20",
    }  # fmt: skip
    assert (lines[1]["accuracy"], lines[1]["epsilon"]) == ("0.75", "inf")
    with pytest.raises(FileExistsError):
        csv_writer(tmp_path / "rounds.csv")


def events(folder):
    """The scalars of an event file: its records are length, checksum, bytes, checksum."""
    (path,) = folder.iterdir()
    content, found = path.read_bytes(), {}
    while content:
        size = int.from_bytes(content[:8], "little")
        body, content = content[12 : 12 + size], content[16 + size :]
        event = Event.FromString(body)
        found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
    return found


def test_tensorboard_has_the_same_numbers(tmp_path):
    write = tensorboard_writer(tmp_path / "events")
    for record in RECORDS:
        write(record)
    found = events(tmp_path / "events")
    assert found["locks/epsilon", 1] == 0.5
    assert found["locks/cohort", 1] == 30.0
    assert found["locks/accuracy", 2] == 0.75
    assert ("locks/accuracy", 1) not in found
    assert ("locks/epsilon", 2) not in found  # infinite
    assert 31.0 not in found.values()
    assert 17.0 not in found.values()
