"""A number that a help text calls the default is the one that the code takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer
from click import Command, Group, Option

from locksfl.arm import DEFAULT_FLOOR
from locksfl.cli.main import app
from locksfl.paper.reproduce.settings import SEEDS
from locksfl.privacy.planner import MOST_ROUNDS, PROGRESS

DEFAULT = re.compile(r"Default: ([\d,.]*\d)")
TAKEN = {  # where the flag itself has no number
    ("plan", "rounds"): MOST_ROUNDS,
    ("plan", "progress"): PROGRESS,
    ("reproduce", "seeds"): len(SEEDS),
    ("reproduce", "seed"): SEEDS[0],
    ("privacy calibrate", "floor"): DEFAULT_FLOOR,
    ("privacy account", "floor"): DEFAULT_FLOOR,
}


def options(command: Command, path: str = "") -> Iterator[tuple[str, Option]]:
    """Every option of every command, with the command's name."""
    if isinstance(command, Group):
        for name, child in command.commands.items():
            yield from options(child, f"{path} {name}".strip())
    for parameter in command.params:
        if isinstance(parameter, Option):
            yield path, parameter


def test_defaults_in_help_texts_are_the_codes():
    """Only this finds a constant that was changed in the code and not in the help."""
    stated = {
        (path, option.name): (float(match[1].replace(",", "")), option.default)
        for path, option in options(typer.main.get_command(app))
        if (match := DEFAULT.search(option.help or ""))
    }
    assert set(stated) >= set(TAKEN)
    for where, (number, default) in stated.items():
        assert number == TAKEN.get(where, default), where
