"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = [path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text("utf-8")]
NAMES = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in sorted(FILES)]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_a_wrong_example_is_found():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(example, out=lambda text: None).failed == 1
