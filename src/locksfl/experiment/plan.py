"""The arms of an experiment, with the noise and the limits that its privacy settings ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from locksfl._validate import naming
from locksfl.arm import MULTIPLIERS, Arm
from locksfl.experiment.config import Config, PrivacyConfig
from locksfl.methods.releases import Accountant, SampledRound
from locksfl.privacy import Budget, calibrate, calibrate_central, central_epsilon, most_rounds


def known_noise(arm: Arm) -> list[float]:
    """The noise of an arm as `plan_arms` takes it: its MULTIPLIERS, then the ladder."""
    return [*(getattr(arm, name) for name in MULTIPLIERS), *arm.ladder]


def _known(arm: Arm, noise: Sequence[float]) -> Arm:
    """The inverse; version 0.1 wrote the first two numbers only."""
    known: dict[str, Any] = dict(zip(MULTIPLIERS, noise, strict=False))
    return replace(arm, **known, ladder=tuple(noise[len(MULTIPLIERS) :]))


def plan_arms(config: Config, multipliers: Sequence[Sequence[float]] | None = None) -> list[Arm]:
    """Every arm of an experiment, ready to run.

    Args:
        config: the experiment.
        multipliers: of each arm, in the order of MULTIPLIERS, and its ladder if it has one, where
            they are known already: a run that goes on.

    Returns:
        The arms with the noise that their epsilon asks for, or with the multipliers given; with
        the budget of their clients, and the rounds that the accountant allows.
    """
    privacy = config.privacy
    arms = config.arms()
    for arm in arms:
        privacy.check_noise(arm)
    if multipliers is not None:
        arms = [_known(arm, each) for arm, each in zip(arms, multipliers, strict=True)]
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
    typed |= {name: f"arm.{arm.name}.{name}" for name in MULTIPLIERS}
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
    ).noise_multiplier
    norm = (arm.norm_multiplier or noise) if arm.releases_norms else 0.0
    return replace(arm, noise_multiplier=noise, norm_multiplier=norm)


def claimed_epsilon(arm: Arm, privacy: PrivacyConfig) -> float | None:
    """What `accounting = "as-printed"` claims, without any guarantee; else None."""
    if privacy.accounting != "as-printed":
        return None
    event = SampledRound(arm.uploads / arm.clients, arm.noise_multiplier)
    return _claimed(event, arm.rounds, privacy.delta, privacy.accountant)


@lru_cache(maxsize=16)
def _claimed(event: SampledRound, rounds: int, delta: float, accountant: Accountant) -> float:
    return central_epsilon([(event, rounds)], delta, accountant=accountant)


def _limited(arm: Arm, privacy: PrivacyConfig) -> Arm:
    """The arm within its limits; a limit that does not pay for one round is refused."""
    limits: dict[str, Any] = {}
    try:
        if privacy.filter and privacy.epsilon is not None:
            limits["budget"] = Budget(privacy.epsilon, privacy.delta, privacy.relation)
            limits["budget"].check(arm)
        if privacy.max_epsilon is not None:
            limits["rounds"] = most_rounds(arm, privacy.max_epsilon, *privacy.accounted)
    except ValueError as error:
        raise ValueError(f"arm.{arm.name}: privacy.{error}") from None
    return replace(arm, **limits)
