"""What a server and a device log: a line for each event with its time and level, as text or JSON.

2026-03-01T12:00:00Z INFO round 3 of 20 of locks: norm 4 of 4 answered; update 3 of 4 answered
{"time": "2026-03-01T12:00:00Z", "level": "INFO", "message": "round 3 ...", "round": 3, ...}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from locksfl import _validate

FORMATS = ("text", "json")
log = logging.getLogger("locksfl.federation")


class _Lines(logging.Formatter):
    """One line a record, whatever it says; numbers that were given with it only in JSON."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        when = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%SZ}"
        message = " ".join(super().format(record).split())
        if not self._json:
            return f"{when} {record.levelname} {message}"
        fields: dict[str, Any] = getattr(record, "fields", {})
        return json.dumps(
            {"time": when, "level": record.levelname, "message": message, **fields}, default=str
        )


@contextmanager
def logging_to(form: str, file: Path | None = None) -> Iterator[None]:
    """Log in this form, `text` or `json`, to a file or, without one, to stderr."""
    _validate.one_of(FORMATS, **{"--log-format": form})
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file)
    handler.setFormatter(_Lines(form))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        if file is not None:
            handler.close()


def say(message: str, **fields: object) -> None:
    """Log an event."""
    log.info("%s", message, extra={"fields": fields})
