"""Several runs side by side: what differs between them, and all their lines in the same figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from locksfl._text import epsilon_text
from locksfl.experiment.config import to_table
from locksfl.experiment.page import sections
from locksfl.experiment.page.blocks import Block, Listing, Section, Table, Text, number_text
from locksfl.experiment.page.sheet import Sheet, render
from locksfl.experiment.page.story import Story
from locksfl.experiment.record import Cost

SECRET = (
    "**The server's own page: do not pass it on.** It was made from run folders. With **--public** "
    "it has only what a public bundle may have."
)


def several_page(stories: Sequence[Story], secret: bool) -> str:
    """One page for runs, bundles, or both."""
    named = [replace(story, label=f"{story.label}: ") for story in stories]
    return render(
        Sheet(
            title=" · ".join(story.label for story in stories),
            subtitle=f"Report of {len(stories)} training runs, side by side",
            secret=SECRET if secret else "",
            summaries=[sections.summary_box(story) for story in stories],
            warnings=_warnings(stories),
            sections=[
                _differences(stories),
                sections.results(named),
                sections.asked(named),
                sections.budget(named),
                _promises(stories),
            ],
        )
    )


def _warnings(stories: Sequence[Story]) -> list[str]:
    """That they are not at equal epsilon, if so; then what each has to warn of."""
    said = []
    for name in ("epsilon", "delta"):
        costs = (cost for story in stories for cost in _compared(story))
        values = sorted({_rounded(getattr(cost, name)) for cost in costs})
        if len(values) > 1:
            said.append(
                f"**Not at equal {name}**: against the public the arms on this page have "
                f"{', '.join(values)}. Less noise is no better method, so their lines cannot be "
                "compared as they are."
            )
    if len({story.config.privacy.relation for story in stories}) > 1:
        said.append("**Not the same relation**: their epsilons compare different things.")
    for story in stories:
        said += [f"**{story.label}**: {text}" for text in story.words.warnings]
    return said


def _compared(story: Story) -> list[Cost]:
    """The cost of each arm against the public, under the relation of its experiment."""
    kind = ("PUBLIC", story.config.privacy.relation)
    costs = [cost for arm in story.run.arms for cost in arm.privacy]
    return [cost for cost in costs if (cost.observer, cost.relation) == kind]


def _rounded(value: float | None) -> str:
    if value is not None and value < 0.1:
        return f"{value:g}"
    return epsilon_text(value, 1, "infinite")


def _differences(stories: Sequence[Story]) -> Section:
    """The settings in which the runs are not alike."""
    flat = [dict(_flat(to_table(story.settings))) for story in stories]
    names = list(dict.fromkeys(name for table in flat for name in table))
    cells = [(name, *(table.get(name, "not set") for table in flat)) for name in names]
    rows = [row for row in cells if len(set(row[1:])) > 1]
    alike = Text("Their configurations are the same.")
    heads = ("setting", *(story.label for story in stories))
    return Section("What differs", [Table(heads, rows, left=1 + len(stories)) if rows else alike])


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """A configuration as one level of names, arms by their own."""
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _flat(one, f"{name}.{inner}".lstrip("."))
    elif name == "arm":
        for arm in value:
            yield from _flat(arm, f"arm.{arm['name']}")
    else:
        yield name, number_text(value)


def _promises(stories: Sequence[Story]) -> Section:
    """For each run, all its epsilons and what its statement says in short."""
    blocks: list[Block] = []
    for story in stories:
        words = [story.words.trust, story.words.short, story.words.scope]
        blocks += [Text(f"**{story.label}**"), Listing(words), sections.costs_table(story)]
    return Section("What each of them promises", blocks)
