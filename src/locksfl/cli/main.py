"""The program `locks`. It imports JAX only where something is computed, and it alone sets XLA."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.audit import audit
from locksfl.cli.compare import compare
from locksfl.cli.console import (
    Changes,
    Json,
    Out,
    Program,
    Run,
    argument,
    option,
    say_beside,
    show,
    start_jax,
)
from locksfl.cli.data import data_app
from locksfl.cli.federation import federation_app
from locksfl.cli.plan import plan
from locksfl.cli.privacy import privacy_app
from locksfl.cli.report import report
from locksfl.cli.reproduce import reproduce
from locksfl.cli.running import continue_run, open_unfinished, run_new
from locksfl.cli.theory import theory_app
from locksfl.cli.tune import tune
from locksfl.cli.verify import verify

app = typer.Typer(
    name="locks",
    cls=Program,
    help="Federated learning that samples the clients whose updates matter most, and states what "
    "each user's privacy cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for commands in (data_app, privacy_app, theory_app, federation_app):
    app.add_typer(commands)
privacy_app.command()(audit)
app.command()(compare)
app.command()(plan)
app.command()(report)
app.command()(reproduce)
app.command()(tune)
app.command()(verify)

# What typer raises for a wrong command line: click's class, or from 0.26 on that of its own copy of
# click. Of either only BadParameter is public; this is the class above all of them.
CommandLineError: type[Any] = typer.BadParameter.mro()[2]

ConfigFile = Annotated[
    Path | None, argument("The experiment, a TOML file. Default: the embedded digits.")
]


EXAMPLE_DATA = "mnist-embedded"


def _version(asked: bool) -> None:
    if asked:
        print(f"locks {metadata.version('locks-fl')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, option("Print the version.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


@app.command()
def run(
    file: ConfigFile = None,
    changes: Changes = None,
    out: Out = None,
    seed: Annotated[int | None, option("Repeat a run exactly. Makes the run a simulation.")] = None,
    resume: Annotated[
        bool, option("Continue the run in --out, or the newest unfinished run.", "--resume")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train every arm of an experiment and compare them."""
    start_jax()
    from locksfl.experiment.config import parse_config, read_config
    from locksfl.experiment.folder import newest_unfinished

    if resume:
        if file or changes or seed is not None:
            raise ValueError(
                "--resume continues a run unchanged: expected no FILE, --set or --seed"
            )
        folder = open_unfinished(out or newest_unfinished())
        config = folder.config
    elif file is None:
        config = parse_config(example_config(), changes or (), seed)
        if config.data.name == EXAMPLE_DATA:  # the example was tuned on these data
            privacy = replace(config.privacy, tuned_without_privacy=True)
            config = replace(config, privacy=privacy)
    else:
        config = read_config(file, changes or (), seed)
    if config.engine is not None:
        raise ValueError(
            f"engine = {config.engine!r}: expected none here; start it with locks federation"
        )
    if resume:
        continue_run(folder, as_json)
    else:
        run_new(config, out, as_json)


@app.command()
def init(
    file: Annotated[Path, argument("The file to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented example of an experiment."""
    if file.exists():
        raise ValueError(f"{file}: already exists; expected a new file")
    file.write_text(example_config(), "utf-8")
    print(f"wrote {file}; start it with: locks run {file}")


@app.command()
def evaluate(run: Run, as_json: Json = False) -> None:
    """Evaluate a run's models on the held-out records."""
    start_jax()
    from locksfl.experiment.evaluate import evaluate_run, evaluation_tables

    show(evaluate_run(run), as_json, evaluation_tables)


@app.command()
def publish(
    run: Run,
    folder: Annotated[Path, argument("A new folder for the bundle.")],
    sign: Annotated[
        Path | None, option("Sign it with this Ed25519 private key (PEM, no password).")
    ] = None,
) -> None:
    """Make the bundle that may be published: models and privacy statement, no secrets."""
    from locksfl.experiment.publish import publish_folder as make_bundle

    for path in make_bundle(run, folder, sign):
        print(path)


@app.command()
def export(
    model: Annotated[Path, argument("A model: model-ARM.npz of a run or a bundle.")],
    file: Annotated[Path, argument("The new file: .onnx, .safetensors or .npz.")],
) -> None:
    """Write a model for other programs, in the format that the file's name says."""
    from locksfl.models.fitted import load

    if file.exists():
        raise ValueError(f"{file}: already exists; expected a new file")
    load(model).save(file)
    print(f"wrote {file}")


def example_config() -> str:
    """The commented example, which is also what `locks run` runs without a file."""
    return resources.files("locksfl.experiment").joinpath("example.toml").read_text("utf-8")


def main() -> None:
    """The console script. A wrong option, too, is one line rather than a box."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="locks", standalone_mode=False)
    except CommandLineError as error:
        if message := error.format_message().strip():  # a sub-command's help has none
            say_beside(message)
        code = error.exit_code
    sys.exit(code)
