"""The folder of a comparison.

    comparison.toml   the file as it was given      comparison.json   the same, and the program's
    cells.jsonl       one line for every play                         version
    report.md, table.json, figure.svg (one for each label, if there are several)

A stopped comparison loses only what was being played: the same command goes on where it stood. A
part is a folder in which only every k-th case is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from locksfl._files import write_atomically
from locksfl._loading import in_one_line
from locksfl.data.task import CLASSES
from locksfl.experiment.folder import held
from locksfl.grids import begun, drive
from locksfl.grids.bench import Bench, executor_for
from locksfl.grids.comparison.cases import Case, Comparison, parse_comparison
from locksfl.grids.comparison.tuning import Finished, plays_of

NAMED, ROWS = "comparison.json", "cells.jsonl"


class Part(NamedTuple):
    """Every k-th case, from the i-th on; counted from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part of --part i/k."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"--part {text}: expected i/k with 1 <= i <= k, such as 2/3")
        return cls(int(number), int(of))


WHOLE = Part()


class Begun(begun.Begun, frozen=True, kw_only=True):
    """What a comparison is begun with."""

    comparison: str  # the file
    quick: bool

    def read(self) -> Comparison:
        """What it compares."""
        comparison = parse_comparison(self.comparison)
        return comparison.quickened() if self.quick else comparison


class Folder:
    """What is finished of a comparison."""

    def __init__(self, path: Path, comparison: Comparison) -> None:
        """A new folder, or the one that the same command began."""
        self.path, self.comparison, self.rows = path, comparison, path / ROWS
        self.failures: dict[Case, str] = {}  # what went wrong when it was last played
        mine = Begun(comparison=comparison.text, quick=comparison.quick)
        begun.begin(path, NAMED, mine, ROWS)
        write_atomically(path / "comparison.toml", comparison.text.encode())

    def held(self) -> AbstractContextManager[None]:
        """Nobody else may play in this folder meanwhile."""
        return held(self.path / NAMED)

    def finished(self) -> dict[Case, Finished]:
        """The cases that have their report."""
        finished = drive.results_of(self._driven(self.cases()), self.rows)
        return {self.comparison.cases[number]: one for number, one in finished.items()}

    def cases(self, part: Part = WHOLE) -> dict[int, Case]:
        """Those of a part, by number."""
        numbered = list(enumerate(self.comparison.cases))
        return dict(numbered[part.number - 1 :: part.of])

    def play(
        self, watch: drive.Watch = drive.NOBODY, part: Part = WHOLE, processes: int = 1
    ) -> None:
        """Play what is missing of a part, one data set after another, so that one is open at a
        time. A case that fails is noted, and the others go on."""
        self.failures.clear()
        finished = self.finished()
        missing = {i: case for i, case in self.cases(part).items() if case not in finished}
        for label in dict.fromkeys(case.data for case in missing.values()):
            watch.say(f"opening the data {label}".strip())
            bench = Bench(shared=True)
            data = bench.simulator(self.comparison.configs[label]).population
            if data.task != CLASSES:
                raise ValueError(
                    f"data.name = {data.name!r}: a comparison counts right answers; expected "
                    f"data with classes, got {data.task.kind}"
                )
            mine = self._driven({i: case for i, case in missing.items() if case.data == label})
            with executor_for(bench, processes) as executor:
                driven = drive.drive(mine, executor, self.rows, watch)
            for number, error in driven.failures.items():
                self.failures[missing[number]] = in_one_line(error)
        drive.join([self.rows], self.rows)  # a command may have been stopped just before it did so

    def _driven(self, cases: dict[int, Case]) -> dict[int, drive.Case[Finished]]:
        """What the cases play."""
        return {
            number: drive.Case(case.label, partial(plays_of, self.comparison, case))
            for number, case in cases.items()
        }


def merge(paths: Sequence[Path], out: Path) -> Folder:
    """Join what the folders of one comparison have in a new folder, or in one of the same
    comparison. What is missing still can be played there."""
    try:
        first = msgspec.json.decode((paths[0] / NAMED).read_bytes(), type=Begun)
    except (OSError, ValueError):
        raise ValueError(
            f"--merge: {paths[0]}: not the folder of a comparison of this version"
        ) from None
    mine = Begun(comparison=first.comparison, quick=first.quick)
    with ExitStack() as holding:
        for path in dict.fromkeys(path.resolve() for path in paths):
            begun.refuse_another(f"--merge: {path}", path / NAMED, mine)
            holding.enter_context(held(path / NAMED))
        whole = Folder(out, mine.read())
        holding.enter_context(whole.held())
        drive.join([whole.rows, *(path / ROWS for path in paths)], whole.rows)
    return whole
