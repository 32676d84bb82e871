"""The audit of arms whose clients take turns: the released sequence is attacked as a whole.

Bounds hold at a significance of 1e-6, properties are checked at 1e-6: the false-alarm rate of each
test. Faults are planted in the code that runs.
"""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.audit import properties
from locksfl.audit.attacks import audit_arm, planned_attacks
from locksfl.audit.claims import accountant
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.plan import calibrated
from locksfl.methods.cyclic import correlated
from locksfl.methods.samplings import turns as schedule
from locksfl.methods.samplings.turns import group_of
from locksfl.round import draws
from locksfl.round.randomness import Randomness

SOURCE = Randomness.seeded(4)
PRIVACY = PrivacyConfig(trust="central", epsilon=3.0, delta=1e-3)
ROUNDS = 8


def turns(bands=3):
    return calibrated(Arm("turns", 100, ROUNDS, separation=3, bands=bands), PRIVACY)


def attack(arm):
    """The finding under each relation."""
    how = {"rounds": ROUNDS, "repetitions": 80_000, "canaries": 5, "significance": 1e-6}
    found = audit_arm(arm, PRIVACY, **how, randomness=SOURCE)
    assert len(found) == planned_attacks(arm, 5) == 2
    return {one.relation: one for one in found}


@pytest.mark.parametrize("bands", [1, 3])
def test_half_of_the_claim_is_proved_and_no_more_than_it(bands):
    finding = attack(turns(bands))["zero-out"]
    print(f"bands {bands}: claimed {finding.claimed:.3f}, proved {finding.lower:.3f}")
    assert finding.claimed == pytest.approx(3.0, rel=1e-6)
    assert finding.claimed / 2 <= finding.lower <= finding.claimed


def halved(fresh, recent, coefficients, xp):
    return correlated(fresh / 2, recent, coefficients, xp)


def uncorrelated(fresh, recent, coefficients, xp):
    """Independent noise, of the size of the first round's: sums over rounds have too much."""
    return correlated(fresh, 0 * recent, coefficients, xp)[0], recent


def test_too_little_noise_is_refuted(monkeypatch):
    monkeypatch.setattr(draws, "correlated", halved)
    assert attack(turns())["zero-out"].refuted


@pytest.fixture
def quick(monkeypatch):
    """Fewer rounds and parameters than an audit has."""
    rounds = {False: dict.fromkeys(properties.ROUNDS[False], 48)}
    monkeypatch.setattr(properties, "ROUNDS", rounds)
    monkeypatch.setattr(properties, "SIZE", 600)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("bands", "source"), [(1, Randomness(11, simulated=False)), (3, SOURCE)])
def test_sound_code_has_every_property(bands, source):
    checks = properties.check_arm(turns(bands), PRIVACY, source)
    assert [(check.name, check.measured) for check in checks if not check.holds] == []


def one_after_another(clients, separation, round_index):
    """A client's turns move by one round in every cycle: some come too soon."""
    return group_of(clients, separation, round_index + round_index // separation)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("module", "name", "fault", "line"),
    [
        (draws, "correlated", halved, "noise as charged"),
        (draws, "correlated", uncorrelated, "no noise twice"),
        (schedule, "group_of", one_after_another, "cohort coins"),
    ],
)
def test_a_fault_is_seen(monkeypatch, module, name, fault, line):
    monkeypatch.setattr(module, name, fault)
    holds, measured = properties.OF_PLAYS[line](properties.play_all(turns(), SOURCE))
    assert not holds, measured


def test_an_epsilon_for_a_turn_too_few_is_seen(monkeypatch):
    arm = turns()
    assert accountant([arm], ROUNDS, PRIVACY, np.random.default_rng(2))[0]
    too_few = "locksfl.privacy.accountant.turns"
    monkeypatch.setattr(too_few, lambda rounds, separation: rounds // separation)
    assert not accountant([arm], ROUNDS, PRIVACY, np.random.default_rng(2))[0]
