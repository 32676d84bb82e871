"""The audit refutes what is broken, and lets stand what is not.

Every bound here is given at a significance of 1e-6 and every property is checked at 1e-6: that is
the false-alarm rate of a test that sees nothing wrong. Each fault is planted in the code that runs.
"""

from __future__ import annotations

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from locksfl.arm import Arm
from locksfl.audit import bounds
from locksfl.audit.attacks import audit_arm, planned_attacks
from locksfl.audit.properties import check_arm
from locksfl.audit.suite import default_arms
from locksfl.cli.main import app
from locksfl.methods import TRUSTS
from locksfl.methods.events import Sampled
from locksfl.privacy import epsilon_from_mu
from locksfl.round import algorithm, draws
from locksfl.round.randomness import Randomness

RANDOMNESS = Randomness.seeded(4)
REPETITIONS, CANARIES, ALARM = 20_000, 2_000, 1e-6


@pytest.fixture(scope="module")
def arms():
    return {arm.name: (arm, privacy) for arm, privacy in default_arms(2)}


def attack(claim, repetitions=REPETITIONS, canaries=0, randomness=RANDOMNESS, significance=ALARM):
    """The findings by (observer, relation, attack); a claim is an arm with its privacy."""
    arm, privacy = claim
    found = audit_arm(
        arm,
        privacy,
        rounds=2,
        repetitions=repetitions,
        canaries=canaries,
        significance=significance,
        randomness=randomness,
    )
    assert len(found) == planned_attacks(arm, canaries)
    return {(f.observer, f.relation, f.attack): f for f in found}


def failing(claim):
    """The properties that do not hold, with what was measured."""
    return {c.name: c.measured for c in check_arm(*claim, RANDOMNESS) if not c.holds}


# --- Bounds ------------------------------------------------


def test_a_bound_holds_and_is_near_the_truth():
    """Two normals 1 apart are exactly mu = 1; 200 bounds at 0.05 pass the truth in 22 at most
    (1e-4), and without a leak the bound is nearly always zero."""
    rng = np.random.default_rng(0)
    truth = epsilon_from_mu(1.0, 1e-3)
    high = zero = 0
    for _ in range(200):
        out = rng.normal(size=4000)
        high += bounds.repeated_bound(rng.normal(1, 1, 4000), out, 1e-3, 0.05) > truth
        zero += bounds.repeated_bound(rng.normal(size=4000), out, 1e-3, 0.05) == 0
    assert high <= 22
    assert zero >= 178
    many = rng.normal(size=(2, 200_000))
    assert 0.6 * truth < bounds.repeated_bound(many[0] + 1, many[1], 1e-3, 1e-6) <= truth


def test_the_largest_value_is_that_of_perfect_separation():
    far, near = np.full(5000, 9.0), np.zeros(5000)
    largest = bounds.largest_repeated(5000, 1e-5, 0.01)
    assert bounds.repeated_bound(far, near, 1e-5, 0.01) == pytest.approx(largest, rel=1e-6)
    assert bounds.largest_repeated(100_000, 1e-5, 0.05) == pytest.approx(9.5, abs=0.1)
    # half of 20,000 canaries tested, half of these in: 5,000 right guesses
    right = 0.05 ** (1 / 5000)
    wanted = np.log(right / (1 - right))
    assert bounds.largest_one_run(20_000, 1e-12, 0.05) == pytest.approx(wanted, abs=0.01)


def test_one_run_bounds_hold():
    """Randomised response of epsilon 1 on every canary: about 1 and never above (significance
    1e-6, one draw); guesses at random prove nothing."""
    rng = np.random.default_rng(1)
    inside = rng.random(20_000) < 0.5
    told = inside ^ (rng.random(inside.size) < 1 / (1 + np.e))
    assert 0.8 < bounds.one_run_bound(told * 1.0, inside, 1e-9, ALARM) <= 1
    assert bounds.one_run_bound(rng.normal(size=inside.size), inside, 1e-9, ALARM) == 0


# --- The implementation as it is ------------------------------------------------


