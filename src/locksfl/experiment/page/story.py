"""A run in one form for whoever shows it, in a table, a figure or a page: of a bundle, or of its
server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from locksfl._charts import Line
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import covered
from locksfl.experiment.own_code import described
from locksfl.experiment.record import (
    AnyMetrics,
    Cost,
    Counts,
    NumberMetrics,
    PublicArm,
    PublicRun,
    Run,
    Scores,
    SecretArm,
    SecretRun,
)
from locksfl.experiment.records import Traffic, few_uploads, traffic
from locksfl.experiment.statement import Words, statement_words
from locksfl.methods import TRUSTS


@dataclass(frozen=True)
class Point:
    """One round of an arm; counts may be estimates."""

    round: int
    score: float | None
    epsilon: float | None
    asked: float
    uploads: float
    sent: float  # by all clients so far, in MB
    clip_norm: float | None  # that of the round, if it adapts


Pick = Callable[[Point], float | None]


@dataclass(frozen=True)
class ArmStory:
    """One arm; what is secret of it, and shown, is there on its server's own page only."""

    public: PublicArm
    plan: Arm  # its settings; something of the program's stands in for code of the operator's own
    parameters: int  # of the model
    secret: SecretArm | None = None

    @property
    def name(self) -> str:
        """What the user called it."""
        return self.public.name

    @property
    def metrics(self) -> AnyMetrics | None:
        """Of the last model, where they may be shown."""
        return self.public.metrics if self.secret is None else self.secret.metrics

    @property
    def exact(self) -> bool:
        """Whether the counts that are shown are true ones."""
        return self._counts(0) is not None

    def _counts(self, number: int) -> Counts | None:
        if self.secret is None or TRUSTS[self.plan.trust].amplified:
            return self.public.rounds[number].counts
        return self.public.rounds[number].counts or self.secret.rounds[number].counts

    def scores(self, number: int) -> Scores | None:
        """Of a round, where they may be shown; -1 is the last."""
        hidden = None if self.secret is None else self.secret.rounds[number].scores
        return self.public.rounds[number].scores or hidden

    @property
    def score(self) -> float | None:
        """Accuracy or R^2 of the last round."""
        scores = self.scores(-1)
        return None if scores is None else scores.score

    @cached_property
    def traffic(self) -> list[Traffic]:
        """What was sent in each round, as it may be shown."""
        norms = self.plan.releases_norms or self.public.noise.norm_multiplier is not None
        rows = []
        for number, one in enumerate(self.public.rounds):
            counts = self._counts(number)
            members, uploads = one.expected_cohort, one.upload_estimate
            if counts is not None:
                members, uploads = counts.cohort, counts.uploads
            rows.append(traffic(members, uploads, norms, self.parameters))
        return rows

    @property
    def total(self) -> Traffic:
        """Of all rounds. The noise of a released count averages out over rounds, so that only the
        sum is kept from falling below 0."""
        return Traffic(*(max(0, sum(each)) for each in zip(*self.traffic, strict=True)))

    @cached_property
    def points(self) -> list[Point]:
        """The rounds."""
        sent, points = 0.0, []
        for number, (one, taken) in enumerate(zip(self.public.rounds, self.traffic, strict=True)):
            sent += taken.bytes_up / 1e6
            scores = self.scores(number)
            score = None if scores is None else scores.score
            counts = (taken.cohort, taken.uploads)
            points.append(Point(number + 1, score, one.epsilon, *counts, sent, one.clip_norm))
        return points

    @property
    def exhausted(self) -> int | None:
        """Clients that could not pay in the last round, with a filter."""
        counts = self.public.rounds[-1].counts
        return None if counts is None else counts.exhausted

    @property
    def true_counts(self) -> list[Counts]:
        """Those of every round, if the server knows them."""
        rounds = () if self.secret is None else self.secret.rounds
        return [one.counts for one in rounds if one.counts is not None]

    @property
    def few_uploads(self) -> str | None:
        """Why far fewer clients uploaded than were asked for, if the server knows it."""
        if self.secret is None:
            return None
        return few_uploads(self.plan, self.total.uploads, self.exhausted, self.secret.rounds)

    @property
    def answered(self) -> dict[str, float]:
        """For each stage of a federation's rounds, the share of the questions that was answered."""
        rounds = () if self.secret is None else self.secret.rounds
        shares = {}
        for stage in dict.fromkeys(name for one in rounds for name in one.stages):
            all_ = [one.stages[stage] for one in rounds if stage in one.stages]
            asked = max(1, sum(tally.asked for tally in all_))
            shares[stage] = sum(tally.answered for tally in all_) / asked
        return shares


