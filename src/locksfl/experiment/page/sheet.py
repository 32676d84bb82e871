"""A page from its parts: the template, the figures and, in a public one, what it was made of."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import metadata, resources
from typing import Any

from locksfl._svg import STYLE, svg_in_page
from locksfl._tables import Record
from locksfl.experiment.config import OWN_DATA
from locksfl.experiment.documents import ELEMENT
from locksfl.experiment.page import sections
from locksfl.experiment.page.blocks import Code, Figure, Section, Summary, Text, pieces
from locksfl.experiment.page.story import Story, of_public
from locksfl.experiment.record import Statement, plain

COMMANDS = {  # by engine: what plays an experiment, and with what
    None: ("locks run config.toml", "With config.toml and the same data. "),
    "flower": (
        "locks federation server config.toml",
        "With config.toml, the devices of the federation and their data. ",
    ),
    "flower-simulation": (
        "locks federation demo --engine flower-simulation",
        "With --nodes, --rounds, --trust and --epsilon as the configuration has them. ",
    ),
}
DRAWING = ("_charts.py", "_svg.py", "_svg.css")  # beside the rooms: what draws charts
TO_FILL_IN = "Where the data lie is not public: set data.name to their folder. "
AGAIN = (
    "A seed, if there was one, is not public: another run has other random numbers and other "
    "models, and costs the same people once more."
)


@dataclass(frozen=True)
class Sheet:
    """All that a page says."""

    title: str
    subtitle: str
    summaries: Sequence[Summary]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    secret: str = ""  # why it must not be passed on
    document: Record | None = None


def public_page(statement: Statement) -> str:
    """The page of a public bundle: a function of its statement, to the byte."""
    story = of_public(statement)
    more = [
        sections.asked([story]),
        sections.budget([story]),
        sections.configuration(story.settings),
        again(story, AGAIN),
    ]
    sheet = sheet_of(story, "Report of a private training run, for the public", more)
    return render(replace(sheet, document=plain(statement)))


def sheet_of(story: Story, subtitle: str, more: Sequence[Section]) -> Sheet:
    """The page of one run: what everybody wants to know first, and more."""
    return Sheet(
        title=story.name,
        subtitle=subtitle,
        summaries=[sections.summary_box(story)],
        warnings=story.words.warnings,
        sections=[*sections.promise(story), sections.results([story]), *more],
    )


def again(story: Story, said: str, options: str = "") -> Section:
    """One command, what it takes, and what it gives."""
    command, given = COMMANDS[story.config.engine]
    if story.config.data.name == OWN_DATA:
        given += TO_FILL_IN
    return Section("To play it again", [Code(f"{command}{options}"), Text(f"{given}{said}")])


def render(sheet: Sheet) -> str:
    """The page as one file."""
    blocks = (block for section in sheet.sections for block in section.blocks)
    charts = [block.chart for block in blocks if isinstance(block, Figure)]
    figures = [svg_in_page(chart, f"figure-{number}") for number, chart in enumerate(charts, 1)]
    return _template().render(
        sheet=sheet,
        figures=iter(figures),
        style=STYLE,
        document_id=ELEMENT,
        generator=generator(),
        pieces=pieces,
        next=next,
    )


@cache
def generator() -> str:
    """What draws pages here: another version, or other sources of this one, draw other bytes."""
    drawing, package = sha256(), resources.files("locksfl")
    page = sorted((package / "experiment" / "page").iterdir(), key=lambda file: file.name)
    for file in (*(package / name for name in DRAWING), *page):
        if file.name.endswith((".py", ".html", ".css")):
            drawing.update(file.read_bytes())
    return f"locks-fl {metadata.version('locks-fl')} ({drawing.hexdigest()[:12]})"


def drawn_by(page: str) -> str | None:
    """What has drawn a page, by its own word."""
    match = re.search(r'<meta name="generator" content="([\w .,+()-]*)">', page)
    return match and match[1]


def in_script(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element, or hides its end.
    An infinite setting (privacy.epsilon without privacy) is Python's Infinity."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("</", "<\\/").replace("<!--", "\\u003c!--")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    text = resources.files("locksfl.experiment.page").joinpath("template.html").read_text("utf-8")
    inside = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    inside.filters["in_script"] = in_script
    return inside.from_string(text)