def test_nothing_is_refuted(arms):
    """Every attack stays below its claim, and those with all the information get a good part of
    it: the attacks are not idle."""
    for name, claim in arms.items():
        found = attack(claim, canaries=CANARIES if "central" in name else 0)
        for finding in found.values():
            assert not finding.refuted, finding
            assert finding.lower <= finding.claimed <= finding.largest or finding.claimed > 3.01
        strongest = found["PUBLIC" if "central" in name else "SERVER", "zero-out", *REPEATED]
        assert strongest.claimed == pytest.approx(3, abs=2e-3)
        assert strongest.lower > 1, strongest


REPEATED = ("repeated rounds",)


@pytest.mark.parametrize(
    "estimator", ["horvitz-thompson", pytest.param("literal", marks=pytest.mark.long)]
)
def test_other_estimators(arms, estimator):
    arm, privacy = arms["local-norm"]
    claim = dataclasses.replace(arm, estimator=estimator), privacy
    found = attack(claim)
    assert not any(f.refuted for f in found.values())
    assert found["SERVER", "zero-out", *REPEATED].lower > 1
    assert failing(claim) == {}


@pytest.mark.slow
def test_other_rules_pass_every_line(arms):
    """Everybody in every round; public weights, one of them large; a cohort that is rare;
    contributions of one length; norms with a clip norm that adapts."""
    arm, privacy = arms["central-uniform"]
    weights = np.linspace(1, 3, 100)
    weights[3] = 30
    settings = {"noise_multiplier": 1.0, "norm_multiplier": 0.0}
    for more in (
        {"rule": "full", "cohort": 100.0, "uploads": 100.0},
        {
            "rule": "weights",
            "estimator": "weighted",
            "weights": tuple(weights / weights.sum()),
            "uploads": 20.0,
        },
        {"cohort": 2.0, "uploads": 1.0},
        {"lengths": "equal"},
        {
            "rule": "norm",
            "uploads": 20.0,
            "norm_low": 0.6,
            "norm_multiplier": 8.0,
            "clip_quantile": 0.5,
            "clip_multiplier": 6.0,
        },
    ):
        assert failing((arm.changed(**settings | more), privacy)) == {}


def test_an_audit_repeats_by_its_seed(arms):
    first, again = (attack(arms["central-uniform"], 2000) for _ in range(2))
    assert first == again
    assert first != attack(arms["central-uniform"], 2000, randomness=Randomness.seeded(5))


# --- Planted faults ------------------------------------------------


def plant(monkeypatch, trust, **parts):
    monkeypatch.setitem(TRUSTS, trust, dataclasses.replace(TRUSTS[trust], **parts))


@pytest.mark.parametrize(
    "name", ["central-uniform", "central-norm", "central-coin", "local-uniform", "local-norm"]
)
def test_halved_noise_is_caught(arms, name, monkeypatch):
    """By the attack itself; the lines of the audit that see it are in test_faults.py."""
    trust = name.split("-")[0]
    real = TRUSTS[trust].noise_std
    plant(monkeypatch, trust, noise_std=lambda *given: real(*given) / 2)
    found = attack(arms[name], 100_000)
    assert found["PUBLIC" if trust == "central" else "SERVER", "zero-out", *REPEATED].refuted


def test_far_too_little_noise_is_caught_in_one_run(arms, monkeypatch):
    """An eighth of it: one run sees less (this bound at a false-alarm rate of 1e-3)."""
    one_run = ("PUBLIC", "zero-out", "one run")
    claim = (
        arms["central-uniform"][0].changed(noise_multiplier=4.0),
        arms["central-uniform"][1],
    )
    assert not attack(claim, 1000, 8000, significance=1e-3)[one_run].refuted
    real = TRUSTS["central"].noise_std
    plant(monkeypatch, "central", noise_std=lambda *given: real(*given) / 8)
    assert attack(claim, 1000, 8000, significance=1e-3)[one_run].refuted


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_uncharged_norm_is_caught(arms, trust, monkeypatch):
    """With z_K = 0.5 and an accountant that forgets it; charged, the same round stands."""
    arm, privacy = arms[f"{trust}-norm"]
    claim = arm.changed(norm_multiplier=0.5), privacy
    observer = "PUBLIC" if trust == "central" else "SERVER"
    assert not attack(claim)[observer, "zero-out", *REPEATED].refuted

    def forgetful(self):
        return real(self)[0], None

    real = Arm.messages

    monkeypatch.setattr(Arm, "messages", forgetful)
    monkeypatch.setattr(
        Arm,
        "event",
        lambda self: Sampled(self.sampling_rate, self.noise_multiplier),
    )
    assert attack(claim)[observer, "zero-out", *REPEATED].refuted


