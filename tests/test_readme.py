"""The README's code does what the README says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def test_the_library_example_trains_and_states_its_privacy() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    result = names["result"]
    assert result.accuracy > 0.6  # chance is a third
    assert len(result.history) == 30
    assert not result.simulated
    costs = {(c.observer, c.relation): c.epsilon for c in result.privacy}
    assert costs["SERVER", "zero-out"] == math.inf
    assert 7.9 < costs["PUBLIC", "zero-out"] <= 8.0


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
    page = README.parent / "docs" / "accounting.md"
    named = re.findall(r"`(test_\w+)`", page.read_text("utf-8"))
    assert len(named) >= 10
    for name in named:
        assert f"def {name}(" in tests, name
