"""What a server knows of each device: when it was last seen, what it answered, what is missing.

It is kept in the run folder for `locks federation status`, in `flower/devices.json`, which only the
server's user can read. Who was asked and who answered is the server's secret under central trust,
and nobody else's business under any: no public bundle has it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from locksfl._files import write_atomically
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.records import counted
from locksfl.federation.device.terms import LASTING
from locksfl.federation.telling import refusal_name
from locksfl.federation.wire import Answer, Network, Question, Unwilling

DEVICES = Path("flower") / "devices.json"
LAST_SPANS = 3  # of missing rounds, that are shown
HEADS = (
    *("device", "last seen", "last answer", "answered", "refused", "errors"),
    *("rounds left", "missing rounds"),
)
Seen = Callable[[], Mapping[int, float]]  # by the client's number: how many seconds ago it called
Gone = Callable[[], Mapping[int, str]]  # whose key is not valid: it has left, or was revoked


class Watched:
    """A network, and the file that says what became of its questions."""

    def __init__(
        self,
        network: Network,
        names: Sequence[str],
        folder: Path,
        seconds: float,
        seen: Seen,
        gone: Gone,
    ) -> None:
        self.run, self._network, self._seen, self._gone = network.run, network, seen, gone
        self._path, self._seconds = folder / DEVICES, seconds
        known = {device["name"]: device for device in read_devices(folder)["devices"]}
        self._devices = [known.get(name) or _new(name) for name in names]
        self._unwilling: dict[int, str] = {}  # who refused last for a lasting reason; its name

    def ask(
        self, questions: Mapping[int, Question], seconds: float, round_number: int
    ) -> dict[int, Answer]:
        """Ask, and note who answered what."""
        answers = self._network.ask(questions, seconds, round_number)
        for number, question in questions.items():
            if question.stage != "end":  # nobody waits for that one
                _note(self._devices[number], question, round_number, answers.get(number))
        for number, answer in answers.items():
            self._unwilling.pop(number, None)
            if answer.refusal in LASTING:
                self._unwilling[number] = refusal_name(answer.refusal)
        self.write()
        return answers

    def check_willing(self) -> None:
        """`Unwilling` if every device that has called, and may take part, refuses for a reason that
        is not about one round alone."""
        here = self._seen().keys() - self._gone().keys()
        if here and here <= self._unwilling.keys():
            codes = counted(Counter(self._unwilling[number] for number in here))
            raise Unwilling(
                f"every device refuses ({codes}): its policy, ledger or model decides that, so the "
                "run ends early"
            )

    def write(self) -> None:
        """Write the file, as of now."""
        for number, ago in self._seen().items():
            self._devices[number]["last_seen"] = _time(ago)
        gone = self._gone()
        for number, device in enumerate(self._devices):
            device["gone"] = gone.get(number)
        told = {"time": _time(), "seconds": self._seconds, "devices": self._devices}
        write_atomically(self._path, json.dumps(told).encode(), secret=True)


def _new(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "last_seen": None,
        "gone": None,  # or "left", or "revoked"
        "last_answer": None,
        "answered": 0,
        "refused": {},  # by the name of the code
        "errors": 0,  # answers without a value
        "rounds_left": None,  # of its budget, if it tells
        "missing": [],  # rounds, as pairs of the first and the last
    }


def _note(
    device: dict[str, Any], question: Question, round_number: int, answer: Answer | None
) -> None:
    if answer is None:
        spans = device["missing"]
        if spans and spans[-1][1] >= round_number - 1:
            spans[-1][1] = round_number
        else:
            spans.append([round_number, round_number])
        return
    if answer.refusal is not None:
        told = refusal_name(answer.refusal)
        device["refused"][told] = device["refused"].get(told, 0) + 1
    else:
        told = "error" if answer.released is None else "released"
        device["errors" if told == "error" else "answered"] += 1
    if answer.rounds_left is not None:
        device["rounds_left"] = answer.rounds_left
    device["last_answer"] = {
        "time": _time(),
        "round": round_number,
        "stage": question.stage,
        "answer": told,
    }


def _time(ago: float = 0.0) -> str:
    return f"{datetime.now(UTC) - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}"


def read_devices(folder: Path) -> dict[str, Any]:
    """The file of a run; without one, nobody was asked yet."""
    path = folder / DEVICES
    if not path.is_file():
        return {"time": None, "seconds": None, "devices": []}
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error})") from None
    found["devices"] = [_new(device["name"]) | device for device in found["devices"]]
    return found


def status(folder: RunFolder) -> dict[str, Any]:
    """How a federation's run stands, from its folder alone: it may be running or have ended."""
    config = folder.config
    if config.engine is None:
        raise ValueError(f"{folder.path}: not a federation's run; expected one of a server")
    rounds = {arm.name: 0 for arm in config.arms}
    written = (folder.path / "rounds.jsonl").read_text("utf-8")
    for line in written[: written.rfind("\n") + 1].splitlines():  # a server may be writing the last
        record = json.loads(line)
        rounds[record["arm"]] = record["round"]
    state = "finished" if folder.finished else "stopped"
    if state == "stopped":
        try:
            with folder.held():
                pass
        except ValueError:  # a process holds it
            state = "running"
    return {
        "run": str(folder.path),
        "state": state,
        "rounds": {name: [played, config.train.rounds] for name, played in rounds.items()},
        **read_devices(folder.path),
    }


