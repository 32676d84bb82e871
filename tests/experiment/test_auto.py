"""Rounds and cohorts left to the planner are numbers before anything is drawn, and in the file."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from locksfl.cli.main import app
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import parse_config, read_config
from locksfl.privacy.planner import Question, choose
from small_runs import play, summary

TEXT = """
seed = 0
[data]
clients = 200
split = { kind = "iid" }
[train]
rounds = "auto"
[privacy]
epsilon = 8.0
accountant = "rdp"
[plan]
uploads_in_all = 400
norm_share = 0.5
[[arm]]
name = "uniform"
cohort = "auto"
[[arm]]
name = "coin"
rule = "coin"
cohort = "auto"
[[arm]]
name = "locks"
rule = "norm"
cohort = "auto"
"""
D = 7850  # softmax on the embedded digits


def test_auto_is_what_the_planner_says():
    """The first arm decides on the rounds; every arm has its own cohort, within the total."""
    config = parse_config(TEXT)
    plan = choose(Question(200, D, 8.0, uploads_in_all=400.0), "uniform", 0.5)
    uniform, coin, norm = config.arms
    assert uniform.rounds == coin.rounds == norm.rounds == plan.arm.rounds
    wanted = 400 / plan.arm.rounds
    assert uniform.cohort == pytest.approx(wanted, abs=0.01)
    assert coin.cohort == pytest.approx(2 * wanted, abs=0.01)
    assert (norm.cohort, norm.uploads, norm.floor) == (coin.cohort, uniform.cohort, 0.0)


def test_a_run_saves_and_plays_the_numbers():
    config = parse_config(TEXT, ("arm=[{name='uniform', cohort='auto'}]",))
    run = play(config)
    saved = read_config(run / "config.toml")
    assert saved == config
    assert saved.arm == [ArmConfig("uniform", cohort=config.arms[0].cohort)]
    (arm,) = summary(run)["arms"]
    assert arm["rounds"] == config.train.rounds
    assert "auto" not in (run / "config.toml").read_text()


def test_the_command_says_what_was_planned(tmp_path):
    file = tmp_path / "auto.toml"
    file.write_text(TEXT)
    one = "arm=[{name='a', cohort='auto'}]"
    arguments = ["run", str(file), "--set", one, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    config = read_config(tmp_path / "run" / "config.toml")
    told = f"planned: {config.train.rounds} rounds; clients asked a round: a "
    assert told + f"{config.arms[0].cohort:g}" in done.output


def test_one_of_the_two_may_be_given():
    fixed = parse_config(TEXT, ("train.rounds=10",))
    assert fixed.train.rounds == 10
    assert fixed.arms[0].cohort == 40
    asked = parse_config(TEXT, ("arm=[{name='a', cohort=40}]",))
    assert asked.arms[0].cohort == 40
    assert asked.train.rounds <= 10
    mine = parse_config(TEXT, ("arm=[{name='a', rule='norm', cohort='auto', floor=0.2}]",))
    assert mine.arms[0].floor == 0.2


def test_without_a_total_the_plan_is_free():
    free = parse_config(TEXT, ("plan={}", "arm=[{name='a', cohort='auto'}]"))
    plan = choose(Question(200, D, 8.0), "uniform", 1.0)
    assert free.train.rounds == plan.arm.rounds
    assert free.arms[0].cohort == pytest.approx(plan.arm.cohort, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("privacy={trust='none'}",), "train.rounds = 'auto': expected privacy.epsilon"),
        (("privacy={}", "train.rounds=9"), "arm.cohort = 'auto': expected privacy.epsilon"),
        (("plan={uploads_in_all=400}",), "plan.norm_share is missing: rule 'coin' of arm.coin"),
        (("plan={norm_share=2}",), "plan.norm_share = 2.0: expected a rate in (0, 1]"),
        (("plan.totl=3",), "plan.totl = 3: unknown setting"),
        (
            ("arm=[{name='a', rule='full', cohort='auto'}]",),
            "arm.a.cohort = 'auto': expected a number with rule 'full'; planned are uniform",
        ),
        (("arm=[{name='a', cohort='most'}]",), "arm.a.cohort = 'most': expected a number"),
        (("train.rounds=500",), "arm.uniform.cohort = 'auto': rule 'uniform': the limits leave"),
        (("arm=[]",), "arm is missing: expected at least one [[arm]] table"),
        (("train.average_last=x",), "train.average_last = 'x': expected a whole number"),
        (("train=3",), "train = 3: expected a table"),
        (("train.rounds=fast",), "train.rounds = 'fast': expected a whole number"),
        (
            ("arm=[{name='a', cohort=200}]", "plan.uploads_in_all=100"),
            "plan.uploads_in_all = 100: expected at least the uploads of one round of arm 'a'",
        ),
        (
            ("train.rounds=9", "arm=[{name='a', cohort=100}]"),
            "plan.uploads_in_all = 400: expected at least what arm 'a' is expected to upload in 9",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_line(changes, told):
    with pytest.raises(ValueError, match="^" + re.escape(told)) as caught:
        parse_config(TEXT, changes)
    assert "\n" not in str(caught.value)
