"""The code blocks of README, CONTRIBUTING and docs/: found, and run as their page says.

What a page says, in comments directly above a block (invisible to its readers):

    <!-- run with: run --set train.rounds=2 -->  appended to every `locks run` of the block
    <!-- output of: locks run --seed 0 -->       what prints this block of output
    <!-- file: nets.py -->                       the block is this file
    <!-- exit code: 1 -->                        of its `locks` commands, errors shown
    <!-- not run: REASON -->                     the block is not run; its commands are parsed
    <!-- not run (reproduce): REASON -->         one command of the block is not run

A page is one folder and one namespace. `runs/...` is the newest run in it, and PLACEHOLDERS stand
for names in capitals. Figures that a command prints are compared as far as the block was run as it
stands: digit by digit, but for commands that show a training (TRAINED), whose last digits depend on
the processor, and for `verify`, within 0.01%. Where settings were changed, only words are compared.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from locksfl.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "console", "toml", "json", "text"}
PLACEHOLDERS = {"DATA": "people", "POPULATION": "patients"}
ELSEWHERE = {  # commands too long to run here, on whatever page, and what plays them
    "theory estimate": "tests/paper/theory",
    "theory lemmas": "tests/paper/theory",
    "privacy audit": "tests/audit",
    "reproduce": "tests/paper",
}
TRAINED = ("run", "compare", "tune", "evaluate", "theory check", "theory lemmas")
MARK = re.compile(r"<!-- (run with|output of|exit code|file|not run(?: \([^)]*\))?): (.*?) -->")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        place: page and line.
        kind: its language; without one, what it looks like.
        text: the code.
        marks: (what, value) of the comments above it.
    """

    place: str
    kind: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    def marked(self, what: str) -> list[str]:
        """The values of its marks of a kind."""
        return [value for mark, value in self.marks if mark == what]

    @property
    def skipped(self) -> bool:
        """Not run at all."""
        return bool(self.marked("not run"))

    def skips(self, words: list[str]) -> bool:
        """Whether this command is not run."""
        given = [mark[9:-1] for mark, _ in self.marks if mark.startswith("not run (")]
        return any(words[: len(one.split())] == one.split() for one in (*given, *ELSEWHERE))

    def added(self, words: list[str]) -> list[str]:
        """What is appended to this command."""
        found = []
        for mark in self.marked("run with"):
            given = shlex.split(mark)
            name = [word for word in given if not word.startswith("-")][: _depth(given)]
            if words[: len(name)] == name:
                found += given[len(name) :]
        return found


def _depth(words: list[str]) -> int:
    """How many words come before the first option: the command."""
    return next((at for at, word in enumerate(words) if word.startswith("-")), len(words))


def looks_like(text: str) -> str:
    """The kind of a block that does not name its language."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    if first.startswith("$ "):
        return "console"
    command = re.match(r"(\.venv/bin/)?(locks|pip|make) ", first)
    return "sh" if command else "text"


def blocks_of(text: str, page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, marks, lines = [], [], text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            code = "\n".join(lines[at + 1 : end]) + "\n"
            kind = line[3:].strip() or looks_like(code)
            found.append(Block(f"{page}:{at + 1}", kind, code, tuple(marks)))
            at, marks = end, []
        elif mark := MARK.fullmatch(line.strip()):
            marks.append((mark[1], mark[2]))
        else:
            marks = []
        at += 1
    return found


def read_page(page: Path) -> list[Block]:
    """The blocks of a page of the repository."""
    return blocks_of(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """(command, what the block shows as its output) of a shell block."""
    text = block.text.replace("\\\n", " ")
    if block.kind == "console":
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output
        return
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip(), ""


def words_of(command: str) -> list[str] | None:
    """The words after `locks`, or None if it is another program."""
    words = shlex.split(command, comments=True)
    if words and words[0].removeprefix(".venv/bin/") == "locks":
        return words[1:]
    return None


def mentioned(block: Block) -> list[list[str]]:
    """Every `locks` command of a block, those that are not run and those of a service included."""
    if block.kind in ("sh", "console"):
        return [words for command, _ in commands(block) if (words := words_of(command))]
    text = block.text.replace("\\\n", " ")
    text = text.replace('"--server"]', '"--server", "given"]')  # by who starts the container
    starts = re.findall(r"^(?:ExecStart=\S*/|ENTRYPOINT \[\")locks\b(.*)$", text, re.M)
    return [shlex.split(re.sub(r'[",\]]+ ?', " ", one)) for one in starts]


def parse(words: list[str]) -> None:
    """Parse a command line as the program does, without running it; ValueError if it cannot."""
    command: Any = typer.main.get_command(app)
    rest, parent = list(words), None
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            raise ValueError(f"locks {' '.join(words)}: no such command")
        parent = command.context_class(command, info_name=rest[0], parent=parent)
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(words[0], rest, parent=parent)
    except Exception as error:
        raise ValueError(f"locks {' '.join(words)}: {error}") from error


NUMBER = re.compile(r"[~+-]?(?<![\w.])(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def told(text: str) -> list[str]:
    """The words and numbers of an output, whatever its line breaks, units and rules."""
    text = re.sub(r"[─╭╮╰╯│]+", " ", text)
    return re.sub(r"\b[kMG]B\b", "B", text).split()


def tolerance(words: list[str], changed: bool) -> float:
    """By how much a figure of this command may differ, relative to its size."""
    if changed:
        return math.inf
    if words[:1] == ["verify"]:  # of a trained run, but nothing else of it than epsilons
        return 1e-4  # processors differ by 7e-6
    trained = any(words[: len(one.split())] == one.split() for one in TRAINED)
    return 0.01 if trained else 0.0


def alike(shown: str, printed: str, tolerance: float) -> str:
    """Why an output is not what a page shows, or nothing. `...` stands for anything.

    Lines are compared in order; a page may leave lines out. Numbers may differ by the tolerance,
    relative to their size; without one, digit by digit.
    """
    rest = told(printed)
    for line in filter(str.strip, shown.splitlines()):
        wanted = told(line)
        starts = (at for at in range(len(rest)) if _matches(wanted, rest[at:], tolerance))
        at = next(starts, None)
        if at is None:
            return f"not printed: {line.strip()!r}"
        rest = rest[at + len(wanted) :] if "..." not in line else rest[at + 1 :]
    return ""


def _matches(wanted: list[str], found: list[str], tolerance: float) -> bool:
    return len(wanted) <= len(found) and all(
        "..." in one or _same(one, other, tolerance)
        for one, other in zip(wanted, found, strict=False)
    )


def _same(one: str, other: str, tolerance: float) -> bool:
    if one == other:
        return True
    if not tolerance or NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    values = [[float(text.strip("~").replace(",", "")) for text in pair] for pair in pairs]
    return all(a == b or abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in values)
