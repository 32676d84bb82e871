"""`locks federation`: the same experiment on real devices, over Flower."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.console import Json, one_line_errors

federation_app = typer.Typer(
    help="Train on real devices that guard their own privacy, over Flower.",
    no_args_is_help=True,
    add_completion=False,
)

Out = Annotated[Path | None, typer.Option(help="The run folder. Without it: runs/NAME-TIME.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long a stage waits for answers.")]


@federation_app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=2, help="Devices, a process each.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each arm.")] = 5,
    trust: Annotated[str, typer.Option(help="local, or central: the server sees raw.")] = "local",
    epsilon: Annotated[float, typer.Option(help="The total of an arm.")] = 10.0,
    engine: Annotated[
        str, typer.Option(help="flower: real processes; or flower-simulation, Flower's own.")
    ] = "flower",
    seconds: Seconds = 60.0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A whole federation on this machine: a SuperLink, a process for each node, TLS, node keys."""
    with one_line_errors():
        from locksfl._validate import one_of
        from locksfl.federation import require

        require()
        from locksfl.experiment.config import ENGINES, parse_config
        from locksfl.methods import TRUSTS

        one_of(ENGINES, **{"--engine": engine})
        one_of([name for name, t in TRUSTS.items() if t.private], **{"--trust": trust})
        if engine == "flower-simulation":
            require("ray", "flwr[simulation]==1.41.0")
        from locksfl.experiment.folder import default_path
        from locksfl.federation.demo import experiment_text
        from locksfl.federation.server.serving import as_federation

        text = experiment_text(nodes, rounds, trust, epsilon)
        config = as_federation(parse_config(text), engine)
        path = out or default_path(config.name)
        play = _simulated if engine == "flower-simulation" else _on_this_machine
        _run_new(config, path, as_json, lambda prepared: play(prepared, seconds), None)


