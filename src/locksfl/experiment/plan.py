"""The arms of an experiment, with the noise and the limits that its privacy settings ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from locksfl._validate import naming
from locksfl.arm import Arm, Noise
from locksfl.experiment.config import Config, PrivacyConfig
from locksfl.methods.events import Rounds, Sampled
from locksfl.methods.releases import Accountant
from locksfl.privacy import Budget, calibrate, calibrate_central, epsilon_of, most_rounds


def plan_arms(config: Config, known: Sequence[Noise] | None = None) -> list[Arm]:
    """Every arm of an experiment, ready to run.

    Args:
        config: the experiment.
        known: the noise of each arm, if a run goes on that has calibrated it.

    Returns:
        The arms with the noise that their epsilon asks for, or with the one given; with the budget
        of their clients, and the rounds that the accountant allows.
    """
    privacy, arms = config.privacy, list(config.arms)
    for arm in arms:
        privacy.check_noise(arm)
    if known is not None:
        arms = [replace(arm, noise=each) for arm, each in zip(arms, known, strict=True)]
    elif arms[0].private and privacy.epsilon is not None:
        arms = [arm if arm.noise_multiplier else calibrated(arm, privacy) for arm in arms]
    return [_limited(arm, privacy) for arm in arms]


def calibrated(arm: Arm, privacy: PrivacyConfig) -> Arm:
    """The arm with multipliers that spend privacy.epsilon over all its rounds, norms paid; with a
    filter, over the rounds in which a client is expected to be asked."""
    if privacy.epsilon is None:
        raise ValueError("privacy.epsilon is missing")
    if privacy.accounting == "as-printed":
        return _as_printed(arm, privacy)
    asked = arm.rounds
    if privacy.filter:
        asked = privacy.releases or math.ceil(arm.rounds * arm.sampling_rate)
    typed = {name: f"privacy.{name}" for name in ("epsilon", "delta")}
    typed |= {name: f"arm.{arm.name}.{name}" for name in vars(arm.noise)}
    delta, relation, by = privacy.accounted
    with naming(**typed):
        return calibrate(
            arm, privacy.epsilon, delta, relation=relation, accountant=by, most=(asked, asked)
        )


def _as_printed(arm: Arm, privacy: PrivacyConfig) -> Arm:
    """The paper's mistake, to be shown: the multiplier of a trusted server's sum over a secret
    sample of b of n, added by each client, and the norms for nothing."""
    rate = arm.uploads / arm.clients
    noise = calibrate_central(
        privacy.epsilon or 0.0, privacy.delta, arm.rounds, rate, accountant=privacy.accountant
    ).known()
    norm = (arm.norm_multiplier or noise) if arm.releases_norms else None
    return arm.changed(noise_multiplier=noise, norm_multiplier=norm)


def claimed_epsilon(arm: Arm, privacy: PrivacyConfig) -> float | None:
    """What `accounting = "as-printed"` claims, without any guarantee; else None."""
    if privacy.accounting != "as-printed":
        return None
    event = Sampled(arm.uploads / arm.clients, arm.noise_multiplier)
    return _claimed(event, arm.rounds, privacy.delta, privacy.accountant)


@lru_cache(maxsize=16)
def _claimed(event: Sampled, rounds: int, delta: float, accountant: Accountant) -> float:
    return epsilon_of([Rounds(event, rounds)], delta, accountant=accountant).epsilon


def _limited(arm: Arm, privacy: PrivacyConfig) -> Arm:
    """The arm within its limits; a limit that does not pay for one round is refused."""
    limits: dict[str, Any] = {}
    try:
        if privacy.filter and privacy.epsilon is not None:
            limits["budget"] = Budget(privacy.epsilon, privacy.delta, privacy.relation)
            limits["budget"].check(*arm.messages())
        if privacy.max_epsilon is not None:
            limits["rounds"] = most_rounds(arm, privacy.max_epsilon, *privacy.accounted)
    except ValueError as error:
        raise ValueError(f"arm.{arm.name}: privacy.{error}") from None
    return replace(arm, **limits) if limits else arm
