"""`locks privacy plan`: what to expect from a run, before any budget is spent."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from locksfl._text import size_text
from locksfl.cli.console import RELATION_HELP, Json, show


def plan(
    clients: Annotated[int, typer.Option(help="n, all clients.")],
    parameters: Annotated[int, typer.Option(help="d, the size of the model.")],
    rounds: Annotated[int, typer.Option(help="T.")],
    epsilon: Annotated[float, typer.Option(help="The total epsilon of the run.")],
    delta: Annotated[float, typer.Option(help="Below 1/n.")] = 1e-5,
    trust: Annotated[str, typer.Option(help="central | local")] = "central",
    cohort: Annotated[
        float | None, typer.Option(help="Clients asked per round; with --uploads: rule norm.")
    ] = None,
    uploads: Annotated[float | None, typer.Option(help="Uploads per round.")] = None,
    floor: Annotated[float, typer.Option(help="lambda of rule norm.")] = 0.1,
    norm_low: Annotated[float | None, typer.Option(help="K_low as a share of m C.")] = None,
    norm_share: Annotated[
        float | None, typer.Option(help="Mean clipped norm over the clip norm, if known.")
    ] = None,
    alignment: Annotated[
        float | None, typer.Option(help="Length of the mean update over the mean length.")
    ] = None,
    relation: Annotated[str, typer.Option(help=RELATION_HELP)] = "zero-out",
    accountant: Annotated[str, typer.Option(help="pld | rdp")] = "pld",
    as_json: Json = False,
) -> None:
    """Say what noise, accuracy and traffic to expect, and what to set. Uses no data."""
    from locksfl.privacy.advice import forecast
    from locksfl.privacy.forecast import Question

    question = Question(
        clients=clients,
        parameters=parameters,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        trust=trust,
        cohort=cohort,
        uploads=uploads,
        floor=floor,
        norm_low=norm_low,
        norm_share=norm_share,
        alignment=alignment,
        relation=relation,  # type: ignore[arg-type]
        accountant=accountant,  # type: ignore[arg-type]
    )
    show(forecast(question), as_json, words)


def words(told: dict[str, Any]) -> list[str]:
    """The forecast for a person."""
    q, advice = told["question"], told["recommended"]
    lines = [_headline(told), ""]
    lines.append(f"{'a round':<26}{'uniform':>14}{'norm':>14}")
    for label, key, form in (
        ("clients asked", "cohort", "{:,.0f}"),
        ("uploads", "expected_uploads", "{:,.1f}"),
        ("noise multiplier", "noise_multiplier", "{:.3f}"),
        ("norm multiplier", "norm_multiplier", "{:.2f}"),
        ("noise / largest update", "noise_to_signal", "{:.3g}"),
        ("noise / typical update", "noise_to_typical_signal", "{:.3g}"),
        ("sampling error", "sampling_error", "{:.2g}"),
        ("share of the mean kept", "kept", "{:.2f}"),
        ("up", "bytes_up_a_round", "bytes"),
        ("down", "bytes_down_a_round", "bytes"),
        ("all rounds", "bytes_total", "bytes"),
    ):
        cells = [told["arms"][name][key] for name in ("uniform", "norm")]
        if any(cell is not None for cell in cells):
            lines.append(f"{label:<26}" + "".join(f"{_cell(c, form):>14}" for c in cells))
    lines += ["", "Recommended: " + f"{advice['rounds']} rounds, {advice['uploads']} uploads."]
    lines += [f"  {reason}." for reason in advice["why"]]
    lines += ["", f"Rule: {advice['said']}."]
    lines.append("  norm-based over uniform, at equal epsilon and wanted uploads:")
    table = told["norm_against_uniform"]
    for label, key, form in (
        ("mean norm / clip norm", "norm_share", "{:.1f}"),
        ("noise", "noise", "{:.2f}"),
        ("noise and sampling", "error", "{:.2f}"),
        ("uploads", "uploads", "{:,.0f}"),
    ):
        numbers = "".join(f"{_cell(row[key], form):>9}" for row in table)
        lines.append(f"  {label:<24}{numbers}")
    lines.append(f"  norms: {told['assumed']['norms']}.")
    if q["delta"] >= 1 / q["clients"]:
        lines.append(
            f"Warning: delta = {q['delta']:g} is not below 1/n = {1 / q['clients']:g}: publishing "
            "one client's data whole would be allowed by it."
        )
    return lines


def _headline(told: dict[str, Any]) -> str:
    q, noise = told["question"], told["arms"]["uniform"]["noise_to_signal"]
    found = f"reach {told['reach']:.2g}: all rounds' largest signal over their noise"
    if told["verdict"] == "hopeless":
        return (
            f"Training will fail. The noise of a round is {noise:.3g} times the largest possible "
            f"update and {q['rounds']} rounds do not make up for it ({found}; "
            f"{told['reach_needed']:g} is needed).\nAt this epsilon and trust about "
            f"{told['smallest_clients']:,} clients would be needed; {q['clients']:,} are there."
        )
    said = {
        "hard": "Training will be hard: expect much less than without privacy.",
        "fine": "Training can work.",
    }[told["verdict"]]
    return (
        f"{said} The noise of a round is {noise:.3g} times the largest possible update ({found}).\n"
        f"It would be hopeless below about {told['smallest_clients']:,} clients."
    )


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return size_text(value) if form == "bytes" else form.format(value)
