"""An audit: every attack and every check on the arms of an experiment, or on five of ours."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.audit.attacks import Finding, audit_arm, planned_attacks
from locksfl.audit.properties import SIZE, Check, all_arms_claim, check_arm
from locksfl.experiment.config import PrivacyConfig, read_config
from locksfl.experiment.plan import calibrated, plan_arms
from locksfl.methods import PRIVATE, RULES, TRUSTS
from locksfl.round.randomness import Randomness

DEFAULT_EPSILON, DEFAULT_DELTA = 3.0, 1e-3
DEFAULTS: dict[str, dict[str, Any]] = {
    "uniform": {"cohort": 50.0, "uploads": 50.0},
    "norm": {"cohort": 60.0, "uploads": 50.0, "norm_low": 0.9},
    "coin": {"cohort": 50.0, "clip_quantile": 0.5, "clip_multiplier": 3.0},
}

# A fault of any of these kinds passes: tests of the program, or a reader, must find it.
NOT_VISIBLE = (
    "other engines: the audit plays the simulator, not the devices and the server of a federation",
    "what computes an update: the audit plays known updates, so it cannot see one client's records "
    "reach another client's update, nor a control variate (local.control) or its clip norm",
    "other ways out: files, bundles, figures, messages on a network, the time that a round takes",
    "a generator that somebody can predict, the last digits of a float, and noise that repeats "
    f"only after {SIZE:,} coordinates or a few hundred rounds",
    "small deviations: noise less than 1% short (norm noise: 20%, count and clip noise: 30%), "
    "coins less than 10% too likely, an epsilon less than 5% too small",
    "the accounting under replace and at other deltas than 1e-3, beyond what the attacks reach",
)
NOTE = (
    "A lower bound above the claim refutes it. One below does not prove it: the attack may be weak,"
    " and no test of this size can show more than the last column."
)


@dataclass(frozen=True)
class Report:
    """What an audit showed."""

    sound: bool  # no claim is refuted, and every property holds
    confidence: float  # with which all lower bounds hold together
    seed: int | None  # None: the system's randomness
    attacks: list[Finding]  # one for each bound
    checks: list[Check]  # one for each property of each arm
    not_attacked: list[str]  # observers without a claim
    not_visible: tuple[str, ...] = NOT_VISIBLE  # kinds of faults that no audit sees
    note: str = NOTE  # how to read the bounds


def run_audit(
    file: Path | None = None,
    changes: list[str] | None = None,
    *,
    rounds: int = 4,
    repetitions: int = 50_000,
    canaries: int = 10_000,
    delta: float | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
) -> Report:
    """Attack an implementation and check its properties.

    Args:
        file: the experiment whose arms are attacked; None: the arms of `default_arms`.
        changes: settings of the experiment to change, each KEY=VALUE.
        rounds: rounds of one repetition; the claim is tested for as many.
        repetitions: of each world, in every attack.
        canaries: clients planted in the attack by one run; 0 leaves that attack out.
        delta: where the claim is tested; None: the experiment's delta.
        confidence: with which all lower bounds hold together.
        seed: repeats an audit exactly, and checks seeded runs; None: the system's randomness, and
            the draws of runs without a seed.
    """
    _validate.count(rounds=rounds)
    _validate.probability(confidence=confidence)
    for name, value, least in (("repetitions", repetitions, 1000), ("canaries", canaries, 100)):
        if value < least and (name, value) != ("canaries", 0):
            raise ValueError(f"{name} = {value}: expected at least {least}")
    arms = default_arms(rounds) if file is None else _configured(file, changes or [])
    if delta is not None:
        _validate.probability(delta=delta)
        arms = [(arm, replace(privacy, delta=delta)) for arm, privacy in arms]
    attacks = sum(planned_attacks(one, canaries) for arm, _ in arms for one in _rates(arm))
    source = Randomness.from_system() if seed is None else Randomness.seeded(seed)
    # an attack repeats one compiled round, which is that of a seeded run
    repeats = Randomness.seeded(secrets.randbits(64) if seed is None else seed)
    findings, checks = [], []
    for arm, privacy in arms:
        for one in _rates(arm):
            findings += audit_arm(
                one,
                privacy,
                rounds=min(rounds, arm.rounds),
                repetitions=repetitions,
                canaries=canaries,
                significance=(1 - confidence) / attacks,
                randomness=repeats,
            )
        # correlated noise is refused without a seed
        checks += check_arm(arm, privacy, repeats if arm.strategy else source)
    checks += all_arms_claim(arms, rounds, source)
    trusting = {arm.trust for arm, _ in arms if arm.parts[2].amplified}
    return Report(
        sound=not any(f.refuted for f in findings) and all(c.holds for c in checks),
        confidence=confidence,
        seed=seed,
        attacks=findings,
        checks=checks,
        not_attacked=[
            f"SERVER under trust {trust}: it sees raw updates, its epsilon is infinite"
            for trust in sorted(trusting)
        ],
    )


def default_arms(rounds: int) -> list[tuple[Arm, PrivacyConfig]]:
    """Uniform and LOCKS under both trusts, and where it is sound the coin, with a clip norm that
    adapts, calibrated to claim 3 for these rounds.

    Delta is large: at a small one most of epsilon lies in tails that no repetition ever reaches.
    """
    arms = []
    for trust in PRIVATE:
        privacy = PrivacyConfig(trust=trust, epsilon=DEFAULT_EPSILON, delta=DEFAULT_DELTA)
        for rule, settings in DEFAULTS.items():
            asks_in_secret = RULES[rule].asks is not None and not RULES[rule].released
            if asks_in_secret and TRUSTS[trust].guards_server:
                continue  # refused
            arm = Arm.of(f"{trust}-{rule}", 100, rounds, rule, trust=trust, **settings)
            arms.append((calibrated(arm, privacy), privacy))
    return arms


def _configured(file: Path, changes: list[str]) -> list[tuple[Arm, PrivacyConfig]]:
    """The arms of an experiment, with the multipliers of its whole run."""
    config = read_config(file, changes)
    trust = config.privacy.trust
    if not TRUSTS[trust].private:
        raise ValueError(
            f"privacy.trust = {trust!r}: it claims nothing, so there is nothing to attack"
        )
    return [(arm, config.privacy) for arm in plan_arms(config)]


def _rates(arm: Arm) -> list[Arm]:
    """What is attacked: the arm or, under rate control, those of its smallest and its largest
    rate."""
    if not arm.controlled:
        return [arm]
    ends = {"smallest": arm.at_rung(0), "largest": arm.at_rung(-1)}
    return [replace(one, name=f"{arm.name}-{end}") for end, one in ends.items()]
