"""Every sampling of `methods/samplings/`, whatever files are there: a run of it from its epsilon to
its page. Each test takes a new file as it is, and finds one that is drawn otherwise than it is
charged, forgets its noise when a run goes on, or cannot be published."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

from locksfl.audit.replay import replayed
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import parse_config
from locksfl.experiment.documents import read_document
from locksfl.experiment.report import notes
from locksfl.experiment.verify import run_faults, statement_of, verify
from locksfl.methods import SAMPLINGS
from locksfl.methods.events import from_json, to_json
from locksfl.privacy import account, calibrate
from locksfl.privacy.population import PlannedArm
from locksfl.privacy.recompute import recomputed
from locksfl.privacy.terms import terms_of, with_strategy
from locksfl.round.draws import cohort_of
from locksfl.round.randomness import Randomness
from replay_cases import arm_of
from small_runs import call_locks, lines, play, stopped_after, story

EPSILON, DELTA = 6.0, 1e-5
EVERY = pytest.mark.parametrize("name", SAMPLINGS)
RUN = """
name = "every"
seed = 3
[data]
clients = 12
split = { kind = "iid" }
[local]
max_samples = 20
[train]
rounds = 5
[privacy]
trust = "central"
epsilon = 6.0
accountant = "rdp"
[[arm]]
name = "arm"
cohort = 4
sampling = "NAME"
"""


def arm_with(name, clients=12, rounds=5):
    table = ArmConfig("arm", cohort=clients / 3, sampling=name)
    return table.arm(clients, trust="central", rounds=rounds)


def public(costs, relation="zero-out"):
    (cost,) = (c for c in costs if (c.observer, c.relation) == ("PUBLIC", relation))
    return cost


@EVERY
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_calibration_gives_the_epsilon_that_is_accounted(name, relation):
    arm = calibrate(arm_with(name), EPSILON, DELTA, relation=relation, accountant="rdp")
    costs = account(arm, DELTA, "rdp")
    assert EPSILON * (1 - 1e-3) <= public(costs, relation).epsilon <= EPSILON * (1 + 1e-9)
    assert {c.epsilon for c in costs if c.observer == "SERVER"} == {math.inf}
    seen = terms_of(arm)["PUBLIC"]
    again = recomputed(seen, DELTA, relation, "rdp", public(costs, relation).epsilon)
    assert again.problem(public(costs, relation).epsilon) is None
    assert again.problem(0.9 * public(costs, relation).epsilon)


@EVERY
def test_terms_and_headers_are_read_as_they_were_written(name):
    arm = calibrate(arm_with(name), EPSILON, DELTA, accountant="rdp")
    for seen in with_strategy(terms_of(arm), arm).values():
        assert [from_json(json.loads(json.dumps(to_json(one)))) for one in seen] == list(seen)
    planned = PlannedArm.of(arm)
    assert PlannedArm.from_dict(json.loads(json.dumps(planned.as_dict()))) == planned


@EVERY
@pytest.mark.parametrize("simulated", [True, False])
def test_who_takes_part_is_what_is_charged(name, simulated):
    """Nobody outside the public schedule or more often than is charged, all of them without coins
    and with coins as many as their rate says (5 standard errors; 10% more are seen)."""
    arm, source = arm_with(name, 900, 24), Randomness(5, simulated=simulated)
    scheme = arm.scheme
    member = np.zeros((arm.rounds, arm.clients), bool)
    for t, row in enumerate(member):
        row[cohort_of(source, arm, t)] = True
        if scheme.group:
            assert set(np.flatnonzero(row)) <= set(scheme.group(arm, t))
    chances = scheme.times(arm, arm.rounds)
    assert member.sum(axis=0).max() <= chances
    cycles = member.reshape(-1, scheme.apart(arm), arm.clients)
    assert cycles.any(axis=0).sum(axis=0).max() <= 1
    tries, rate = arm.clients * chances, scheme.rate(arm)
    off = abs(member.sum() - tries * rate)
    assert off <= 5 * math.sqrt(tries * rate * (1 - rate)) < 0.1 * tries * rate
    assert member.sum(axis=1).mean() == pytest.approx(arm.cohort, rel=0.1)


@EVERY
def test_a_run_goes_on_as_if_it_had_not_stopped_and_its_bundle_holds(name, capsys, tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace("NAME", name))
    whole, again, bundle = tmp_path / "whole", tmp_path / "again", tmp_path / "bundle"
    call_locks(capsys, "run", tmp_path / "run.toml", "--out", whole)
    arm = arm_with(name)
    if said := arm.scheme.story(arm):
        assert f"arm: {said}" in notes(story(whole))
    with stopped_after(again, 3):
        call_locks(capsys, "run", tmp_path / "run.toml", "--out", again, code=130)
    call_locks(capsys, "run", "--resume", "--out", again)
    for file in ("rounds.jsonl", "model-arm.npz"):
        assert (whole / file).read_bytes() == (again / file).read_bytes(), file
    spent = json.loads(call_locks(capsys, "privacy", "account", whole, "--json"))["arms"][0]
    claimed = spent["guarantee"]["public"]["relations"]["zero-out"]
    assert EPSILON * (1 - 1e-3) <= claimed <= EPSILON * (1 + 1e-9)
    assert spent["spent_so_far"]["public"] == spent["guarantee"]["public"]
    assert lines(whole)[-1]["epsilon"] == pytest.approx(claimed)

    call_locks(capsys, "publish", whole, bundle)
    found = verify(bundle)
    assert found.faults == []
    page, statement = ((bundle / f).read_text() for f in ("report.html", "STATEMENT.md"))
    assert arm.scheme.counts.split(":")[0] in page
    assert arm.scheme.asked.format("every client") in statement
    assert arm.scheme.reservation in statement
    for fault, change in FORGED.items():
        forged = copy.deepcopy(read_document(bundle))
        if change(forged["arms"][0]):
            run, faults = statement_of(forged)
            assert faults or run_faults(run)[1], fault


def less_noise(arm):
    arm["terms"]["PUBLIC"][0][0]["noise_multiplier"] *= 1.05
    return True


def more_matrix(arm):
    ((term, _),) = arm["terms"]["PUBLIC"]
    if there := bool(term.get("strategy")):
        term["strategy"] = [1.0, *term["strategy"][1:]]
    return there


FORGED = {"more noise than was added": less_noise, "a matrix that costs more": more_matrix}


@EVERY
def test_without_a_seed_it_runs_or_says_why_not(name):
    config = parse_config(RUN.replace("NAME", name).replace("seed = 3", ""))
    (arm,) = config.arms
    if arm.bands > 1:
        with pytest.raises(ValueError, match=r"bands = \d: not without a seed"):
            play(config)
    else:
        assert len(lines(play(config))) == 5


@EVERY
def test_no_release_moves_by_more_than_is_charged(name):
    holds, found = replayed(arm_of("uniform", None, "central", name), Randomness.seeded(3))
    assert holds, found
    assert "at most 0.99" in found or "at most 1.0000" in found
