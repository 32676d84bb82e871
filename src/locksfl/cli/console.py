"""What every command of the program shares: errors of one line, and the flag --json."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def start_jax() -> None:
    """What a command does that trains: all cores, and compiled programs kept on disk."""
    use_all_cores()
    from locksfl.simulate.cache import keep_compiled

    keep_compiled()


def use_all_cores() -> None:
    """Each core becomes a device, before JAX starts; a user's own XLA_FLAGS are left alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={cores or 1}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input and a refusing disk: one line on stderr, exit code 2."""
    try:
        yield
    except ValueError as error:
        _refuse(str(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except FileNotFoundError as error:
        _refuse(f"{error.filename}: {error.strerror}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _refuse(f"cannot write {where}{error.strerror or error}")


def _refuse(text: str) -> None:
    print(f"locks: {' '.join(text.split())}", file=sys.stderr)
    raise typer.Exit(2)


def typed_flags(context: typer.Context) -> list[str]:
    """The flags that were typed, --json apart; arguments and defaults are not among them."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.param_type_name == "option"
        and parameter.name != "as_json"
        and getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
