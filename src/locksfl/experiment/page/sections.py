"""What both pages say of a run: the promise first, then what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from operator import attrgetter

import tomli_w
from msgspec import structs

from locksfl._charts import Chart, Line, level
from locksfl._text import epsilon_text, size_text
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.metrics import BASELINES
from locksfl.experiment.page.blocks import (
    Block,
    Code,
    Figure,
    Listing,
    Number,
    Section,
    Summary,
    Table,
    Text,
    decimal_text,
)
from locksfl.experiment.page.story import ArmStory, Pick, Story, against
from locksfl.experiment.record import Cost, Covers
from locksfl.experiment.statement import unit_text
from locksfl.methods import SAMPLINGS, TRUSTS
from locksfl.methods.releases import OBSERVERS, RELATIONS, Observer

METRICS = (  # name in the summary, in words, and that of a constant answer if it has one
    ("accuracy", "accuracy", "baseline"),
    ("r2", "R²", "baseline"),
    ("gain", "better than a constant answer by"),
    ("balanced_accuracy", "balanced accuracy"),
    ("auc", "AUC"),
    ("f1", "F1"),
    ("f1_micro", "F1, micro"),
    ("f1_macro", "F1, macro"),
    ("exact_match", "exact match", "baseline_exact_match"),
    ("calibration_error", "calibration error"),
    ("rmse", "root mean square error", "baseline_rmse"),
    ("mae", "mean absolute error", "baseline_mae"),
    ("loss", "loss"),
)
ROUND, EPSILON, SENT = map(attrgetter, ("round", "epsilon", "sent"))  # of a point
WITHHELD = (
    "Accuracy is withheld: it was measured on people who were held out, and no epsilon covers them."
)
NO_SCORE = "No round has a score: none was measured, or none that is a number."
NOT_A_RELEASE = (
    "**Not a release:** it was measured on people who were held out. No epsilon covers them, so "
    "neither these figures nor a choice made by looking at them may leave the server."
)
COUNTS = {  # how the numbers of clients are known
    "own noise": "Every client's messages carry its own noise, so these counts are exact.",
    "no noise": "Nobody added noise, and these counts of the server are exact.",
    "everybody": "Every client was asked in every round, and uploaded.",
}


def summary_box(story: Story) -> Summary:
    """The numbers that a reader looks for."""
    run, config = story.run, story.config
    together = ", all arms together" if len(story.arms) > 1 else ""
    together += ", simulated" if run.simulated else ""
    numbers = [
        _number(who, against(run.all_arms, who), config.privacy.relation, together)
        for who in reversed(OBSERVERS)
        if against(run.all_arms, who)
    ]
    played = sorted({arm.played for arm in run.arms})
    facts = [
        ("clients", f"{config.clients:,}"),
        ("rounds", " or ".join(f"{rounds:,}" for rounds in played)),
        ("delta", f"{run.all_arms[0].delta:g}"),
        ("data", config.data.name),
    ]
    for arm in story.arms if story.scored else ():
        facts.append((f"{story.score_name}, {arm.name}", decimal_text(arm.score)))
    if story.baseline is not None:
        facts.append(("a constant answer", decimal_text(story.baseline)))
    note = f"Unit of privacy: {unit_text(config)}." if any(one.unit for one in numbers) else ""
    return Summary(story.label or story.name, numbers, facts, note)


def _number(who: Observer, costs: Sequence[Cost], relation: str, together: str) -> Number:
    whom, about = f"Against the {who.lower()}", OBSERVERS[who]
    if all(cost.epsilon is None for cost in costs):
        return Number(whom, "no protection", "", about)
    large, *others = sorted(costs, key=lambda cost: cost.relation != relation)
    besides = "; ".join(f"{epsilon_text(other.epsilon)} ({other.relation})" for other in others)
    unit = f"epsilon ({large.relation}){together}"
    return Number(whom, epsilon_text(large.epsilon), unit, f"{besides}. {about.capitalize()}")


def promise(story: Story) -> list[Section]:
    """The privacy statement."""
    words = story.words
    sees = [f"**{who.capitalize()}** {words.sees[who]}." for who in OBSERVERS if who in words.sees]
    who: list[Block] = [Text(words.trust), Listing(sees)]
    promised: list[Block] = [Text(words.short), Text(words.scope)]
    if words.delta:
        promised.append(Text(words.delta))
    promised += [Text(text) for text in (*words.meaning, words.factor) if text]
    promised += [costs_table(story), *map(Text, words.reservations)]
    return [
        Section("Who learns what", who),
        Section("What is promised, and for whom", promised),
        Section("What is not promised", [Listing(words.not_protected)]),
    ]


def costs_table(story: Story) -> Table:
    """Every epsilon: arms, observers, relations."""
    lists = [(arm.name, arm.privacy) for arm in story.run.arms]
    if len(lists) > 1:
        lists.append(("all arms together", story.run.all_arms))
    rows, seen_by = [], [who for who in OBSERVERS if against(story.run.all_arms, who)]
    for name, costs in lists:
        for relation in RELATIONS:
            mine = {cost.observer: cost for cost in costs if cost.relation == relation}
            by = {cost.accountant for cost in mine.values()} - {"none"}
            epsilons = (epsilon_text(mine[who].epsilon, 3) for who in seen_by)
            rows.append((name, relation, *epsilons, ", ".join(sorted(by)) or "–"))
    heads = ("arm", "relation", *(f"ε {who}" for who in seen_by), "accountant")
    return Table(heads, rows, left=2)


def results(stories: Sequence[Story]) -> Section:
    """How good the models are, by what it took."""
    scored = [story for story in stories if story.scored]
    public = [story.run.held_out.public for story in scored or stories]
    if not scored:
        return Section("How good the models are", [Text(NO_SCORE if all(public) else WITHHELD)])
    blocks: list[Block] = [] if all(public) else [Text(NOT_A_RELEASE)]
    name = scored[0].score_name
    firsts = styles(stories)
    known = "." if all(story.exact for story in scored) else ", estimated from what is public."
    for axis, pick, caption in (
        ("round", ROUND, "By round. A click on a name hides its line."),
        ("epsilon spent", EPSILON, "By what the rounds so far have spent of epsilon."),
        ("sent by all clients (MB)", SENT, f"By what all clients have sent{known}"),
    ):
        if lines := _lines(scored, pick, attrgetter("score"), firsts):
            blocks.append(Figure(_scores(axis, name, lines, scored), caption))
    return Section("How good the models are", [*blocks, *_metrics(scored)])


def styles(stories: Sequence[Story]) -> dict[str, int]:
    """The style of each story's first line, so that no two lines of a figure look alike."""
    firsts, count = {}, 0
    for story in stories:
        firsts[story.label] = count
        count += len(story.arms)
    return firsts


