"""README, CONTRIBUTING and docs/ as a whole: how long they are, and what they say twice."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("*/*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
MOST_WORDS = 30_000
SHORTEST = 7  # words of a sentence that counts: shorter ones are names and headings


def sentences(text: str) -> list[str]:
    """The sentences of a page, its table cells included, without code, links and emphasis."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|^!\[.*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "", text)
    text = re.sub(r"[*_`\[\]>#]", "", text)
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |(?<!\\)\||(?<=[.:;?!])\s+", text)
    return [" ".join(part.lower().split()).rstrip(".:;") for part in parts]


def twice(pages: dict[str, str]) -> dict[str, list[str]]:
    """Every sentence that stands in two places, and where."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in pages.items():
        for sentence in sentences(text):
            if len(sentence.split()) >= SHORTEST:
                found[sentence].append(name)
    return {sentence: names for sentence, names in found.items() if len(names) > 1}


def test_no_sentence_stands_twice() -> None:
    """Found alone here: a correction that leaves the same sentence wrong on another page."""
    assert twice({path.name: path.read_text("utf-8") for path in PAGES}) == {}


@pytest.mark.parametrize(
    "other",
    ["Nobody adds\nnoise to the *accuracy* of a model.",
     "| x | nobody adds noise to the accuracy of a model |",
     "* Nobody adds noise to the [accuracy](a.md#b) of a model. And so on."],
)  # fmt: skip
def test_a_sentence_that_stands_twice_is_found(other: str) -> None:
    first = "First. Nobody adds noise to the accuracy of a model; this is another sentence.\n"
    assert twice({"a": first, "b": other}) == {
        "nobody adds noise to the accuracy of a model": ["a", "b"]
    }
    assert twice({"a": first, "b": f"```\n{other}\n```"}) == {}


def test_the_docs_can_be_read_in_two_hours() -> None:
    """As `wc -w` counts: tables and code too."""
    assert sum(len(path.read_text("utf-8").split()) for path in PAGES) <= MOST_WORDS


def test_the_tables_of_the_results_are_what_was_measured() -> None:
    """Found alone here: a cell that somebody changed by hand."""
    from scripts.make_results import filled

    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert filled(page) == page, "python -m scripts.make_results"
    changed = page.replace("| 96.20 |", "| 96.21 |")
    assert changed != page
    assert filled(changed) == page
