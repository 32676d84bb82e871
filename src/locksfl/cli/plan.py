"""`locks plan`: which rule, how many rounds and which cohort, before any budget is spent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from locksfl._charts import Chart, Line
from locksfl._files import write_atomically
from locksfl._svg import MARKERS, svg_file
from locksfl._text import markdown_table, size_text
from locksfl.cli.console import RELATION_HELP, Json, check_picture, option, show

if TYPE_CHECKING:
    from locksfl.privacy.advice import Advice, AtTotal, Gain
    from locksfl.privacy.planner import PlanNumbers

LINES = (  # of the table of plans: label, key, form
    ("rounds", "rounds", "{:,}"),
    ("clients asked a round", "cohort", "{:,.0f}"),
    ("uploads a round", "uploads", "{:,.1f}"),
    ("uploads in all", "uploads_in_all", "{:,.0f}"),
    ("noise multiplier", "noise_multiplier", "{:.3f}"),
    ("norm multiplier", "norm_multiplier", "{:.2f}"),
    ("noise / clip norm", "noise", "{:.3g}"),
    ("sampling variance", "sampling_variance", "{:.2g}"),
    ("share of the mean kept", "kept", "{:.2f}"),
    ("predicted error", "error", "{:.3g}"),
    ("up in all", "bytes_up", "bytes"),
    ("down in all", "bytes_down", "bytes"),
)
# what --pays compares, where the flags do not say
POPULATIONS = (100, 1_000, 10_000, 60_000)
EPSILONS = (2.0, 8.0)
UPLOADS = (20.0, 60.0, 300.0)
PAID_SHARES = (0.1, 0.3, 0.7)
PAID_ROUNDS, PAID_PARAMETERS = 200, 7850


def plan(
    clients: Annotated[int | None, option("n, all clients.")] = None,
    parameters: Annotated[int | None, option("d, the size of the model.")] = None,
    epsilon: Annotated[float | None, option("The total epsilon of the run.")] = None,
    delta: Annotated[float, option("Below 1/n.")] = 1e-5,
    trust: Annotated[str, option("central | local")] = "central",
    uploads: Annotated[float | None, option("The most uploads a round.")] = None,
    uploads_in_all: Annotated[float | None, option("The uploads of all rounds.")] = None,
    downloads: Annotated[float | None, option("The most clients asked a round.")] = None,
    downloads_in_all: Annotated[float | None, option("The downloads of all rounds.")] = None,
    rounds: Annotated[int | None, option("The most rounds. Default: 1,000.")] = None,
    norm_share: Annotated[
        float | None, option("Mean clipped norm over the clip norm. Default: as measured.")
    ] = None,
    progress: Annotated[
        float | None,
        option("The criterion's one constant. Default: 5; less where clients differ much."),
    ] = None,
    relation: Annotated[str, option(RELATION_HELP)] = "zero-out",
    accountant: Annotated[str, option("pld | rdp")] = "pld",
    figure: Annotated[Path | None, option("Draw the frontier to this SVG file.")] = None,
    pays: Annotated[
        bool, option("Print when sampling by norm pays, as a Markdown table.", "--pays")
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose the rule, the rounds and the cohort, and say what to expect. Uses no data."""
    settings = {
        name: value
        for name, value in locals().items()
        if value is not None and name not in ("figure", "pays", "as_json")
    }
    from locksfl.privacy.advice import advise
    from locksfl.privacy.planner import Question

    check_picture("--figure", figure)
    if pays:
        show(list(_gain_rows(settings)), as_json, gain_table)
        return
    for name in ("clients", "parameters", "epsilon"):
        if name not in settings:
            raise ValueError(f"--{name} is missing: expected a number")
    advice = advise(Question(**settings))
    if figure is not None:
        write_atomically(figure, frontier_figure(advice).encode())
    show(advice, as_json, words)


def words(advice: Advice) -> Iterator[str]:
    """The plan for a person."""
    q, assumed = advice.question, advice.assumed
    yield from _headline(advice)
    taken = advice.plans[advice.rule]
    yield (
        f"Take rule {taken.rule}: {taken.rounds:,} rounds, {taken.cohort:,.0f} clients "
        f"asked and {taken.uploads:,.1f} uploads a round: {advice.reason}."
    )
    yield ""
    yield from _plans([*advice.plans.values(), advice.full])
    yield ""
    yield from _frontier_table(advice.frontier)
    yield (
        "Criterion: (A / T)^2 + ((noise^2 + sampling variance) / T)^(2/3), "
        f"A = {q.progress:g} r^(2/3), r = {assumed.norm_share:g}."
    )
    yield f"  Lengths are in clip norms; norms: {assumed.norms}."
    yield (
        "  In 12 cells that had no say in it, the planned rounds were 0 to 2.2 points behind the "
        "best; most where clients differ much."
    )
    tried = {plan.rounds for plan in advice.plans.values()}
    if q.rounds is None and assumed.most_rounds in tried:
        yield f"  No more than {max(tried):,} rounds were tried: --rounds allows more."
    if q.delta >= 1 / q.clients:
        yield (
            f"Warning: delta = {q.delta:g} is not below 1/n = {1 / q.clients:g}: publishing "
            "one client's data whole would be allowed by it."
        )