def _lines(stories: Sequence[Story], x: Pick, y: Pick, firsts: dict[str, int]) -> list[Line]:
    """Those of all stories, each in its style."""
    return [line for story in stories for line in story.lines(x, y, firsts[story.label])]


def _scores(axis: str, name: str, lines: list[Line], stories: Sequence[Story]) -> Chart:
    constants = {story.baseline for story in stories if story.baseline is not None}
    levels = [level("a constant answer", constant, lines) for constant in sorted(constants)]
    return Chart(axis, name, [*lines, *levels], least_range=0.1)


def _metrics(stories: Sequence[Story]) -> list[Block]:
    """The metrics of the last models, a column for each arm, each beside a constant answer."""
    columns = {f"{story.label}{arm.name}": arm for story in stories for arm in story.arms}
    values = {label: _measured(arm) for label, arm in columns.items()}
    rows = []
    for name, words, *constant in METRICS:
        if any(name in one for one in values.values()):
            same = {one.get(beside) for one in values.values() for beside in constant}
            beside = decimal_text(same.pop()) if len(same) == 1 else ""
            rows.append((words, *(decimal_text(one.get(name)) for one in values.values()), beside))
    blocks: list[Block] = [Table(("", *values, "a constant answer"), rows)]
    unsure = [
        f"**{label}** is NOT SHOWN TO BE BETTER than a constant answer (95%: {low:+.3f} to "
        f"{one['gain_high']:+.3f})."
        for label, one in values.items()
        if (low := one.get("gain_low")) is not None and low <= 0
    ]
    what = BASELINES.get(stories[0].task or "", "the best answer that is always the same")
    blocks.append(
        Text(f"A constant answer ({what}) is the least that a model has to be better than.")
    )
    return [*blocks, *([Listing(unsure)] if unsure else [])]


