"""What every command of the program shares: errors of one line, common options, printing."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from locksfl._text import table_of

if TYPE_CHECKING:
    from rich.table import Table


def option(help: str, *names: str, **more: Any) -> Any:
    """An option of a command: its help, its name if that is not the parameter's, its limits.
    Brackets in the help are brackets: Typer would read them as colours."""
    return typer.Option(*names, help=help.replace("[", r"\["), **more)


def argument(help: str, **more: Any) -> Any:
    """An argument of a command, likewise."""
    return typer.Argument(help=help.replace("[", r"\["), **more)


def group(name: str, help: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(name=name, help=help, no_args_is_help=True, add_completion=False)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of the parameter that is a dataclass."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    (record,) = (one for one in parameters if is_dataclass(one.annotation))
    fields = inspect.signature(record.annotation, eval_str=True).parameters

    def run(**typed: Any) -> None:
        given = record.annotation(**{name: typed.pop(name) for name in fields})
        command(**{record.name: given}, **typed)

    every = [f for one in parameters for f in (fields.values() if one is record else [one])]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in every}
    keywords = [one.replace(kind=one.KEYWORD_ONLY) for one in every]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run


Json = Annotated[bool, option("Print JSON instead of a table.", "--json")]
Changes = Annotated[
    list[str] | None,
    option(
        "Change a setting, or arm.NAME.KEY; KEY= leaves it out.",
        "--set",
        metavar="KEY=VALUE",
    ),
]
Out = Annotated[Path | None, option("The run folder. Default: runs/NAME-TIME.")]
DataDir = Annotated[Path | None, option("The data directory. Default: LOCKS_DATA.", "--data-dir")]
ProcessCount = Annotated[
    int, option("Play in so many processes at once, on a CPU.", "--processes", min=1)
]
RELATION_HELP = (
    "What the epsilon compares: zero-out, one client's contribution present or absent; "
    "replace, one client's data replaced by any other."
)
Run = Annotated[Path, argument("A run folder.")]
WIDE = 200  # columns of a table that no terminal shows


class Program(TyperGroup):
    """The group of all commands: whatever a command refuses is one line, said here."""

    def invoke(self, ctx: Any) -> Any:
        """Call the command that was asked for. Bad input, or a file that cannot be written: one
        line on stderr, exit code 2. Ctrl-C: exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say_beside("stopped")
            raise typer.Exit(130) from None
        except ValueError as error:
            message = str(error)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except FileNotFoundError as error:
            message = f"{error.filename}: {error.strerror}"
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            message = f"cannot write {where}{error.strerror or error}"
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            message = f"out of memory ({error}); expected smaller data, models or samples a client"
        say_beside(message)
        raise typer.Exit(2)


def check_picture(name: str, path: Path | None) -> None:
    """Refuse a picture that could not be written, before the work: `name` is the option's."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{name} {path}: expected a file in an existing folder")
    if path.suffix != ".svg":
        raise ValueError(f"{name} {path}: expected a file that ends in .svg")


def start_jax() -> None:
    """What a command that trains does first: use all cores, keep compiled programs on disk."""
    # each core becomes a device, before JAX starts; a user's own XLA_FLAGS are left alone
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={cores or 1}")
    from locksfl.simulate.cache import keep_compiled

    keep_compiled()


def say_beside(text: str) -> None:
    """One line on stderr: an error or a warning. It may quote a stranger's file: nothing in it
    moves a terminal's cursor."""
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    print(f"locks: {shown}", file=sys.stderr)


def warn(text: str | None) -> None:
    """The same for a warning, if there is one."""
    if text is not None:
        say_beside(text)


def plain_table(
    heads: Iterable[str], rows: Iterable[Iterable[Any]], left: int, **more: Any
) -> Table:
    """A table without lines around it, whose first columns, `left` of them, are words."""
    from rich.box import SIMPLE

    return table_of(heads, rows, left=left, box=SIMPLE, padding=0, **more)


def fields_and_properties(record: Any) -> object:
    """What JSON has of a record: its fields, and what follows from them."""
    names = getattr(record, "__struct_fields__", None) or list(record.__dataclass_fields__)
    names += type(names)(n for n, v in vars(type(record)).items() if isinstance(v, property))
    return {name: getattr(record, name) for name in names}


def show(
    answer: Any, as_json: bool, parts: Callable[[Any], Iterable[Any]], *, wide: bool = False
) -> None:
    """Print an answer, plain or in records, as JSON or as the lines and rich tables that `parts`
    makes of it.
    `wide`: tables are not folded where there is no terminal."""
    if as_json:
        print(json.dumps(answer, indent=2, default=fields_and_properties))
        return
    from rich.console import Console

    console = Console()
    if wide and not console.is_terminal:
        console.width = WIDE
    for part in parts(answer):
        if isinstance(part, str):
            print(part)  # as it is: neither wrapped nor coloured
        else:
            console.print(part, highlight=False, markup=False)


def typed_flags(context: typer.Context) -> list[str]:
    """The flags that were typed, --json apart; arguments and defaults are not among them."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.param_type_name == "option"
        and parameter.name != "as_json"
        and getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
