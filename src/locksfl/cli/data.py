"""`locks data`: what data there are, what is in them, how to get them, how to bring one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.console import one_line_errors

app = typer.Typer(
    help="List, describe, fetch and import data.", no_args_is_help=True, add_completion=False
)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data lie. Without it: LOCKS_DATA.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Set = Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="A set, or an imported folder.")]


@app.command("list")
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The sets by name, and which of them are here."""
    with one_line_errors():
        from locksfl.data.catalogue import CATALOGUE
        from locksfl.data.datasets import present

        rows: list[dict[str, Any]] = [
            {
                "name": entry.name,
                "about": entry.about,
                "clients": entry.clients,
                "samples": entry.train,
                "held_out": entry.test,
                "classes": entry.classes,
                "licence": entry.licence,
                "present": present(entry, data_dir),
            }
            for entry in CATALOGUE.values()
        ]
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        from rich.console import Console
        from rich.table import Column, Table

        table = Table(
            Column("set", no_wrap=True), "what", "clients", "samples", "held out", "licence", "here"
        )
        for row in rows:
            table.add_row(
                row["name"],
                row["about"],
                str(row["clients"] or "by split"),
                f"{row['samples']:,}",
                f"{row['held_out']:,}",
                row["licence"],
                "yes" if row["present"] else "no",
            )
        Console().print(table)


@app.command()
def describe(
    name: Set,
    data_dir: DataDir = None,
    picture: Annotated[Path | None, typer.Option(help="Draw examples into this PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Clients, samples per client, classes; every file is held against its checksum."""
    with one_line_errors():
        from locksfl.data import describe as describing

        told = describing.description(name, data_dir)
        print(json.dumps(told, indent=2) if as_json else "\n".join(describing.lines(told)))
        if picture is not None:
            describing.picture(name, picture, data_dir)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A set of `locks data list`.")],
    data_dir: DataDir = None,
    address: Annotated[
        list[str] | None, typer.Option(metavar="FILE=URL", help="Get a file from elsewhere.")
    ] = None,
) -> None:
    """Download a set into the data directory; what is there and whole is left alone."""
    with one_line_errors():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        from locksfl._validate import one_of
        from locksfl.data import download
        from locksfl.data.catalogue import CATALOGUE, NAMES
        from locksfl.data.datasets import data_root

        one_of(NAMES, **{"data set": name})
        entry = CATALOGUE[name]
        if not entry.files:
            print(f"{name} is in the package: nothing to fetch")
            return
        others = dict(_pair(text) for text in address or ())
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            tasks: dict[str, Any] = {}

            def on_bytes(file: str, done: int, total: int | None) -> None:
                if file not in tasks:
                    tasks[file] = bars.add_task(file, total=total)
                bars.update(tasks[file], completed=done, total=total)

            root = data_root(name, data_dir)
            paths = download.fetch(entry, root, addresses=others, on_bytes=on_bytes)
        for path in paths:
            print(path)


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A .csv, .npz or .parquet file.")],
    client: Annotated[str, typer.Option(help="The column that says whose a row is.")],
    label: Annotated[
        str | None, typer.Option(help="The column of the class. With --text only: may be left out.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Columns of numbers, a,b,c. Without it: all others.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A column of text instead.")] = None,
    image: Annotated[str | None, typer.Option(help="A column of images instead.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="How many classes, or their names: cat,dog.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="A held-out file of other clients.")] = None,
    test_share: Annotated[
        float, typer.Option(help="Without --test: the share of clients held out.")
    ] = 0.1,
    out: Annotated[
        Path | None, typer.Option(help="The new folder. Without it: beside FILE.")
    ] = None,
) -> None:
    """Make a data-set folder of your own table; data.name = "FOLDER" then opens it."""
    with one_line_errors():
        from locksfl.data.importing import Request, import_table

        request = Request(
            client=client,
            label=label,
            features=_names(features),
            text=text,
            image=image,
            classes=_names(classes),
            test_share=test_share,
        )
        made = import_table(file, out or file.with_suffix(""), request, test)
        print(f'{made}: use it with data.name = "{made}"; see `locks data describe {made}`')


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(name.strip() for name in given.split(","))


def _pair(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise ValueError(f"--address {text!r}: expected FILE=URL")
    return name, url
