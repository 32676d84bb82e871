"""`locks verify`: recompute what a public bundle or page says, without trusting who made it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl._tables import or_null
from locksfl._text import table_of
from locksfl.cli.console import Json, argument, option, say_beside, show

if TYPE_CHECKING:
    from locksfl.experiment.verify import Report


def verify(
    file: Annotated[Path, argument("A bundle's folder, its statement.json, or a public page.")],
    key: Annotated[
        Path | None, option("Demand the signature of this Ed25519 public key (PEM).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute every epsilon of a public bundle or page, and check the rest of it.

    Exit code 1 when something is wrong with it, 2 when it cannot be read as a bundle or page of
    this version.
    """
    from locksfl.experiment.verify import verify as check

    report = check(file, key)
    show(_as_dict(report), as_json, lambda _: _parts(report), wide=True)
    for fault in report.faults:
        say_beside(f"{file}: {fault}")
    if report.faults:
        raise typer.Exit(1)


def _as_dict(report: Report) -> dict[str, Any]:
    names = ("arm", "observer", "relation", "by")
    return {
        "holds": not report.faults,
        "faults": report.faults,
        "notes": report.notes,
        "unchecked": report.unchecked,
        "epsilons": [
            {name: getattr(row, name) for name in names}
            | {"printed": or_null(row.printed), "recomputed": or_null(row.found.epsilon)}
            for row in report.rows
        ],
    }


def _parts(report: Report) -> Iterator[Any]:
    heads = ("arm", "observer", "relation", "printed", "recomputed", "by")
    rows = (
        (r.arm, r.observer, r.relation, _text(r.printed), _text(r.found.epsilon), r.by)
        for r in report.rows
    )
    if report.rows:
        table = table_of(heads, rows, left=3, box=None, pad_edge=False)
        table.columns[-1].justify = "left"
        yield table
    yield from (*report.notes, *report.unchecked)
    count, faults = len(report.rows), len(report.faults)
    if faults:
        yield f"DOES NOT HOLD: {faults} {'fault' if faults == 1 else 'faults'}"
    elif report.unchecked:
        yield (
            f"holds as far as it was checked: {count} epsilons follow from the public terms; what "
            "was not compared is said above"
        )
    else:
        yield f"holds: {count} epsilons follow from the public terms, and the parts fit each other"


def _text(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.4f}"
