"""The program `locks`. It imports JAX only where something is computed, and it alone sets XLA."""

from __future__ import annotations

import json
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from locksfl.cli import audit as audit_cli
from locksfl.cli import plan as plan_cli
from locksfl.cli.console import Json, one_line_errors, start_jax
from locksfl.cli.data import app as data_app
from locksfl.cli.federation import federation_app
from locksfl.cli.privacy import privacy_app
from locksfl.cli.reproduce import reproduce
from locksfl.cli.theory import theory_app

app = typer.Typer(
    name="locks",
    help="Federated learning that asks only the clients worth asking, and states what each "
    "user's privacy cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")
app.add_typer(theory_app, name="theory")
app.add_typer(federation_app, name="federation")
plan_cli.add_commands(privacy_app)
audit_cli.add_commands(privacy_app)
app.command()(reproduce)

ConfigFile = Annotated[
    Path | None, typer.Argument(help="One TOML file is one experiment. Without it: the digits.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, arm.NAME.KEY too."),
]
Run = Annotated[Path, typer.Argument(help="A run folder.")]


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
        int | None, typer.Option(help="Repeat a run exactly. Makes it a simulation.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, or the newest unfinished.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train every arm of an experiment and compare them."""
    with one_line_errors():
        start_jax()
        from locksfl.experiment.config import parse_config, read_config
        from locksfl.experiment.folder import RunFolder, default_path, newest_unfinished

        if resume:
            if file or changes or seed is not None:
                raise ValueError(
                    "--resume continues a run as it was: expected no FILE, --set, --seed"
                )
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


def _check_config(config: Any) -> None:
    """Find what is wrong before anything is computed."""
    from locksfl.experiment.plan import plan_arm
    from locksfl.privacy import delta_warning

    warning = delta_warning(config.privacy.delta, config.data.clients)
    if warning and config.privacy.trust != "none":
        print(f"locks: {warning}", file=sys.stderr)

    for arm in config.arm:
        plan_arm(arm, config)


def prepare_run(config: Any, as_json: bool) -> Any:
    """Open the data and calibrate; say what should be heard before a budget is spent."""
    _check_config(config)
    from rich.console import Console

    from locksfl.experiment.run import prepare

    console = Console(stderr=as_json)
    try:
        with console.status("") as status:
            prepared = prepare(config, say=status.update)
    except KeyboardInterrupt:
        console.print("stopped before the first round; nothing is kept")
        raise typer.Exit(130) from None
    for warning in prepared.warnings():
        print(f"locks: {warning}", file=sys.stderr)
    return prepared


def show_run(
    config: Any,
    folder: Any,
    prepared: Any,
    as_json: bool,
    play: Any = None,
    again: str | None = "run",
) -> None:
    """Run an experiment under progress bars and show what came of it. `play` is what runs it, the
    simulator's `run_experiment` if not given; `again` the command that continues it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

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
            for arm in config.arm
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
                said = f"stopped; what was played is in {folder.path}"
            elif folder.begun:
                said = f"stopped; continue with: locks {again} --resume --out {folder.path}"
            else:
                said = "stopped before the first round; nothing is kept"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    console.print(summary_table(summary))
    for note in notes(summary):
        console.print(note, highlight=False)
    said = f"run folder: {folder.path}  (figure: {folder.path / 'figure.png'})"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("experiment.toml"),
) -> None:
    """Write a commented example of an experiment."""
    with one_line_errors():
        if file.exists():
            raise ValueError(f"{file}: already there; expected a new file")
        file.write_text(example_config(), "utf-8")
        print(f"wrote {file}; start it with: locks run {file}")


@app.command()
def evaluate(run: Run, as_json: Json = False) -> None:
    """Evaluate a run's models on the held-out records."""
    with one_line_errors():
        start_jax()
        from rich.console import Console

        from locksfl.experiment.evaluate import evaluate_run, evaluation_table

        results = evaluate_run(run)
        if as_json:
            print(json.dumps(results, indent=2))
        else:
            Console().print(evaluation_table(results))


@app.command()
def publish(
    run: Run, folder: Annotated[Path, typer.Argument(help="A new folder for the bundle.")]
) -> None:
    """Make the bundle that may be shown to everyone: models, statement, no secrets."""
    with one_line_errors():
        from locksfl.experiment.publish import publish as make_bundle

        for path in make_bundle(run, folder):
            print(path)


def example_config() -> str:
    """The commented example, which is also what `locks run` runs without a file."""
    return resources.files("locksfl.experiment").joinpath("example.toml").read_text("utf-8")


def main() -> None:
    """The console script. A wrong option is one line too, not a box of them."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="locks", standalone_mode=False)
    except click.ClickException as error:
        if told := " ".join(error.format_message().split()):  # a sub-command's help has none
            print(f"locks: {told}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)
