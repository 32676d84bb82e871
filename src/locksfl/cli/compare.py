"""`locks compare`: methods beside each other, at equal epsilon, uploads and tuning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from locksfl.cli.console import Json, ProcessCount, argument, option, plain_table, start_jax

if TYPE_CHECKING:
    from locksfl.grids.comparison.document import Table
    from locksfl.grids.comparison.folder import Folder, Part


def compare(
    paths: Annotated[list[Path], argument("The comparison, a TOML file; with --merge, the parts.")],
    out: Annotated[
        Path | None, option("The folder. Default: runs/compare-FILE, which is continued.")
    ] = None,
    quick: Annotated[bool, option("Smaller, by a rule that the report states.", "--quick")] = False,
    part: Annotated[str | None, option("Play every k-th cell only: i/k.", metavar="I/K")] = None,
    merge: Annotated[bool, option("Join the folders of all parts in --out.", "--merge")] = False,
    processes: ProcessCount = 1,
    as_json: Json = False,
) -> None:
    """Compare methods over data, epsilons, uploads and seeds. The same command goes on where it was
    stopped."""
    if merge:
        _merge(paths, out, quick, part, as_json)
        return
    if len(paths) != 1:
        raise ValueError(f"{paths[1]}: expected one file; folders of parts are for --merge")
    (file,) = paths
    start_jax()
    from locksfl.grids.comparison.cases import read_comparison
    from locksfl.grids.comparison.folder import Folder, Part

    comparison = read_comparison(file)
    if quick:
        comparison = comparison.quickened()
    mine = Part.parse(part) if part else Part()
    name = f"compare-{file.stem}{'-quick' * quick}"
    command = f"locks compare {file}{' --quick' * quick}"
    if part:
        name += f"-{mine.number}-of-{mine.of}"
        command += f" --part {part}"
    if out:
        command += f" --out {out}"
    folder = Folder(out or Path("runs") / name, comparison)
    with folder.held():
        _play(folder, mine, command, processes, as_json)


def _play(folder: Folder, part: Part, command: str, processes: int, as_json: bool) -> None:
    from locksfl.cli.progress import watching
    from locksfl.grids.comparison.document import write_report

    def stopped() -> str:
        write_report(folder)
        return f"stopped; what is finished is in {folder.path}; go on with: {command}"

    with watching(stopped, as_json) as watch:
        folder.play(watch, part, processes)
    _show(folder, write_report(folder), as_json)
    if folder.failures:
        failed = f"{len(folder.failures)} cells failed (report.md); try again with: {command}"
        print(failed, file=sys.stderr if as_json else None)
        raise typer.Exit(1)


def _merge(
    paths: list[Path], out: Path | None, quick: bool, part: str | None, as_json: bool
) -> None:
    from locksfl.grids.comparison.document import write_report
    from locksfl.grids.comparison.folder import merge

    if out is None:
        raise ValueError("--merge: expected --out DIR, a new folder for the whole")
    if quick or part:
        raise ValueError("--merge: expected no --quick or --part; the parts say what they are")
    folder = merge(paths, out)
    _show(folder, write_report(folder), as_json)


def _show(folder: Folder, table: Table, as_json: bool) -> None:
    if as_json:
        print((folder.path / "table.json").read_text("utf-8"), end="")
        return
    from rich.console import Console

    from locksfl.grids.comparison.document import HEADS, cells

    shown = slice(0, 9)
    rows = (cells(row)[shown] for row in table.rows)
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(plain_table(HEADS[shown], rows, left=1))
    for one in table.differences:
        if one.mean is not None:
            verdict = "stands" if one.stands else "does not stand"
            print(f"{verdict}: {one.better} above {one.than}: {100 * one.mean:+.2f} points")
    print(f"report: {folder.path / 'report.md'}")
