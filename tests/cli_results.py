"""What a call of the program by the fixture `locks` gave: its answer, or the line of a refusal."""

from __future__ import annotations

import json
from typing import Any


def answer(result: Any) -> Any:
    """The JSON that a command printed."""
    assert result.code == 0, result.err
    return json.loads(result.out)


def refused(result: Any, *said: str) -> str:
    """The one line of a refusal, in which all these words stand."""
    assert result.code == 2
    assert result.err.startswith("locks: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert "Traceback" not in result.out
    for words in said:
        assert words in result.err
    return str(result.err.strip())
