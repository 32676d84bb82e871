"""The report of the full `locks reproduce`, from docs/reproduction/table.json: the site shows it.

python -m scripts.reproduction_report     # prints it
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import msgspec

from locksfl.paper.reproduce.document import report_text
from locksfl.paper.reproduce.results import Difference, Row, conclusion
from locksfl.paper.reproduce.settings import FULL, panels

TABLE = Path(__file__).resolve().parent.parent / "docs" / "reproduction" / "table.json"


def report() -> str:
    """report.md as the run wrote it, by today's words; ValueError if they conclude otherwise."""
    table = json.loads(TABLE.read_text("utf-8"))
    labels = {panel.label: panel for panel in panels(FULL)}
    rows, differences = (
        [msgspec.convert({**one, "panel": labels[one["panel"]]}, kind) for one in table[name]]
        for name, kind in (("rows", Row), ("differences", Difference))
    )
    said = conclusion(differences, rows)
    if table["conclusion"] != said:
        raise ValueError(f"{TABLE.name}: another conclusion follows from it: {said}")
    scale = dataclasses.replace(FULL, seeds=tuple(range(differences[0].seeds)))
    return re.sub(r"\(([\w-]+\.svg)\)", _figure, report_text(scale, rows, said))


def _figure(link: re.Match[str]) -> str:
    """A figure as that run drew it: its curves are not in the table, so it cannot be drawn anew."""
    drawn = (TABLE.parent / link[1]).exists()
    return link[0] if drawn else link[0].replace(".svg", ".png")


if __name__ == "__main__":
    print(report(), end="")
