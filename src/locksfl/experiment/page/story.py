"""What a page tells of one run, in one form: of a public document, or of a server's run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from locksfl._charts import Line
from locksfl._tables import Record
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.coverage import covered
from locksfl.experiment.documents import STATEMENT
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.records import score_of, shown
from locksfl.experiment.statement import statement_words
from locksfl.methods import TRUSTS


@dataclass(frozen=True)
class Point:
    """One round of an arm; counts may be estimates."""

    round: int
    score: float | None
    epsilon: float | None
    asked: float
    uploads: float
    bytes_up: float | None
    sent: float  # by all clients so far, in MB
    clip_norm: float | None  # that of the round, if it adapts


Pick = Callable[[Point], float | None]


@dataclass(frozen=True)
class Story:
    """A run as a page tells it. `label` tells it from the others on a page."""

    label: str
    statement: Record  # as in statement.json; of a server's own run, with more in it
    config: Record
    points: dict[str, list[Point]]  # by arm
    exact: bool  # whether counts are true ones

    @property
    def arms(self) -> list[Record]:
        """What each arm came to."""
        return self.statement["arms"]

    @property
    def score_name(self) -> str:
        """Accuracy, or for numbers R²."""
        return "R²" if "r2" in self.arms[0] else "accuracy"

    @property
    def scored(self) -> bool:
        """Whether any round may tell how good its model is."""
        return any(point.score is not None for line in self.points.values() for point in line)

    def lines(
        self,
        x: Pick,
        y: Pick,
        first: int = 0,
        named: str = "",
        **look: Any,
    ) -> list[Line]:
        """A line for each arm that has both; `first` is the style of the first."""
        found = []
        for number, arm in enumerate(self.arms):
            points = self.points[arm["name"]]
            pairs = [(a, b) for p in points if (a := x(p)) is not None and (b := y(p)) is not None]
            if pairs:
                label = f"{self.label}{arm['name']}{named}"
                xs, ys = zip(*pairs, strict=True)
                found.append(Line(label, xs, ys, style=first + number, **look))
        return found

    @property
    def counts_bytes(self) -> bool:
        """Whether every round tells what was sent."""
        return all(p.bytes_up is not None for points in self.points.values() for p in points)


def _points(
    arms: Sequence[Record], lines: Sequence[Record], counts_of: Callable[[Record], Record]
) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {arm["name"]: [] for arm in arms}
    for line in lines:
        counts, mine = counts_of(line), found[line["arm"]]
        point = Point(
            line["round"],
            score_of(line),
            line["epsilon"],
            counts["cohort"],
            counts["uploads"],
            counts["bytes_up"],
            (mine[-1].sent if mine else 0) + (counts["bytes_up"] or 0) / 1e6,
            line.get("clip_norm"),
        )
        mine.append(point)
    return found


@contextmanager
def understood() -> Iterator[None]:
    """Whatever a document lacks: one line, and no page."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not what a public bundle of this program tells ({error!r})") from None


def of_document(document: Record, label: str = "") -> Story:
    """What a public document tells."""
    statement = document["statement"]

    def counts_of(line: Record) -> Record:
        return {
            "cohort": line.get("cohort", line["expected_cohort"]),
            "uploads": line.get("uploads", line["upload_estimate"]),
            "bytes_up": line.get("bytes_up", line.get("bytes_up_estimate")),
        }

    points = _points(statement["arms"], document["rounds"], counts_of)
    exact = TRUSTS[document["config"]["privacy"]["trust"]].guards_server
    return Story(label, statement, document["config"], points, exact)


def of_run(folder: RunFolder, summary: Record, label: str = "") -> Story:
    """What the server knows. Counts are still those that may be shown: it is the sections of the
    server alone that have true ones."""
    config = folder.config
    points = _points(summary["arms"], folder.lines("rounds.jsonl"), shown)
    statement = own_statement(config, summary)
    exact = not TRUSTS[config.privacy.trust].amplified
    return Story(label, statement, to_table(config), points, exact)


def own_statement(config: Config, summary: Record) -> Record:
    """A run's summary with the fields and the words of a public statement."""
    try:
        covers, lost = covered(summary), None
    except (OSError, ValueError) as error:  # the journal is on another machine
        covers, lost = None, f"The journal of the population could not be read ({error})."
    told = {**summary, "covers": covers}
    words = statement_words(told, config)
    if lost:
        words["warnings"].append(lost)
    return {**told, "words": words}


def read_run(path: Path) -> tuple[RunFolder, Record]:
    """The folder of a finished run, and its summary."""
    folder = RunFolder.open(path)
    return folder, folder.summary()


def is_bundle(path: Path) -> bool:
    """Whether a folder is what `locks publish` made."""
    return (path / STATEMENT).is_file()


def labelled(stories: Sequence[Story]) -> list[Story]:
    """Several runs with labels that tell them apart: numbered where two are alike."""
    names = [story.label for story in stories]
    return [
        replace(story, label=name if names.count(name) == 1 else f"{name} ({number})")
        for number, (name, story) in enumerate(zip(names, stories, strict=True), 1)
    ]
