"""`locks data`: list, describe, download and import data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from locksfl._files import write_atomically
from locksfl.cli.console import DataDir, Json, argument, check_picture, group, option, show

if TYPE_CHECKING:
    from locksfl.data.catalogue import Entry

data_app = group("data", "List, describe, fetch and import data.")
Set = Annotated[str, argument("A set, or an imported folder.", metavar="NAME_OR_FOLDER")]


@data_app.command("list")
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The data sets by name, and which of them are present."""
    from locksfl.data.catalogue import CATALOGUE
    from locksfl.data.datasets import present

    sets = [(entry, present(entry, data_dir)) for entry in CATALOGUE.values()]
    rows = [
        {
            "name": entry.name,
            "about": entry.about,
            "clients": entry.clients,
            "samples": entry.train,
            "held_out": entry.test,
            "classes": entry.classes,
            "licence": entry.licence,
            "present": here,
        }
        for entry, here in sets
    ]
    show(rows, as_json, lambda _: _table(sets))


def _table(sets: list[tuple[Entry, bool]]) -> Iterator[Any]:
    """The numbers of each set in a line, and below it what it is, within any width."""
    from rich.padding import Padding
    from rich.text import Text

    form = "{:<16}{:>9}{:>9}{:>10}  {}"
    yield form.format("set", "clients", "samples", "held out", "here")
    for entry, here in sets:
        numbers = (f"{entry.train:,}", f"{entry.test:,}", "yes" if here else "no")
        yield form.format(entry.name, entry.clients or "by split", *numbers)
        for text in (entry.about, f"licence: {entry.licence}"):
            yield Padding(Text(text), (0, 0, 0, 4), expand=False)


@data_app.command()
def describe(
    name: Set,
    data_dir: DataDir = None,
    picture: Annotated[Path | None, option("Draw examples into this SVG file.")] = None,
    as_json: Json = False,
) -> None:
    """Clients, samples per client, classes; every file is checked against its checksum."""
    from locksfl.data import describe as describing

    check_picture("--picture", picture)
    show(describing.description(name, data_dir), as_json, describing.lines)
    if picture is not None:
        write_atomically(picture, describing.picture(name, data_dir).encode())


@data_app.command()
def fetch(
    name: Annotated[str, argument("A set of `locks data list`.")],
    data_dir: DataDir = None,
    address: Annotated[
        list[str] | None, option("Download FILE from URL instead.", metavar="FILE=URL")
    ] = None,
) -> None:
    """Download a set into the data directory; files that are already complete are left alone."""
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


@data_app.command("import")
def import_file(
    file: Annotated[
        Path,
        argument("CSV, TSV, JSONL, Parquet, NPZ or LEAF's JSON; or a folder of them."),
    ],
    client: Annotated[
        str | None, option("The column that names the owner of each row. LEAF: its users.")
    ] = None,
    label: Annotated[str | None, option("The class column. Optional with --text.")] = None,
    numbers: Annotated[
        str | None, option("The labels are numbers in this public range.", metavar="LOW,HIGH")
    ] = None,
    tags: Annotated[bool, option("The labels, a,b,c, are 0 or 1 each.", "--tags")] = False,
    features: Annotated[
        str | None, option("Columns of numbers, a,b,c. Default: all others.")
    ] = None,
    recipe: Annotated[
        Path | None,
        option("Missing values, categories, dates, scaling: a TOML file, or an imported folder."),
    ] = None,
    text: Annotated[str | None, option("A column of text instead.")] = None,
    image: Annotated[str | None, option("A column of images instead.")] = None,
    classes: Annotated[str | None, option("How many classes, or their names: cat,dog.")] = None,
    test: Annotated[Path | None, option("Held-out records of other clients, like FILE.")] = None,
    test_public: Annotated[
        bool, option("The --test file is public: accuracy on it may be published.", "--test-public")
    ] = False,
    test_share: Annotated[
        float,
        option(
            "Without --test: the share of clients held out. 0: a device's records. 1: a server's."
        ),
    ] = 0.1,
    separator: Annotated[str | None, option("Of a CSV file. Default: the one that fits.")] = None,
    encoding: Annotated[str | None, option("Of a text file. Default: UTF-8.")] = None,
    out: Annotated[Path | None, option("The new folder. Default: next to FILE.")] = None,
) -> None:
    """Turn a table of your own into a data set; data.name = "FOLDER" then opens it."""
    settings = {**locals(), "features": _names(features), "classes": _names(classes)}
    from locksfl.data.importing import Request, folder_for, import_table
    from locksfl.data.task import CLASSES, Task
    from locksfl.experiment.own_data import release

    if numbers is not None and tags:
        raise ValueError("--numbers and --tags: expected only one of them")
    settings["task"] = Task("tags") if tags else CLASSES
    if numbers is not None:
        low, high = _range(numbers)
        settings["task"] = Task.numbers(low=low, high=high)
    if numbers is not None or tags:
        settings["label"] = _names(label)
    request = Request(**{field: settings[field] for field in Request.__dataclass_fields__})
    made = import_table(file, out or folder_for(file), request, test, release)
    if request.whole and test is None:
        use = "--data on a device" if test_share == 0 else "data.name at its server"
        print(f"{made}: for a federation, as {use}")
        return
    print(f'{made}: use it with data.name = "{made}"; see `locks data describe {made}`')


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(name.strip() for name in given.split(","))


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    try:
        return float(low), float(high)
    except ValueError:
        raise ValueError(f"--numbers {text}: expected LOW,HIGH, such as 0,100") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise ValueError(f"--address {text!r}: expected FILE=URL")
    return name, url
