"""The arms that are replayed: whatever the lists of the program hold and an arm accepts."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.methods import ESTIMATORS, RULES, SAMPLINGS, TRUSTS, find_rule

CLIENTS = 20
PLAIN = "fixed clip"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "adaptive clip": {"clip_quantile": 0.5, "clip_multiplier": 2.0},
    "equal lengths": {"lengths": "equal"},
}


def arm_of(rule: str, estimator: str | None, trust: str, sampling: str, **more: Any) -> Arm | None:
    """The arm with the settings that its rule takes; None if it is refused."""
    known = find_rule(rule)
    given = {"norm_low": 0.8, "weights": tuple((1 + np.arange(CLIENTS) % 3) / 39)}
    table = {"name": "replayed", "rule": rule, "noise_multiplier": 1.3, "sampling": sampling}
    table |= {name: value for name, value in given.items() if name in known.takes}
    table |= {"estimator": estimator} if estimator else {}
    table |= {} if known.all_clients else {"cohort": CLIENTS / 4}
    table |= {"norm_multiplier": 1.7} if known.released else {}
    for uploads in ({"uploads": 3.0}, {}):
        if uploads and known.count_share:  # it would be an arm of several rates
            continue
        with contextlib.suppress(ValueError):
            arm = ArmConfig(**table | uploads).arm(CLIENTS, trust=trust, rounds=8, **more)
            if arm.noise_follows:
                arm = arm.changed(ladder=tuple(np.linspace(2, 1.3, len(arm.rungs))))
            return arm
    return None


def cases(**more: Any) -> dict[tuple[str, ...], Arm]:
    """Every private combination that an arm accepts, and the variants of the default estimator."""
    found = {}
    for rule, trust, sampling in itertools.product(RULES, TRUSTS, SAMPLINGS):
        each = [(estimator, PLAIN) for estimator in ESTIMATORS]
        each += [(None, variant) for variant in VARIANTS if variant != PLAIN]
        for estimator, variant in each if TRUSTS[trust].private else ():
            arm = arm_of(rule, estimator, trust, sampling, **VARIANTS[variant], **more)
            if arm is not None:
                found[rule, arm.estimator, trust, sampling, variant] = arm
    return found


def rows(found: dict[tuple[str, ...], Arm], sources: tuple[str, ...] = ("",)) -> list[Any]:
    """Parameters of a test: each case with each source. CI plays one of each rule, another kind
    for the next rule; the others are `long`."""
    seen: dict[str, list[Any]] = {}
    for case in found:
        seen.setdefault(case[0], []).extend((*case, source) for source in sources)
    first = {each[number % len(each)] for number, each in enumerate(seen.values())}
    return [
        pytest.param(
            found[case[:-1]], case[-1], id="-".join(filter(None, case)),
            marks=() if case in first else pytest.mark.long,
        )
        for each in seen.values()
        for case in each
    ]  # fmt: skip
