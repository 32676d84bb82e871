"""The folder of a comparison.

    comparison.toml   the file as it was given      comparison.json   its hash, which part of it,
                                                                      and the program's version
    cells.jsonl       one line for every finished   failures.jsonl    one line for every case that
                      stage of a case                                 failed, until it succeeds
    report.md, table.json, figure.svg (one for each label, if there are several)

Lines are appended when a stage is finished, so a stopped comparison loses only what was being
played. The same command goes on where it stood.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from locksfl._files import write_atomically
from locksfl._loading import in_one_line
from locksfl._tables import Record
from locksfl.experiment.comparison.grid import Case, Comparison, parse_comparison
from locksfl.experiment.folder import RunFolder, append_lines, held, json_lines, read_lines

VERSION = metadata.version("locks-fl")
TUNING, REPORT = "tuning", "report"


class Part(NamedTuple):
    """Every k-th case, from the i-th on; counted from 1."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part of --part i/k."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"--part {text}: expected i/k with 1 <= i <= k, such as 2/3")
        return cls(int(number), int(of))


WHOLE = Part()


class Folder:
    """What is finished of a comparison, or of a part of it."""

    def __init__(self, path: Path, comparison: Comparison, part: Part = WHOLE) -> None:
        self.path, self.comparison, self.part = path, comparison, part
        self._lock = threading.Lock()
        self._failed: dict[Case, str] = {}

    @classmethod
    def begin(cls, path: Path, comparison: Comparison, part: Part = WHOLE) -> Folder:
        """A new folder, or the one that the same command began."""
        told = {
            "sha256": _hash(comparison.text),
            "quick": comparison.quick,
            "part": list(part),
            "version": VERSION,
        }
        _check_new(path)
        if not (path / "comparison.json").is_file():
            RunFolder.make(path)
            write_atomically(path / "comparison.json", (json.dumps(told) + "\n").encode())
        there = _told(path)
        for name, is_another in (
            ("sha256", "the comparison of another file"),
            ("quick", "a comparison with other --quick"),
            ("part", f"part {Part(*there['part'])} of this comparison"),
        ):
            if there[name] != told[name]:
                raise ValueError(
                    f"--out {path}: it holds {is_another}, which stays as it is; expected the same "
                    "command, or a new folder"
                )
        _check_version(f"--out {path}", there)
        if not (path / "comparison.toml").is_file():  # last: then the folder is made
            write_atomically(path / "comparison.toml", comparison.text.encode())
        return cls(path, comparison, part)

    @classmethod
    def open(cls, path: Path) -> Folder:
        """A folder that a comparison has made."""
        told = _told(path)
        _check_version(f"--merge: {path}", told)
        if not (path / "comparison.toml").is_file():
            raise ValueError(f"--merge: {path}: not finished; the command that began it goes on")
        text = (path / "comparison.toml").read_text("utf-8")
        if _hash(text) != told["sha256"]:
            raise ValueError(
                f"{path / 'comparison.toml'}: changed since it was played; expected the file that "
                "the comparison began with"
            )
        comparison = parse_comparison(text)
        if told["quick"]:
            comparison = comparison.quickened()
        return cls(path, comparison, Part(*told["part"]))

    @cached_property
    def _lines(self) -> dict[tuple[Any, ...], Record]:
        """What is finished. Read when it is first needed, and so by whoever holds the folder: a
        last line that is not whole is cut off."""
        lines = read_lines(self.path / "cells.jsonl", resumed=True)
        return {_key(line): line for line in lines}

    def held(self) -> AbstractContextManager[None]:
        """Nobody else may play in this folder meanwhile."""
        return held(self.path / "comparison.toml")

    @property
    def cases(self) -> list[Case]:
        """The cases of this part."""
        return self.comparison.cases[self.part.number - 1 :: self.part.of]

    @property
    def missing(self) -> list[Case]:
        """The cases of this part that have no report."""
        return [case for case in self.cases if self.line(REPORT, case) is None]

    @property
    def failures(self) -> dict[Case, str]:
        """What went wrong, by case."""
        return dict(self._failed)

    def line(self, stage: str, case: Case) -> Record | None:
        """A finished stage."""
        return self._lines.get(_key({"stage": stage, **case.key}))

    def add(self, stage: str, case: Case, found: Record) -> Record:
        """A stage is finished: it is on the disk when this returns."""
        line = {"stage": stage, **case.key, **found}
        with self._lock:
            append_lines(self.path / "cells.jsonl", [line])
            self._lines[_key(line)] = line
        return line

    def fail(self, case: Case, error: Exception) -> None:
        """A case went wrong; the others go on, and the same command tries it again."""
        with self._lock:
            self._failed[case] = in_one_line(error)
            self._write_failures()

    def forget_failures(self) -> None:
        """They are tried again."""
        with self._lock:
            self._failed.clear()
            self._write_failures()

    def _write_failures(self) -> None:
        lines = [{**case.key, "error": said} for case, said in self._failed.items()]
        write_atomically(self.path / "failures.jsonl", json_lines(lines))

    def settle(self) -> None:
        """Put the lines in the order of the cases, so that a finished folder does not show in which
        order, on how many machines or how often interrupted it was played."""
        stages = [self.line(stage, case) for case in self.cases for stage in (TUNING, REPORT)]
        write_atomically(self.path / "cells.jsonl", json_lines([one for one in stages if one]))


