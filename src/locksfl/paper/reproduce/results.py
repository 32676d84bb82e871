"""The table of the reproduction, and the conclusion that its numbers allow. Nothing is typed in.

Final accuracy is the mean over the last tenth of the rounds. A method is ahead if the 95% interval
of the difference of means over seeds (Welch) leaves out zero; else no difference is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy import stats

from locksfl._tables import Record
from locksfl.experiment.record import Cost
from locksfl.paper.reproduce.runs import Runs
from locksfl.paper.reproduce.settings import EPSILONS, HONEST, METHODS, PRINTED, Panel
from locksfl.paper.reproduce.tune import edges, last_tenth

CONFIDENCE = 0.95
SHARE = 0.8  # of the best final accuracy of the panel: the bar for "rounds to"


class Row(msgspec.Struct, frozen=True):
    """One method of one panel, over its seeds."""

    panel: Panel
    method: str
    clip_norm: float
    step: float
    accuracy: float
    error: float | None  # standard error; None for one seed
    rounds_to: int | None  # None: not reached
    uploads: float  # of a run, on average
    bytes_up: float
    noise_multiplier: float | None
    claimed_epsilon: float | None
    privacy: tuple[Cost, ...]

    @property
    def rounds_text(self) -> str:
        """The rounds to the bar in words."""
        return "never" if self.rounds_to is None else str(self.rounds_to)

    def as_dict(self) -> Record:
        """For JSON, which has no infinity."""
        return {**msgspec.to_builtins(self), "panel": self.panel.label}


@dataclass(frozen=True)
class Difference:
    """Final accuracy of LOCKS minus that of uniform, in one panel."""

    panel: Panel
    accuracy: float
    low: float | None  # of the interval; None for one seed, or seeds that are all alike
    high: float | None
    seeds: int

    @property
    def ahead(self) -> str | None:
        """Who is ahead, where the interval tells."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return None
        return "LOCKS" if self.low > 0 else "uniform"

    def sentence(self) -> str:
        """The comparison in words."""
        where = f"{self.panel.version}, {self.panel.model}, epsilon {self.panel.epsilon_text}: "
        if self.low is None or self.high is None:
            why = "one seed shows" if self.seeds == 1 else "seeds without a spread show"
            return f"{where}LOCKS minus uniform {self.accuracy:+.3f}; {why} nothing."
        interval = (
            f"{CONFIDENCE:.0%} interval {self.low:+.3f} to {self.high:+.3f}, {self.seeds} seeds"
        )
        if self.ahead is None:
            return f"{where}no difference is shown ({self.accuracy:+.3f}; {interval})."
        return f"{where}{self.ahead} is ahead by {abs(self.accuracy):.3f} ({interval})."


def finals(runs: Runs, method: str) -> np.ndarray:
    """Final accuracy of each seed."""
    return np.array([last_tenth(run.scores) for run in runs[method].outcomes])


def rows_of(panel: Panel, runs: Runs) -> list[Row]:
    """The table's rows of one panel."""
    bar = SHARE * max(finals(runs, method).mean() for method in METHODS)
    rows = []
    for method in METHODS:
        (tuned, mine), final = runs[method], finals(runs, method)
        reached = np.flatnonzero(np.mean([run.scores for run in mine], axis=0) >= bar)
        error = float(final.std(ddof=1)) / math.sqrt(len(final)) if len(final) > 1 else None
        one = mine[0]
        rows.append(
            Row(
                panel=panel,
                method=method,
                clip_norm=tuned.clip_norm,
                step=tuned.step,
                accuracy=float(final.mean()),
                error=error,
                rounds_to=int(reached[0]) + 1 if reached.size else None,
                uploads=float(np.mean([run.uploads for run in mine])),
                bytes_up=float(np.mean([run.bytes_up for run in mine])),
                noise_multiplier=one.noise.noise_multiplier,
                claimed_epsilon=one.reported.claimed_epsilon if one.reported else None,
                privacy=one.reported.privacy if one.reported else (),
            )
        )
    return rows


def difference(panel: Panel, runs: Runs) -> Difference:
    """How far LOCKS is ahead, and with which confidence."""
    uniform, locks = (finals(runs, method) for method in METHODS)
    apart = locks.mean() - uniform.mean()
    # one seed, or methods that do nothing: no spread, no interval
    if len(uniform) == 1 or np.ptp(uniform) + np.ptp(locks) < 1e-9:
        return Difference(panel, apart, None, None, len(uniform))
    mean = stats.ttest_ind(locks, uniform, equal_var=False).confidence_interval(CONFIDENCE)
    return Difference(panel, apart, mean.low, mean.high, len(uniform))


def conclusion(differences: list[Difference], rows: list[Row]) -> list[str]:
    """What can be said of the paper's two claims and in sum, drawn from the numbers."""
    sentences = [one.sentence() for one in differences]
    for version, terms in ((PRINTED, "in the paper's own terms"), (HONEST, "at equal epsilon")):
        mine = [d for d in differences if d.panel.version == version]
        silent = [d for d in mine if math.isinf(d.panel.epsilon)]
        noisy = [d for d in mine if d.panel.epsilon == min(EPSILONS)]
        sentences += [
            f'"Mild speed-ups" without noise, {terms}: {_speed(silent, rows)} (of the mean '
            "over seeds; no interval).",
            f'"Better for high-noise / high-privacy cases", {terms}: {_count(noisy)}.',
            f"In all, {terms}: {_count(mine)}.",
        ]
    chance = (1 - CONFIDENCE) * len(differences)
    beyond = sum(bool(edges(row.clip_norm, row.step)) for row in rows)
    sentences += [
        f"Of {len(differences)} intervals at {CONFIDENCE:.0%}, about {chance:.1f} miss by chance. "
        "They are over the coins and the noise of the seeds: one split, one clip and step.",
        f"Of {len(rows)} tuned pairs of clip and step, {beyond} lie at an end of the grid, where a "
        "better one may lie beyond it.",
    ]
    return sentences


def _count(differences: list[Difference]) -> str:
    ahead = [d.ahead for d in differences]
    locks, uniform = ahead.count("LOCKS"), ahead.count("uniform")
    even = len(differences) - locks - uniform
    return (
        f"of {len(differences)}, LOCKS is ahead in {locks}, uniform in {uniform}, neither in {even}"
    )


def _speed(differences: list[Difference], rows: list[Row]) -> str:
    """Rounds to the bar, of each model."""
    sentences = []
    for one in differences:
        uniform, locks = (row.rounds_text for row in rows if row.panel == one.panel)
        sentences.append(f"{one.panel.model} {uniform} rounds with uniform, {locks} with LOCKS")
    return "; ".join(sentences)


def table_of(by_panel: Mapping[Panel, Runs]) -> tuple[list[Row], list[Difference]]:
    """Every row and every comparison."""
    rows = [row for panel, runs in by_panel.items() for row in rows_of(panel, runs)]
    return rows, [difference(panel, runs) for panel, runs in by_panel.items()]