def device_cells(device: dict[str, Any]) -> tuple[str, ...]:
    """A device's row, under HEADS."""
    last = device["last_answer"]
    refused = ", ".join(f"{code} {count}" for code, count in device["refused"].items())
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in device["missing"]]
    if len(spans) > LAST_SPANS:  # all of them are in JSON
        spans = [f"{_missing(device)} in all", "...", *spans[-LAST_SPANS:]]
    return (
        device["name"],
        (device["last_seen"] or "never") + (f", {device['gone']}" if device["gone"] else ""),
        f"round {last['round']} {last['stage']}: {last['answer']}" if last else "none",
        str(device["answered"]),
        refused,
        str(device["errors"]),
        "" if device["rounds_left"] is None else str(device["rounds_left"]),
        ", ".join(spans),
    )


def _missing(device: dict[str, Any]) -> int:
    return sum(last - first + 1 for first, last in device["missing"])


def metrics(told: dict[str, Any]) -> str:
    """A status in the text format of Prometheus, for its node exporter's textfile collector."""
    run = {"run": told["run"]}
    rows = [("run_running", run, int(told["state"] == "running"))]
    for arm, (played, planned) in told["rounds"].items():
        rows.append(("rounds_played", {**run, "arm": arm}, played))
        rows.append(("rounds_planned", {**run, "arm": arm}, planned))
    for device in told["devices"]:
        which = {**run, "device": device["name"]}
        if device["last_seen"]:
            seen = datetime.fromisoformat(device["last_seen"])
            rows.append(("device_last_seen_seconds", which, int(seen.timestamp())))
        for how in ("left", "revoked"):
            rows.append((f"device_{how}", which, int(device["gone"] == how)))
        rows.append(("device_answered", which, device["answered"]))
        rows.append(("device_errors", which, device["errors"]))
        if device["rounds_left"] is not None:
            rows.append(("device_rounds_left", which, device["rounds_left"]))
        rows.append(("device_missing_rounds", which, _missing(device)))
        for code, count in device["refused"].items():
            rows.append(("device_refused", {**which, "code": code}, count))
    lines = [f"locks_{name}{{{_labels(labels)}}} {value}" for name, labels, value in rows]
    return "\n".join(sorted(lines)) + "\n"  # the lines of one metric belong together


def _labels(labels: dict[str, str]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())
