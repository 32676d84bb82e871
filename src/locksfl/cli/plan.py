"""`locks plan`: which rule, how many rounds and which cohort, before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from locksfl._text import size_text
from locksfl.cli.console import RELATION_HELP, Json, option, show

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
        float | None, option("Mean clipped norm over the clip norm, if known.")
    ] = None,
    progress: Annotated[
        float | None, option("The criterion's one constant. Default: 1.5, chosen on MNIST.")
    ] = None,
    relation: Annotated[str, option(RELATION_HELP)] = "zero-out",
    accountant: Annotated[str, option("pld | rdp")] = "pld",
    figure: Annotated[Path | None, option("Draw the frontier to this PNG file.")] = None,
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
    from locksfl.privacy.planner import Question, advise

    if pays:
        show(list(_gain_rows(settings)), as_json, gain_table)
        return
    for name in ("clients", "parameters", "epsilon"):
        if name not in settings:
            raise ValueError(f"--{name} is missing: expected a number")
    told = advise(Question(**settings))
    if figure is not None:
        draw_frontier(told, figure)
    show(told, as_json, words)


def words(told: dict[str, Any]) -> Iterator[str]:
    """The plan for a person."""
    q, answers = told["question"], told["answers"]
    yield from _headline(told)
    yield ""
    if len(answers) == 1:
        yield from _recommended(answers[0], told["full"])
        yield ""
        yield from _plans([*answers[0]["plans"].values(), told["full"]])
    else:
        yield from _by_share(answers, told["full"])
    yield ""
    yield from _frontier_table(told["frontier"])
    yield f"Criterion: A / T + sqrt((noise^2 + sampling variance) / T), A = {q['progress']:g}."
    yield f"  Lengths are in clip norms; norms: {told['assumed']['norms']}."
    tried = {plan["rounds"] for answer in answers for plan in answer["plans"].values()}
    if q["rounds"] is None and told["assumed"]["most_rounds"] in tried:
        yield f"  No more than {max(tried):,} rounds were tried: --rounds allows more."
    if q["delta"] >= 1 / q["clients"]:
        yield (
            f"Warning: delta = {q['delta']:g} is not below 1/n = {1 / q['clients']:g}: publishing "
            "one client's data whole would be allowed by it."
        )


def _headline(told: dict[str, Any]) -> Iterator[str]:
    q, found = told["question"], f"reach {told['reach']:.2g}: all rounds' signal over their noise"
    if told["verdict"] == "hopeless":
        yield (
            "Training will fail: no number of rounds makes up for the noise "
            f"({found}; {told['reach_needed']:g} is needed)."
        )
        yield (
            f"At this epsilon and trust about {told['smallest_clients']:,} clients would be "
            f"needed; {q['clients']:,} are there."
        )
        return
    said = {
        "hard": "Training will be hard: expect much less than without privacy",
        "fine": "Training can work",
    }[told["verdict"]]
    yield f"{said} ({found})."
    yield f"It would be hopeless below about {told['smallest_clients']:,} clients."


def _recommended(answer: dict[str, Any], full: dict[str, Any]) -> Iterator[str]:
    taken = answer["plans"][answer["rule"]]
    yield (
        f"Take rule {answer['rule']}: {taken['rounds']:,} rounds, {taken['cohort']:,.0f} clients "
        f"asked and {taken['uploads']:,.1f} uploads a round."
    )
    yield (
        f"Predicted error {taken['error']:.3g}; with every client in as many rounds "
        f"{full['error']:.3g}."
    )


def _plans(plans: list[dict[str, Any]]) -> Iterator[str]:
    """Plans side by side."""
    yield f"{'':<26}" + "".join(f"{plan['rule']:>12}" for plan in plans)
    for label, key, form in LINES:
        if any(plan[key] is not None for plan in plans):
            yield f"{label:<26}" + "".join(f"{_cell(plan[key], form):>12}" for plan in plans)


def _by_share(answers: list[dict[str, Any]], full: dict[str, Any]) -> Iterator[str]:
    """How the answer changes with the mean norm."""
    yield "r, the mean norm over the clip norm, is not known (--norm-share). By r:"
    keys = ("rounds", "cohort", "uploads", "noise", "sampling_variance", "error")
    forms = {key: form for _, key, form in LINES}
    heads = ("rounds", "asked", "uploads", "noise", "sampling", "error")
    plain = next(iter(answers[0]["plans"]))
    yield f"{'r':>5}  {'rule':<8}" + "".join(f"{head:>10}" for head in heads) + f"  of {plain}'s"
    for answer in answers:
        theirs = answer["plans"][plain]["error"]
        for name, plan in answer["plans"].items():
            cells = "".join(f"{_cell(plan[key], forms[key]):>10}" for key in keys)
            mark = "  <- take it" if name == answer["rule"] else ""
            share = f"{answer['norm_share']:g}" if name == plain else ""
            yield f"{share:>5}  {name:<8}{cells}{plan['error'] / theirs:>8.2f}{mark}"
    cells = "".join(f"{_cell(full[key], forms[key]):>10}" for key in keys)
    yield f"{'1':>5}  {full['rule']:<8}{cells}   for reference"
    yield "  (noise by RDP: a little more than a run's)"


def _frontier_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Predicted error (rounds) by uploads in all."""
    lines = dict.fromkeys(_line(row) for row in rows)
    yield "Predicted error (rounds) by uploads in all:"
    yield f"{'':>12}" + "".join(f"{line:>17}" for line in lines)
    for total in dict.fromkeys(row["total"] for row in rows):
        cells = {
            _line(row): f"{row['error']:.3g} ({row['rounds']:,})"
            for row in rows
            if row["total"] == total
        }
        yield f"{total:>12,.0f}" + "".join(f"{cells.get(line, '-'):>17}" for line in lines)


