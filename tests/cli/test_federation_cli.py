"""`locks federation`: bad input is one line, and nothing is released."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

pytest.importorskip("flwr")
from typer.testing import CliRunner

from locksfl.cli.main import app
from locksfl.experiment.config import read_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.record import Tally
from locksfl.federation import certificates, demo
from locksfl.federation.device import DeviceLedger, Guard, Policy, RoundTerms, Witness
from locksfl.federation.server.serving import as_federation
from made_documents import made_run
from small_runs import story

POLICY = """
epsilon = 8.0
delta = 1e-5
max_clip_norm = 1.0
min_noise_multiplier = 1.0
min_norm_multiplier = 1.0
max_rounds = 1000
"""
PAST = datetime.now(UTC) - timedelta(days=30)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A server's certificate, two nodes' keys, an experiment and a device's data."""
    folder = tmp_path_factory.mktemp("federation")
    certificates.make_server(folder / "certs", ["127.0.0.1", "localhost"], days=2)
    for name in ("a", "b"):
        certificates.make_node(folder / "keys", name, days=2)
    (folder / "experiment.toml").write_text(demo.experiment_text(2, 2, "local", 8.0))
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 28, 28), np.uint8)
    np.savez(folder / "data.npz", features=records, labels=np.arange(6), classes=10)
    return folder


