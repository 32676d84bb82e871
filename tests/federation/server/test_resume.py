"""A server that is killed in a round and resumed: nobody is asked twice, the ledger is whole, and
the statement is the one that was planned."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import small_runs
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.publish import publish_folder
from locksfl.federation.device import DeviceLedger, Policy, Refusal, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.server.devices import DEVICES, Watched
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.serving import as_federation, federation_engine
from locksfl.federation.wire import Answer
from locksfl.privacy import guarantee, ledger
from locksfl.privacy.ledger import LEDGER
from locksfl.privacy.population import VARIABLE, PopulationJournal, Total
from memory_network import MemoryNetwork

CLIENTS, ROUNDS = 6, 4
TEXT = f"""
name = "federated"
[data]
clients = {CLIENTS}
split = {{ kind = "iid" }}
[train]
rounds = {ROUNDS}
[privacy]
trust = "local"
accountant = "rdp"
[[arm]]
name = "full"
rule = "full"
noise_multiplier = 20.0
[[arm]]
name = "locks"
rule = "norm"
cohort = 5
uploads = 3
noise_multiplier = 20.0
norm_multiplier = 30.0
"""
CONFIG = as_federation(parse_config(TEXT))
POLICY = Policy(
    epsilon=20.0,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=20.0,
    min_norm_multiplier=30.0,
    max_rounds=10**6,
)


class Killed(BaseException):
    """The server's process is gone."""


class Quiet:
    """No noise: only the order of things is looked at."""

    def steps(self, std, grid, size):
        del std, grid
        return np.zeros(size, np.int64)


class Network(MemoryNetwork):
    """Counts whom it asked in which round, and kills the server before a question."""

    def __init__(self, devices, run, killed_before=None):
        super().__init__(devices, run)
        self.asked, self.killed_before, self.calls = [], killed_before, 0

    def ask(self, questions, seconds, round_number):
        self.calls += 1
        if self.calls == self.killed_before:
            raise Killed
        self.asked += [(q.stage, round_number, i) for i, q in questions.items()]
        return super().ask(questions, seconds, round_number)


def devices_in(folder):
    made = {}
    for i in range(CLIENTS):
        ledger = Witness(folder / f"device-{i}.sqlite", folder / f"device-{i}.key")
        ledger.create()
        made[i] = Device(lambda w, t, i=i: np.full(w.size, 1e-3 * (i + 1)), POLICY, ledger, Quiet())
    return made


def run(folder, network, config=CONFIG, **options):
    engine = federation_engine(config, folder, 1.0, lambda size: network)
    return small_runs.run_experiment(config, folder, engine=engine, **options)


def new_folder(tmp_path, config=CONFIG):
    return RunFolder.create(tmp_path / "run", config)


def counts_of(folder):
    found = ledger.read_run(folder.path)
    return {counts.arm.name: counts for counts in found.arms}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happens to, and its devices."""
    place = tmp_path_factory.mktemp("whole")
    folder = new_folder(place)
    network = Network(devices_in(place), "whole")
    return folder, run(folder, network), network


def test_a_federated_run_fills_a_run_folder(whole):
    folder, summary, _ = whole
    assert [arm["name"] for arm in summary["arms"]] == ["full", "locks"]
    assert summary["simulated"] is False
    lines = small_runs.lines(folder.path)
    assert len(lines) == 2 * ROUNDS
    assert all(line["stages"]["update"]["missing"] == 0 for line in lines)
    assert folder.lines("diagnostics.jsonl") == []  # a server cannot see such things
    assert (folder.path / "figure.svg").is_file()
    with ServerLedger.open_for(folder.path / LEDGER, summary["experiment"]) as journal:
        for arm in journal.books.arms:
            kept = counts_of(folder)[arm.arm.name]
            np.testing.assert_array_equal(arm.norms, kept.norms)
            np.testing.assert_array_equal(arm.uploads, kept.uploads)
            np.testing.assert_allclose(arm.shares, kept.shares)


def test_it_can_be_published(whole, tmp_path):
    folder, _, network = whole
    (folder.path / "flower").mkdir()
    names = [f"the-device-{i}" for i in range(CLIENTS)]
    Watched(network, names, folder.path, 60.0, dict, dict).write()
    assert "the-device-0" in (folder.path / DEVICES).read_text()
    files = publish_folder(folder.path, tmp_path / "bundle")
    text = (tmp_path / "bundle" / "statement.json").read_text()
    assert "stages" not in text
    assert not [path for path in files if path.is_dir() or b"the-device" in path.read_bytes()]


def test_no_credit_is_claimed_for_noise_that_may_not_come(whole):
    """Rule full, all n clients: a simulation divides PUBLIC's cost by n, a federation must not."""
    _, summary, _ = whole
    cost = small_runs.costs(summary["arms"][0]["privacy"])
    assert cost["PUBLIC", "zero-out"] == cost["SERVER", "zero-out"]
    from locksfl.experiment.costs import statement
    from locksfl.experiment.plan import plan_arms

    simulated = dataclasses.replace(CONFIG, engine=None)
    plan = dataclasses.replace(plan_arms(simulated)[0], rounds=ROUNDS)
    costs = {(c.observer, c.relation): c for c in statement([plan], simulated.privacy)}
    assert costs["PUBLIC", "zero-out"].epsilon < cost["PUBLIC", "zero-out"] / 2


