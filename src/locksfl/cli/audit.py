"""`locks privacy audit`: attack the implementation that trains, and print what was proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl._text import table_of
from locksfl.cli.console import Changes, Json, option, show


def audit(
    file: Annotated[
        Path | None,
        typer.Argument(help="An experiment file. Default: five arms that claim epsilon 3."),
    ] = None,
    changes: Changes = None,
    rounds: Annotated[int, option("Rounds per repetition; the claim covers this many.")] = 4,
    repetitions: Annotated[int, option("Repetitions of each world, per attack.")] = 50_000,
    canaries: Annotated[int, option("Canaries in the one-run attack; 0 skips it.")] = 10_000,
    delta: Annotated[
        float | None, option("The delta at which the claim is tested. Default: the experiment's.")
    ] = None,
    confidence: Annotated[float, option("Probability that all bounds hold together.")] = 0.99,
    seed: Annotated[int | None, option("Repeat an audit exactly.")] = None,
    as_json: Json = False,
) -> None:
    """Attack the implementation and compare the resulting lower bound on epsilon with the claim.

    Exit code 1 when a claim is refuted or a property fails.
    """
    settings = {name: value for name, value in locals().items() if name != "as_json"}
    from locksfl.audit.suite import run_audit

    report = run_audit(**settings)
    show(report, as_json, _parts)
    if not report["sound"]:
        raise typer.Exit(1)


def _parts(report: dict[str, Any]) -> Iterator[Any]:
    """The report for a person: the attacks as a table, then a line for each check."""
    from rich.text import Text

    rows = []
    for f in report["attacks"]:
        cells = (f["arm"], f["observer"], f["relation"], f"{f['attack']}, {f['samples']:,}")
        numbers = (f"{f[name]:.2f}" for name in ("claimed", "lower", "largest"))
        style = "bold red" if f["refuted"] else ""
        row = (*cells, str(f["rounds"]), f"{f['delta']:.0e}", *numbers)
        rows.append([Text(cell, style) for cell in row])
    heads = ("arm", "observer", "relation", "attack", "rounds", "delta")
    title = "epsilon: claimed, proved at least, and the most that the test could prove"
    yield table_of(
        (*heads, "claimed", "at least", "largest"), rows, len(heads), title=title, box=None
    )
    for f in report["attacks"]:
        if f["problem"]:
            who = f"{f['arm']}: {f['attack']}, {f['observer']}, {f['relation']}"
            yield Text(f"FAILS  {who} ({f['problem']})", "bold red")
    for check in report["checks"]:
        said, style = ("holds", "") if check["holds"] else ("FAILS", "bold red")
        yield Text(f"{said}  {check['arm']}: {check['name']} ({check['found']})", style)
    for text in report["not_attacked"]:
        yield Text(f"not attacked: {text}")
    for text in report["not_visible"]:
        yield Text(f"not visible to an audit: {text}")
    yield Text(report["note"])
    if report["sound"]:
        confidence = f"{report['confidence']:.0%}"
        yield Text(f"no claim is refuted (all bounds hold together with {confidence})")
    else:
        yield Text("THE CLAIMS ARE FALSE: something above is red")
