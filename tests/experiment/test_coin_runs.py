"""Runs of the coin: what they release, publish and resume, with a cohort of one rate and with rate
control."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from checks import ragged
from locksfl.arm import Noise
from locksfl.experiment.config import parse_config, read_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.training import train
from locksfl.privacy import guarantee
from locksfl.privacy.ledger import account_ledger, read_run
from locksfl.round.randomness import Randomness
from small_runs import lines, new_path, play, run_experiment, summary

COIN = """
name = "coin"
[data]
clients = 12
split = { kind = "iid" }
[local]
max_samples = 20
[train]
rounds = 6
clip_norm = 5.0
[privacy]
trust = "central"
epsilon = 50.0
accountant = "rdp"
[[arm]]
name = "coin"
rule = "coin"
cohort = 9
"""
CONTROLLED = ("arm.coin.uploads=2",)
SECRET = Randomness(2**200 + 1, simulated=False)


class Stop(KeyboardInterrupt):
    """A Ctrl-C at a chosen place."""


def stopped(config, after):
    """A run that was stopped after a round."""
    folder = RunFolder.create(new_path(), config)

    def on_round(record):
        if record.round == after:
            raise Stop

    with pytest.raises(Stop):
        run_experiment(config, folder, on_round=on_round)
    return folder


def resumed(config, after):
    """The path of a run that was stopped after a round, and resumed."""
    folder = stopped(config, after)
    run_experiment(config, folder, resume=True)
    return folder.path


@pytest.mark.parametrize("seed", [3, None])
def test_a_controlled_run_resumes_as_if_it_had_never_stopped(seed):
    config = parse_config(COIN, CONTROLLED, seed)
    with mock.patch.object(Randomness, "from_system", return_value=SECRET):
        whole, again = play(config), resumed(config, 3)
    for name in ("rounds.jsonl", "model-coin.npz"):
        assert (whole / name).read_bytes() == (again / name).read_bytes()
    cohorts = [line["expected_cohort"] for line in lines(whole)]
    assert cohorts[0] == 2.0
    assert len(set(cohorts)) > 1  # it is controlled


def test_a_controlled_run_does_not_go_on_with_other_counts():
    """The attack: a copy whose counts are edited plays other rates with the same noise. The fault
    that only this finds: the lines of a run are not compared with its checkpoint."""
    config = parse_config(COIN, CONTROLLED)
    folder = stopped(config, 3)
    path = folder.path / "rounds.jsonl"
    content = path.read_bytes()
    for line in range(3):
        told = folder.lines("rounds.jsonl")
        told[line]["secret"]["released"]["uploads"] += 40
        path.write_text("".join(json.dumps(one) + "\n" for one in told))
        edited = path.read_bytes()
        with pytest.raises(ValueError, match="edited since the run wrote it") as caught:
            run_experiment(config, RunFolder(folder.path), resume=True)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == edited
        path.write_bytes(content)
    run_experiment(config, folder, resume=True)
    assert path.read_bytes().startswith(content)


def test_a_bundle_estimates_uploads_from_the_released_counts():
    """Without a seed nothing else is known of the uploads; the true ones are told by a seed."""
    for changes in ((), CONTROLLED):
        run = play(parse_config(COIN, changes))
        bundle = new_path()
        publish_folder(run, bundle)
        counts = [line["released_count"] for line in lines(run)]
        assert all(count == round(count) for count in counts)  # whole numbers, noise and all
        told = json.loads((bundle / "statement.json").read_text())["arms"][0]["rounds"]
        assert [line["upload_estimate"] for line in told] == counts
        cohorts = [line["expected_cohort"] for line in told]
        assert cohorts == [line.get("expected_cohort", 9.0) for line in lines(run)]
        said = "rate control: how many clients" in (bundle / "STATEMENT.md").read_text("utf-8")
        assert said == bool(changes)
        (arm,) = summary(run)["arms"]
        assert arm["public"]["uploads"] == max(0, sum(counts))
        known = play(parse_config(COIN, changes, 3))
        true = np.array([line["uploads"] for line in lines(known)])
        noise = np.array([line["released_count"] for line in lines(known)]) - true
        assert (noise != np.round(noise)).all()
        assert np.abs(noise).max() < 8 * 10.05 * max(summary(known)["arms"][0].get("ladder", [0.6]))


def test_without_noise_the_count_is_exact():
    run = play(parse_config(COIN, ("privacy.trust=none", "privacy.epsilon=inf", *CONTROLLED), 3))
    for line in lines(run):
        assert line["released_count"] == line["uploads"]
    assert "ladder" not in summary(run)["arms"][0]


def test_the_ledger_alone_gives_the_guarantee():
    run = play(parse_config(COIN, CONTROLLED))
    (arm,) = account_ledger(read_run(run)).arms
    (told,) = summary(run)["arms"]
    for costs in (arm.guarantee, arm.spent_so_far):
        assert costs["public"].epsilon == pytest.approx(told["privacy"][2]["epsilon"])
        assert costs["public"].accountant == "rdp"
    assert 50 * (1 - 2e-3) <= arm.guarantee["public"].epsilon <= 50
    assert len(told["ladder"]) == 17


@pytest.mark.parametrize(
    "changes", [CONTROLLED, ("train.clip_quantile=0.5",), ()], ids=["rates", "clip", "plain"]
)
def test_the_statement_alone_gives_the_guarantee(changes):
    """A reviewer has the bundle's settings and the multipliers of its statement, nothing else."""
    bundle = new_path()
    publish_folder(play(parse_config(COIN, changes, 3)), bundle)
    statement = json.loads((bundle / "statement.json").read_text("utf-8"))
    (told,) = statement["arms"]
    assert bool(told["noise"]["ladder"]) == (changes == CONTROLLED)
    config = read_config(bundle / "config.toml")
    arm = replace(config.arms[0], noise=Noise(**told["noise"]))
    costs = guarantee([arm], config.privacy.delta, config.privacy.accountant)
    assert [cost.as_dict() for cost in costs] == told["privacy"]
    assert 49 < told["privacy"][2]["epsilon"] <= 50


def test_rate_control_needs_an_epsilon():
    without = ("arm.coin.noise_multiplier=1.0",)
    text = COIN.replace("epsilon = 50.0\n", "")
    with pytest.raises(
        ValueError, match=r"every rate has its own noise; expected privacy\.epsilon"
    ):
        play(parse_config(text, (*without, *CONTROLLED), 3))
    play(parse_config(text, without, 3))  # a cohort of one rate needs none


def test_train_has_the_coin():
    population = ragged(np.full(40, 5))
    for settings in ({}, {"uploads": 5}):
        found = train(
            population, rule="coin", cohort=20, rounds=4, epsilon=20.0, seed=1, **settings
        )
        (public,) = (c for c in found.privacy if (c.observer, c.relation) == ("PUBLIC", "zero-out"))
        assert 19.9 <= public.epsilon <= 20.0
        assert all(line["released_count"] is not None for line in found.history)
        assert public.accountant == ("rdp" if settings else "pld")
