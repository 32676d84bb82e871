"""`locks privacy audit`: attack the implementation that trains, and print what was proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl._text import table_of
from locksfl.cli.console import Changes, Json, argument, option, show

if TYPE_CHECKING:
    from locksfl.audit.attacks import Finding
    from locksfl.audit.suite import Report


def audit(
    file: Annotated[
        Path | None,
        argument("An experiment file. Default: five arms that claim epsilon 3."),
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
    if not report.sound:
        raise typer.Exit(1)


def _parts(report: Report) -> Iterator[Any]:
    """The report for a person: the attacks as a table for each arm, then a line for each check.
    Whatever is longer than a line is indented."""
    from rich.table import Table
    from rich.text import Text

    yield "epsilon: claimed, proved at least, and the most that the test could prove"
    for arm in dict.fromkeys(f.arm for f in report.attacks):
        yield _attacks([f for f in report.attacks if f.arm == arm])
    results = Table.grid(padding=(0, 2))
    for f in report.attacks:
        if f.problem:
            who = f"{f.arm}: {f.attack}, {f.observer}, {f.relation}"
            results.add_row("FAILS", f"{who} ({f.problem})", style="bold red")
    for check in report.checks:
        style = "" if check.holds else "bold red"
        result = f"{check.arm}: {check.name} ({check.measured})"
        results.add_row("holds" if check.holds else "FAILS", result, style=style)
    yield results
    unseen = Table.grid(padding=(0, 1))
    for title in ("not_attacked", "not_visible"):
        for text in getattr(report, title):
            unseen.add_row(f"{title.replace('_', ' ')}:", text)
    yield unseen
    yield Text(report.note)
    if report.sound:
        yield Text(f"no claim is refuted (all bounds hold together with {report.confidence:.0%})")
    else:
        yield Text("THE CLAIMS ARE FALSE: something above is red")


def _attacks(findings: list[Finding]) -> Any:
    """The attacks on one arm. Numbers are never cut; words are wrapped where a line is short."""
    heads = ("observer", "relation", "attack", "delta", "claimed", "at least", "largest")
    rows = (
        (
            *(f.observer, f.relation, f"{f.attack}, {f.samples:,}", f"{f.delta:.0e}"),
            *(f"{epsilon:.2f}" for epsilon in (f.claimed, f.lower, f.largest)),
        )
        for f in findings
    )
    title = f"{findings[0].arm}, {findings[0].rounds} rounds"
    close = {"box": None, "pad_edge": False, "collapse_padding": True}
    table = table_of(heads, rows, left=4, title=title, **close)
    for row, f in zip(table.rows, findings, strict=True):
        row.style = "bold red" if f.refuted else None
    for column in table.columns:
        column.no_wrap = column.header != "attack"
    return table
