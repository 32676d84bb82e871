"""Loads the object that a setting of the form "package.module:name" refers to. No JAX."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locksfl._validate import nearest


def load(
    setting: str, name: str, what: str = "function", fits: Callable[[Any], bool] = callable
) -> Any:
    """Import what "package.module:name" names; modules of the current directory too.

    Args:
        setting: where the user wrote it, for messages.
        name: the module and, after the colon, a name in it.
        what: what is looked for, for messages.
        fits: whether an object is that.

    Returns:
        The object. A ValueError says in one line what is missing or cannot be imported.

    >>> load("model.name", "fractions:Fraction")(1, 2)
    Fraction(1, 2)
    """
    where = f"{setting} = {name!r}"
    module_name, _, wanted = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), wanted]):
        raise ValueError(f"{where}: expected package.module:{what}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{where}: no module {module_name!r} in the current directory or among the "
                "installed packages"
            ) from None
        raise ValueError(f"{where}: importing it failed: {in_one_line(error)}") from error
    value = getattr(module, wanted, None)
    if not fits(value):
        names = [name for name, value in vars(module).items() if fits(value)]
        raise ValueError(
            f"{where}: module {module_name!r} has no {what} {wanted!r}{nearest(wanted, names)}"
        )
    return value


def source(name: str) -> bytes:
    """The text of the module of "package.module:name", which can be loaded."""
    file = importlib.import_module(name.partition(":")[0]).__file__
    return Path(file).read_bytes() if file else b""


def in_one_line(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def optional(module: str, extra: str) -> Any:
    """A module that one of the package's extras installs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ValueError(
            f"{error.name} is not installed: expected pip install 'locks-fl[{extra}]'"
        ) from None
