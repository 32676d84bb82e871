"""The program `locks`. It imports JAX only where something is computed, and it alone sets XLA."""

from __future__ import annotations

import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.audit import audit
from locksfl.cli.console import Changes, Json, Program, Run, say_beside, show, start_jax
from locksfl.cli.data import data_app
from locksfl.cli.federation import federation_app
from locksfl.cli.plan import plan
from locksfl.cli.privacy import privacy_app
from locksfl.cli.reproduce import reproduce
from locksfl.cli.theory import theory_app

app = typer.Typer(
    name="locks",
    cls=Program,
    help="Federated learning that samples the clients whose updates matter most, and states what "
    "each user's privacy cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")
app.add_typer(theory_app, name="theory")
app.add_typer(federation_app, name="federation")
privacy_app.command()(plan)
privacy_app.command()(audit)
app.command()(reproduce)

# What typer raises for a wrong command line: click's class, or from 0.26 on that of its own copy of
# click. Of either only BadParameter is public; this is the class above all of them.
CommandLineError: type[Any] = typer.BadParameter.mro()[2]

ConfigFile = Annotated[
    Path | None, typer.Argument(help="The experiment, a TOML file. Without it: the digits.")
]


def _version(asked: bool) -> None:
    if asked:
        print(f"locks {metadata.version('locks-fl')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def run(
    file: ConfigFile = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. Without it: runs/NAME-TIME.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeat a run exactly. Makes the run a simulation.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, or the newest unfinished.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train every arm of an experiment and compare them."""
    start_jax()
    from locksfl.experiment.config import parse_config, read_config
    from locksfl.experiment.folder import RunFolder, default_path, newest_unfinished

    if resume:
        if file or changes or seed is not None:
            raise ValueError("--resume continues a run as it was: expected no FILE, --set, --seed")
        folder = RunFolder.open(out or newest_unfinished())
        config = folder.config
        _not_a_federation(config)
        if folder.finished:
            raise ValueError(f"{folder.path}: the run is finished, nothing to resume")
        prepared = None
    else:
        if file is None:
            config = parse_config(example_config(), changes or (), seed)
        else:
            config = read_config(file, changes or (), seed)
        _not_a_federation(config)
        path = out or default_path(config.name)
        RunFolder.check_new(path)
        prepared = prepare_run(config, as_json)
        folder = RunFolder.create(path, config)
    try:
        with folder.held():
            show_run(config, folder, prepared, as_json)
    finally:
        if not resume:
            folder.discard_unless_begun()


def _not_a_federation(config: Any) -> None:
    if config.engine is not None:
        raise ValueError(
            f"engine = {config.engine!r}: expected none here; start it with locks federation"
        )


def prepare_run(config: Any, as_json: bool) -> Any:
    """Calibrate and open the data; print the warnings that matter before a budget is spent."""
    from rich.console import Console

    from locksfl.experiment.run import prepare
    from locksfl.methods import TRUSTS
    from locksfl.privacy import delta_warning

    warning = delta_warning(config.privacy.delta, config.data.clients)
    if warning and TRUSTS[config.privacy.trust].private:
        say_beside(warning)
    console = Console(stderr=as_json)
    try:
        with console.status("") as status:
            prepared = prepare(config, say=status.update)
    except KeyboardInterrupt:
        console.print("stopped before the first round; nothing is kept")
        raise typer.Exit(130) from None
    for warning in prepared.warnings():
        say_beside(warning)
    return prepared


def show_run(
    config: Any,
    folder: Any,
    prepared: Any,
    as_json: bool,
    play: Any = None,
    again: str | None = "run",
) -> None:
    """Run an experiment under progress bars and print its summary. `play` is what runs it, the
    simulator's `run_experiment` if not given; `again` is the command that continues it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    from locksfl.experiment.report import notes, summary_table
    from locksfl.experiment.run import run_experiment

    console = Console(stderr=as_json)
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    # beside JSON, stderr is for a person who watches, or for the one line of an error
    quiet = as_json and not console.is_terminal
    with Progress(*columns, console=console, disable=quiet) as bars:
        tasks = {
            arm.name: bars.add_task(arm.name, total=config.train.rounds, status="")
            for arm in config.arms()
        }
        first = next(iter(tasks.values()))

        def on_round(record: dict[str, Any]) -> None:
            bars.update(tasks[record["arm"]], completed=record["round"])
            if record["accuracy"] is not None:
                bars.update(tasks[record["arm"]], status=f"{record['accuracy']:.3f}")

        def say(text: str) -> None:
            arm = next((name for name in tasks if text.endswith(name)), None)
            bars.update(tasks[arm] if arm else first, status=text)

        try:
            if prepared is None:  # resumed
                folder.load_checkpoint()  # drops lines that do not count, half a line too
                for line in folder.lines("rounds.jsonl"):
                    on_round(line)
            summary = (play or run_experiment)(
                config,
                folder,
                prepared=prepared,
                resume=prepared is None,
                on_round=on_round,
                say=say,
            )
        except KeyboardInterrupt:
            bars.stop()
            if folder.begun and again is None:
                said = f"stopped; the rounds that were played are in {folder.path}"
            elif folder.begun:
                said = f"stopped; continue with: locks {again} --resume --out {folder.path}"
            else:
                said = "stopped before the first round; nothing is kept"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
    figure = folder.path / "figure.png"
    where = f"run folder: {folder.path}  (figure: {figure})"
    show(summary, as_json, lambda told: [summary_table(told), *map(Text, notes(told)), where])


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented example of an experiment."""
    if file.exists():
        raise ValueError(f"{file}: already there; expected a new file")
    file.write_text(example_config(), "utf-8")
    print(f"wrote {file}; start it with: locks run {file}")


@app.command()
def evaluate(run: Run, as_json: Json = False) -> None:
    """Evaluate a run's models on the held-out records."""
    start_jax()
    from locksfl.experiment.evaluate import evaluate_run, evaluation_table

    show(evaluate_run(run), as_json, lambda results: [evaluation_table(results)])


@app.command()
def publish(
    run: Run, folder: Annotated[Path, typer.Argument(help="A new folder for the bundle.")]
) -> None:
    """Make the bundle that may be published: models and privacy statement, no secrets."""
    from locksfl.experiment.publish import publish as make_bundle

    for path in make_bundle(run, folder):
        print(path)


def example_config() -> str:
    """The commented example, which is also what `locks run` runs without a file."""
    return resources.files("locksfl.experiment").joinpath("example.toml").read_text("utf-8")


def main() -> None:
    """The console script. A wrong option, too, is one line rather than a box."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="locks", standalone_mode=False)
    except CommandLineError as error:
        if told := " ".join(error.format_message().split()):  # a sub-command's help has none
            print(f"locks: {told}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)
