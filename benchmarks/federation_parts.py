"""What one device costs a federation's server, part by part: the figures of the plan for 100,000.

    .venv/bin/python -m benchmarks.federation_parts --clients 100000

Each part is timed alone, in this process, on one core: what a server can do at most. What devices
and server cost together, over real connections, is in `benchmarks.many_devices`.
"""

from __future__ import annotations

import argparse
import json
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.run import ledger_header
from locksfl.federation import certificates, flower, post
from locksfl.federation.messages import to_answer, to_contents, to_reply
from locksfl.federation.post import fold, pack, unfold, unpack
from locksfl.federation.server.devices import Watched
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.mail import Mail
from locksfl.federation.server.place import KeyFolder
from locksfl.federation.server.rounds import check_updates, draw_round
from locksfl.federation.wire import Answer, Question
from locksfl.round.randomness import Randomness

SIZE, SOME = 7850, 1000


def milliseconds(work: Callable[[], object], times: int = 5, each: int = 1) -> float:
    """The median of a few tries, for one of `each`."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) / each * 1000)
    return round(statistics.median(taken), 4)


def handshake(certs: Path) -> None:
    """A TLS handshake, both ends: a device needs one for each connection, not for each call."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certs / certificates.CERTIFICATE, certs / certificates.KEY)
    theirs = ssl.create_default_context(cafile=str(certs / certificates.CA))
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        theirs.wrap_bio(one, other, server_hostname=certificates.LOOPBACK),
        ours.wrap_bio(other, one, server_side=True),
    ]
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass


def by_device(folder: Path) -> dict[str, float]:
    """Milliseconds for one device."""
    certificates.make_server(folder / "certs", ["127.0.0.1"], days=1)
    certificates.make_node(folder, "node", days=1)
    key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
    text = post.to_sign("2026-01-01T00:00:00+00:00", post.REPLY, "0" * 64, "0" * 64)
    signature, public = flower.sign_message(key, text), key.public_key()
    encoded = flower.public_key_to_bytes(public)
    question = Question("norm", {"round": 1}, np.zeros(SIZE, np.float32))
    flower.TaskIdentity.run_id = flower.TaskIdentity.node_id = flower.TaskIdentity.task_id = 1
    mail = Mail(lambda *given: b"", SimpleNamespace(run_id=1), SIZE)

    def messages() -> list[Message]:
        contents = to_contents([question] * SOME)
        return [Message(c, 5 + i, "query.norm") for i, c in enumerate(contents)]

    asked = messages()[0]
    update = Answer(released=np.ones(SIZE, np.float32) * 1e-3)
    train = Message(asked.content, 5, "train.update")
    letter = b"".join(pack(fold(to_reply(update, train))))
    plan = arm(SOME)
    answers = dict.fromkeys(range(SOME), update)
    everybody, bounds = np.ones(SOME, bool), np.ones(SOME)
    return {
        "TLS handshake, both ends": milliseconds(lambda: handshake(folder / "certs")),
        "signature, made (device)": milliseconds(lambda: flower.sign_message(key, text)),
        "signature, verified (gate)": milliseconds(
            lambda: flower.verify_signature(flower.bytes_to_public_key(encoded), text, signature)
        ),
        "question, made and handed over": milliseconds(
            lambda: mail.push_messages(messages()), each=SOME
        ),
        "update, read": milliseconds(
            lambda: to_answer(unfold(unpack(letter), lambda names: ()), SIZE)
        ),
        "update, checked and summed": milliseconds(
            lambda: check_updates(plan, everybody, answers, SIZE, bounds), each=SOME
        ),
        "bytes of an update": float(len(letter)),
    }


def arm(clients: int) -> Arm:
    """Everybody takes part, and releases a norm and an update."""
    return Arm.of(
        "arm", rule="norm", trust="local", clients=clients, rounds=10, cohort=float(clients),
        uploads=clients / 2, norm_low=1.0, clip_norm=1.0, step=1.0, noise_multiplier=5.0,
        norm_multiplier=10.0,
    )  # fmt: skip


def by_round(folder: Path, clients: int) -> dict[str, float]:
    """Milliseconds of a round, for all devices together."""
    plan, everybody = arm(clients), np.arange(clients)
    half = np.arange(clients) % 2 == 0
    ledger = ServerLedger.create(
        folder / "ledger.sqlite", ledger_header("x", [plan], PrivacyConfig(trust="local"))
    )
    rounds = iter(range(1, 11))

    def book() -> None:
        number = next(rounds)
        ledger.reserve("arm", number, everybody)
        ledger.settle("arm", number, everybody, half, half)

    network = SimpleNamespace(run="1", ask=lambda questions, *given: {})
    (folder / "flower").mkdir()
    names = [f"node-{i:06d}" for i in range(clients)]
    watched = Watched(
        network, names, folder, 60.0, lambda: dict.fromkeys(range(clients), 1.0), dict
    )
    keys = folder / "keys"
    keys.mkdir()
    line = (folder / "node.pub").read_bytes()
    for name in names:
        (keys / f"{name}.pub").write_bytes(line)
    known = KeyFolder(keys)
    known.now()

    def look() -> None:
        known._due = 0.0  # now, not when it would be
        known.now()

    randomness = Randomness.from_system()
    return {
        "draws": milliseconds(lambda: draw_round(plan, randomness, 1, SIZE)),
        "ledger: reserved and settled": milliseconds(book),
        "status file, written": milliseconds(watched.write, 3),
        "keys, looked at for changes": milliseconds(look, 3),
    }


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000)
    clients = parser.parse_args().clients
    with tempfile.TemporaryDirectory() as name:
        told = {
            "milliseconds for one device": by_device(Path(name)),
            f"milliseconds for {clients} devices": by_round(Path(name), clients),
        }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
