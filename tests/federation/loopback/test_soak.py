"""300 rounds of four real devices, with kills and stalls: every ledger exact, and nothing leaks.

What "exact" means is in exact.py, what "flat" means in soak.py. The faults follow a plan with a
fixed seed and come when so many rounds have been played; in which stage of a round they fall is up
to the machine, and what is shown holds wherever they fall. For the figures, or another seed:

    LOCKS_SOAK_SEED=1 LOCKS_SOAK_ROUNDS=600 python -m pytest -s -m long .../test_soak.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from exact import Books, mismatches
from loopback import Loopback, processes_with
from soak import (
    ANSWER_SECONDS,
    KINDS,
    LONG,
    NODES,
    RESUMES,
    THRIFTY,
    Sample,
    Soak,
    growth,
    leaks,
    plan,
    sample,
)

from locksfl.cli.console import fields_and_properties
from locksfl.experiment.folder import RunFolder
from locksfl.federation.device import DeviceLedger, Policy
from locksfl.federation.device.view import ledger_view
from locksfl.federation.server.devices import read_devices
from locksfl.privacy.journal import Entry
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import LEDGER, account_ledger, read_run

SEED = int(os.environ.get("LOCKS_SOAK_SEED", "0"))
ROUNDS = int(os.environ.get("LOCKS_SOAK_ROUNDS", "300"))
THRIFTY_ROUNDS = ROUNDS // 3  # of about ROUNDS * 3 / 4 in which it is asked: it will refuse

# half of the nodes by their noisy norms: reservations are refunded too, without any fault
EXPERIMENT = """
name = "soak"
[data]
clients = {nodes}
split = {{ kind = "iid" }}
max_samples = 50
[train]
rounds = {rounds}
clip_norm = 0.01
[privacy]
trust = "local"
relation = "zero-out"
[[arm]]
name = "locks"
rule = "norm"
cohort = 3
uploads = 2
noise_multiplier = 5.0
norm_multiplier = 8.0
"""


@pytest.mark.long
def test_kills_and_stalls_leave_every_ledger_exact_and_nothing_leaks(tmp_path):
    with Loopback(tmp_path, NODES, ROUNDS, EXPERIMENT) as loop:
        write_policies(loop)
        soak = Soak(loop, plan(SEED, ROUNDS, THRIFTY_ROUNDS))
        soak.play()
    assert processes_with(str(tmp_path)) == []
    books = read(loop)
    print("", *summary(soak, books), sep="\n")
    assert soak.done == Counter(KINDS) + Counter(RESUMES)
    assert any(books.missing)  # the faults were felt
    assert mismatches(books) == []
    no_errors(books)
    runs = {entry.account for entries in books.devices for entry in entries}
    # every resume is a run of its own; one that dies at once may have asked nobody
    assert len(RESUMES) // 2 < len(runs) <= 1 + len(RESUMES)
    device_ledgers(loop, books)
    server_ledger(loop, books)
    assert leaks(soak.lives) == []
    judged = {who.partition(",")[0] for who, life in soak.lives.items() if len(life) >= LONG}
    assert {"server", "SuperLink", "client 0"} <= judged


def write_policies(loop):
    """Answers wait a little, so that a device can be killed after it has paid and before it sends;
    and one owner allows fewer rounds than the server wants."""
    for number, files in enumerate(loop.devices):
        text = files.policy.read_text()
        few = THRIFTY_ROUNDS if number == THRIFTY else ROUNDS
        assert f"max_rounds = {ROUNDS}" in text
        text = text.replace(f"max_rounds = {ROUNDS}", f"max_rounds = {few}")
        files.policy.write_text(f"{text}answer_seconds = {ANSWER_SECONDS}\n")


def read(loop):
    """All that was written. The ledgers' chains are verified from their first entries on."""
    devices = []
    for files in loop.devices:
        with DeviceLedger.open(files.ledger, whole=True) as ledger:
            devices.append(ledger.entries())
        with files.witness.open(whole=True):
            pass  # and it is the one whose head was noted beside the key
    with Journal.open(loop.run / LEDGER, whole=True) as ledger:
        server = ledger.entries()
    spans = [device["missing"] for device in read_devices(loop.run)["devices"]]
    missing = [{n for a, b in each for n in range(a, b + 1)} for each in spans]
    return Books(ROUNDS, server, devices, RunFolder.open(loop.run).lines("rounds.jsonl"), missing)


def no_errors(books):
    """Faults of processes are no faults of messages: nothing is damaged, no ledger unreadable, and
    nobody is taken for a liar."""
    for line in books.lines:
        for tally in line["secret"]["stages"].values():
            assert tally["rejected"] == 0, line
            assert set(tally["refused"]) <= {"REPEATED", "LOST", "BUDGET", "ORDER"}, line
            assert "flagged" not in tally, line