def merge(paths: Sequence[Path], out: Path) -> Folder:
    """Join the folders of all parts of one comparison in a new folder."""
    _check_new(out)
    if (out / "cells.jsonl").exists():
        RunFolder.check_new(out)
    parts = [Folder.open(path) for path in paths]
    with ExitStack() as holding:
        for path in dict.fromkeys(folder.path.resolve() for folder in parts):
            holding.enter_context(held(path / "comparison.toml"))
        _check_parts(parts)
        whole = Folder.begin(out, parts[0].comparison)
        holding.enter_context(whole.held())
        for folder in parts:
            whole._lines.update(folder._lines)
        whole.forget_failures()
        whole.settle()
    return whole


def _check_parts(parts: Sequence[Folder]) -> None:
    """Refuse parts that are not those of one comparison, each once and finished."""
    first = parts[0]
    seen: dict[int, Path] = {}
    for folder in parts:
        same = (folder.comparison.text, folder.comparison.quick)
        if same != (first.comparison.text, first.comparison.quick):
            raise ValueError(
                f"--merge: {folder.path} and {first.path} are of different comparisons; expected "
                "parts of one file"
            )
        if folder.part.of != first.part.of:
            raise ValueError(
                f"--merge: {first.path} is part {first.part}, {folder.path} is part {folder.part}; "
                "expected parts of one division"
            )
        if folder.part.number in seen:
            raise ValueError(
                f"--merge: {seen[folder.part.number]} and {folder.path} are both part "
                f"{folder.part}; expected each part once"
            )
        seen[folder.part.number] = folder.path
        if missing := folder.missing:
            raise ValueError(
                f"--merge: {folder.path} (part {folder.part}) lacks {len(missing)} cells, first "
                f"{missing[0].label}; expected it finished: the same command goes on"
            )
    absent = [str(Part(i, first.part.of)) for i in range(1, first.part.of + 1) if i not in seen]
    if absent:
        raise ValueError(f"--merge: part {', '.join(absent)} is missing")


def _check_new(path: Path) -> None:
    """Refuse a path that something else is at. What a command left that was killed while it made
    this folder is no such thing: unfinished files are removed, and the same command goes on."""
    if not (path / "comparison.toml").is_file():
        for left in path.glob(".comparison.????.????????"):  # of `write_atomically`
            left.unlink(missing_ok=True)
    if not (path / "comparison.json").is_file():
        RunFolder.check_new(path)


def _check_version(named: str, told: Record) -> None:
    """Refuse cells of another version, which may train or account otherwise."""
    if (found := told.get("version")) != VERSION:
        raise ValueError(
            f"{named}: begun with locks-fl {found or '(version not recorded)'}, and this is "
            f"locks-fl {VERSION}; expected that version, or a new folder played with this one"
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _key(line: Record) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("stage", "data", "epsilon", "rounds", "uploads", "method"))


def _told(path: Path) -> Record:
    try:
        told: Record = json.loads((path / "comparison.json").read_text("utf-8"))
        Part(*told["part"]), told["sha256"], told["quick"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: not the folder of a comparison") from None
    return told