def _on_this_machine(prepared: Any, seconds: float) -> Any:
    """What plays the demo: everything beside the run folder is temporary."""
    import tempfile
    from contextlib import ExitStack

    from locksfl.federation import certificates
    from locksfl.federation.demo import free_port, make_devices, running_clients
    from locksfl.federation.server.serving import Place, serve

    def play(config: Any, folder: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory(prefix="locks-federation-") as name, ExitStack() as stack:
            temporary, port = Path(name), free_port()
            certs, keys = temporary / "certs", temporary / "keys"
            certificates.make_server(certs, ["localhost", "127.0.0.1"], days=2)
            for i in range(config.data.clients):
                certificates.make_node(keys, f"node-{i:03d}", days=2)
            devices = make_devices(temporary, config, prepared)
            home = temporary / "home"
            home.mkdir()

            def started() -> None:
                address = f"127.0.0.1:{port}"
                stack.enter_context(running_clients(devices, address, certs, keys, home))

            place = Place(certs, keys, port, seconds=seconds)
            return serve(config, folder, place, started=started, **options)

    return play


def _simulated(prepared: Any, seconds: float) -> Any:
    """What plays the demo on Flower's own simulation engine."""
    import tempfile

    from locksfl.federation.demo import make_devices
    from locksfl.federation.simulation import simulate

    def play(config: Any, folder: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory(prefix="locks-federation-") as name:
            devices = make_devices(Path(name), config, prepared)
            return simulate(config, folder, devices, Path(name), seconds, **options)

    return play


@federation_app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where to write.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the server: makes ca.pem, server.pem, server.key."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="A node's name: makes NAME.key, which stays there, and NAME.pub."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 365,
) -> None:
    """Make a server's certificate, or the keys of nodes."""
    with one_line_errors():
        from locksfl.federation import require

        require()
        from locksfl.federation import certificates

        if not host and not node:
            raise ValueError("--host is missing: expected --host NAME, or --node NAME")
        if host:
            certificates.make_server(folder, host, days)
            print(f"wrote {folder}/ca.pem (for every device), server.pem, server.key (secret)")
        for name in node or []:
            certificates.make_node(folder, name, days)
            print(f"wrote {folder}/{name}.key (secret), {name}.pub (for the server)")


@federation_app.command()
def server(
    file: Annotated[Path | None, typer.Argument(help="The experiment.")] = None,
    certs: Annotated[Path, typer.Option(help="ca.pem, server.pem and server.key.")] = Path("certs"),
    keys: Annotated[Path, typer.Option(help="A public key (*.pub) of each client.")] = Path("keys"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    seconds: Seconds = 60.0,
    wait: Annotated[float, typer.Option(min=0, help="For nodes to connect, at first.")] = 60.0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the run a simulation.")] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Play an experiment on the devices that are registered here."""
    with one_line_errors():
        from locksfl.federation import require

        require()
        from locksfl.experiment.config import read_config
        from locksfl.experiment.folder import RunFolder, default_path
        from locksfl.federation.server.serving import Place, as_federation, serve
        from locksfl.privacy.ledger import LEDGER

        place = Place(certs, keys, port, host, seconds, wait)
        again = f"federation server --certs {certs} --keys {keys} --host {host} --port {port}"

        def play(config: Any, folder: Any, **options: Any) -> Any:
            return serve(config, folder, place, **options)

        if not resume:
            if file is None:
                raise ValueError("FILE is missing: expected an experiment (locks init)")
            config = as_federation(read_config(file, changes or (), seed))
            place.public_keys(config.data.clients)
            _run_new(config, out or default_path(config.name), as_json, lambda _: play, again)
            return
        if file or changes or seed is not None or out is None:
            raise ValueError("--resume continues --out as it was: expected no FILE, --set, --seed")
        folder = RunFolder.open(out)
        if folder.finished:
            raise ValueError(f"{folder.path}: the run is finished, nothing to resume")
        if folder.config.engine != "flower":
            raise ValueError(f"{folder.path}: not a federation's run; expected locks run --resume")
        if folder.lines("rounds.jsonl") and not (folder.path / LEDGER).is_file():
            raise ValueError(
                f"{folder.path / LEDGER}: missing; without it clients could be asked twice for "
                "one payment; expected the ledger of the rounds that were played"
            )
        _show(folder.config, folder, None, as_json, play, again)


@federation_app.command()
def client(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.pem.")],
    key: Annotated[Path, typer.Option(help="This node's private key.")],
    policy: Annotated[Path, typer.Option(help="What this device allows: a TOML file.")],
    ledger: Annotated[Path, typer.Option(help="This device's ledger; made when not there.")],
    data: Annotated[
        Path | None, typer.Option(help="Its records: features, labels, classes.")
    ] = None,
    experiment: Annotated[
        Path | None, typer.Option(help="[model] and [local] of this file.")
    ] = None,
    update: Annotated[
        str | None, typer.Option(help="package.module:function, your own training instead.")
    ] = None,
    poll: Annotated[
        float, typer.Option(min=0.05, help="Seconds between questions for work.")
    ] = 1.0,
) -> None:
    """Take part, on a device of one's own: answer what the policy allows, and count it."""
    with one_line_errors():
        from locksfl.federation import require

        require()
        _use_one_device()
        from locksfl.federation import certificates
        from locksfl.federation.device.files import DeviceFiles

        certificates.check_certificate(ca)
        certificates.check_private_key(key)
        certificates.check_connection(server, ca)
        files = DeviceFiles(policy, ledger, data, experiment, update)
        print(files.begin(), flush=True)
        device = files.open()
        from locksfl.federation.device.client_app import client_app
        from locksfl.federation.device.node import Node

        signal.signal(signal.SIGTERM, _interrupt)
        node = Node(server, ca, key, client_app(lambda context: device), poll)
        try:
            node.serve(lambda text: print(text, flush=True))
        except KeyboardInterrupt:
            print("stopped; the ledger stays")
            raise typer.Exit(130) from None


@federation_app.command("ledger")
def show_ledger(
    ledger: Annotated[Path, typer.Argument(help="A device's ledger.")],
    policy: Annotated[Path, typer.Option(help="The device's policy.")],
    new: Annotated[
        bool, typer.Option("--new", help="Make it first: a new ledger is a new budget.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a device has released, to whom, and what is left of its budget."""
    with one_line_errors():
        from locksfl.federation.device import DeviceLedger, Policy
        from locksfl.federation.device.view import ledger_view

        allowed = Policy.read(policy)
        if new:
            DeviceLedger.create(ledger).close()
        view = ledger_view(ledger, allowed)
        if as_json:
            print(json.dumps(view, indent=2))
            return
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE, padding=0)
        heads = ("run", "rounds", "norms", "updates", "open", "noise", "norm noise", "of budget")
        for head in heads:
            table.add_column(head, justify="left" if head == "run" else "right")
        for row in view["runs"]:
            norm, share = row["norm_multiplier"], row["share"]
            table.add_row(
                row["run"],
                *(str(row[name]) for name in ("rounds", "norms", "updates", "open")),
                f"{row['noise_multiplier']:.4g}",
                "" if norm is None else f"{norm:.4g}",
                "" if share is None else f"{share:.1%}",
            )
        console = Console()
        console.print(table)
        console.print(view["message"], highlight=False, markup=False, soft_wrap=True)


def _run_new(config: Any, path: Path, as_json: bool, play: Any, again: str | None) -> None:
    """Check, prepare, make the run folder, run. `play` is made from what was prepared."""
    from locksfl.cli.main import prepare_run
    from locksfl.experiment.folder import RunFolder

    RunFolder.check_new(path)
    prepared = prepare_run(config, as_json)
    folder = RunFolder.create(path, config)
    try:
        _show(config, folder, prepared, as_json, play(prepared), again)
    finally:
        folder.discard_unless_begun()


def _show(
    config: Any, folder: Any, prepared: Any, as_json: bool, play: Any, again: str | None
) -> None:
    from locksfl.cli.main import show_run

    signal.signal(signal.SIGTERM, _interrupt)
    from locksfl.methods import TRUSTS

    trust = config.privacy.trust
    if not TRUSTS[trust].guards_server:
        print(f"locks: trust {trust}: this server sees raw updates", file=sys.stderr)
    with folder.held():
        show_run(config, folder, prepared, as_json, play, again)


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM is Ctrl-C: what was started is stopped."""
    del number, frame
    raise KeyboardInterrupt


def _use_one_device() -> None:
    """A device trains one client: one thread pool, and no GPU memory taken beforehand."""
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
