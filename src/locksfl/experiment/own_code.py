"""The settings of a public run, without the code of the operator's own that they may name.

An arm's rule or estimator may be "package.module:name". It is never imported to read what was
published, since whoever wrote that chose the name: a rule of the program's stands in, one of which
a statement and a page say the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.experiment.arm_config import OF_SOME_RULES, ArmConfig
from locksfl.experiment.config import Config
from locksfl.experiment.record import PublicArm, PublicRun
from locksfl.methods import sampling_of
from locksfl.methods.events import Chosen, SampledTwice


def own_names(config: Config) -> list[str]:
    """The rules and estimators that are code of the operator's own."""
    return sorted({word for arm in config.arm for word in _own(arm)})


def is_own(arm: ArmConfig) -> bool:
    """Whether an arm has a rule or an estimator of the operator's own."""
    return bool(_own(arm))


def _own(arm: ArmConfig) -> list[str]:
    return [word for word in (arm.rule, arm.estimator) if word is not None and ":" in word]


def described(run: PublicRun) -> Config:
    """The settings of a run, with stand-ins."""
    config = run.settings
    if not own_names(config):
        return config
    pairs = zip(config.arm, run.arms, strict=True)
    arms = [_stand_in(*pair, config.clients) if is_own(pair[0]) else pair[0] for pair in pairs]
    return replace(config, arm=arms)


def _stand_in(arm: ArmConfig, played: PublicArm, clients: int) -> ArmConfig:
    rule, cohort, joint = None, arm.cohort, False
    if played.noise.ladder:
        events = [event for event, _ in played.terms["PUBLIC"] if isinstance(event, Chosen)]
        joint = bool(events) and isinstance(events[0].choices[0], SampledTwice)
        rule = "dpis" if joint else "coin"
    if joint:  # it asks everybody
        cohort = None
    elif cohort is None and sampling_of(arm.given()).secret:
        cohort = clients
    without: dict[str, Any] = dict.fromkeys(("estimator", "weights", *OF_SOME_RULES))
    return replace(arm, rule=rule, cohort=cohort, **without)
