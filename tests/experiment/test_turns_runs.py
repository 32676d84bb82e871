"""Runs whose clients take turns, by the commands: what they say, resume, publish and cost; and a
small comparison of correlated with independent noise on the embedded digits."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.methods.cyclic import strategy
from locksfl.privacy import calibrate
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_sweep
from small_runs import call_locks, lines, play, shared, stopped_after, summary

TURNS = """
name = "turns"
seed = 7
[data]
clients = 12
split = { kind = "iid" }
[local]
max_samples = 40
[train]
rounds = 7
[privacy]
trust = "central"
epsilon = 8.0
[[arm]]
name = "banded"
sampling = "cyclic"
separation = 3
[[arm]]
name = "independent"
sampling = "cyclic"
separation = 3
bands = 1
"""
COINS = '[[arm]]\nname = "coins"\ncohort = 4\n'
ARMS = ("banded", "independent")


@pytest.fixture
def locks(monkeypatch, capsys, tmp_path):
    """`locks ...` in this process: what it printed."""
    (tmp_path / "turns.toml").write_text(TURNS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    return functools.partial(call_locks, capsys)


def test_a_run_says_that_clients_took_turns_resumes_publishes_and_costs_its_claim(locks, tmp_path):
    told = locks("run", "turns.toml", "--out", "whole")
    assert (
        "banded: clients took turns, every 3 rounds, in public; nothing is amplified; noise "
        "correlated over 3 rounds."
    ) in told
    whole, again = tmp_path / "whole", tmp_path / "again"
    arms = {arm["name"]: arm for arm in summary(whole)["arms"]}
    assert arms["banded"]["strategy"] == list(strategy(7, 3))
    assert arms["independent"]["strategy"] == []
    assert arms["banded"]["noise_multiplier"] == arms["independent"]["noise_multiplier"]

    with stopped_after(again, 4):  # in the middle of its first arm
        locks("run", "turns.toml", "--out", "again", code=130)
    stopped = json.loads(locks("privacy", "account", "again", "--json"))["arms"][0]
    assert stopped["rounds_played"] == 4  # two turns of three
    known = ["--rounds", 4, "--clients", 12, "--separation", 3]
    noise = ["--noise-multiplier", arms["banded"]["noise_multiplier"]]
    cost = json.loads(locks("privacy", "account", *known, *noise, "--json"))["public"]
    assert stopped["spent_so_far"]["public"]["relations"] == cost["relations"]
    assert cost["accountant"] == "gdp"
    assert cost["epsilon"] < stopped["guarantee"]["public"]["epsilon"] <= 8
    locks("run", "--resume", "--out", "again")
    for name in ("rounds.jsonl", *(f"model-{arm}.npz" for arm in ARMS)):
        assert (whole / name).read_bytes() == (again / name).read_bytes(), name

    # the ledger alone gives the claim
    for found in json.loads(locks("privacy", "account", "whole", "--json"))["arms"]:
        costs = arms[found["name"]]["privacy"]
        claimed = [c["epsilon"] for c in costs if c["observer"] == "PUBLIC"]
        for kind in ("guarantee", "spent_so_far"):
            assert list(found[kind]["public"]["relations"].values()) == pytest.approx(claimed)
            assert found[kind]["server"]["epsilon"] is None
        assert 8 * (1 - 1e-6) < claimed[0] <= 8
    steps = [line["epsilon"] for line in lines(whole) if line["arm"] == "banded"]
    assert [len(set(steps[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert steps[0] < steps[3] < steps[6]

    # a bundle has the schedule and the matrix, and says what is assumed
    locks("publish", "whole", "bundle")
    bundle = tmp_path / "bundle"
    for arm in json.loads((bundle / "statement.json").read_text("utf-8"))["arms"]:
        ((event, _),) = arm["terms"]["PUBLIC"]
        told = {name: event[name] for name in ("separation", "bands", "strategy")}
        assert told == {name: arms[arm["name"]][name] for name in told}
    statement = (bundle / "STATEMENT.md").read_text("utf-8")
    assert "a public schedule decided which clients were asked" in statement
    assert "nothing is gained by a secret sample, and the epsilons assume" in statement
    assert "independent random draw" not in statement
    assert "| banded | PUBLIC | zero-out | 8.000 | 1e-05 | gdp |" in statement


def test_beside_an_arm_of_coins_each_says_how_it_asked(locks):
    run = play(parse_config(TURNS + COINS))
    locks("publish", run, "bundle")
    with open("bundle/STATEMENT.md", encoding="utf-8") as file:
        statement = file.read()
    assert "which clients were asked (arm banded, independent); an independent random" in statement
    assert "decided whether it was asked (arm coins)." in statement
    composed = {(c["observer"], c["relation"]): c for c in summary(run)["all_arms_composed"]}
    assert composed["PUBLIC", "zero-out"]["accountant"] == "pld"
    assert composed["PUBLIC", "zero-out"]["epsilon"] > 8


def test_the_noise_for_an_epsilon_needs_no_cohort(locks):
    flags = ["--rounds", 7, "--clients", 12, "--separation", 3]
    found = json.loads(locks("privacy", "calibrate", "--epsilon", 8, *flags, "--json"))
    arm = calibrate(Arm("", 12, 7, separation=3), 8.0, 1e-5)
    assert found["noise_multiplier"] == arm.noise_multiplier
    assert (found["accountant"], found["protects_from"]) == ("gdp", "PUBLIC")
    told = locks("privacy", "calibrate", "--epsilon", 8, *flags)
    assert "clients take turns, 3 rounds apart, in public: nothing is amplified" in told
    locks("privacy", "calibrate", "--epsilon", 8, *flags, "--trust", "local", code=2)
    locks("privacy", "calibrate", "--epsilon", 8, *flags, "--rule", "coin", code=2)


@pytest.mark.long
def test_correlated_beside_independent_noise_on_the_digits():
    """200 clients of 50 digits, 10 turns apart, 40 rounds, epsilon 4, clip .5, step 1, three seeds.
    Theory speaks of sums over rounds; which model is better is only reported."""
    config = parse_config(TURNS, ["data.clients=200"])
    with shared():
        simulator = Simulator(*experiment.open_task(config))
    server = Server(schedule="constant", rounds=40)
    found = {}
    for name, kind in (
        ("banded", {"separation": 10}),
        ("independent", {"separation": 10, "bands": 1}),
        ("coins", {"cohort": 20.0}),
    ):
        arm = calibrate(Arm.of("arm", 200, 40, clip_norm=0.5, **kind), 4.0, 1e-5)
        settings = [Setting(arm, Randomness.seeded(seed)) for seed in range(3)]
        played = play_sweep(simulator, settings, LocalWork(), server, evaluate_every=40)
        found[name] = float(np.mean([one.rounds[-1].accuracy for one in played]))
    print({name: round(accuracy, 3) for name, accuracy in found.items()})
    assert min(found.values()) > 0.5
