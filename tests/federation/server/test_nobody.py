"""A federation with nobody to ask, or whose devices all refuse: no round, no charge, no success."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

import typer

import small_runs
from locksfl.cli.running import NOTHING_TRAINED, run_new
from locksfl.experiment.config import parse_config, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.records import untrained
from locksfl.federation import certificates, logs
from locksfl.federation.device import Refusal
from locksfl.federation.server import serving
from locksfl.federation.server.devices import Watched
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.place import KeyFolder, Place
from locksfl.federation.server.rounds import Draws, draw_round
from locksfl.federation.server.serving import as_federation
from locksfl.federation.wire import Answer, LostLink, Unwilling
from locksfl.methods import TRUSTS
from locksfl.privacy import ledger
from locksfl.privacy.journal import experiment_id
from memory_network import MemoryNetwork

CLIENTS, ROUNDS = 6, 4
TEXT = f"""
[data]
clients = {CLIENTS}
split = {{ kind = "iid" }}
[train]
rounds = {ROUNDS}
[privacy]
trust = "local"
accountant = "rdp"
[[arm]]
name = "locks"
rule = "norm"
cohort = {CLIENTS}
uploads = 3
noise_multiplier = 20.0
norm_multiplier = 30.0
"""
CONFIG = as_federation(parse_config(TEXT))


class Stopped(Exception):
    """The round may not begin."""


class Devices(MemoryNetwork):
    """Each answers what `say` gives for (client, stage); None: it is missing."""

    def __init__(self, say):
        super().__init__({})
        self.say = say

    def ask(self, questions, *_):
        found = {i: self.say(i, q.stage) for i, q in questions.items()}
        return {i: answer for i, answer in found.items() if answer is not None}


def good(client, stage):
    del client
    size = 1 if stage == "norm" else small_runs.SIZE
    return Answer(released=np.full(size, 0.01, np.float64 if stage == "norm" else np.float32))


def played(
    folder,
    say,
    ready=lambda devices: None,
    seen=range(CLIENTS),
    gone=(),
    draw=draw_round,
    **options,
):
    """The summary of a run on devices that answer so. `ready` is called with what is known of them
    before each round."""
    (folder.path / "flower").mkdir(exist_ok=True)
    names = [f"device-{i}" for i in range(CLIENTS)]
    known = dict.fromkeys(seen, 0.0), dict.fromkeys(gone, "left")
    devices = Watched(Devices(say), names, folder.path, 1.0, lambda: known[0], lambda: known[1])

    def engine(population, model, plans):
        return Federation(
            *(population, model, devices, plans),
            folder=folder.path,
            experiment=experiment_id(to_table(CONFIG)),
            privacy=CONFIG.privacy,
            seconds=1.0,
            draw=draw,
            ready=lambda: ready(devices),
        )

    return small_runs.run_experiment(CONFIG, folder, engine=engine, **options)


def charged(folder):
    (arm,) = ledger.read_run(folder.path).arms
    return arm.norms.max()


def test_a_round_that_may_not_begin_is_not_drawn_not_asked_and_not_charged(tmp_path):
    """Finds what only a round that is drawn, or reserved, before the wait would do: the coins of a
    cohort that is drawn again, and a charge for it."""
    drawn, begun = [], []

    def drawing(plan, randomness, t, size):
        assert len(begun) == len(drawn) + 1
        drawn.append(t)
        return draw_round(plan, randomness, t, size)

    def ready(devices):
        del devices
        begun.append(True)
        if len(begun) == 3:
            raise Stopped

    folder = RunFolder.create(tmp_path / "run", CONFIG)
    with pytest.raises(Stopped):
        played(folder, good, ready, draw=drawing)
    assert drawn == [0, 1]
    assert len(small_runs.lines(folder.path)) == charged(folder) == 2


def test_a_cohort_that_its_coins_leave_empty_is_a_round_like_any_other(tmp_path):
    """Nobody is asked, which is not to be taken for nobody being there: it is not drawn again."""
    drawn = []

    def drawing(plan, randomness, t, size):
        drawn.append(t)
        draws = draw_round(plan, randomness, t, size)
        cohort = draws.cohort if t else draws.cohort[:0]
        return Draws(cohort, draws.members, draws.server)

    folder = RunFolder.create(tmp_path / "run", CONFIG)
    played(folder, good, Watched.check_willing, draw=drawing)
    assert drawn == list(range(ROUNDS))
    asked = [line["stages"]["norm"]["asked"] for line in small_runs.lines(folder.path)]
    assert asked == [0, CLIENTS, CLIENTS, CLIENTS]


def test_a_server_waits_for_enough_devices_and_says_so_every_minute(caplog, monkeypatch):
    here, now = [set(), {1}, {1, 2}], [0.0]
    checked = []

    def sleep(seconds):
        now[0] += 50.0
        assert seconds < 1
        if now[0] > 200 and len(here) > 1:
            here.pop(0)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(serving, "time", clock)
    with caplog.at_level(logging.WARNING, logger=logs.log.name):
        serving._enough_wait(lambda: here[0], 2, 3, lambda: checked.append(now[0]))
    assert now[0] == 300.0
    assert len(checked) == 6  # a link that is lost ends the wait
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("0 of 3 devices are waiting, expected 2 (--min-waiting): no round")
    assert [text[0] for text in said] == ["0", "0", "0", "1"]


@pytest.mark.parametrize("least", [0, 3])
def test_more_devices_than_there_are_cannot_be_waited_for(tmp_path, least):
    certificates.make_server(tmp_path / "certs", ["localhost"], days=1)
    for name in ("a", "b"):
        certificates.make_node(tmp_path / "keys", name, days=1)
    place = Place(tmp_path / "certs", tmp_path / "keys", min_waiting=least)
    with pytest.raises(ValueError, match=f"--min-waiting {least}: expected 1 to 2, the number"):
        place.check(2)


@pytest.mark.parametrize("how", ["gone", "a file", "a key"])
def test_keys_that_cannot_be_read_are_an_error_and_nobody_is_revoked(tmp_path, monkeypatch, how):
    """Finds what an unreadable folder did: all keys taken for revoked, and rounds with nobody."""
    for name in ("REREAD_SECONDS", "REREAD_SHARE"):
        monkeypatch.setattr(f"locksfl.federation.server.place.{name}", 0.0)
    keys = tmp_path / "keys"
    certificates.make_server(tmp_path / "certs", ["localhost"], days=1)
    certificates.make_node(keys, "alice", days=1)
    certificates.make_node(keys, "bob", days=1)
    folder, place = KeyFolder(keys), Place(tmp_path / "certs", keys)
    assert len(folder.now()) == 2
    named = keys
    if how == "a key":
        named = keys / "bob.pub"
        named.unlink()
        named.mkdir()  # as unreadable as a file without its mode, for root too
    else:
        keys.rename(tmp_path / "elsewhere")
        if how == "a file":
            keys.write_text("")
    for reading in (folder.now, lambda: place.public_keys(2)):
        with pytest.raises(LostLink, match="cannot be read") as error:
            reading()
        assert str(named) in str(error.value)
    if how != "a key":
        keys.unlink(missing_ok=True)
        (tmp_path / "elsewhere").rename(keys)
        assert len(folder.now()) == 2
        (keys / "bob.pub").unlink()  # this is how a key is revoked
        assert len(folder.now()) == 1


def refusing(*codes):
    return lambda client, stage: Answer(refusal=int(codes[client % len(codes)]))


def test_a_run_ends_when_every_device_refuses(tmp_path):
    """After one round, with the reasons; it can be resumed when they are gone."""
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    with pytest.raises(Unwilling, match=r"every device refuses \(BUDGET 3, MODEL 3\)"):
        played(folder, refusing(Refusal.BUDGET, Refusal.MODEL), Watched.check_willing)
    assert len(small_runs.lines(folder.path)) == 1
    summary = played(folder, good, Watched.check_willing, resume=True)
    assert summary["arms"][0]["answered"]["norm"] == (ROUNDS - 1) / ROUNDS


def one_good(client, stage):
    return good(client, stage) if client == 5 else Answer(refusal=int(Refusal.BUDGET))


@pytest.mark.parametrize(
    ("say", "seen", "gone", "ends"),
    [
        (refusing(Refusal.BUDGET), range(CLIENTS), (), True),
        (one_good, range(CLIENTS), (), False),
        (one_good, range(CLIENTS), (5,), True),  # who has left decides nothing
        (lambda i, s: None if i == 5 else one_good(i, s), range(CLIENTS), (), False),
        (lambda i, s: None if i == 5 else one_good(i, s), range(5), (), True),  # it never called
        (refusing(Refusal.BUDGET, Refusal.REPEATED), range(CLIENTS), (), False),  # of one round
        (refusing(Refusal.LEDGER), range(CLIENTS), (), False),
        (lambda i, s: None, range(CLIENTS), (), False),
        (lambda i, s: Answer(), range(CLIENTS), (), False),
        (good, (), (), False),
    ],
)
def test_it_ends_for_nothing_less(tmp_path, say, seen, gone, ends):
    """Finds a run ended by one device's silence, by a refusal of one round, or not ended at all."""
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    try:
        played(folder, say, Watched.check_willing, seen, gone)
    except Unwilling:
        assert ends
        assert len(small_runs.lines(folder.path)) == 1
    else:
        assert not ends
        assert len(small_runs.lines(folder.path)) == ROUNDS


