"""Runs whose clip norm adapts, by the commands: what they say, resume, publish and cost."""

from __future__ import annotations

import json
import sys
from unittest import mock

import pytest

from locksfl.cli.main import main
from locksfl.experiment import run as experiment
from locksfl.experiment.config import parse_config
from locksfl.round.randomness import Randomness
from locksfl.simulate import simulator as simulate
from small_runs import CENTRAL, lines, play, shared, summary

ADAPTIVE = ("--set", "train.clip_quantile=0.5")
SECRET = Randomness(2**200 + 5, simulated=False)
ARMS = ("uniform", "locks", "coin")


@pytest.fixture
def locks(monkeypatch, capsys, tmp_path):
    """`locks ...` in this process: what it printed. Without a seed it draws from SECRET."""
    file = tmp_path / "experiment.toml"
    file.write_text(CENTRAL + '[[arm]]\nname = "coin"\nrule = "coin"\ncohort = 6\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments, code=0):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["locks", *map(str, arguments)])
        secret = mock.patch.object(Randomness, "from_system", return_value=SECRET)
        with shared(), secret, pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert (caught.value.code or 0) == code, err
        return out

    return call


@pytest.mark.parametrize("seed", [("--seed", "7"), ()], ids=["seed", "no seed"])
def test_a_run_says_what_it_adapted_resumes_publishes_and_costs_its_claim(
    locks, tmp_path, monkeypatch, seed
):
    told = locks("run", "experiment.toml", *ADAPTIVE, *seed, "--out", "whole")
    whole, again = tmp_path / "whole", tmp_path / "again"
    arms = {arm["name"]: arm for arm in summary(whole)["arms"]}
    assert set(arms) == set(ARMS)
    for name, arm in arms.items():
        clips = [line["clip_norm"] for line in lines(whole) if line["arm"] == name]
        assert clips[0] == 1.0
        assert len(set(clips)) == len(clips)
        assert arm["last_clip_norm"] == clips[-1]
        assert (
            f"{name}: the clip norm adapted from 1 to {clips[-1]:.4g}, by counts of updates "
            f"within it, released with noise (clip multiplier {arm['clip_multiplier']:.4g}), "
            "part of ε."
        ) in told

    # stopped in the middle of its second arm
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)
    saved = experiment.Progress.save

    def save(progress, *rest, **options):
        saved(progress, *rest, **options)
        if len(lines(again)) == 6:
            raise KeyboardInterrupt

    with mock.patch.object(experiment.Progress, "save", save):
        locks("run", "experiment.toml", *ADAPTIVE, *seed, "--out", "again", code=130)
    assert not (again / "summary.json").exists()
    locks("run", "--resume", "--out", "again")
    for name in ("rounds.jsonl", *(f"model-{arm}.npz" for arm in ARMS)):
        assert (whole / name).read_bytes() == (again / name).read_bytes(), name

    # the ledger alone gives the claim, the bits included
    ledger = json.loads(locks("privacy", "account", "whole", "--json"))
    for found in ledger["arms"]:
        claimed = [
            c["epsilon"] for c in arms[found["name"]]["privacy"] if c["observer"] == "PUBLIC"
        ]
        for kind in ("guarantee", "spent_so_far"):
            relations = found[kind]["public"]["relations"]
            assert list(relations.values()) == pytest.approx(claimed)
        assert 8 * (1 - 2e-3) < claimed[0] <= 8

    # a bundle has the clip norms, which follow from releases, and says so
    locks("publish", "whole", "bundle")
    bundle = tmp_path / "bundle"
    public = lines(bundle)
    assert [line["clip_norm"] for line in public] == [line["clip_norm"] for line in lines(whole)]
    for arm in json.loads((bundle / "statement.json").read_text("utf-8"))["arms"]:
        assert arm["noise"]["clip_multiplier"] == arms[arm["name"]]["clip_multiplier"]
    assert "adaptive clipping: the limit on the size" in (bundle / "STATEMENT.md").read_text(
        "utf-8"
    )


def test_a_fixed_clip_norm_says_nothing_of_it(locks):
    run = play(parse_config(CENTRAL, (), 7))
    locks("publish", run, "bundle")
    with open("bundle/STATEMENT.md", encoding="utf-8") as statement:
        assert "adaptive" not in statement.read()
    assert "clip_multiplier" not in json.dumps(summary(run))