def device_ledgers(loop, books):
    """Totals are those of the entries, within the policy, and at least what the server got."""
    for number, files in enumerate(loop.devices):
        view = ledger_view(files.ledger, Policy.read(files.policy))
        reserved, committed = books.reserved(number), books.committed(number)
        refunded = sum(entry.kind == "refund" for entry in books.devices[number])
        assert view["rounds"] == len(reserved) <= view["max_rounds"]
        assert view["spent_epsilon"] <= view["budget"]["epsilon"]
        assert sum(run["norms"] for run in view["runs"]) == len(reserved)
        assert sum(run["updates"] for run in view["runs"]) == len(committed)
        still_open = len(reserved) - len(committed) - refunded
        assert sum(run["open"] for run in view["runs"]) == still_open <= len(view["runs"])
        (known,) = read_devices(loop.run)["devices"][number : number + 1]
        assert known["answered"] <= len(reserved) + len(committed)
        assert known["errors"] == 0
    thrifty = read_devices(loop.run)["devices"][THRIFTY]
    assert len(books.reserved(THRIFTY)) == THRIFTY_ROUNDS  # all that its owner allows, no more
    assert thrifty["refused"]["BUDGET"] > 0


def server_ledger(loop, books):
    """Totals are those of the entries, and `locks privacy account` and the summary say the same."""
    found = read_run(loop.run)
    (arm,) = found.arms
    for number in range(NODES):
        asked, refunded = (books.at_server(kind, number) for kind in ("reserve", "refund"))
        assert arm.norms[number] == len(asked) <= ROUNDS
        assert arm.uploads[number] == len(asked) - len(refunded)
        assert len(books.reserved(number)) <= arm.norms[number]
        assert len(books.committed(number)) <= arm.uploads[number]
    start = "from locksfl.cli.main import main; main()"
    command = [sys.executable, "-c", start, "privacy", "account", str(loop.run), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert told == json.loads(json.dumps(account_ledger(found), default=fields_and_properties))
    assert told["arms"][0]["rounds_played"] == ROUNDS
    run = RunFolder.open(loop.run).run()
    for name, costs in (
        ("guarantee", run.public.all_arms),
        ("spent_so_far", run.secret.all_arms_spent),
    ):
        assert costs, name
        for cost in costs:
            mine = told["all_arms_composed"][name][cost.observer.lower()]
            assert mine["relations"][cost.relation] == cost.epsilon, cost


def summary(soak, books):
    """For a note."""
    stages = Counter()
    for line in books.lines:
        for stage, tally in line["secret"]["stages"].items():
            counts = {name: tally[name] for name in ("asked", "answered", "missing")}
            for name, count in {**counts, **tally["refused"]}.items():
                stages[f"{stage} {name}"] += count
    begun = Counter(entry.round for entry in books.server if entry.kind == "reserve")
    entries = Counter(entry.kind for device in books.devices for entry in device)
    charged = Counter({"reserve": 0, "commit": 0, "refund": 0})
    for entry in books.server:
        charged[entry.kind] += len(entry.clients)
    yield f"soak: {soak.played()} rounds of {NODES} devices, seed {SEED}"
    yield f"faults: {dict(soak.done)}; {len(RESUMES)} resumes"
    yield f"rounds that were begun again: {sorted(n for n, times in begun.items() if times > 1)}"
    yield f"questions: {dict(sorted(stages.items()))}"
    yield f"ledger of the server: {dict(charged)}; of the devices: {dict(entries)}"
    for who, life in soak.lives.items():
        if len(life) >= LONG:
            handles, memory = growth(life)
            first, last = life[len(life) // 3], life[-1]
            yield (
                f"{who}: {len(life)} rounds; memory {first.memory / 1024:.1f} MiB after a third, "
                f"{last.memory / 1024:.1f} at the end ({memory:+.1f} KiB per round); handles "
                f"{first.handles}, at most {max(s.handles for s in life)} ({handles:+d})"
            )


# what follows shows that the checks can fail


def life(rounds=LONG, handle=0.0, memory=0.0, jump=0):
    """A process with the noise of a real one, a leak per round, and 20 MB more or less at once."""
    noise = np.random.default_rng(0)
    found = []
    for t in range(1, rounds + 1):
        kib = 200_000 + memory * t + noise.normal(0, 500) + (t > rounds * 0.7) * jump * 20_000
        found.append(Sample(t, int(kib), int(30 + handle * t + t % 3)))
    return found


def test_a_leak_of_a_handle_or_of_100_kb_in_each_round_is_seen():
    for rounds in (LONG, 300):
        for jump in (-1, 0, 1):
            assert leaks({"flat": life(rounds, jump=jump)}) == []
            (told,) = leaks({"leaks": life(rounds, memory=100.0, jump=jump)})
        for leak in ({"handle": 1.0}, {"handle": 0.2}, {"memory": 100.0}):
            (told,) = leaks({"flat": life(rounds), "leaks": life(rounds, **leak)})
            assert told.startswith("leaks: "), leak


HOLDS = """
print("begun", flush=True)
input()
handles = [open(str(i), "w") for i in range(20)]
memory = bytes(range(1, 251)) * 160_000
print("held", flush=True)
input()
"""


def test_what_a_process_holds_is_seen(tmp_path):
    """20 handles and 40 MB, of a process that has nothing else."""
    command = [sys.executable, "-c", HOLDS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, bufsize=1, **pipes) as child:
        assert child.stdout.readline() == "begun\n"
        before = sample(child.pid, 1)
        child.stdin.write("\n")
        assert child.stdout.readline() == "held\n"
        during = sample(child.pid, 2)
        child.stdin.write("\n")
    assert during.handles == before.handles + 20
    assert during.memory > before.memory + 30_000


def entry(number, kind, clients=(0,), uploaders=1, account="run"):
    return Entry(account, number, kind, np.array(clients, np.int32), uploaders)


def stage(asked, answered, missing=0, **refused):
    told = {"asked": asked, "answered": answered, "refused": refused, "rejected": 0}
    return {**told, "missing": missing}


def small_books():
    """Two devices, three rounds. In the second, the server is killed when device 0 was asked, and
    resumed; in the third, device 0 is restarted between the stages, and 1 is not drawn."""
    server = [
        *(entry(1, "reserve", (0, 1)), entry(1, "commit", (0, 1))),
        entry(2, "reserve", (0,)),
        *(entry(2, "reserve", (1,)), entry(2, "commit", (1,))),
        *(entry(3, "reserve", (0, 1)), entry(3, "refund", (0, 1))),
    ]
    first = [*(entry(1, kind) for kind in ("reserve", "commit")), entry(2, "reserve")]
    again = [(2, "reserve"), (2, "commit"), (3, "reserve"), (3, "refund")]
    devices = [
        [*first, entry(3, "reserve", account="again")],
        [*first[:2], *(entry(*each, account="again") for each in again)],
    ]
    stages = [
        {"norm": stage(2, 2), "update": stage(2, 2)},
        {"norm": stage(1, 1), "update": stage(1, 0, 1)},
        {"norm": stage(2, 2), "update": stage(1, 0, LOST=1)},
    ]
    lines = [{"round": n + 1, "secret": {"stages": each}} for n, each in enumerate(stages)]
    return Books(3, server, devices, lines, [set(), {2}])


def without(entries, number, kind):
    kept = [e for e in entries if (e.round, e.kind) != (number, kind)]
    assert len(kept) < len(entries)
    return kept


def test_a_ledger_that_is_not_exact_is_seen():
    books = small_books()
    assert mismatches(books) == []
    zero, one = books.devices
    planted = {
        "a device released what it had not paid": [without(zero, 1, "reserve"), one],
        "an update arrived that a device had not paid": [without(zero, 1, "commit"), one],
        "a norm arrived that a device had not paid": [without(zero, 3, "reserve"), one],
        "an update was paid twice": [zero, [*one, entry(2, "commit", account="again")]],
        "a round was paid in two runs": [[*zero, entry(2, "reserve", account="again")], one],
        "a round was left open": [zero, without(one, 2, "commit")],
        "an update that the server refunded": [[*zero, entry(3, "commit", account="again")], one],
        "a round in which nobody was asked": [[*zero, entry(4, "reserve", account="again")], one],
    }
    for why, devices in planted.items():
        assert mismatches(replace(books, devices=devices)), why
    server = {
        "asked twice in a round": [*books.server, entry(2, "reserve", (0,))],
        "a charge that was left out": without(books.server, 1, "commit"),
        "a refund of what was sent": [*books.server, entry(1, "refund")],
        "credit for the noise of others": [
            *without(books.server, 1, "commit"),
            entry(1, "commit", (0, 1), 2),
        ],
        "a round that was not planned": [*books.server, entry(4, "reserve", (1,))],
    }
    for why, entries in server.items():
        assert mismatches(replace(books, server=entries)), why
    assert mismatches(replace(books, missing=[set(), set()]))
    assert mismatches(replace(books, lines=books.lines[:2]))
