"""`locks privacy audit`: attack the implementation that trains, and print what was proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.console import Changes, Json, show


def audit(
    file: Annotated[
        Path | None, typer.Argument(help="An experiment. Without it: four arms that claim 3.")
    ] = None,
    changes: Changes = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds per repetition; the claim is tested for as many.")
    ] = 4,
    repetitions: Annotated[int, typer.Option(help="Of each world, in every attack.")] = 50_000,
    canaries: Annotated[
        int, typer.Option(help="In the attack by one run; 0 leaves it out.")
    ] = 10_000,
    delta: Annotated[
        float | None, typer.Option(help="Where the claim is tested. Without it: the experiment's.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="With which all bounds together hold.")] = 0.99,
    seed: Annotated[int | None, typer.Option(help="Repeat an audit exactly.")] = None,
    as_json: Json = False,
) -> None:
    """Attack the implementation, and give a lower bound on epsilon beside the claimed one.

    Exit code 1 when a claim is refuted or a property fails.
    """
    from locksfl.audit.suite import run_audit

    report = run_audit(
        file,
        changes,
        rounds=rounds,
        repetitions=repetitions,
        canaries=canaries,
        delta=delta,
        confidence=confidence,
        seed=seed,
    )
    show(report, as_json, _parts)
    if not report["sound"]:
        raise typer.Exit(1)


def _parts(report: dict[str, Any]) -> Iterator[Any]:
    """The report for a person: the attacks as a table, then a line for each check."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="epsilon: claimed, proved at least, and the most that the test could prove",
        title_justify="left",
        box=None,
    )
    for name in ("arm", "observer", "relation", "attack", "rounds", "delta"):
        table.add_column(name)
    for name in ("claimed", "at least", "largest"):
        table.add_column(name, justify="right")
    for f in report["attacks"]:
        head = (f["arm"], f["observer"], f["relation"], f"{f['attack']}, {f['samples']:,}")
        numbers = (f"{f[name]:.2f}" for name in ("claimed", "lower", "largest"))
        style = "bold red" if f["refuted"] else None
        table.add_row(*head, str(f["rounds"]), f"{f['delta']:.0e}", *numbers, style=style)
    yield table
    for check in report["checks"]:
        said, style = ("holds", "") if check["holds"] else ("FAILS", "bold red")
        yield Text(f"{said}  {check['arm']}: {check['name']} ({check['found']})", style)
    for text in report["not_attacked"]:
        yield Text(f"not attacked: {text}")
    yield Text(report["note"])
    if report["sound"]:
        confidence = f"{report['confidence']:.0%}"
        yield Text(f"no claim is refuted (all bounds hold together with {confidence})")
    else:
        yield Text("THE CLAIMS ARE FALSE: something above is red")
