"""What both pages say of a run: the promise first, then what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf, isfinite
from operator import attrgetter

import tomli_w

from locksfl._charts import Chart, Line, level
from locksfl._tables import Record
from locksfl._text import epsilon_text, size_text
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
    number_text,
)
from locksfl.experiment.page.story import Pick, Story
from locksfl.experiment.records import score_of
from locksfl.methods import SAMPLINGS, TRUSTS, sampling_of
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
    told, config = story.statement, story.config
    costs = told["all_arms_composed"]
    together = ", all arms together" if len(story.arms) > 1 else ""
    together += ", simulated" if told["simulated"] else ""
    numbers = [
        _number(who, [cost for cost in costs if cost["observer"] == who], config, together)
        for who in reversed(OBSERVERS)
        if any(cost["observer"] == who for cost in costs)
    ]
    played = sorted({int(arm.get("played_rounds") or arm["rounds"]) for arm in story.arms})
    facts = [
        ("clients", f"{config['data']['clients']:,}"),
        ("rounds", " or ".join(f"{rounds:,}" for rounds in played)),
        ("delta", f"{costs[0]['delta']:g}"),
        ("data", str(config["data"]["name"])),
    ]
    for arm in story.arms if story.scored else ():
        facts.append((f"{story.score_name}, {arm['name']}", decimal_text(score_of(arm))))
    if (constant := baseline(story)) is not None:
        facts.append(("a constant answer", decimal_text(constant)))
    note = f"Unit of privacy: {told['unit']}." if any(one.unit for one in numbers) else ""
    return Summary(story.label or told["name"], numbers, facts, note)


def _number(who: Observer, costs: Sequence[Record], config: Record, together: str) -> Number:
    against, about = f"Against the {who.lower()}", OBSERVERS[who]
    if all(cost["epsilon"] is None for cost in costs):
        return Number(against, "no protection", "", about)
    relation = config["privacy"].get("relation", "zero-out")
    large, *others = sorted(costs, key=lambda cost: cost["relation"] != relation)
    besides = "; ".join(
        f"{epsilon_text(other['epsilon'])} ({other['relation']})" for other in others
    )
    unit = f"epsilon ({large['relation']}){together}"
    return Number(against, epsilon_text(large["epsilon"]), unit, f"{besides}. {about.capitalize()}")


def baseline(story: Story) -> float | None:
    """The score of a constant answer, where it is known."""
    return (story.arms[0].get("metrics") or {}).get("baseline")


def promise(story: Story) -> list[Section]:
    """The privacy statement."""
    words = story.statement["words"]
    sees = [
        f"**{who.capitalize()}** {words['sees'][who]}." for who in OBSERVERS if who in words["sees"]
    ]
    who: list[Block] = [Text(words["trust"]), Listing(sees)]
    promised: list[Block] = [Text(words["short"]), Text(words["scope"])]
    if words["delta"]:
        promised.append(Text(words["delta"]))
    promised += [Text(text) for text in (*words["meaning"], words["factor"]) if text]
    promised += [costs_table(story), *map(Text, words["reservations"])]
    return [
        Section("Who learns what", who),
        Section("What is promised, and for whom", promised),
        Section("What is not promised", [Listing(words["not_protected"])]),
    ]


def costs_table(story: Story) -> Table:
    """Every epsilon: arms, observers, relations."""
    arms = [(arm["name"], arm["privacy"]) for arm in story.arms]
    if len(arms) > 1:
        arms.append(("all arms together", story.statement["all_arms_composed"]))
    rows, seen_by = [], [who for who in OBSERVERS if who in {c["observer"] for c in arms[0][1]}]
    for name, costs in arms:
        for relation in RELATIONS:
            mine = {cost["observer"]: cost for cost in costs if cost["relation"] == relation}
            by = {cost["accountant"] for cost in mine.values()} - {"none"}
            epsilons = (epsilon_text(mine[who]["epsilon"], 3) for who in seen_by)
            rows.append((name, relation, *epsilons, ", ".join(sorted(by)) or "–"))
    heads = ("arm", "relation", *(f"ε {who}" for who in seen_by), "accountant")
    return Table(heads, rows, left=2)


def results(stories: Sequence[Story]) -> Section:
    """How good the models are, by what it took."""
    scored = [story for story in stories if story.scored]
    if not scored:
        told = NO_SCORE if all(map(_scores_public, stories)) else WITHHELD
        return Section("How good the models are", [Text(told)])
    blocks: list[Block] = []
    if not all(map(_scores_public, scored)):
        blocks.append(Text(NOT_A_RELEASE))
    name = scored[0].score_name
    firsts = styles(stories)
    told = "." if all(story.exact for story in scored) else ", estimated from what is public."
    sent = [story for story in scored if story.counts_bytes]
    for axis, pick, of, caption in (
        ("round", ROUND, scored, "By round. A click on a name hides its line."),
        ("epsilon spent", EPSILON, scored, "By what the rounds so far have spent of epsilon."),
        ("sent by all clients (MB)", SENT, sent, f"By what all clients have sent{told}"),
    ):
        if lines := _lines(of, pick, attrgetter("score"), firsts):
            blocks.append(Figure(_scores(axis, name, lines, scored), caption))
    return Section("How good the models are", [*blocks, *_metrics(scored)])


def _scores_public(story: Story) -> bool:
    """Whether the records are public on which scores are measured."""
    return bool(story.statement["held_out"]["public"])


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
    constants = {constant for story in stories if (constant := baseline(story)) is not None}
    levels = [level("a constant answer", constant, lines) for constant in sorted(constants)]
    return Chart(axis, name, [*lines, *levels], least_range=0.1)


def _metrics(stories: Sequence[Story]) -> list[Block]:
    """The metrics of the last models, a column for each arm, each beside a constant answer."""
    columns = [(f"{story.label}{arm['name']}", arm) for story in stories for arm in story.arms]
    found = {label: {**(arm.get("metrics") or {}), **_last(arm)} for label, arm in columns}
    rows = []
    for name, words, *constant in METRICS:
        if any(name in told for told in found.values()):
            same = {told.get(one) for told in found.values() for one in constant}
            beside = decimal_text(same.pop()) if len(same) == 1 else ""
            rows.append((words, *(decimal_text(told.get(name)) for told in found.values()), beside))
    blocks: list[Block] = [Table(("", *found, "a constant answer"), rows)]
    unsure = [
        f"**{label}** is NOT SHOWN TO BE BETTER than a constant answer (95%: {low:+.3f} to "
        f"{told['gain_high']:+.3f})."
        for label, told in found.items()
        if (low := told.get("gain_low")) is not None and low <= 0
    ]
    kind = next((story.statement.get("task") for story in stories), None)
    what = BASELINES.get(str(kind), "the best answer that is always the same")
    blocks.append(
        Text(f"A constant answer ({what}) is the least that a model has to be better than.")
    )
    return [*blocks, *([Listing(unsure)] if unsure else [])]


def _last(arm: Record) -> Record:
    """The score as the rounds have it, if there is one."""
    return {name: arm[name] for name in ("accuracy", "r2", "loss") if arm.get(name) is not None}


def asked(stories: Sequence[Story]) -> Section:
    """Who was asked and who uploaded, in numbers that may be shown."""
    lines, rows = [], []
    firsts = styles(stories)
    for story in stories:
        first = firsts[story.label]
        lines += story.lines(ROUND, attrgetter("uploads"), first, ": uploaded")
        lines += story.lines(ROUND, attrgetter("asked"), first, ": asked", thin=True)
        for arm in story.arms:
            points = story.points[arm["name"]]
            sent = [point.bytes_up for point in points]
            total = None if None in sent else size_text(sum(one or 0 for one in sent))
            rows.append(
                (
                    f"{story.label}{arm['name']}",
                    f"{sum(point.asked for point in points) / len(points):,.1f}",
                    f"{max(0, sum(point.uploads for point in points)) / len(points):,.1f}",
                    number_text(total),
                )
            )
    heads = ("arm", "asked a round", "uploaded a round", "sent by all")
    figure = Figure(Chart("round", "clients", lines, from_zero=True), "Clients in each round.")
    known = {_known_by(story, arm) for story in stories for arm in story.arms}
    texts = (*COUNTS.values(), *(scheme.counts for scheme in SAMPLINGS.values()))
    told = Text(" ".join(text for text in texts if text in known))
    return Section("Who was asked, and who uploaded", [figure, Table(heads, rows), told])


def _known_by(story: Story, arm: Record) -> str:
    if story.exact:
        guards = TRUSTS[story.config["privacy"]["trust"]].guards_server
        return COUNTS["own noise" if guards else "no noise"]
    if all(p.uploads == story.config["data"]["clients"] for p in story.points[arm["name"]]):
        return COUNTS["everybody"]
    tables = {table["name"]: table for table in story.config["arm"]}
    return sampling_of(tables[arm["name"]]).counts


def budget(stories: Sequence[Story]) -> Section:
    """What the rounds spent, up to the line that they must not cross."""
    lines = _lines(stories, ROUND, EPSILON, styles(stories))
    if not lines:
        none = Text("Nothing was spent that could be counted: no noise was added, and no epsilon.")
        return Section("What the budget was, and what was spent", [none])
    limits = {
        float(limit)
        for story in stories
        for name in ("epsilon", "max_epsilon")
        if isfinite(limit := story.config["privacy"].get(name, inf))
    }
    levels = [level("budget of an arm", limit, lines) for limit in sorted(limits)]
    relations = sorted({story.config["privacy"].get("relation", "zero-out") for story in stories})
    chart = Chart("round", f"epsilon ({', '.join(relations)})", [*lines, *levels], from_zero=True)
    caption = (
        "Epsilon of the rounds so far, of each arm by itself, against the observer from whom this "
        "training protects. The promise is that of all planned rounds."
    )
    blocks: list[Block] = [Figure(chart, caption)]
    for story in stories:
        if covers := story.statement["covers"]:
            blocks += _population(covers)
    return Section("What the budget was, and what was spent", blocks)


def _population(covers: Record) -> list[Block]:
    """All runs over the same people, as their journal has them."""
    total, runs = covers["total"], covers["runs"]
    said = (
        f"The journal of population **{covers['population']}** allows all runs over these people "
        f"epsilon {total['epsilon']:g} in total. So far they have used {covers['share']:.1%} of it."
    )
    rows = [(run["run"], epsilon_text(run["epsilon"]), f"{run['share']:.1%}") for run in runs]
    spent = [100 * part for part in accumulate(run["share"] for run in runs)]
    line = Line(covers["population"], range(1, len(runs) + 1), spent, style=0)
    chart = Chart("run", "% of the total", [line, level("the total", 100, [line])], from_zero=True)
    caption = "What all runs over the same people have used of the total that was fixed for them."
    table = Table(("run", "epsilon by itself", "of the total"), rows)
    return [Text(said), Figure(chart, caption), table]


def configuration(config: Record) -> Section:
    """The experiment, as a file that can be run."""
    return Section("Configuration", [Code(tomli_w.dumps(config))])