def _measured(arm: ArmStory) -> dict[str, float | None]:
    """The metrics by name, the score as the rounds have it."""
    if arm.metrics is None:
        return {}
    values: dict[str, float | None] = structs.asdict(arm.metrics)
    if (last := arm.scores(-1)) is not None:
        own = {"r2" if "r2" in values else "accuracy": last.score, "loss": last.loss}
        values |= {name: value for name, value in own.items() if value is not None}
    return values


def asked(stories: Sequence[Story]) -> Section:
    """Who was asked and who uploaded, in numbers that may be shown."""
    lines, rows = [], []
    firsts = styles(stories)
    for story in stories:
        first = firsts[story.label]
        lines += story.lines(ROUND, attrgetter("uploads"), first, ": uploaded")
        lines += story.lines(ROUND, attrgetter("asked"), first, ": asked", thin=True)
        for arm in story.arms:
            count, total = len(arm.points), arm.total
            rows.append(
                (
                    f"{story.label}{arm.name}",
                    f"{total.cohort / count:,.1f}",
                    f"{total.uploads / count:,.1f}",
                    size_text(total.bytes_up),
                )
            )
    heads = ("arm", "asked a round", "uploaded a round", "sent by all")
    figure = Figure(Chart("round", "clients", lines, from_zero=True), "Clients in each round.")
    known = {_known_by(story, arm) for story in stories for arm in story.arms}
    texts = (*COUNTS.values(), *(scheme.counts for scheme in SAMPLINGS.values()))
    how = Text(" ".join(text for text in texts if text in known))
    return Section("Who was asked, and who uploaded", [figure, Table(heads, rows), how])


def _known_by(story: Story, arm: ArmStory) -> str:
    if story.exact:
        guards = TRUSTS[story.config.privacy.trust].guards_server
        return COUNTS["own noise" if guards else "no noise"]
    if all(point.uploads == story.config.clients for point in arm.points):
        return COUNTS["everybody"]
    return arm.plan.scheme.counts


def budget(stories: Sequence[Story]) -> Section:
    """What the rounds spent, up to the line that they must not cross."""
    lines = _lines(stories, ROUND, EPSILON, styles(stories))
    if not lines:
        none = Text("Nothing was spent that could be counted: no noise was added, and no epsilon.")
        return Section("What the budget was, and what was spent", [none])
    privacy = [story.config.privacy for story in stories]
    limits = {limit for one in privacy for limit in (one.epsilon, one.max_epsilon)} - {None, inf}
    levels = [level("budget of an arm", limit, lines) for limit in sorted(filter(None, limits))]
    relations = sorted({one.relation for one in privacy})
    chart = Chart("round", f"epsilon ({', '.join(relations)})", [*lines, *levels], from_zero=True)
    caption = (
        "Epsilon of the rounds so far, of each arm by itself, against the observer from whom this "
        "training protects. The promise is that of all planned rounds."
    )
    blocks: list[Block] = [Figure(chart, caption)]
    for story in stories:
        if story.run.covers:
            blocks += _population(story.run.covers)
    return Section("What the budget was, and what was spent", blocks)


def _population(covers: Covers) -> list[Block]:
    """All runs over the same people, as their journal has them."""
    runs = covers.runs
    said = (
        f"The journal of population **{covers.population}** allows all runs over these people "
        f"epsilon {covers.total.epsilon:g} in total. So far they have used {covers.share:.1%} of "
        "it."
    )
    rows = [(run.run, epsilon_text(run.epsilon), f"{run.share:.1%}") for run in runs]
    spent = [100 * part for part in accumulate(run.share for run in runs)]
    line = Line(covers.population, range(1, len(runs) + 1), spent, style=0)
    chart = Chart("run", "% of the total", [line, level("the total", 100, [line])], from_zero=True)
    caption = "What all runs over the same people have used of the total that was fixed for them."
    table = Table(("run", "epsilon by itself", "of the total"), rows)
    return [Text(said), Figure(chart, caption), table]


def configuration(config: Config) -> Section:
    """The experiment, as a file that can be run."""
    return Section("Configuration", [Code(tomli_w.dumps(to_table(config)))])