def _headline(advice: Advice) -> Iterator[str]:
    reach = f"reach {advice.reach:.2g}: all rounds' signal over their noise"
    least = f"{advice.smallest_clients:,}"
    if advice.verdict == "hopeless":
        yield (
            "Training will fail: no number of rounds makes up for the noise "
            f"({reach}; {advice.reach_needed:g} is needed)."
        )
        yield (
            f"At this epsilon and trust about {least} clients would be needed; "
            f"{advice.question.clients:,} are there."
        )
        return
    outlook = {
        "hard": "Training will be hard: expect much less than without privacy",
        "fine": "Training can work",
    }[advice.verdict]
    yield f"{outlook} ({reach})."
    yield f"It would be hopeless below about {least} clients."


def _plans(plans: list[PlanNumbers]) -> Iterator[str]:
    """Plans side by side."""
    yield f"{'':<26}" + "".join(f"{plan.rule:>12}" for plan in plans)
    for label, key, form in LINES:
        values = [getattr(plan, key) for plan in plans]
        if any(value is not None for value in values):
            yield f"{label:<26}" + "".join(f"{_cell(value, form):>12}" for value in values)


def _frontier_table(rows: list[AtTotal]) -> Iterator[str]:
    """Predicted error (rounds) by uploads in all."""
    rules = list(dict.fromkeys(row.rule for row in rows))
    yield "Predicted error (rounds) by uploads in all:"
    yield f"{'':>12}" + "".join(f"{rule:>17}" for rule in rules)
    for total in dict.fromkeys(row.total for row in rows):
        here = [row for row in rows if row.total == total]
        cells = {row.rule: f"{row.error:.3g} ({row.rounds:,})" for row in here}
        yield f"{total:>12,.0f}" + "".join(f"{cells.get(rule, '-'):>17}" for rule in rules)


def frontier_figure(advice: Advice) -> str:
    """The predicted error against the uploads in all, one line for each rule, as SVG."""
    q, rows, full = advice.question, advice.frontier, advice.full
    lines = []
    for number, rule in enumerate(dict.fromkeys(row.rule for row in rows)):
        of_rule = [row for row in rows if row.rule == rule]
        uploads, errors = [row.total for row in of_rule], [row.error for row in of_rule]
        lines.append(Line(rule, uploads, errors, number))
    everyone = f"every client, {full.rounds} rounds"
    lines.append(Line(everyone, [full.uploads_in_all], [full.error], len(MARKERS) - 1))
    title = f"n = {q.clients:,}, d = {q.parameters:,}, epsilon {q.epsilon:g}, {q.trust}"
    chart = Chart("uploads in all", "predicted error", lines, log_x=True, log_y=True)
    return svg_file([chart], title, width=760, height=320)


@dataclass(frozen=True)
class GainRow:
    """What sampling by norm gains in one setting, for each rule that asks for norms."""

    clients: int
    epsilon: float
    uploads: float  # a round
    norm_share: float
    gains: dict[str, Gain]


def _gain_rows(settings: dict[str, int | float | str]) -> Iterator[GainRow]:
    """The theory's columns of "when does sampling by norm pay": for each value of the flags, or the
    ones above, in which a cohort is not larger than the population."""
    from locksfl.privacy.advice import gains
    from locksfl.privacy.planner import Question

    def values(name: str, usual: tuple[float, ...]) -> tuple[Any, ...]:
        return (settings[name],) if name in settings else usual

    axes = {
        "clients": POPULATIONS,
        "epsilon": EPSILONS,
        "uploads": UPLOADS,
        "norm_share": PAID_SHARES,
    }
    for n, epsilon, uploads, share in itertools.product(*itertools.starmap(values, axes.items())):
        if uploads <= share * n:
            here: Any = settings | {"clients": n, "epsilon": epsilon}
            q = Question(**{"rounds": PAID_ROUNDS, "parameters": PAID_PARAMETERS} | here)
            gained = gains(q, q.rounds or PAID_ROUNDS, uploads, share)
            yield GainRow(n, epsilon, uploads, share, gained)


def gain_table(rows: list[GainRow]) -> Iterator[str]:
    """Markdown: each rule over uniform sampling with the same uploads, clip norm and epsilon."""
    if not rows:
        raise ValueError("--pays: no cohort fits; expected fewer --uploads or more --clients")
    heads = ["n", "epsilon", "uploads", "r", "asked"]
    for name in rows[0].gains:
        heads += [f"{name}: noise", "sampling variance", "both"]
    cells = []
    for row in rows:
        each = list(row.gains.values())
        sizes = (f"{row.clients:,}", f"{row.epsilon:g}", f"{row.uploads:g}", f"{row.norm_share:g}")
        ratios = (f"{x:.2f}" for g in each for x in (g.noise, g.sampling_variance, g.error))
        cells.append([*sizes, f"{each[0].cohort:,.0f}", *ratios])
    yield markdown_table(heads, cells)


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return size_text(value) if form == "bytes" else form.format(value)
