"""What "package.module:name" stands for, found among the user's own files too."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from locksfl._validate import nearest


def load(setting: str, name: str) -> Any:
    """The object that `name` names; `setting` is what a refusal calls it. Modules of the current
    directory are found too."""
    module_name, _, object_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), object_name]):
        raise ValueError(f"{setting} = {name!r}: expected package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if missing and f"{module_name}.".startswith(f"{error.name}."):  # type: ignore[attr-defined]
            raise ValueError(
                f"{setting} = {name!r}: no module {module_name!r} in the current directory or "
                "among the installed packages"
            ) from None
        told = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{setting} = {name!r}: importing it failed: {told}") from error
    if not hasattr(module, object_name):
        raise ValueError(
            f"{setting} = {name!r}: module {module_name!r} has no {object_name!r}"
            f"{nearest(object_name, vars(module))}"
        )
    return getattr(module, object_name)
