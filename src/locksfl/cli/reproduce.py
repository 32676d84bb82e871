"""`locks reproduce`: the paper's experiment, in its own terms and honestly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from locksfl.cli.console import DataDir, Json, ProcessCount, option, plain_table, start_jax

if TYPE_CHECKING:
    from rich.table import Table

    from locksfl.paper.reproduce.results import Row
    from locksfl.paper.reproduce.runs import Stage
    from locksfl.paper.reproduce.settings import Scale


def reproduce(
    quick: Annotated[
        bool, option("On the embedded digits: 2 minutes, no download.", "--quick")
    ] = False,
    out: Annotated[Path | None, option("The folder. Default: runs/reproduce-TIME.")] = None,
    seeds: Annotated[int | None, option("How many runs of every method. Default: 3.")] = None,
    seed: Annotated[int | None, option("The first seed. Default: 0.")] = None,
    tune: Annotated[
        bool, option("First search again for the clip norm and step of every method.", "--tune")
    ] = False,
    tuned: Annotated[
        Path | None, option("A tuned.toml that --tune wrote, in place of ours.")
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool, option("Continue the reproduction in --out, as it began.", "--resume")
    ] = False,
    processes: ProcessCount = 1,
    as_json: Json = False,
) -> None:
    """The paper's experiment: uniform against LOCKS at epsilon infinity, 50 and 10."""
    given = {"quick": quick, "seeds": seeds, "seed": seed, "tune": tune, "tuned": tuned}
    start_jax()
    import dataclasses

    from rich.console import Console

    from locksfl.experiment.folder import default_path
    from locksfl.grids.bench import Bench
    from locksfl.paper.reproduce.runs import Stage, begin, begun
    from locksfl.paper.reproduce.settings import FULL, QUICK, SEEDS

    where = str(data_dir) if data_dir else None
    if resume:
        if out is None:
            raise ValueError("--resume: expected --out DIR, the folder to continue")
        for name, value in given.items():  # other settings would be mixed with those there
            if value is not None and value is not False:
                raise ValueError(
                    f"--{name}: not with --resume, which continues with the original settings"
                )
        path, stage = out, Stage(begun(out), Bench(), where)
    else:
        # every refusal comes before anything is written
        numbers = _seeds(len(SEEDS) if seeds is None else seeds, seed or 0)
        scale = dataclasses.replace(QUICK if quick else FULL, seeds=numbers)
        stage = Stage(scale, Bench(), where)
        text = _tuned(scale, tune, tuned)
        stage.check_data()
        path = out or default_path("reproduce")
        begin(path, scale, text)
    rows, conclusion = _work(path, stage, processes, as_json)
    if as_json:
        print((path / "table.json").read_text("utf-8"), end="")
        return
    console = Console()
    for part in _tables(rows):
        console.print(part)
    for line in (*(f"* {line}" for line in conclusion), f"report: {path / 'report.md'}"):
        print(line)


def _seeds(seeds: int, seed: int) -> tuple[int, ...]:
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: expected at least 1")
    if seed < 0 or seed + seeds > 1000:
        raise ValueError(f"--seed {seed}: expected 0 to 999; seeds from 1000 on are used by --tune")
    return tuple(range(seed, seed + seeds))


def _tuned(scale: Scale, tune: bool, tuned: Path | None) -> str | None:
    """The clips and steps to use, checked; None where they are to be found."""
    from locksfl.paper.reproduce.tune import stored, text_of

    if tune and tuned is not None:
        raise ValueError(f"--tuned {tuned}: not with --tune, which finds its own")
    if tune:
        return None
    text = text_of(tuned)
    stored(scale, text, tuned or "tuned.toml")
    return text


def _work(path: Path, stage: Stage, processes: int, as_json: bool) -> tuple[list[Row], list[str]]:
    """Tune unless that is done, play every run, write the report; its rows and its conclusion."""
    from locksfl.cli.progress import watching
    from locksfl.grids.bench import executor_for
    from locksfl.paper.reproduce.document import write_report
    from locksfl.paper.reproduce.runs import play_panels, watch_likeness
    from locksfl.paper.reproduce.settings import HONEST, Panel
    from locksfl.paper.reproduce.tune import stored, text_of
    from locksfl.paper.reproduce.tune import tune as find_best

    scale, file = stage.scale, path / "tuned.toml"
    stopped = f"stopped; continue with: locks reproduce --resume --out {path}"
    with watching(lambda: stopped, as_json) as watch:
        with executor_for(stage.bench, processes) as executor:
            if file.exists():
                table = stored(scale, text_of(file), file)
            else:
                table = find_best(path, stage, executor, watch)
            by_panel = play_panels(path, stage, table, executor, watch)
        watch.say("comparing clients")
        silent = [Panel(HONEST, model, float("inf")) for model in scale.models]
        alike = {panel.model: watch_likeness(stage, panel, table[panel]) for panel in silent}
        return write_report(path, scale, by_panel, alike)


def _tables(rows: list[Row]) -> Iterator[Table]:
    """A table for each version and model."""
    from locksfl.paper.reproduce.document import HEADS, cells

    for version, model in dict.fromkeys((row.panel.version, row.panel.model) for row in rows):
        stamp = " · NO GUARANTEE" if version == "as-printed" else ""
        mine = [row for row in rows if (row.panel.version, row.panel.model) == (version, model)]
        title = f"{version}, {model}{stamp}"
        table = plain_table(HEADS, map(cells, mine), left=2, title=title)
        for column in table.columns:
            column.no_wrap = True
        yield table
