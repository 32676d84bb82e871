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
    from locksfl.experiment.documents import is_bundle

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
    from locksfl.experiment.documents import is_bundle

    if public:
        raise ValueError(f"--public: {run / PAGE} is the server's own; expected --out FILE")
    if is_bundle(run):
        raise ValueError(f"{run}: a public bundle stays as it is; expected --out FILE")
    return run / PAGE


def _page(runs: list[Path], public: bool, secret: bool) -> str:
    from locksfl.experiment.folder import RunFolder
    from locksfl.experiment.page import ServerFacts, public_page, server_page, several_page
    from locksfl.experiment.page.story import labelled

    if len(runs) > 1:
        return several_page(labelled([_story(run, public) for run in runs]), secret=secret)
    if secret:
        return server_page(_story(runs[0], False, ""), ServerFacts.read(RunFolder.open(runs[0])))
    return public_page(_statement(runs[0]))


def _story(run: Path, public: bool, label: str | None = None) -> Story:
    """A run by the name of its folder or, in public, by that of its experiment: a folder's name
    may tell when it was run, and where."""
    from locksfl.experiment.documents import is_bundle
    from locksfl.experiment.folder import RunFolder
    from locksfl.experiment.page.story import of_public, of_run

    named = run.resolve().name if label is None else label
    if public or is_bundle(run):
        statement = _statement(run)
        return of_public(statement, statement.settings.name if public else named)
    folder = RunFolder.open(run)
    return of_run(folder.run(), folder.config, named)


def _statement(run: Path) -> Statement:
    """What may be shown of a run, or what a bundle shows."""
    from locksfl.experiment.coverage import covered
    from locksfl.experiment.documents import is_bundle, read_statement
    from locksfl.experiment.folder import RunFolder
    from locksfl.experiment.sealing import sealed

    return read_statement(run) if is_bundle(run) else sealed(covered(RunFolder.open(run).run()))
