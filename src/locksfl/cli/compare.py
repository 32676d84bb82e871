"""`locks compare`: methods beside each other, at equal epsilon, uploads and tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.console import Json, argument, option, plain_table, start_jax


def compare(
    paths: Annotated[list[Path], argument("The comparison, a TOML file; with --merge, the parts.")],
    out: Annotated[
        Path | None, option("The folder. Default: runs/compare-FILE, which is continued.")
    ] = None,
    quick: Annotated[bool, option("Smaller, by a rule that the report states.", "--quick")] = False,
    part: Annotated[str | None, option("Play every k-th cell only: i/k.", metavar="I/K")] = None,
    merge: Annotated[bool, option("Join the folders of all parts in --out.", "--merge")] = False,
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
    from locksfl.experiment.comparison.folder import Folder, Part
    from locksfl.experiment.comparison.grid import read_comparison

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
    folder = Folder.begin(out or Path("runs") / name, comparison, mine)
    with folder.held():
        _play(folder, command, as_json)


def _play(folder: Any, command: str, as_json: bool) -> None:
    from rich.console import Console

    from locksfl.cli.progress import Bars
    from locksfl.experiment.comparison.document import write_report
    from locksfl.experiment.comparison.play import play

    console = Console(stderr=as_json)

    def stopped() -> str:
        write_report(folder)
        return f"stopped; what is finished is in {folder.path}; go on with: {command}"

    with Bars(console, stopped, quiet=as_json) as bar:
        done = len(folder.cases) - len(folder.missing)
        task = bar.add_task("", total=len(folder.cases), completed=done)

        def on_stage(stage: str, case: Any) -> None:
            bar.update(task, advance=stage == "report", description=f"{stage}: {case.label}")

        play(folder, on_stage, lambda text: bar.update(task, description=text))
    if not folder.missing:
        folder.settle()
    _show(folder, write_report(folder), as_json)
    if folder.failures:
        said = f"{len(folder.failures)} cells failed (report.md); try again with: {command}"
        print(said, file=console.file)
        raise typer.Exit(1)


def _merge(
    paths: list[Path], out: Path | None, quick: bool, part: str | None, as_json: bool
) -> None:
    from locksfl.experiment.comparison.document import write_report
    from locksfl.experiment.comparison.folder import merge

    if out is None:
        raise ValueError("--merge: expected --out DIR, a new folder for the whole")
    if quick or part:
        raise ValueError("--merge: expected no --quick or --part; the parts say what they are")
    folder = merge(paths, out)
    _show(folder, write_report(folder), as_json)


def _show(folder: Any, table: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print((folder.path / "table.json").read_text("utf-8"), end="")
        return
    from rich.console import Console

    from locksfl.experiment.comparison.document import HEADS, cells

    shown = slice(0, 9)
    rows = (cells(row)[shown] for row in table["rows"])
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(plain_table(HEADS[shown], rows, left=1))
    for one in table["differences"]:
        if one["played"]:
            verdict = "stands" if one["stands"] else "does not stand"
            print(
                f"{verdict}: {one['better']} above {one['than']}: {100 * one['mean']:+.2f} points"
            )
    print(f"report: {folder.path / 'report.md'}")