@pytest.mark.parametrize("killed_before", [1, 3, 6, 7, 10])
def test_a_killed_server_goes_on_and_asks_nobody_twice(tmp_path, whole, killed_before):
    """Before the first question, between rounds, and between the two stages of a round."""
    devices, folder = devices_in(tmp_path), new_folder(tmp_path)
    first = Network(devices, "first", killed_before)
    with pytest.raises(Killed):
        run(folder, first)
    second = Network(devices, "second")
    summary = run(folder, second, resume=True)
    asked = [a for a in first.asked + second.asked if a[0] != "end"]
    assert len(asked) == len(set(asked))
    norms = [a[1:] for a in asked if a[0] == "norm"]
    assert len(norms) == len(set(norms))
    lines = small_runs.lines(folder.path)
    assert [(line["arm"], line["round"]) for line in lines] == [
        (arm, t + 1) for arm in ("full", "locks") for t in range(ROUNDS)
    ]
    assert summary["all_arms_composed"] == whole[1]["all_arms_composed"]
    kept = counts_of(folder)
    with ServerLedger.open_for(folder.path / LEDGER, summary["experiment"]) as journal:
        for arm in journal.books.arms:
            np.testing.assert_array_equal(arm.norms, kept[arm.arm.name].norms)
            np.testing.assert_array_equal(arm.uploads, kept[arm.arm.name].uploads)
            assert arm.uploads.max() <= ROUNDS
    for i in range(CLIENTS):  # the server charges each device for all that left it
        device = DeviceLedger.open(tmp_path / f"device-{i}.sqlite")
        sent = sum(tally.sent for tally in device.tallies())
        device.close()
        assert sent <= sum(int(counts.uploads[i]) for counts in kept.values())


