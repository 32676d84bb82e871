"""Several runs side by side: what differs between them, and all their lines in the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from locksfl._tables import Record
from locksfl._text import epsilon_text
from locksfl.experiment.page import sections
from locksfl.experiment.page.blocks import Block, Listing, Section, Table, Text, number_text
from locksfl.experiment.page.sheet import Sheet, render
from locksfl.experiment.page.story import Story

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
        found = sorted({_rounded(cost[name]) for story in stories for cost in _compared(story)})
        if len(found) > 1:
            said.append(
                f"**Not at equal {name}**: against the public the arms on this page have "
                f"{', '.join(found)}. Less noise is no better method, so their lines cannot be "
                "compared as they are."
            )
    if len({story.config["privacy"].get("relation", "zero-out") for story in stories}) > 1:
        said.append("**Not the same relation**: their epsilons compare different things.")
    for story in stories:
        said += [f"**{story.label}**: {text}" for text in story.statement["words"]["warnings"]]
    return said


def _compared(story: Story) -> list[Record]:
    """The cost of each arm against the public, under the relation of its experiment."""
    relation = story.config["privacy"].get("relation", "zero-out")
    costs = [cost for arm in story.arms for cost in arm["privacy"]]
    return [c for c in costs if (c["observer"], c["relation"]) == ("PUBLIC", relation)]


def _rounded(value: float | None) -> str:
    if value is not None and value < 0.1:
        return f"{value:g}"
    return epsilon_text(value, 1, "infinite")


def _differences(stories: Sequence[Story]) -> Section:
    """The settings in which the runs are not alike."""
    flat = [_flat(story.config) for story in stories]
    names = list(dict.fromkeys(name for table in flat for name in table))
    rows = [
        (name, *(_setting(table, name) for table in flat))
        for name in names
        if len({_setting(table, name) for table in flat}) > 1
    ]
    alike = Text("Their configurations are the same.")
    heads = ("setting", *(story.label for story in stories))
    return Section("What differs", [Table(heads, rows, left=1 + len(stories)) if rows else alike])


def _flat(table: Record, prefix: str = "") -> Record:
    """A configuration as one level of names: arms by their own."""
    flat: Record = {}
    for name, value in table.items():
        if name == "arm" and isinstance(value, list):
            for arm in value:
                flat |= _flat(arm, f"arm.{arm.get('name', '')}.")
        elif isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _setting(table: dict[str, object], name: str) -> str:
    return number_text(table[name]) if name in table else "not set"


def _promises(stories: Sequence[Story]) -> Section:
    """For each run, all its epsilons and what its statement says in short."""
    blocks: list[Block] = []
    for story in stories:
        told = [story.statement["words"][name] for name in ("trust", "short", "scope")]
        blocks += [Text(f"**{story.label}**"), Listing(told), sections.costs_table(story)]
    return Section("What each of them promises", blocks)
