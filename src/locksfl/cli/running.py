"""How a command trains: refusals first, then a run folder, progress bars and the summary."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from locksfl.cli.console import say_beside, show, warn
from locksfl.cli.stopping import stopping

if TYPE_CHECKING:
    from locksfl.experiment.config import Config
    from locksfl.experiment.folder import RunFolder
    from locksfl.experiment.record import Line

NOTHING_TRAINED = 3  # exit code of a federation whose devices all refused, or sent no update
NOT_BEGUN = "stopped before the first round: nothing was drawn or spent"


def run_new(
    config: Config, out: Path | None, as_json: bool, play: Any = None, again: str | None = "run"
) -> None:
    """Check, prepare, make the run folder, run. `play`, `again`: see `show_run`."""
    from locksfl.experiment.config import located
    from locksfl.experiment.folder import RunFolder, default_path

    path = out or default_path(config.name)
    RunFolder.check_new(path)
    config = located(config)  # as its folder has it: a run that goes on is the same experiment
    prepared = _prepare(config, as_json)
    if config.plan is not None:
        asked = ", ".join(f"{arm.name} {arm.cohort:g}" for arm in prepared.arms)
        say_beside(f"planned: {config.train.rounds} rounds; clients asked a round: {asked}")
    folder = RunFolder.create(path, config)
    try:
        show_run(config, folder, prepared, as_json, play, again)
    finally:
        folder.discard_unless_begun()


def continue_run(
    folder: RunFolder, as_json: bool, play: Any = None, again: str | None = "run"
) -> None:
    """Go on from the last checkpoint, or from the start if there is none."""
    config = folder.config
    prepared = _prepare(config, as_json) if folder.fresh else None
    show_run(config, folder, prepared, as_json, play, again)


def open_unfinished(path: Path) -> RunFolder:
    """The folder of a run that can be continued."""
    from locksfl.experiment.folder import RunFolder

    folder = RunFolder.open(path)
    if folder.finished:
        raise ValueError(f"{folder.path}: the run is finished, nothing to resume")
    return folder


def _prepare(config: Any, as_json: bool) -> Any:
    """Calibrate and open the data; print the warnings that matter before a budget is spent."""
    from rich.console import Console

    from locksfl.experiment.run import prepare
    from locksfl.methods import TRUSTS
    from locksfl.privacy import delta_warning

    console = Console(stderr=as_json)
    try:
        with console.status("") as status:
            prepared = prepare(config, say=status.update)
    except KeyboardInterrupt:
        console.print(NOT_BEGUN)
        raise typer.Exit(130) from None
    if TRUSTS[config.privacy.trust].private:
        warn(delta_warning(config.privacy.delta, config.clients))
    for warning in prepared.warnings():
        warn(warning)
    return prepared


def show_run(
    config: Config,
    folder: RunFolder,
    prepared: Any,
    as_json: bool,
    play: Any = None,
    again: str | None = "run",
) -> None:
    """Run an experiment under progress bars and print its summary.

    Args:
        config: the experiment.
        folder: its run folder, which nobody else may run in meanwhile.
        prepared: its data and arms; None: the run is continued.
        as_json: print the summary as JSON.
        play: what runs it; None: the simulator's `run_experiment`.
        again: the command that continues it, if any does.
    """
    from rich.console import Console
    from rich.text import Text

    from locksfl.cli.progress import Bars
    from locksfl.experiment.page.story import of_run
    from locksfl.experiment.record import plain
    from locksfl.experiment.records import untrained
    from locksfl.experiment.report import notes, summary_table
    from locksfl.experiment.run import run_experiment
    from locksfl.federation.server.allowed import policy_for, terms_line
    from locksfl.federation.wire import LostLink, Unwilling
    from locksfl.methods import TRUSTS

    federation = config.engine is not None
    if federation and not TRUSTS[config.privacy.trust].guards_server:
        say_beside(f"trust {config.privacy.trust}: this server sees raw updates")
    if federation and again and prepared is not None:
        say_beside(terms_line(policy_for(config, prepared.arms)))

    def stopped() -> str:
        if not folder.begun:
            return NOT_BEGUN
        if again is None:
            return f"stopped; the rounds that were played are in {folder.path}"
        return f"stopped; continue with: locks {again} --resume --out {folder.path}"

    console, resume, status = Console(stderr=as_json), prepared is None, "{task.fields[status]}"
    # beside JSON, stderr is for a person who watches, or for the one line of an error
    with (
        stopping(stopped) if federation else nullcontext(),
        folder.held(),
        Bars(console, stopped, status, width=20, quiet=as_json) as bars,
    ):
        tasks = {
            arm.name: bars.add_task(arm.name, total=config.train.rounds, status="")
            for arm in config.arms
        }
        first = next(iter(tasks.values()))

        def on_round(line: Line) -> None:
            seen = {} if line.score is None else {"status": f"{line.score:.3f}"}
            bars.update(tasks[line.arm], completed=line.round, **seen)

        def say(text: str) -> None:
            bars.update(tasks.get(text.rpartition(" ")[2], first), status=text)

        try:
            if not resume:
                folder.clear()
            run = (play or run_experiment)(
                config,
                folder,
                prepared=prepared,
                resume=resume,
                on_round=on_round,
                on_past=on_round,
                say=say,
            )
        except LostLink as error:
            raise ValueError(f"{error}; {stopped()}") from None
        except Unwilling as error:
            bars.stop()
            say_beside(f"{error}; {stopped()}")
            raise typer.Exit(NOTHING_TRAINED) from None
    where = f"run folder: {folder.path}  (page: {folder.path / 'report.html'})"
    story = of_run(run, config)
    lines = [summary_table(story), *map(Text, notes(story)), where]
    show(plain(run), as_json, lambda _: lines)
    if why := untrained(run):
        say_beside(f"{why}: nothing was trained")
        raise typer.Exit(NOTHING_TRAINED)
