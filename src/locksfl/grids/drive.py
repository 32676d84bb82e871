"""Drive a grid: ask every case for its next plays, have them played, and keep a row of each.

The file of rows is the whole state. It is read when the driving begins (a last line that is torn is
cut off), a row is appended as soon as it comes, and at the end all rows are put in order, so that
the file shows neither who played it, nor in which order, nor how often it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from locksfl._files import append, write_atomically
from locksfl.arm import Arm, Noise
from locksfl.experiment.config import Config
from locksfl.experiment.record import Cost

Half = Literal["tuning", "report"]  # of the held-out records: what tunes is in no report
R = TypeVar("R")


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record that is read as strictly as it is written."""


@dataclass(frozen=True)
class Play:
    """An arm with a seed, to be played to its end."""

    config: Config  # data, model, local work, server and privacy
    arm: Arm  # one without noise gets that of the config's epsilon when it is played
    seed: int
    half: Half | None = None  # that it is scored on; None: all held-out records
    reported: bool = False  # with its costs, and which of the held-out records it gets right

    @property
    def name(self) -> str:
        """What tells it from the other plays of its case."""
        arm = self.arm
        numbers = f"clip norm {arm.clip_norm!r}, step {arm.step!r}, cohort {arm.cohort!r}"
        return f"{arm.name}, seed {self.seed}, {numbers}"


class Reported(Stored, frozen=True):
    """What a report needs of a play besides its scores."""

    privacy: tuple[Cost, ...]  # of the arm's rounds
    claimed_epsilon: float | None  # what the paper's own accounting says, without a guarantee
    right: bytes  # the right answers on each held-out record, packed
    answers: int  # that a model gives: one for each label


class Outcome(Stored, frozen=True):
    """What came of a play. Nothing in it is timed: the same play gives the same outcome."""

    noise: Noise
    scores: tuple[float, ...]  # accuracy or R^2 after every round that was evaluated, if finite
    score: float | None  # after the last round; None: not finite
    loss: float | None
    uploads: float  # of all rounds
    bytes_up: float
    bytes_down: float
    reported: Reported | None = None


class Row(Stored, frozen=True):
    """A line of a grid's file; (case, number) is its place."""

    case: int
    number: int  # among all plays that the case asked for
    play: str  # its name
    outcome: Outcome


class Cell(NamedTuple):
    """A play with its place."""

    case: int
    number: int
    play: Play


class Failed(NamedTuple):
    """A cell that was not played."""

    case: int
    number: int
    error: Exception


Plays = Generator[Sequence[Play], Sequence[Outcome], R]  # what a case asks for, wave by wave
Rows = dict[tuple[int, int], Row]


class Executor(Protocol):
    """Plays cells somewhere, and yields what comes of each as it comes."""

    cases: int | None  # of so many it takes cells at a time; None: of all

    def run(self, cells: Sequence[Cell]) -> Iterator[Row | Failed]:
        """In any order; a cell that fails does not stop the others."""


class Case(NamedTuple, Generic[R]):
    """What is driven."""

    label: str
    begin: Callable[[], Plays[R]]  # the generator, from its beginning


class Watch(NamedTuple):
    """Who hears how it goes."""

    counted: Callable[[int, int], None]  # how many more are asked for, how many are done
    say: Callable[[str], None]  # what is being done


NOBODY = Watch(lambda more, done: None, lambda text: None)


@dataclass(frozen=True)
class Driven(Generic[R]):
    """What came of a grid."""

    results: dict[int, R]  # of every case that is finished
    failures: dict[int, Exception]  # of every case that is not: the first

    def whole(self) -> list[R]:
        """The result of every case, in their order. The first failure is raised, if there is one;
        what was played is in the file."""
        for number in sorted(self.failures):
            raise self.failures[number]
        return [self.results[number] for number in sorted(self.results)]