def _line(row: dict[str, Any]) -> str:
    from locksfl.methods import RULES

    asks = RULES[row["rule"]].asks is not None
    return f"{row['rule']}, r = {row['norm_share']:g}" if asks else str(row["rule"])


def draw_frontier(told: dict[str, Any], path: Path) -> None:
    """The predicted error against the uploads in all, one line for each rule and mean norm."""
    from locksfl.experiment.figures import DASHES, legend_below, look, plotting, save_figure

    if path.suffix != ".png":
        raise ValueError(f"--figure {path}: expected a file that ends in .png")
    q, rows = told["question"], told["frontier"]
    figure, axes = plotting().subplots(figsize=(6, 4))
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    for line in dict.fromkeys(_line(row) for row in rows):
        of_line = [row for row in rows if _line(row) == line]
        shares = sorted({row["norm_share"] for row in rows if row["rule"] == of_line[0]["rule"]})
        style = look(rules.index(of_line[0]["rule"]))
        style["ls"] = DASHES[shares.index(of_line[0]["norm_share"]) % len(DASHES)]
        x, y = ([row[key] for row in of_line] for key in ("total", "error"))
        axes.loglog(x, y, **style, label=line)
    full = told["full"]
    axes.plot(
        full["uploads_in_all"], full["error"], "k*", label=f"every client, {full['rounds']} rounds"
    )
    axes.set_xlabel("uploads in all")
    axes.set_ylabel("predicted error")
    axes.set_title(
        f"n = {q['clients']:,}, d = {q['parameters']:,}, epsilon {q['epsilon']:g}, {q['trust']}"
    )
    legend_below(figure, axes, fontsize=8)
    save_figure(figure, path, only_png=True)


def _gain_rows(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The theory's columns of "when does sampling by norm pay": for each value of the flags, or the
    ones above, in which a cohort is not larger than the population."""
    from locksfl.privacy.planner import Question, gains

    usual = {"rounds": PAID_ROUNDS, "parameters": PAID_PARAMETERS}
    for n in _values(settings, "clients", POPULATIONS):
        for epsilon in _values(settings, "epsilon", EPSILONS):
            q = Question(**usual | settings | {"clients": n, "epsilon": epsilon})
            for uploads in _values(settings, "uploads", UPLOADS):
                for share in _values(settings, "norm_share", PAID_SHARES):
                    if uploads <= share * n:
                        found = gains(q, q.rounds or PAID_ROUNDS, uploads, share)
                        row = {"clients": n, "epsilon": epsilon, "uploads": uploads}
                        yield {**row, "norm_share": share, "gains": found}


def _values(settings: dict[str, Any], name: str, usual: tuple[Any, ...]) -> tuple[Any, ...]:
    return (settings[name],) if name in settings else usual


def gain_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: each rule over uniform sampling with the same uploads, clip norm and epsilon."""
    if not rows:
        raise ValueError("--pays: no cohort fits; expected fewer --uploads or more --clients")
    names = list(rows[0]["gains"])
    heads = ["n", "epsilon", "uploads", "r", "asked"]
    for name in names:
        heads += [f"{name}: noise", "sampling variance", "both"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        gains = row["gains"]
        cells = [f"{row['clients']:,}", f"{row['epsilon']:g}", f"{row['uploads']:g}"]
        cells += [f"{row['norm_share']:g}", f"{gains[names[0]]['cohort']:,.0f}"]
        for name in names:
            ratios = ("noise", "sampling_variance", "error")
            cells += [f"{gains[name][key]:.2f}" for key in ratios]
        yield "| " + " | ".join(cells) + " |"


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return size_text(value) if form == "bytes" else form.format(value)
