"""Flower is used in one room, and its undocumented modules in one file of it."""

from __future__ import annotations

import ast
from pathlib import Path

import locksfl

SOURCE = Path(locksfl.__file__).parent
DOCUMENTED = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}


def imported(path):
    """Every module that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_flower_is_one_room_and_its_internals_one_file():
    found = {}
    for path in SOURCE.rglob("*.py"):
        names = {name for name in imported(path) if name.split(".")[0] == "flwr"}
        if names:
            found[path.relative_to(SOURCE).as_posix()] = names
    assert all(name.startswith("federation/") for name in found)
    internal = {name for name, modules in found.items() if modules - DOCUMENTED}
    assert internal == {"federation/flower.py"}
    assert len(found["federation/flower.py"]) > 15