@dataclass(frozen=True)
class Story:
    """A run; `label` tells it from the others on a page."""

    label: str
    run: PublicRun
    config: Config  # the settings, in public with stand-ins for own code
    words: Words
    arms: Sequence[ArmStory]
    secret: SecretRun | None = None

    @property
    def name(self) -> str:
        """That of the experiment."""
        return self.config.name

    @property
    def settings(self) -> Config:
        """The settings as they may be shown."""
        return self.run.settings if self.secret is None else self.config

    @property
    def score_name(self) -> str:
        """Accuracy, or for numbers R²."""
        return "R²" if isinstance(self.arms[0].metrics, NumberMetrics) else "accuracy"

    @property
    def task(self) -> str | None:
        """The kind of the labels, where it is known."""
        metrics = self.arms[0].metrics
        return None if metrics is None else str(metrics.__struct_config__.tag)

    @property
    def baseline(self) -> float | None:
        """The score of a constant answer, where it is known."""
        metrics = self.arms[0].metrics
        return None if metrics is None else metrics.baseline

    @property
    def scored(self) -> bool:
        """Whether any round may tell how good its model is."""
        return any(point.score is not None for arm in self.arms for point in arm.points)

    @property
    def exact(self) -> bool:
        """Whether counts are true ones."""
        return self.arms[0].exact

    def lines(
        self, x: Pick, y: Pick, first: int = 0, named: str = "", thin: bool = False
    ) -> list[Line]:
        """A line for each arm that has both; `first` is the style of the first."""
        lines = []
        for style, arm in enumerate(self.arms, first):
            both = [(x(point), y(point)) for point in arm.points]
            pairs = [(a, b) for a, b in both if a is not None and b is not None]
            if pairs:
                xs, ys = zip(*pairs, strict=True)
                label = f"{self.label}{arm.name}{named}"
                lines.append(Line(label, xs, ys, style=style, thin=thin))
        return lines


def of_public(run: PublicRun, label: str = "") -> Story:
    """What anybody may know."""
    config = described(run)
    pairs = zip(run.arms, config.arms, strict=True)
    arms = [ArmStory(*pair, run.parameters) for pair in pairs]
    return Story(label, run, config, statement_words(run, config), arms)


def of_run(run: Run, config: Config, label: str = "") -> Story:
    """What the server knows; `config`: its own settings."""
    try:
        public, lost = covered(run), None
    except (OSError, ValueError) as error:  # the journal is on another machine
        public, lost = run.public, f"The journal of the population could not be read ({error})."
    words = statement_words(public, config)
    if lost:
        words = replace(words, warnings=[*words.warnings, lost])
    trios = zip(public.arms, config.arms, run.secret.arms, strict=True)
    arms = [ArmStory(one, plan, public.parameters, hidden) for one, plan, hidden in trios]
    return Story(label, public, config, words, arms, run.secret)


def labelled(stories: Sequence[Story]) -> list[Story]:
    """Several runs with labels that tell them apart: numbered where two are alike."""
    names = [story.label for story in stories]
    return [
        replace(story, label=name if names.count(name) == 1 else f"{name} ({number})")
        for number, (name, story) in enumerate(zip(names, stories, strict=True), 1)
    ]


def against(costs: Sequence[Cost], observer: str) -> list[Cost]:
    """Those against one observer."""
    return [cost for cost in costs if cost.observer == observer]