def test_an_uncharged_count_is_caught(arms, monkeypatch):
    """A count with little noise, beside an update whose noise takes no account of it."""
    monkeypatch.setattr(Arm, "update_multiplier", property(lambda arm: arm.noise_multiplier))
    monkeypatch.setattr(Arm, "count_noise", property(lambda arm: 0.5 * arm.noise_multiplier))
    assert attack(arms["central-coin"])["PUBLIC", "zero-out", *REPEATED].refuted


@pytest.mark.parametrize("name", ["central-uniform", "local-uniform"])
def test_skipped_clipping_is_caught(arms, name, monkeypatch):
    monkeypatch.setattr(algorithm, "clip_factor", lambda norms, clip: jnp.ones_like(norms))
    found = attack(arms[name])
    assert found["PUBLIC" if "central" in name else "SERVER", "zero-out", *REPEATED].refuted


def test_a_score_that_is_no_number_is_a_failure(arms, monkeypatch):
    """A round whose noise is NaN now and then: a line that says so, and no crash."""
    real = draws.draw_server

    def broken(*given):
        drawn = real(*given)
        noise = drawn.update_noise
        return drawn._replace(update_noise=jnp.where(noise > 3, jnp.nan, noise))

    monkeypatch.setattr("locksfl.audit.attacks.draw_server", broken)
    found = attack(arms["central-norm"], 4000, 2000)
    assert all(f.refuted and "scores are not numbers" in f.problem for f in found.values())
    assert all(f.lower == 0.0 for f in found.values())


# --- The command ------------------------------------------------

CONFIG = """
[data]
clients = 50
[train]
rounds = 20
[privacy]
trust = "{trust}"
delta = 1e-3
[[arm]]
name = "mine"
cohort = 25
{more}
"""


def command(*arguments):
    return CliRunner().invoke(app, ["privacy", "audit", *map(str, arguments)])


QUICK = ("--repetitions", 4000, "--canaries", 400, "--seed", 1)


def test_the_command_audits_an_experiment(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(CONFIG.format(trust="central", more="noise_multiplier = 1.0"))
    done = command(file, *QUICK, "--rounds", 3, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["sound"] is True
    assert [f["attack"] for f in report["attacks"]] == ["repeated rounds"] * 2 + ["one run"]
    assert {f["rounds"] for f in report["attacks"]} == {3}
    assert "infinite" in report["not_attacked"][0]
    assert len(report["checks"]) == 9
    assert any("simulator" in text for text in report["not_visible"])


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch):
    real = TRUSTS["local"].noise_std
    plant(monkeypatch, "local", noise_std=lambda *given: real(*given) / 3)
    file = tmp_path / "experiment.toml"
    file.write_text(CONFIG.format(trust="local", more="noise_multiplier = 2.0"))
    done = command(file, *QUICK, "--rounds", 2)
    assert done.exit_code == 1
    assert "THE CLAIMS ARE FALSE" in done.stdout
    assert "FAILS  mine: noise as charged" in done.stdout
    assert "not visible: other ways out" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", 0), "rounds = 0: expected"),
        (("--repetitions", 10), "repetitions = 10: expected at least 1000"),
        (("--canaries", 5), "canaries = 5: expected at least 100"),
        (("--delta", 2), "delta = 2.0: expected"),
        (("--confidence", 1), "confidence = 1.0: expected"),
        (("--seed", -1), "seed = -1: expected"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    done = command(*arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_trust_none_claims_nothing(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(CONFIG.format(trust="none", more=""))
    done = command(file)
    assert done.exit_code == 2
    assert "claims nothing" in done.output


def test_the_false_alarm_rate_of_all_bounds_together():
    """Bonferroni over the planned attacks: what the command states."""
    assert sum(planned_attacks(arm, 100) for arm, _ in default_arms(1)) == 17
