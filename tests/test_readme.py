"""README and docs/ as read on a code host: links lead somewhere, and tests named there exist."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_every_file_that_the_readme_and_docs_link_to_is_there() -> None:
    pages = [README, *(README.parent / "docs").glob("*.md"), README.parent / "CONTRIBUTING.md"]
    for page in pages:
        for target, section in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text("utf-8")):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not section or section in sections(there), f"{page.name}: {target}#{section}"


def sections(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_privacy_is_explained_in_one_page() -> None:
    lines = (README.parent / "docs" / "privacy.md").read_text("utf-8").splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 200


def test_every_guarantee_in_the_docs_names_a_test_that_exists() -> None:
    tests = "".join(p.read_text("utf-8") for p in Path(__file__).parent.rglob("test_*.py"))
    for page in ("accounting.md", "sharp-edges.md"):
        text = (README.parent / "docs" / page).read_text("utf-8")
        named = re.findall(r"`(test_\w+)`", text)
        assert len(named) >= 10
        for name in named:
            assert f"def {name}(" in tests, name


def test_guarantees_are_numbered_in_order_and_each_names_its_tests() -> None:
    """Found alone here: two guarantees of one number, to which nobody can refer."""
    docs = README.parent / "docs"
    for page, mark in (("accounting.md", "{}. "), ("method.md", "| G{} |")):
        text = (docs / page).read_text("utf-8")
        assert not misnumbered(text, mark)
        fifth, sixth, seventh = (f"\n{mark.format(k)}" for k in (5, 6, 7))
        assert misnumbered(text.replace(sixth, fifth), mark)  # two of a number
        assert misnumbered(text.replace(sixth, seventh), mark)  # and one missing
        untested = re.sub(f"({re.escape(sixth)}[^`]*)`[^`]*`", r"\1nobody tests it", text)
        assert misnumbered(untested, mark)


def misnumbered(text: str, mark: str) -> list[str]:
    """The guarantees whose number is not the next one, or that name no test or no such file."""
    section = text.partition("\n## Guarantees and their tests")[2].partition("\n## ")[0]
    number = re.escape(mark).replace(r"\{\}", r"\d+")
    each = re.split(rf"^(?={number})", section, flags=re.M)[1:]
    assert len(each) >= 13
    return [
        one
        for k, one in enumerate(each, start=1)
        if not one.startswith(mark.format(k))
        or not re.search(r"`(test_\w+|tests/[\w/.]+)`", one)
        or not all(
            (README.parent / path).exists() for path in re.findall(r"`(tests/[\w/.]+)`", one)
        )
    ]