def refused(*arguments):
    """The one line of an error, without its first word."""
    result = CliRunner().invoke(app, ["federation", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line.removeprefix("locks: ")


def client(made, tmp_path, *flags, **changes):
    """The options of a client, with changes; its key is copied, so that its ledger's head is noted
    in the test's own folder."""
    policy = tmp_path / "policy.toml"
    if not policy.exists():
        policy.write_text(POLICY)
    shutil.copy2(made / "keys" / "a.key", tmp_path / "a.key")
    options = {
        "server": "127.0.0.1:1",
        "ca": made / "certs" / "ca.pem",
        "key": tmp_path / "a.key",
        "policy": policy,
        "ledger": tmp_path / "ledger.sqlite",
        "data": made / "data.npz",
        "experiment": made / "experiment.toml",
    } | changes
    given = {
        f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None
    }
    return ["client", *flags, *[part for pair in given.items() for part in pair]]


def released(tmp_path):
    """What a device's ledger holds; nothing, where there is none."""
    path = tmp_path / "ledger.sqlite"
    if not path.exists():
        return []
    ledger = DeviceLedger.open(path)
    tallies = ledger.tallies()
    ledger.close()
    return tallies


@contextmanager
def tls_server(certs):
    """Something that shows a certificate and hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / "server.pem", certs / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                plain, _ = listener.accept()
                context.wrap_socket(plain, server_side=True).close()
            except ssl.SSLError:
                continue
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def test_a_server_without_certificate(made, tmp_path):
    told = refused("server", made / "experiment.toml", "--certs", tmp_path, "--keys", made / "keys")
    assert told.startswith(f"{tmp_path / 'ca.pem'}: no such file; expected a server's certificate")


def test_a_taken_port_is_named_and_leaves_no_folder(made, tmp_path):
    options = ["--certs", made / "certs", "--keys", made / "keys", "--out", tmp_path / "run"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = refused("server", made / "experiment.toml", *options, "--port", port)
    assert line == f"--port {port}: already in use on 127.0.0.1; expected a free port"
    assert not (tmp_path / "run").exists()


def test_an_unknown_format_of_the_log(made, tmp_path):
    options = ["--certs", made / "certs", "--keys", made / "keys", "--out", tmp_path / "run"]
    line = refused("server", made / "experiment.toml", *options, "--log-format", "yaml")
    assert "--log-format" in line
    assert "'yaml'" in line
    assert "--log-format" in refused(*client(made, tmp_path, log_format="yaml"))


def test_a_server_with_an_expired_certificate(made, tmp_path):
    certificates.make_server(tmp_path / "old", ["localhost"], 10, began=PAST)
    told = refused(
        "server", made / "experiment.toml", "--certs", tmp_path / "old", "--keys", made / "keys"
    )
    assert "ca.pem: not valid now" in told


def test_a_certificate_with_the_key_of_another(made, tmp_path):
    certificates.make_server(tmp_path / "mixed", ["localhost"], 10)
    (tmp_path / "mixed" / "server.key").write_bytes((made / "certs" / "server.key").read_bytes())
    told = refused(
        "server", made / "experiment.toml", "--certs", tmp_path / "mixed", "--keys", made / "keys"
    )
    assert "server.key: does not match server.pem" in told


def test_an_expired_key_of_a_node(made, tmp_path):
    for name in ("a", "b"):
        certificates.make_node(tmp_path, name, 10, began=PAST if name == "b" else None)
    told = refused(
        "server", made / "experiment.toml", "--certs", made / "certs", "--keys", tmp_path
    )
    assert told.startswith(f"{tmp_path / 'b.pub'}: expired on ")


def test_nobody_is_left_out_for_raw_updates(made):
    told = refused(
        "server", made / "experiment.toml", "--set", "privacy.trust=central", "--exclude-liars",
        "--certs", made / "certs", "--keys", made / "keys",
    )  # fmt: skip
    assert told.startswith("--exclude-liars: expected trust 'local', not 'central'")


@pytest.mark.parametrize(
    ("given", "trust", "said"),
    [
        ("0.8", "central", "--quorum 0.8: expected trust 'local', not 'central'"),
        ("0", "local", "--quorum = 0.0: expected a rate in (0, 1]"),
        ("1.5", "local", "--quorum = 1.5: expected a rate in (0, 1]"),
    ],
)
def test_a_quorum_is_a_share_and_not_of_raw_updates(made, given, trust, said):
    told = refused(
        "server", made / "experiment.toml", "--set", f"privacy.trust={trust}", "--quorum", given,
        "--certs", made / "certs", "--keys", made / "keys",
    )  # fmt: skip
    assert told.startswith(said)


def test_as_many_keys_as_clients(made, tmp_path):
    certificates.make_node(tmp_path, "a", 10)
    told = refused(
        "server", made / "experiment.toml", "--certs", made / "certs", "--keys", tmp_path
    )
    assert "1 public keys (*.pub), expected one for each of data.clients = 2; add the miss" in told
    for name in ("c", "d"):
        certificates.make_node(tmp_path, name, 10)
    told = refused(
        "server", made / "experiment.toml", "--certs", made / "certs", "--keys", tmp_path
    )
    assert "3 public keys (*.pub), expected one for each of data.clients = 2; move the oth" in told
    assert told.endswith("or set data.clients to the number of devices of this run")
    (tmp_path / "left").mkdir()
    for name in ("c", "d"):
        (tmp_path / f"{name}.pub").rename(tmp_path / "left" / f"{name}.pub")  # not seen there
    (tmp_path / "b.pub").write_bytes((tmp_path / "a.pub").read_bytes())
    told = refused(
        "server", made / "experiment.toml", "--certs", made / "certs", "--keys", tmp_path
    )
    assert "the same key as a.pub" in told


def check(made, address, ca):
    return ["check", address, "--ca", ca, "--key", made / "keys" / "a.key"]


def test_a_wrong_ca(made, tmp_path):
    """For a person who checks; a client waits (tests/federation/device/test_node.py)."""
    certificates.make_server(tmp_path / "other", ["127.0.0.1"], days=2)
    with tls_server(made / "certs") as address:
        certificates.check_connection(address, made / "certs" / "ca.pem")
        told = refused(*check(made, address, tmp_path / "other" / "ca.pem"))
    assert told.startswith(f"{address}: its certificate does not verify against ")


def test_a_server_under_another_name(made, tmp_path):
    certificates.make_server(tmp_path / "named", ["fl.example.org"], days=2)
    with tls_server(tmp_path / "named") as address:
        certificates.check_connection(address, tmp_path / "named" / "ca.pem")  # its own
        address = address.replace("127.0.0.1", "localhost")
        told = refused(*check(made, address, tmp_path / "named" / "ca.pem"))
    assert "its certificate does not verify against" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ca": "nowhere.pem"}, "nowhere.pem: no such file; expected a certificate"),
        ({"key": "nowhere.key"}, "nowhere.key: no such file; expected this node's key"),
        ({"policy": "nowhere.toml"}, "nowhere.toml: no such policy file"),
        ({"data": "nowhere.npz"}, "nowhere.npz: no such data file"),
        ({"experiment": "nowhere.toml"}, "nowhere.toml: no such experiment file"),
        ({"server": "somewhere"}, "somewhere: expected HOST:PORT of the server"),
        ({"data": None}, "--data is missing: expected --data FILE_OR_FOLDER and --experiment"),
        ({"update": "mine:update"}, "--update mine:update: a training function brings its own"),
        (
            {"update": "nowhere_at_all:update", "data": None, "experiment": None},
            "--update = 'nowhere_at_all:update': no module",
        ),
    ],
)
def test_files_of_a_client(made, tmp_path, change, told):
    assert refused(*client(made, tmp_path, "--new-ledger", **change)).startswith(told)
    assert not (tmp_path / "ledger.sqlite").exists()  # not before everything else is in order


def test_a_policy_with_unknown_keys(made, tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY + "epsilom = 9.0\n")
    told = refused(*client(made, tmp_path, "--new-ledger"))
    assert "epsilom = 9.0: unknown setting (did you mean 'epsilon'?)" in told
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_key_that_others_can_read(made, tmp_path):
    key = tmp_path / "open.key"
    key.write_bytes((made / "keys" / "a.key").read_bytes())
    key.chmod(0o644)
    assert "other users can read it; expected chmod 600" in refused(
        *client(made, tmp_path, key=key)
    )


def test_a_budget_already_spent(made, tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY)
    policy, path = Policy.read(tmp_path / "policy.toml"), tmp_path / "ledger.sqlite"
    witness = Witness(path, tmp_path / "a.key")
    witness.create()
    with Guard(policy, witness.open()) as guard:
        for number in range(1, 3):
            guard.release_update(RoundTerms("r", number, False, 1.0, 1.0), np.zeros(3), 1.0)
    before = released(tmp_path)
    told = accepted(*client(made, tmp_path))  # it is done: systemd does not start it again
    assert "is spent, and what is left does not pay for another round" in told
    assert released(tmp_path) == before
    shown = CliRunner().invoke(
        app, ["federation", "ledger", str(path), "--policy", str(tmp_path / "policy.toml")]
    )
    assert shown.exit_code == 0
    assert "2" in shown.output
    assert "is spent" in shown.output


def test_an_altered_ledger(made, tmp_path):
    import sqlite3

    (tmp_path / "policy.toml").write_text(POLICY)
    Witness(tmp_path / "ledger.sqlite", tmp_path / "a.key").create()
    db = sqlite3.connect(tmp_path / "ledger.sqlite")
    db.execute("UPDATE meta SET value = '{}' WHERE key = 'header'")
    db.commit()
    db.close()
    assert "damaged or was altered" in refused(*client(made, tmp_path))


def test_a_ledger_is_new_once(made, tmp_path):
    """Missing, new, new again, deleted, restored, without its note, accepted: each is one line."""
    path, note = tmp_path / "ledger.sqlite", tmp_path / "a.key.ledger"
    told = refused(*client(made, tmp_path))
    assert told.startswith(f"{path}: no such ledger; expected --new-ledger at the first start")
    assert not path.exists()
    shown = ["ledger", path, "--policy", tmp_path / "policy.toml"]
    key = ["--key", tmp_path / "a.key"]
    assert refused(*shown, "--new-ledger").startswith("--key is missing")
    assert "epsilon 0 of 8 is spent" in accepted(*shown, *key, "--new-ledger")
    assert "already exists" in refused(*client(made, tmp_path, "--new-ledger"))
    assert "already exists" in refused(*shown, *key, "--new-ledger")
    shutil.copy2(path, tmp_path / "backup")
    policy = Policy.read(tmp_path / "policy.toml")
    with Guard(policy, Witness(path, tmp_path / "a.key").open()) as guard:
        guard.release_update(RoundTerms("r", 1, False, 1.0, 2.0), np.zeros(3), 1.0)
    latest = path.read_bytes()
    for beside in tmp_path.glob("ledger.sqlite*"):
        beside.unlink()
    assert "notes 2 entries of it; expected the ledger" in refused(*client(made, tmp_path))
    assert "already has a ledger" in refused(*client(made, tmp_path, "--new-ledger"))
    shutil.copy2(tmp_path / "backup", path)
    for options in (client(made, tmp_path), [*shown, *key]):
        assert "or an old copy of it; expected the latest" in refused(*options)
    path.write_bytes(latest)
    (tmp_path / "ledger.sqlite.head").unlink()
    assert "epsilon 0 " not in accepted(*shown, *key)
    note.unlink()
    assert "if this is the latest, expected once" in refused(*client(made, tmp_path))
    assert "epsilon 0 " not in accepted(*shown, *key, "--accept")
    assert "epsilon 0 " not in accepted(*shown, *key, "--accept")  # twice is no harm
    shutil.copy2(tmp_path / "backup", path)
    (tmp_path / "ledger.sqlite.head").unlink()
    assert "of a later copy; expected no note" in refused(*shown, *key, "--accept")


def test_a_device_that_played_all_its_rounds_is_done(made, tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY.replace("1000", "1"))
    witness = Witness(tmp_path / "ledger.sqlite", tmp_path / "a.key")
    witness.create()
    with Guard(Policy.read(tmp_path / "policy.toml"), witness.open()) as guard:
        guard.release_update(RoundTerms("r", 1, False, 1.0, 9.0), np.zeros(3), 1.0)
    assert "in all 1 rounds that the policy allows" in accepted(*client(made, tmp_path))


def leave(made, tmp_path, **changes):
    options = {"server": "127.0.0.1:1", "ca": made / "certs" / "ca.pem", "key": tmp_path / "a.key"}
    return ["leave", *(w for k, v in (options | changes).items() for w in (f"--{k}", v))]


def test_a_device_leaves_without_its_server(made, tmp_path):
    """It cannot be reached, is another, or is no address: the device has left all the same; what it
    released stays counted; and its owner can take it back."""
    start, key = client(made, tmp_path, "--new-ledger"), tmp_path / "a.key"
    Witness(tmp_path / "ledger.sqlite", key).create()
    with Guard(
        Policy.read(tmp_path / "policy.toml"), Witness(tmp_path / "ledger.sqlite", key).open()
    ) as guard:
        guard.release_update(RoundTerms("r", 1, False, 1.0, 2.0), np.zeros(3), 1.0)
    before = released(tmp_path)
    assert refused(*leave(made, tmp_path, key="nowhere.key")).startswith("nowhere.key: no such")
    certificates.make_server(tmp_path / "old", ["localhost"], 10, began=PAST)
    for changes, why in (
        ({}, "127.0.0.1:1: no server there"),
        ({"server": "somewhere"}, "somewhere: expected HOST:PORT of the server"),
        ({"ca": tmp_path / "old" / "ca.pem"}, f"{tmp_path}/old/ca.pem: not valid now"),
    ):
        told = refused(*leave(made, tmp_path, **changes))
        assert told.startswith("this device has left and releases nothing any more, but the server")
        assert f"was not told ({why}" in told
        assert "run this again when it is there, or have its operator move a.pub" in told
    for options in (start, client(made, tmp_path)):
        assert refused(*options).startswith(f"{key}.left: this device has left, and releases")
    shown = ["ledger", tmp_path / "ledger.sqlite", "--policy", tmp_path / "policy.toml"]
    assert "epsilon 0 " not in accepted(*shown, "--key", key)
    assert released(tmp_path) == before
    Path(f"{key}.left").unlink()
    told = refused(*client(made, tmp_path, data="nowhere.npz"))  # it gets as far as its data
    assert told.startswith("nowhere.npz")


def test_a_client_whose_owner_leaves_is_done(made, tmp_path, monkeypatch):
    from locksfl.federation.device.node import Node

    monkeypatch.setattr(Node, "serve", lambda *_: None)
    told = accepted(*client(made, tmp_path, "--new-ledger")).splitlines()
    assert told[-1].endswith(
        "a.key: this device has left; nothing more is released, and the ledger is kept"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_client_that_is_told_to_stop(made, tmp_path, monkeypatch, number, code):
    """SIGTERM is how a service manager ends a service: no failure; Ctrl-C stays 130."""
    from locksfl.federation.device.node import Node

    monkeypatch.setattr(Node, "serve", lambda *_: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(
            app, ["federation", *map(str, client(made, tmp_path, "--new-ledger"))]
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == code, result.output
    assert "stopped; the ledger is kept" in result.output


def test_a_lost_ledger_is_restored_as_spent_and_opened_by_its_owner(made, tmp_path):
    path, shown = tmp_path / "ledger.sqlite", ["ledger", tmp_path / "ledger.sqlite", "--policy"]
    shown += [tmp_path / "policy.toml"]
    key = ["--key", tmp_path / "a.key"]
    start = client(made, tmp_path)
    accepted(*shown, *key, "--new-ledger")
    shutil.copy2(path, tmp_path / "backup")
    with Guard(Policy.read(shown[-1]), Witness(path, tmp_path / "a.key").open()) as guard:
        guard.release_update(RoundTerms("r", 1, False, 1.0, 2.0), np.zeros(3), 1.0)
    path.unlink()
    restore = ["--restore", tmp_path / "backup"]
    assert refused(*shown, *restore).startswith("--key is missing")
    assert "its budget counts as spent" in accepted(*shown, *key, *restore)
    assert "its budget counts as spent" in accepted(*start)  # it ends, with exit code 0
    assert "already exists" in refused(*shown, *key, *restore)
    assert "epsilon 0 of 8 is spent" in accepted(*shown, *key, "--new-budget")
    assert "after --restore only" in refused(*shown, *key, "--new-budget")


def test_help_keeps_its_brackets():
    help_ = CliRunner().invoke(app, ["federation", "client", "--help"], env={"COLUMNS": "200"})
    assert "[model] and [local] of this file." in help_.output


def accepted(*arguments):
    result = CliRunner().invoke(app, ["federation", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_without_its_ledger_is_not_resumed(made, tmp_path):
    """It says who was asked already: without it they could be asked again, and paid for once."""
    config = as_federation(read_config(made / "experiment.toml"))
    folder = RunFolder.create(tmp_path / "run", config)
    folder.append("rounds.jsonl", [{"round": 1}])
    told = refused(
        "server", "--resume", "--out", folder.path, "--certs", made / "certs",
        "--keys", made / "keys",
    )  # fmt: skip
    assert told.startswith(f"{folder.path / 'ledger.sqlite'}: missing")
    assert not (folder.path / "ledger.sqlite").exists()


def test_certs_are_never_written_over(tmp_path):
    result = CliRunner().invoke(
        app, ["federation", "certs", str(tmp_path), "--host", "localhost", "--node", "a"]
    )
    assert result.exit_code == 0, result.output
    for name in ("server.key", "a.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert "already exists" in refused("certs", tmp_path, "--host", "localhost")
    assert "already exists" in refused("certs", tmp_path, "--node", "a")
    assert "--host is missing" in refused("certs", tmp_path)


def test_a_central_run_says_that_the_server_sees_raw_updates():
    from locksfl.experiment.report import notes

    seen = story(made_run("uniform"))
    (arm,) = seen.arms
    stages = {
        "norm": Tally(asked=4, answered=4, rejected=0, missing=0, refused={}),
        "update": Tally(asked=4, answered=2, rejected=0, missing=2, refused={}),
    }
    rounds = tuple(structs.replace(one, stages=stages) for one in arm.secret.rounds)
    asked = replace(arm, secret=structs.replace(arm.secret, rounds=rounds))
    told = "\n".join(notes(replace(seen, arms=[asked])))
    assert "SERVER sees raw updates" in told
    assert "50.0% of the updates" in told


def test_a_missing_extra_is_one_line(monkeypatch):
    import importlib.util

    from locksfl.federation import require

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "locks-fl\[flower\]"'):
        require()
    with pytest.raises(ValueError, match=r'pip install "flwr.simulation.==1.41.0"'):
        require("ray", "flwr[simulation]==1.41.0")


def test_nothing_but_the_transport_needs_flower():
    """The round, the device's half and the command line's help without flwr; and no JAX for help
    or for a device with its own training."""
    script = """
import sys
sys.modules["flwr"] = None
sys.modules["jax"] = None
import locksfl.cli.federation, locksfl.federation.device.files
del sys.modules["jax"]
import locksfl.federation.server.engine, locksfl.federation.server.serving
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_numpy_client(made, tmp_path, monkeypatch):
    """The adapter of the example is the model "softmax" with local work "gradient"."""
    from locksfl.federation.device.files import DeviceFiles, built_in_update

    monkeypatch.setenv("MY_DATA", str(made / "data.npz"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    (tmp_path / "policy.toml").write_text(POLICY)
    files = DeviceFiles(
        tmp_path / "policy.toml",
        tmp_path / "l.sqlite",
        tmp_path / "a.key",
        update="numpy_client:update",
    )
    device, _ = files.begin(new_ledger=True)
    weights = np.random.default_rng(1).normal(size=7850).astype(np.float32) * 0.1
    built_in = built_in_update(made / "data.npz", made / "experiment.toml")
    found = device.update(weights, 1)
    np.testing.assert_allclose(found, built_in(weights, 1), atol=2e-6)


def test_torch_client(made, monkeypatch):
    """The PyTorch example gives an update of the model's size, where torch is installed."""
    pytest.importorskip("torch")
    monkeypatch.setenv("MY_DATA", str(made / "data.npz"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from torch_client import update

    weights = np.zeros(7850, np.float32)
    found = update(weights.copy(), 1)
    assert found.shape == (7850,)
    assert np.linalg.norm(found) > 0
