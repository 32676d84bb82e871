"""The house: imports run one way, and only the rooms that may import something heavy do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "locksfl"
FLOOR = {  # they import no room
    "_arrays", "_charts", "_files", "_loading", "_svg", "_tables", "_text", "_validate",
}  # fmt: skip
ROOMS = [
    "methods", "arm", "privacy", "data", "models", "round", "simulate", "experiment", "grids",
    "audit", "federation", "paper", "cli",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Every module that a file imports when it runs, in functions too."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "locksfl":
                found.update(f"locksfl.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return found


def wrong_turns(module: str, imported: set[str]) -> list[str]:
    """What a module imports against the direction."""
    mine, wrong = room_of(module), []
    for name in sorted(imported):
        other = room_of(name)
        if not name.startswith("locksfl.") or other in FLOOR:
            continue
        if mine in FLOOR or ROOMS.index(other) > ROOMS.index(mine):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_room_imports_only_rooms_before_it(path):
    module = module_of(path)
    if module in ("locksfl", "locksfl.__main__"):  # the public names, and the program
        return
    assert wrong_turns(module, imports(path)) == []


def test_a_wrong_turn_is_seen():
    assert wrong_turns("locksfl.privacy.gdp", {"locksfl.round.draws", "numpy"}) == [
        "locksfl.round.draws"
    ]
    assert wrong_turns("locksfl._text", {"locksfl.arm"}) == ["locksfl.arm"]
    assert wrong_turns("locksfl.round.draws", {"locksfl.methods", "locksfl._validate"}) == []


def test_every_file_stands_in_a_room_that_is_known():
    beside = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert beside - FLOOR | folders == set(ROOMS)


def test_the_header_of_every_room_says_what_comes_in_and_what_goes_out():
    """Found alone here: a room that a first-time reader has to guess."""
    for room in (folder for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()):
        header = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or ""
        for line in ("\nIn: ", "\nOut: ", "\nMay not import: "):
            assert line in header, f"{room.name}: {line.strip()}"


def test_only_the_federation_imports_flower_and_its_internals_in_one_file():
    internals = set()
    for path in FILES:
        flower = {name for name in imports(path) if name.split(".")[0] == "flwr"}
        assert not flower or room_of(module_of(path)) == "federation", path
        public = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
        if any(name not in public for name in flower):
            internals.add(path.name)
    assert internals == {"flower.py"}


@pytest.mark.parametrize(
    "module", ["locksfl.methods", "locksfl.arm", "locksfl.privacy", "locksfl.federation.device"]
)
def test_what_devices_and_accountants_read_starts_without_jax(module):
    code = f"import sys, {module}; print(sorted({{'jax', 'flwr', 'typer'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_compares_the_names_of_methods():
    """What decides is what a method states; tests/golden renames them all. Only the reader of old
    ledgers knows names: their headers do not say what the methods of their time stated."""
    from locksfl.methods import ESTIMATORS, RULES, TRUSTS

    names = {*RULES, *ESTIMATORS, *TRUSTS}
    compared = []
    for path in FILES:
        if module_of(path) == "locksfl.privacy.old":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            words = {s.value for s in sides if isinstance(s, ast.Constant)}
            words |= {
                e.value
                for s in sides
                if isinstance(s, ast.Tuple | ast.Set | ast.List)
                for e in s.elts
                if isinstance(e, ast.Constant)
            }
            about = {ast.unparse(s).rpartition(".")[2] for s in sides}
            if words & names and about & {"rule", "estimator", "trust", "method"}:
                compared.append(f"{module_of(path)}:{node.lineno} {ast.unparse(node)}")
    assert compared == []


NO_NAMES = {"told", "found"}  # a name says what a value is, not that somebody said or found it
NOT_YET = (  # modules, and all below them, in which such names are left
    "federation", "cli.federation", "cli.running", "cli.verify",
    *(f"experiment.{name}" for name in (
        "coverage", "diagnostics", "documents", "evaluate", "metrics", "page", "public", "records",
        "report", "resuming", "run", "sealing", "statement", "verify", "writers",
    )),
)  # fmt: skip


def names_of(tree: ast.AST) -> set[str]:
    """Every name that code binds: variables, functions, classes, arguments, attributes, imports."""
    names = set()
    for node in ast.walk(tree):
        for kind, field in (
            (ast.Name, "id"), (ast.arg, "arg"), (ast.keyword, "arg"), (ast.Attribute, "attr"),
            (ast.alias, "name"), (ast.FunctionDef, "name"), (ast.ClassDef, "name"),
        ):  # fmt: skip
            if isinstance(node, kind):
                names.add(getattr(node, field) or "")
    return names


def vague(code: str) -> set[str]:
    return {name for name in names_of(ast.parse(code)) if NO_NAMES & set(name.split("_"))}


def test_no_name_only_says_that_a_value_was_told_or_found():
    """Only this sees such a name come back; text may use the words."""
    for planted in (
        "found = 1",
        "def f(told): ...",
        "x.found_before",
        "f(told=1)",
        "def told(): ...",
    ):
        assert vague(planted), planted
    assert not vague('profound = f("what was found")')
    later = tuple(f"locksfl.{name}" for name in NOT_YET)
    wrong = {
        module: names
        for path in FILES
        if (module := module_of(path)) not in later
        and not module.startswith(tuple(f"{one}." for one in later))
        if (names := vague(path.read_text("utf-8")))
    }
    assert wrong == {}