@pytest.mark.parametrize("early", [True, False])
def test_a_federation_that_trained_nothing_is_no_success(tmp_path, capsys, early):
    """Whether it ended early or played all its rounds: exit code 3, the refusals named, no word of
    norms, and no bundle."""

    def play(config, folder, *, say, **options):
        del config, say
        ready = Watched.check_willing if early else (lambda devices: None)
        return played(folder, refusing(Refusal.BUDGET), ready, **options)

    with pytest.raises(typer.Exit) as ended:
        run_new(CONFIG, tmp_path / "run", True, play)
    assert ended.value.exit_code == NOTHING_TRAINED == 3
    printed = capsys.readouterr()
    last = printed.err.strip().splitlines()[-1]
    if early:
        assert "every device refuses (BUDGET 6): its policy, ledger or model decides" in last
        assert f"--resume --out {tmp_path / 'run'}" in last
        return
    assert last == (
        "locks: arm locks: no device sent an update in 4 rounds (BUDGET 24): nothing was trained"
    )
    assert json.loads(printed.out)["secret"]["arms"][0]["name"] == "locks"
    assert small_runs.summary(tmp_path / "run")["arms"][0]["few_uploads"] == (
        "about 0% of the 12 uploads asked for came: most of the 24 questions failed (BUDGET 24)."
    )
    with pytest.raises(ValueError, match=r"run: arm locks: no device sent an update in 4 rounds"):
        publish_folder(tmp_path / "run", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def line(norm, update, refused=None):
    def tally(asked, answered):
        return {"asked": asked, "answered": answered, "refused": refused or {}, "rejected": 0,
                "missing": asked - answered}  # fmt: skip

    return {"arm": "locks", "stages": {"norm": tally(*norm), "update": tally(*update)}}


@pytest.mark.parametrize(
    ("lines", "local", "central"),
    [
        ([line((6, 6), (3, 3))], False, False),
        ([line((6, 0), (0, 0), {"BUDGET": 6})], True, True),
        # who uploads is drawn by raw norms under central trust: this must not decide what is shown
        ([line((6, 6), (0, 0))], True, False),
        ([line((6, 6), (3, 0))], True, False),
        ([line((6, 6), (3, 0)), line((6, 6), (3, 1))], False, False),
        ([{"arm": "simulated"}], False, False),
    ],
)
def test_whether_a_run_is_published_is_decided_by_nothing_secret(lines, local, central):
    assert (untrained(lines, TRUSTS["local"]) is not None) == local
    assert (untrained(lines, TRUSTS["central"]) is not None) == central
