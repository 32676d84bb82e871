"""The settings of a public run, without the code of the operator's own that they may name.

An arm's rule or estimator may be "package.module:name". It is never imported to read what was
published, since whoever wrote that chose the name: a rule of the program's stands in, one of which
a statement and a page say the same.
"""

from __future__ import annotations

from dataclasses import replace

from locksfl._tables import Record
from locksfl.experiment.config import Config
from locksfl.experiment.record import PublicArm, PublicRun
from locksfl.methods import sampling_of
from locksfl.methods.events import Chosen, SampledTwice

METHODS = ("rule", "estimator")
OF_RULES = (*METHODS, "floor", "norm_low", "norm_multiplier", "loss_bound", "gate", "weights")


def own_names(config: Config) -> list[str]:
    """The rules and estimators that are code of the operator's own."""
    return sorted({word for table in config.arm for word in _own(table)})


def is_own(table: Record) -> bool:
    """Whether an arm has a rule or an estimator of the operator's own."""
    return bool(_own(table))


def _own(table: Record) -> list[str]:
    words = (table.get(part) for part in METHODS)
    return [word for word in words if isinstance(word, str) and ":" in word]


def described(run: PublicRun) -> Config:
    """The settings of a run, with stand-ins."""
    config = run.settings
    if not own_names(config):
        return config
    pairs = zip(config.arm, run.arms, strict=True)
    arms = [_stand_in(*pair, config.clients) if is_own(pair[0]) else pair[0] for pair in pairs]
    return replace(config, arm=arms)


def _stand_in(table: Record, arm: PublicArm, clients: int) -> Record:
    table = {name: value for name, value in table.items() if name not in OF_RULES}
    if arm.noise.ladder:
        events = [event for event, _ in arm.terms["PUBLIC"] if isinstance(event, Chosen)]
        joint = events and isinstance(events[0].choices[0], SampledTwice)
        table["rule"] = "dpis" if joint else "coin"
    if table.get("rule") == "dpis":  # it asks everybody
        table.pop("cohort", None)
    elif sampling_of(table).secret:
        table.setdefault("cohort", clients)
    return table