def drive(
    cases: Mapping[int, Case[R]],
    executor: Executor,
    file: Path | None = None,
    watch: Watch = NOBODY,
) -> Driven[R]:
    """Play what the file lacks.

    Args:
        cases: by number.
        executor: plays the cells.
        file: JSON lines, begun or continued; rows of other cases in it are kept. None: no file.
        watch: hears of every play, whether it was played or is in the file already.

    Returns:
        The results, and what went wrong. A case that failed is left out for the rest of this call.
    """
    rows, driven = read_rows(file), Driven[R]({}, {})
    waves = {number: _waves(number, case, rows, watch) for number, case in cases.items()}
    while cells := _next(waves, driven, executor.cases):
        for one in executor.run(cells):
            if isinstance(one, Failed):
                waves.pop(one.case, None)
                driven.failures.setdefault(one.case, one.error)
                continue
            line = _line(one)
            if file is not None:
                append(file, line)
            rows[one.case, one.number] = _row(line)  # as whoever goes on will read it
            watch.say(f"{cases[one.case].label} ({len(driven.results)} of {len(cases)} done)")
            watch.counted(0, 1)
    if file is not None:
        join([file], file)
    return driven


def results_of(cases: Mapping[int, Case[R]], file: Path) -> dict[int, R]:
    """The results of the cases whose rows are all in the file: nothing is played."""
    rows, driven = read_rows(file), Driven[R]({}, {})
    waves = {number: _waves(number, case, rows, NOBODY) for number, case in cases.items()}
    _next(waves, driven, None)
    return driven.results


def join(files: Sequence[Path], whole: Path) -> None:
    """All rows of these files in one, in order."""
    rows = {place: row for file in files for place, row in read_rows(file).items()}
    write_atomically(whole, b"".join(_line(rows[place]) for place in sorted(rows)))


def read_rows(file: Path | None) -> Rows:
    """The rows of a file, which may be missing; a last line that is torn is cut off."""
    if file is None or not file.is_file():
        return {}
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_atomically(file, whole)
    try:
        rows = list(map(_row, whole.splitlines()))
    except ValueError as error:
        raise ValueError(f"{file}: damaged, or of another version ({error})") from None
    return {(row.case, row.number): row for row in rows}


def _next(
    waves: dict[int, Generator[list[Cell], None, R]], driven: Driven[R], most: int | None
) -> list[Cell]:
    """The next cells of the first so many cases. Those that have none left are finished, and taken
    out."""
    cells: list[Cell] = []
    for number, wave in list(waves.items()):
        if most is not None and len({cell.case for cell in cells}) == most:
            break
        try:
            cells += next(wave)
            continue
        except StopIteration as end:
            driven.results[number] = end.value
        except Exception as error:  # the case's own, about what it was sent
            driven.failures[number] = error
        del waves[number]
    return cells


def _waves(number: int, case: Case[R], rows: Rows, watch: Watch) -> Generator[list[Cell], None, R]:
    """The cells of a case that have no row, wave by wave: a wave has to be whole before the case
    is sent it. Returns the case's result."""
    plays, first = case.begin(), 0
    try:
        wave = next(plays)
        while True:
            cells = [Cell(number, first + i, play) for i, play in enumerate(wave)]
            missing = [cell for cell in cells if cell[:2] not in rows]
            watch.counted(len(cells), len(cells) - len(missing))
            if missing:
                yield missing
            mine = [rows[cell[:2]] for cell in cells]
            for cell, row in zip(cells, mine, strict=True):
                if row.play != cell.play.name:
                    raise ValueError(f"row {cell[:2]} is of {row.play}, not of {cell.play.name}")
            first += len(cells)
            wave = plays.send([row.outcome for row in mine])
    except StopIteration as end:
        result: R = end.value
        return result


def _line(row: Row) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def _row(line: bytes) -> Row:
    return msgspec.json.decode(line, type=Row)


def batches(outcomes: Sequence[Outcome], size: int) -> list[Sequence[Outcome]]:
    """So many at a time: those of one setting with all its seeds."""
    return [outcomes[first : first + size] for first in range(0, len(outcomes), size)]
