"""Planted faults: each is seen by an ordinary test and, if it can be, by a line of the audit.

Every statistical check has a false-alarm rate of 1e-6 (audit/evidence.py); here each is shown to
fail. Seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from _pytest.outcomes import Failed

from audit_faults import FAULTS, run_ordinary, table
from locksfl.arm import Arm
from locksfl.audit import properties
from locksfl.audit.attacks import audit_arm
from locksfl.audit.claims import accountant
from locksfl.audit.replay import replayed
from locksfl.audit.statements import broken_statements
from locksfl.audit.suite import default_arms
from locksfl.experiment.plan import calibrated
from locksfl.round.randomness import Randomness

ROUNDS = 4
DEFAULT = {arm.name: (arm, privacy) for arm, privacy in default_arms(ROUNDS)}
CENTRAL = DEFAULT["central-coin"][1]
MORE = [
    Arm("central-aocs", 100, ROUNDS, "aocs", cohort=60.0, uploads=30.0),
    Arm("central-rates", 100, ROUNDS, "coin", cohort=50.0, uploads=10.0),  # rate control
]
ARMS = DEFAULT | {arm.name: (calibrated(arm, CENTRAL), CENTRAL) for arm in MORE}
SOURCE = Randomness.seeded(11)
SECRET = Randomness(11, simulated=False)


def line_holds(name, line, source=SOURCE):
    """Whether one line of the audit of one arm holds, as `check_arm` computes it."""
    arm, privacy = ARMS[name]
    if line in properties.OF_PLAYS:
        return properties.OF_PLAYS[line](properties.play_all(arm, source))
    if line == "accountant":
        return accountant([arm], ROUNDS, privacy, np.random.default_rng(2))
    if line == "accountant (all arms)":
        arms = [pair for pair in DEFAULT.values() if pair[0].trust == arm.trust]
        (check,) = properties.all_arms_claim(arms, ROUNDS, SOURCE)
        return check.holds, check.measured
    if line == "replay":
        return replayed(arm, source)
    if line == "filter":
        return properties.within_budget(arm, SOURCE)
    assert line == "statements"
    return not broken_statements(arm), ""


SOUND = [
    # CI plays an arm with a seed and the next one without, `make test-long` each with both
    pytest.param(name, secret, marks=[pytest.mark.long] if (number + secret) % 2 else [])
    for number, name in enumerate([*DEFAULT, "central-rates"])
    for secret in (False, True)
]


@pytest.mark.parametrize(("name", "secret"), SOUND)
def test_sound_code_passes_every_line(name, secret):
    checks = properties.check_arm(*ARMS[name], SECRET if secret else SOURCE)
    assert [(check.name, check.measured) for check in checks if not check.holds] == []
    expected = [*properties.OF_PLAYS, "statements", "accountant", "replay"]
    assert [c.name for c in checks] == expected + ["filter"] * (name == "local-norm")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fails_its_test(fault):
    with fault.plant(), pytest.raises((AssertionError, Failed)):
        run_ordinary(fault)


QUICK = {  # of each kind one; the others, which take minutes together, in `make test-long`
    "update noise halved",
    "norm and update noise from one key",
    "K' not clamped",
    "accountant's rate too small",
    "second coin 10% too likely",
    "the filter forgets half the norms",
    "all arms' epsilon a maximum instead of a composition",
    "no seed: update noise halved",
    "no seed: two rounds share a stream",
    "no seed: contributions of twice their length, unchecked",
    "no seed: count noise from the clip noise's stream",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=[] if f.name in QUICK else pytest.mark.long)
        for f in FAULTS
        if f.line
    ],
)
def test_the_audit_sees_a_fault(fault):
    with fault.plant():
        holds, measured = line_holds(fault.arm, fault.line, SECRET if fault.secret else SOURCE)
    assert not holds, measured


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.line == "replay"], ids=lambda fault: fault.name
)
def test_only_a_replay_sees_a_fault(fault):
    """No statistic and no attack does: the replay is not the same check once more."""
    source = SECRET if fault.secret else SOURCE
    with fault.plant():
        checks = properties.check_arm(*ARMS[fault.arm], source)
        attacks = audit_arm(
            *ARMS[fault.arm], rounds=ROUNDS, repetitions=20_000, canaries=1000,
            significance=1e-6, randomness=SOURCE,
        )  # fmt: skip
    assert [check.name for check in checks if not check.holds] == ["replay"]
    assert not any(attack.refuted for attack in attacks)


def test_every_fault_has_a_name_of_its_own():
    """docs/conf.py puts the table below docs/audit.md; no row may be missing."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 27
    assert len(table().splitlines()) == len(FAULTS) + 2
