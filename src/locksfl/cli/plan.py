"""`locks privacy plan`: what to expect from a run, before any budget is spent."""

from __future__ import annotations

from typing import Annotated, Any

from locksfl._text import size_text
from locksfl.cli.console import RELATION_HELP, Json, option, show


def plan(
    clients: Annotated[int, option("n, all clients.")],
    parameters: Annotated[int, option("d, the size of the model.")],
    rounds: Annotated[int, option("T.")],
    epsilon: Annotated[float, option("The total epsilon of the run.")],
    delta: Annotated[float, option("Below 1/n.")] = 1e-5,
    trust: Annotated[str, option("central | local")] = "central",
    cohort: Annotated[
        float | None, option("Clients asked per round; with --uploads: rule norm.")
    ] = None,
    uploads: Annotated[float | None, option("Uploads per round.")] = None,
    floor: Annotated[float, option("lambda of rule norm.")] = 0.1,
    norm_low: Annotated[float | None, option("K_low as a share of m C.")] = None,
    norm_share: Annotated[
        float | None, option("Mean clipped norm over the clip norm, if known.")
    ] = None,
    alignment: Annotated[
        float | None, option("Length of the mean update over the mean length.")
    ] = None,
    relation: Annotated[str, option(RELATION_HELP)] = "zero-out",
    accountant: Annotated[str, option("pld | rdp")] = "pld",
    as_json: Json = False,
) -> None:
    """Say what noise, accuracy and traffic to expect, and what to set. Uses no data."""
    settings = {name: value for name, value in locals().items() if name != "as_json"}
    from locksfl.privacy.advice import forecast
    from locksfl.privacy.forecast import Question

    show(forecast(Question(**settings)), as_json, words)


def words(told: dict[str, Any]) -> list[str]:
    """The forecast for a person."""
    q, advice = told["question"], told["recommended"]
    lines = [_headline(told), "", f"{'per round':<26}{'uniform':>14}{'norm':>14}"]
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
    lines += [
        "",
        f"Recommended: {advice['rounds']} rounds, {advice['uploads']} uploads.",
        *(f"  {reason}." for reason in advice["why"]),
        "",
        f"Rule: {advice['said']}.",
        "  norm-based over uniform, at equal epsilon and wanted uploads:",
    ]
    for label, key, form in (
        ("mean norm / clip norm", "norm_share", "{:.1f}"),
        ("noise", "noise", "{:.2f}"),
        ("noise and sampling", "error", "{:.2f}"),
        ("uploads", "uploads", "{:,.0f}"),
    ):
        numbers = "".join(f"{_cell(row[key], form):>9}" for row in told["norm_against_uniform"])
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