def test_a_federation_is_debited_to_its_population_once(tmp_path, monkeypatch):
    """Against the server itself: one mu. A server that was killed is not charged again."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "populations"))
    config = as_federation(parse_config(TEXT, ("privacy.population=patients",)))
    cost = small_runs.costs([c.as_dict() for c in guarantee(plan_arms(config), 1e-5, "rdp")])
    total = 1.0001 * cost["SERVER", "zero-out"]
    PopulationJournal.make("patients", Total(total, 1e-5)).close()
    devices, folder = devices_in(tmp_path), new_folder(tmp_path, config)
    first = Network(devices, "first", killed_before=1)
    with pytest.raises(Killed):
        run(folder, first, config)
    with PopulationJournal.find("patients") as journal:
        (debited,) = journal.runs  # before the first question
    assert first.asked == []
    told = run(folder, Network(devices, "second"), config, resume=True)
    with PopulationJournal.find("patients") as journal:
        assert journal.runs == [debited]
        assert journal.total.epsilon_of(journal.charged) == pytest.approx(
            small_runs.costs(told["all_arms_composed"])["SERVER", "zero-out"]
        )
    other = RunFolder.create(tmp_path / "other", config)
    network = Network(devices, "other")
    with pytest.raises(ValueError, match="nothing was debited"):
        run(other, network, config)
    assert network.asked == []


def test_released_norms_are_paid_for_even_if_the_update_never_arrives(tmp_path):
    """A dropout between the stages: the server charges norm and update, and gives no credit."""

    class Lossy(Network):
        def ask(self, questions, seconds, round_number):
            answers = super().ask(questions, seconds, round_number)
            lost = [i for i, q in questions.items() if q.stage == "update" and i % 2]
            return {i: a for i, a in answers.items() if i not in lost}

    folder = new_folder(tmp_path)
    summary = run(folder, Lossy(devices_in(tmp_path), "lossy"))
    lines = small_runs.lines(folder.path)
    full = [line for line in lines if line["arm"] == "full"]
    assert all(line["uploads"] == 3 and line["stages"]["update"]["missing"] == 3 for line in full)
    counts = counts_of(folder)["full"]
    np.testing.assert_array_equal(counts.uploads, np.full(CLIENTS, ROUNDS))
    np.testing.assert_allclose(counts.shares, np.where(np.arange(CLIENTS) % 2, 1, 1 / 3) * ROUNDS)
    assert summary["arms"][0]["answered"] == {"update": 0.5}
    assert summary["arms"][1]["answered"]["norm"] == 1.0


def test_a_refusal_is_reported_and_not_charged_as_an_update(tmp_path):
    class Refusing(Network):
        def ask(self, questions, seconds, round_number):
            answers = super().ask(questions, seconds, round_number)
            return {
                i: Answer(refusal=int(Refusal.BUDGET)) if i == 2 else a for i, a in answers.items()
            }

    folder = new_folder(tmp_path)
    run(folder, Refusing(devices_in(tmp_path), "refusing"))
    line = small_runs.lines(folder.path)[0]
    assert line["stages"]["update"]["refused"] == {"BUDGET": 1}
    assert line["uploads"] == CLIENTS - 1
    assert counts_of(folder)["full"].uploads[2] == 0


@pytest.mark.parametrize("code", [Refusal.REPEATED, Refusal.LEDGER, 99])
def test_a_refusal_that_may_follow_a_release_is_charged(tmp_path, code):
    """A device that was asked twice has perhaps sent its update: to another pull, or too late."""

    class Repeating(Network):
        def ask(self, questions, seconds, round_number):
            answers = super().ask(questions, seconds, round_number)
            return {i: Answer(refusal=int(code)) if i == 2 else a for i, a in answers.items()}

    folder = new_folder(tmp_path)
    run(folder, Repeating(devices_in(tmp_path), "repeating"))
    counts = counts_of(folder)["full"]
    assert counts.uploads[2] == counts.shares[2] == ROUNDS


def test_a_killed_central_round_is_not_drawn_again(tmp_path):
    """Uploaders see the noised sum of norms: another draw for the same cohort is not paid for."""
    text = TEXT.replace('"local"', '"central"').replace("cohort = 5", f"cohort = {CLIENTS}")
    config = as_federation(parse_config(text))
    policy = Policy(1.0, 20.0, trust="central", min_norm_multiplier=30.0, max_rounds=100)
    devices = {i: dataclasses.replace(d, policy=policy) for i, d in devices_in(tmp_path).items()}
    folder = new_folder(tmp_path, config)
    first = Network(devices, "first", ROUNDS + 4)  # between the stages of a round
    with pytest.raises(Killed):
        run(folder, first, config)
    second = Network(devices, "second")
    run(folder, second, config, resume=True)
    (stopped,) = {number for stage, number, _ in first.asked if number > ROUNDS + 1}
    assert stopped not in {number for _, number, _ in second.asked}
    lines = small_runs.lines(folder.path)
    assert [line["cohort"] == 0 for line in lines].index(True) == stopped - 1
    assert len(lines) == 2 * ROUNDS


def test_an_altered_ledger_is_refused(tmp_path):
    folder = new_folder(tmp_path)
    with pytest.raises(Killed):
        run(folder, Network(devices_in(tmp_path), "first", 4))
    import sqlite3

    db = sqlite3.connect(folder.path / LEDGER)
    db.execute("DELETE FROM entries WHERE number = 2")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="altered"):
        run(folder, Network({}, "second"), resume=True)


def test_trust_none_is_refused():
    with pytest.raises(ValueError, match=r"privacy.trust = 'none': expected 'central' or 'local'"):
        as_federation(parse_config(TEXT, ["privacy.trust=none"]))


def test_the_run_says_which_engine_played_it(whole):
    told = json.loads((whole[0].path / "summary.json").read_text())
    assert told["public"]["settings"]["engine"] == "flower"
    assert whole[0].config.engine == "flower"


@pytest.mark.parametrize("killed_before", [3, 6, 8])
def test_what_a_killed_run_has_spent_is_read_from_the_durable_ledger(tmp_path, killed_before):
    """Who was asked in the round of the kill has paid: the checkpoint alone does not know it."""
    folder = new_folder(tmp_path)
    devices = devices_in(tmp_path)
    with pytest.raises(Killed):
        run(folder, Network(devices, "first", killed_before))
    noted = ledger.account_ledger(ledger.read_run(folder.path))
    identity = noted.experiment
    with ServerLedger.open_for(folder.path / LEDGER, identity) as journal:
        durable = ledger.account_ledger(journal.books)
    assert noted == durable
    spent = noted.all_arms_composed.spent_so_far["server"].epsilon
    summary = run(folder, Network(devices, "second"), resume=True)
    again = ledger.account_ledger(ledger.read_run(folder.path))
    for arm, mine in zip(summary["arms"], again.arms, strict=True):
        for cost in arm["spent_so_far"]:
            seen = mine.spent_so_far[cost["observer"].lower()].relations
            assert seen[cost["relation"]] == cost["epsilon"]
    assert spent < again.all_arms_composed.spent_so_far["server"].epsilon


def test_a_server_does_not_go_on_with_an_older_ledger(tmp_path):
    """The checkpoint notes the head: who was asked after the copy would be asked again unpaid."""
    import shutil

    folder, devices = new_folder(tmp_path), devices_in(tmp_path)
    path = folder.path / LEDGER
    with pytest.raises(Killed):
        run(folder, Network(devices, "first", 2))
    ServerLedger.open(path).close()  # nothing is left in the write-ahead log
    shutil.copyfile(path, tmp_path / "backup")
    with pytest.raises(Killed):
        run(folder, Network(devices, "second", 3), resume=True)
    path.with_name(f"{LEDGER}.head").unlink(missing_ok=True)
    for left in folder.path.glob(f"{LEDGER}-*"):
        left.unlink()
    shutil.copyfile(tmp_path / "backup", path)
    with pytest.raises(ValueError, match=r"ledger.sqlite: .* an old copy"):
        run(folder, Network(devices, "third"), resume=True)
    with pytest.raises(ValueError, match=r"ledger.sqlite: .* an old copy"):
        ledger.read_run(folder.path)
