"""`locks federation`: the same experiment on real devices, over Flower."""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl._files import write_atomically
from locksfl._validate import one_of, rate
from locksfl.cli.console import Changes, Json, Out, Run, argument, group, option, show
from locksfl.cli.federation_views import ledger_parts, status_parts
from locksfl.cli.running import continue_run, open_unfinished, run_new
from locksfl.cli.stopping import STOPPED, interrupt
from locksfl.federation import require
from locksfl.federation.logs import FORMATS, logging_to, say

federation_app = group(
    "federation", "Train on real devices that guard their own privacy, over Flower."
)

LogFormat = Annotated[str, option("Of the log: text, or json.", "--log-format")]
Server = Annotated[str, option("HOST:PORT of the server.")]
Ca = Annotated[Path, option("The server's ca.pem.")]
Seconds = Annotated[float, option("How long a stage waits for answers.", min=0.1)]


@federation_app.command()
def demo(
    nodes: Annotated[int, option("Number of devices; each is one process.", min=2)] = 4,
    rounds: Annotated[int, option("Rounds of each arm.", min=1)] = 5,
    trust: Annotated[str, option("local, or central (the server sees raw updates).")] = "local",
    epsilon: Annotated[float, option("The total of an arm.")] = 10.0,
    engine: Annotated[
        str, option("flower: real processes; or flower-simulation, Flower's own.")
    ] = "flower",
    seconds: Seconds = 60.0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A whole federation on this machine: a SuperLink, a process for each node, TLS, node keys."""
    require()
    from locksfl.experiment.config import ENGINES, parse_config
    from locksfl.federation.demo import experiment_text
    from locksfl.federation.server.serving import as_federation
    from locksfl.methods import PRIVATE

    one_of(ENGINES, **{"--engine": engine})
    one_of(PRIVATE, **{"--trust": trust})
    play = _on_this_machine
    if engine == "flower-simulation":
        require("ray", "flwr[simulation]==1.41.0")
        play = _simulated
    config = as_federation(parse_config(experiment_text(nodes, rounds, trust, epsilon)), engine)
    run_new(config, out, as_json, partial(play, seconds), None)


def _on_this_machine(seconds: float, config: Any, folder: Any, **options: Any) -> Any:
    """Play the demo: everything besides the run folder is temporary."""
    import tempfile
    from contextlib import ExitStack

    from locksfl.federation import certificates
    from locksfl.federation.demo import free_port, make_devices, running_clients
    from locksfl.federation.server.place import Place
    from locksfl.federation.server.serving import serve

    with tempfile.TemporaryDirectory(prefix="locks-federation-") as name, ExitStack() as stack:
        temporary, port = Path(name), free_port()
        certs, keys, home = (temporary / part for part in ("certs", "keys", "home"))
        certificates.make_server(certs, ["localhost", "127.0.0.1"], days=2)
        for i in range(config.data.clients):
            certificates.make_node(keys, f"node-{i:03d}", days=2)
        devices = make_devices(temporary, config, options["prepared"], keys)
        home.mkdir()

        def started() -> None:
            clients = running_clients(devices, f"127.0.0.1:{port}", certs, home)
            stack.enter_context(clients)

        place = Place(certs, keys, port, seconds=seconds)
        return serve(config, folder, place, started=started, **options)


def _simulated(seconds: float, config: Any, folder: Any, **options: Any) -> Any:
    """Play the demo on Flower's own simulation engine."""
    import tempfile

    from locksfl.federation.demo import make_devices
    from locksfl.federation.simulation import simulate

    with tempfile.TemporaryDirectory(prefix="locks-federation-") as name:
        keys = Path(name) / "keys"  # none is needed: only the ledgers' heads are noted there
        devices = make_devices(Path(name), config, options["prepared"], keys)
        return simulate(config, folder, devices, Path(name), seconds, **options)


@federation_app.command()
def certs(
    folder: Annotated[Path, argument("Where to write.")],
    host: Annotated[
        list[str] | None,
        option("A name or address of the server: makes ca.pem, server.pem, server.key."),
    ] = None,
    node: Annotated[
        list[str] | None, option("A node's name: makes NAME.key, which stays there, and NAME.pub.")
    ] = None,
    days: Annotated[int, option("How long they are valid.", min=1)] = 365,
) -> None:
    """Make a server's certificate, or the keys of nodes."""
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
    file: Annotated[Path | None, argument("The experiment.")] = None,
    certs: Annotated[Path, option("ca.pem, server.pem and server.key.")] = Path("certs"),
    keys: Annotated[Path, option("A public key (*.pub) of each client.")] = Path("keys"),
    host: Annotated[str, option("The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    seconds: Seconds = 60.0,
    wait: Annotated[
        float, option("Seconds to wait for nodes to connect at the start.", min=0)
    ] = 60.0,
    quorum: Annotated[
        float,
        option("The share of answers after which the rest get the same time again, and no more."),
    ] = 1.0,
    min_waiting: Annotated[
        int, option("No round begins, or is charged, before so many devices wait for it.", min=1)
    ] = 1,
    exclude_liars: Annotated[
        bool,
        option("Stop asking devices whose updates no honest device would send.", "--exclude-liars"),
    ] = False,
    stock: Annotated[
        bool, option("Let stock SuperNodes take part: Flower's own calls pass too.", "--stock")
    ] = False,
    changes: Changes = None,
    seed: Annotated[int | None, option("Makes the run a simulation.")] = None,
    out: Out = None,
    resume: Annotated[bool, option("Continue the run in --out.", "--resume")] = False,
    log_format: LogFormat = "text",
    as_json: Json = False,
) -> None:
    """Play an experiment on the devices that are registered here. The log is in the run folder and,
    where no terminal shows the progress, on stderr."""
    require()
    one_of(FORMATS, **{"--log-format": log_format})
    from locksfl.experiment.config import read_config
    from locksfl.federation.server.place import Place
    from locksfl.federation.server.serving import as_federation, serve
    from locksfl.privacy.ledger import LEDGER

    place = Place(
        *(certs, keys, port, host, seconds, wait, log_format, exclude_liars, quorum, stock),
        min_waiting=min_waiting,
    )
    again = (
        f"federation server --certs {certs} --keys {keys} --host {host} --port {port} "
        f"--seconds {seconds:g} --quorum {quorum:g} --min-waiting {min_waiting}"
        f"{' --exclude-liars' * exclude_liars}{' --stock' * stock}"
    )
    play = partial(_logged, partial(serve, place=place), log_format)
    if not resume:
        if file is None:
            raise ValueError("FILE is missing: expected an experiment (locks init)")
        config = as_federation(read_config(file, changes or (), seed))
        _check_trust(place, config.privacy.trust)
        place.check(config.data.clients)
        run_new(config, out, as_json, play, again)
        return
    if file or changes or seed is not None or out is None:
        raise ValueError(
            "--resume continues the run in --out unchanged: expected no FILE, --set or --seed"
        )
    folder = open_unfinished(out)
    if folder.config.engine != "flower":
        raise ValueError(f"{folder.path}: not a federation's run; expected locks run --resume")
    _check_trust(place, folder.config.privacy.trust)
    if folder.lines("rounds.jsonl") and not (folder.path / LEDGER).is_file():
        raise ValueError(
            f"{folder.path / LEDGER}: missing; without the ledger, clients could be asked twice "
            "and charged once; expected the ledger of the rounds played so far"
        )
    continue_run(folder, as_json, play, again)


def _check_trust(place: Any, trust: str) -> None:
    """Refuse what is sound only where every release carries its own noise."""
    from locksfl.methods import TRUSTS

    rate(**{"--quorum": place.quorum})
    if TRUSTS[trust].guards_server:
        return
    if place.exclude:
        raise ValueError(
            f"--exclude-liars: expected trust 'local', not {trust!r}, where who is left out would "
            "tell of raw updates, and nobody can add more than the bound"
        )
    if place.quorum < 1:
        raise ValueError(
            f"--quorum {place.quorum:g}: expected trust 'local', not {trust!r}, where the noise is "
            "for one device's part of a sum, and a quorum lets one decide whether another is in it"
        )


def _logged(play: Any, log_format: str, *given: Any, **options: Any) -> Any:
    """Play, with a log beside it where no bars are shown."""
    if sys.stderr.isatty():
        return play(*given, **options)
    with logging_to(log_format):
        return play(*given, **options)


@federation_app.command("status")
def show_status(
    run: Run,
    prometheus: Annotated[
        bool, option("Print it in Prometheus' text format instead.", "--prometheus")
    ] = False,
    port: Annotated[
        int | None,
        option("Show it as a page on this machine, and /metrics, until Ctrl-C.", min=0, max=65535),
    ] = None,
    as_json: Json = False,
) -> None:
    """How a federation's run stands: its rounds, and for each device when it was last seen, its
    answers, refusals and missing rounds. For the server's operator; no bundle has it."""
    from locksfl.experiment.folder import RunFolder
    from locksfl.federation.server.devices import metrics, status

    stands = status(RunFolder.open(run))
    if port is not None:
        from locksfl.federation.server.page import page_server

        with page_server(run, port) as pages:
            print(f"http://127.0.0.1:{pages.server_address[1]}/", flush=True)
            pages.serve_forever()
    elif prometheus:
        print(metrics(stands), end="")
    else:
        show(stands, as_json, status_parts, wide=True)


@federation_app.command("policy")
def write_policy(
    file: Annotated[Path, argument("The experiment.")],
    changes: Changes = None,
    out: Annotated[Path | None, option("A new file. Default: print it.")] = None,
) -> None:
    """Write the policy that allows exactly this experiment, once, and nothing more."""
    require()
    from locksfl.experiment.config import read_config
    from locksfl.experiment.plan import plan_arms
    from locksfl.federation.server.allowed import policy_text
    from locksfl.federation.server.serving import as_federation

    config = as_federation(read_config(file, changes or ()))
    if out is not None and out.exists():
        raise ValueError(f"--out {out}: already exists; expected a new file")
    text = policy_text(config, plan_arms(config))
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())
        print(f"wrote {out}")


@federation_app.command()
def client(
    server: Server,
    ca: Ca,
    key: Annotated[
        Path, option("This node's private key; the ledger's head is noted in KEY.ledger.")
    ],
    policy: Annotated[Path, option("What this device allows: a TOML file.")],
    ledger: Annotated[Path, option("This device's ledger.")],
    data: Annotated[
        Path | None,
        option("Its records: an imported folder, or an .npz of features, labels, classes."),
    ] = None,
    experiment: Annotated[Path | None, option("[model] and [local] of this file.")] = None,
    update: Annotated[
        str | None, option("package.module:function, your own training instead.")
    ] = None,
    poll: Annotated[float | None, typer.Option(hidden=True)] = None,
    new_ledger: Annotated[
        bool,
        option("Create the ledger, a new budget: at the first start, never again.", "--new-ledger"),
    ] = False,
    log_format: LogFormat = "text",
) -> None:
    """Take part, on a device of one's own: answer what the policy allows, and count it."""
    require()
    one_of(FORMATS, **{"--log-format": log_format})
    if poll is not None:
        say("--poll has no effect any more: a request for work waits at the server")
    # a device trains one client: no GPU memory taken beforehand
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from locksfl.federation import certificates
    from locksfl.federation.device.files import DeviceFiles, Spent

    certificates.check_certificate(ca)
    certificates.read_private_key(key)
    certificates.host_and_port(server)
    files = DeviceFiles(policy, ledger, key, data, experiment, update)
    try:
        device, greeting = files.begin(new_ledger)
    except Spent as spent:  # it is done, which is no failure
        print(spent)
        raise typer.Exit(0) from None
    print(greeting, flush=True)
    from locksfl.federation.device.client_app import client_app
    from locksfl.federation.device.node import Node
    from locksfl.federation.telling import told_of

    terminated = []

    def terminate(number: int, frame: object) -> None:
        terminated.append(number)
        interrupt(number, frame)

    signal.signal(signal.SIGTERM, terminate)
    answering = told_of(device)
    node = Node(server, ca, key, client_app(lambda context: answering))
    try:
        with logging_to(log_format):
            node.serve(say)
        print(f"{key}: this device has left; nothing more is released, and the ledger is kept")
    except KeyboardInterrupt:
        print("stopped; the ledger is kept")
        raise typer.Exit(0 if terminated else STOPPED) from None


@federation_app.command()
def check(
    server: Annotated[str, argument("The server.", metavar="HOST[:PORT]")],
    ca: Ca,
    key: Annotated[Path, option("This node's private key.")],
) -> None:
    """Try once whether a device reaches its server and is known there. If not, name the cause: exit
    code 2. (`locks federation client` waits instead.)"""
    require()
    from locksfl.federation.device.node import check as check_server

    address = server if re.search(r":\d+$", server) else f"{server}:8000"
    check_server(address, ca, key)
    print(f"{address}: the server is there and knows this device")


@federation_app.command()
def leave(
    server: Server,
    ca: Ca,
    key: Annotated[Path, option("This node's private key; KEY.left is written beside it.")],
) -> None:
    """Withdraw consent, as the owner of a device: it releases nothing any more, and the server
    revokes its key. What was released stays counted."""
    require()
    from locksfl.federation import certificates
    from locksfl.federation.device import consent
    from locksfl.federation.device.node import tell_left

    certificates.read_private_key(key)
    consent.withdraw(key)
    try:
        tell_left(server, ca, key)
    except ValueError as error:
        raise ValueError(
            f"this device has left and releases nothing any more, but the server was not told "
            f"({error}): run this again when it is there, or have its operator move "
            f"{key.with_suffix('.pub').name} from its folder of keys into left/ there"
        ) from None
    print(f"{key}: this device has left; the server has revoked its key, or did not have it")


@federation_app.command("ledger")
def show_ledger(
    ledger: Annotated[Path, argument("A device's ledger.")],
    policy: Annotated[Path, option("The device's policy.")],
    key: Annotated[
        Path | None, option("The node's key: the head noted in KEY.ledger is compared too.")
    ] = None,
    new_ledger: Annotated[
        bool, option("Create the ledger first. A new ledger is a new budget.", "--new-ledger")
    ] = False,
    accept: Annotated[
        bool,
        option("Note the ledger's head, where no head is noted: with a new key.", "--accept"),
    ] = False,
    restore: Annotated[
        Path | None,
        option("Put this older copy in the place of a lost ledger: its budget counts as spent."),
    ] = None,
    new_budget: Annotated[
        bool,
        option("After --restore: spend again what was lost from the ledger.", "--new-budget"),
    ] = False,
    as_json: Json = False,
) -> None:
    """What a device has released, to whom, and what is left of its budget."""
    from locksfl.federation.device import Policy, Witness
    from locksfl.federation.device.view import ledger_view, view_of

    allowed = Policy.read(policy)
    if key is None:
        if new_ledger or accept or restore or new_budget:
            raise ValueError("--key is missing: expected the node's key, beside which it is noted")
        show(ledger_view(ledger, allowed), as_json, ledger_parts)
        return
    witness = Witness(ledger, key)
    if new_ledger:
        witness.create()
    elif accept:
        witness.accept()
    elif restore is not None:
        witness.restore(restore)
    elif new_budget:
        witness.open_budget()
    with witness.open(whole=True) as opened:
        view = view_of(opened, allowed)
    show(view, as_json, ledger_parts)
