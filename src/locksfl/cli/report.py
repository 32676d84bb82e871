"""`locks report`: the page of a run anew, or several runs and bundles side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from locksfl.cli.console import argument, option

if TYPE_CHECKING:
    from locksfl.experiment.page.story import Story
    from locksfl.experiment.record import Statement

PAGE = "report.html"  # as `experiment.documents` has it, which would bring JAX to every command
Runs = Annotated[list[Path], argument("Run folders, or public bundles.")]


def report(
    runs: Runs,
    out: Annotated[
        Path | None, option(f"A new file. Default: {PAGE} of the run; of several, in this folder.")
    ] = None,
    public: Annotated[bool, option("Show only what a public bundle may have.", "--public")] = False,
) -> None:
    """Write a page for people who were not there: of one run, or of several side by side."""
    from locksfl._files import write_atomically
    from locksfl.experiment.page.story import is_bundle

    secret = not (public or all(map(is_bundle, runs)))
    if out is not None or len(runs) > 1:
        target = out or Path(PAGE)
        if target.exists():
            raise ValueError(f"--out {target}: already exists; expected a new file")
    else:
        target = _own_page(runs[0], public)
    write_atomically(target, _page(runs, public, secret).encode(), secret)
    print(f"wrote {target}")


def _own_page(run: Path, public: bool) -> Path:
    """Where the page of one run is. One that is public is not written beside secrets, where it
    would be taken for theirs, nor into a bundle, which is finished."""
    from locksfl.experiment.page.story import is_bundle

    if public:
        raise ValueError(f"--public: {run / PAGE} is the server's own; expected --out FILE")
    if is_bundle(run):
        raise ValueError(f"{run}: a public bundle stays as it is; expected --out FILE")
    return run / PAGE


def _page(runs: list[Path], public: bool, secret: bool) -> str:
    from locksfl.experiment.page import public_page, server_page, several_page
    from locksfl.experiment.page.story import labelled, read_run

    if len(runs) == 1:
        return server_page(read_run(runs[0])[0]) if secret else public_page(_statement(runs[0]))
    return several_page(labelled([_story(run, public) for run in runs]), secret=secret)


def _story(run: Path, public: bool) -> Story:
    """A run by the name of its folder or, in public, by that of its experiment: a folder's name
    may tell when it was run, and where."""
    from locksfl.experiment.documents import as_document
    from locksfl.experiment.page.story import is_bundle, of_document, of_run, read_run

    label = run.resolve().name
    if public or is_bundle(run):
        statement = _statement(run)
        return of_document(as_document(statement), statement.settings.name if public else label)
    return of_run(*read_run(run), label)


def _statement(run: Path) -> Statement:
    """What may be shown of a run, or what a bundle shows."""
    from locksfl.experiment.documents import read_statement
    from locksfl.experiment.folder import RunFolder
    from locksfl.experiment.page.story import is_bundle
    from locksfl.experiment.public import public_models, public_run
    from locksfl.experiment.sealing import sealed

    if is_bundle(run):
        return read_statement(run)
    folder = RunFolder.open(run)
    return sealed(public_run(folder, public_models(folder)))
