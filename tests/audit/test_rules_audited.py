"""Every private rule beyond uniform, norm and coin is attacked, those that score a client alone and
those that look at all members: half of its claim is proved at least, nothing more than it, too
little noise is caught, and the simulator plays what the rule states.

Bounds are given at a significance of 1e-6 and properties checked at 1e-6, the false-alarm rate of
each test. Delta is large: at a small one most of epsilon lies in tails that no repetition reaches.
"""

from __future__ import annotations

import dataclasses

import pytest
from scripts import make_methods
from scripts.make_methods import AUDITED, OBSERVER

from locksfl.arm import Arm
from locksfl.audit import attacks
from locksfl.audit.properties import check_arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.plan import calibrated
from locksfl.methods import RULES, TRUSTS
from locksfl.methods.events import Sampled
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness

SCORED = ("loss", "dpis", "oort", "delta", "cosine", "angle", "correlation", "fedis",
          "noise-aware", "gated")  # fmt: skip
JOINT = [("aocs", "central"), ("ocs", "local"), ("aocs", "local"), ("rank", "local"),
         ("top-k", "local"), ("power-of-choice", "local")]  # fmt: skip
ATTACKED = [*((rule, trust) for rule in SCORED for trust in OBSERVER), *JOINT]
LINES = [("loss", "central"), ("aocs", "central"), ("cosine", "central"), ("gated", "central"),
         ("oort", "local"), ("delta", "central"), ("angle", "local"), ("correlation", "central"),
         ("dpis", "central"), ("fedis", "local"), ("noise-aware", "local"), *JOINT[1:]]  # fmt: skip


def some(cases, *in_ci):
    """CI tries a few of the cases, `make test-long` all."""
    return [c if c in in_ci else pytest.param(*c, marks=pytest.mark.long) for c in cases]


def claim(rule, trust, **more):
    """An arm of 100 clients that claims 3."""
    if (rule, trust) not in JOINT:
        return make_methods.claim(rule, trust)
    privacy = PrivacyConfig(trust=trust, epsilon=AUDITED["epsilon"], delta=1e-2)
    numbers = {"cohort": 60.0, "uploads": 50.0} | more
    return calibrated(
        Arm.of(f"{trust}-{rule}", 100, 2, rule, trust=trust, **numbers), privacy
    ), privacy


def strongest(arm, privacy):
    if RULES[arm.rule].jointly or RULES[arm.rule].refine:
        return make_methods.strongest(arm, privacy, 50_000)
    return make_methods.strongest(arm, privacy)


CI = [("loss", "central"), ("dpis", "local"), ("aocs", "central"), ("ocs", "local")]


@pytest.mark.parametrize(("rule", "trust"), some(ATTACKED, *CI))
def test_half_of_the_claim_is_proved_and_no_more_than_it(rule, trust):
    finding = strongest(*claim(rule, trust))
    assert finding.claimed == pytest.approx(AUDITED["epsilon"], abs=2e-3)
    assert finding.claimed / 2 <= finding.lower <= finding.claimed, finding


@pytest.mark.parametrize(("rule", "trust"), some(ATTACKED, *CI))
def test_a_third_of_the_noise_is_caught(rule, trust, monkeypatch):
    real = TRUSTS[trust].noise_std
    less = dataclasses.replace(TRUSTS[trust], noise_std=lambda *given: real(*given) / 3)
    monkeypatch.setitem(TRUSTS, trust, less)
    assert strongest(*claim(rule, trust)).refuted


def forget_the_scores(monkeypatch):
    """An accountant that charges the updates alone."""
    real = Arm.messages
    monkeypatch.setattr(Arm, "messages", lambda arm: (real(arm)[0], None))
    monkeypatch.setattr(Arm, "event", lambda a: Sampled(a.sampling_rate, a.noise_multiplier))


def refine_quietly(monkeypatch):
    """A tenth of the charged noise on the sums that refine the public number, and on no other."""
    real = attacks.draw_server

    def quiet(*given):
        drawn = real(*given)
        return drawn._replace(refine_noise=drawn.refine_noise / 10)

    monkeypatch.setattr(attacks, "draw_server", quiet)


def release_quietly(monkeypatch):
    """A tenth of the charged noise on the norms that the rule compares."""
    real = FloatSums.release_norms

    def quiet(self, method, values, members, dials):
        less = dials._replace(norm_multiplier=dials.norm_multiplier / 10)
        return real(self, method, values, members, less)

    monkeypatch.setattr(FloatSums, "release_norms", quiet)


@pytest.mark.parametrize(
    ("rule", "trust", "louder", "fault"),
    [
        ("loss", "central", {"norm_multiplier": 0.5}, forget_the_scores),
        ("loss", "local", {"norm_multiplier": 0.5}, forget_the_scores),
        # much noise on the update, which would hide the sums that refine
        ("aocs", "central", {"norm_multiplier": 1.5, "noise_multiplier": 20.0}, refine_quietly),
        ("ocs", "local", {"norm_multiplier": 1.5}, release_quietly),
    ],
)
def test_a_value_that_is_not_charged_is_caught(rule, trust, louder, fault, monkeypatch):
    """With loud values; charged, the same round stands."""
    arm, privacy = claim(rule, trust)
    arm = arm.changed(**louder)
    assert not strongest(arm, privacy).refuted
    fault(monkeypatch)
    assert strongest(arm, privacy).refuted


LINES = [(*case, seeded) for seeded in (True, False) for case in LINES]


@pytest.mark.parametrize(
    ("rule", "trust", "seeded"), some(LINES, ("loss", "central", True), ("aocs", "central", False))
)
def test_the_simulator_plays_what_the_rule_states(rule, trust, seeded):
    """Every line of the audit: coins, noise, contributions, K' and what is stated."""
    arm, privacy = claim(rule, trust, uploads=30.0)
    if (rule, trust) not in JOINT and trust == "local":  # coins that are neither certain nor rare
        arm = arm.changed(uploads=50.0, norm_low=0.9, floor=0.1 if arm.floor else 0.0)
    checks = check_arm(arm, privacy, Randomness(11, simulated=seeded))
    assert [(check.name, check.measured) for check in checks if not check.holds] == []
