"""An [[arm]] table of an experiment's file: what was typed, and the arm that it describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from locksfl._tables import Settings, hints_of, refuse_unknown, typed_value
from locksfl._validate import positive
from locksfl.arm import MULTIPLIERS, Arm
from locksfl.methods import find_rule, typed_sampling

Number = int | float  # as it was typed: an experiment is known by a hash of its settings
OF_SOME_RULES = ("floor", "norm_low", "norm_multiplier", "loss_bound", "gate")


@dataclass(frozen=True)
class ArmConfig(Settings, where="arm", public=True):
    """The settings of one arm as they were typed; `arm.Arm` says what each of them is."""

    name: str
    rule: str | None = None
    estimator: str | None = None
    cohort: Number | None = None
    uploads: Number | None = None
    floor: Number | None = None
    norm_low: Number | None = None
    weights: list[Number] | None = None
    noise_multiplier: Number | None = None
    norm_multiplier: Number | None = None
    clip_norm: Number | None = None
    step: Number | None = None
    clip_quantile: Number | None = None
    clip_rate: Number | None = None
    clip_multiplier: Number | None = None
    loss_bound: Number | None = None
    gate: Number | None = None
    lengths: str | None = None
    sampling: str | None = None
    separation: int | None = None
    bands: int | None = None
    denominator: str | None = None  # files of version 0.1 spell out the only value, "expected"

    def check(self) -> None:
        """Refuse any other denominator: there is no such setting any more."""
        if self.denominator not in (None, "expected"):
            table = {"denominator": self.denominator}
            refuse_unknown(table, SETTINGS, f"arm.{self.name}")

    def arm(self, clients: int, **experiment: Any) -> Arm:
        """The arm, not yet calibrated.

        Args:
            clients: n.
            experiment: what the experiment fixes for all arms (trust, rounds, dropouts), and what
                holds for arms that do not set it: clip_norm, lengths, clip_quantile, clip_rate,
                step, loss_bound. None is a default.
        """
        where, given = f"arm.{self.name}", self._numbers()
        given |= typed_sampling(given, where, self.cohort, clients)
        word = self.rule or "uniform"
        rule = find_rule(word, f"{where}.rule")
        for name in OF_SOME_RULES:
            if name in given and not rule.accepts(name):
                raise ValueError(f"{where}.{name} = {given[name]!r}: rule {word!r} takes no {name}")
        if not rule.accepts("loss_bound"):
            experiment.pop("loss_bound", None)
        positive(**{f"{where}.{name}": given[name] for name in MULTIPLIERS if name in given})
        shared = {name: value for name, value in experiment.items() if value is not None}
        if self.clip_rate is not None and "clip_quantile" not in shared | given:
            raise ValueError(
                f"{where}.clip_rate = {given['clip_rate']!r}: only with clip_quantile, to which "
                "the clip norm adapts"
            )
        return Arm.of(clients=clients, **shared | given)

    def _numbers(self) -> dict[str, Any]:
        """What was typed, whole numbers as the floats that they stand for."""
        given = {name: value for name, value in self.given().items() if name != "denominator"}
        if self.weights is not None:
            given["weights"] = list(map(float, self.weights))
        kept = ("separation", "bands")
        whole = (name for name, v in given.items() if isinstance(v, int) and name not in kept)
        where = f"arm.{self.name}"  # a whole number may be one that no float holds
        return given | {n: typed_value(float, given[n], f"{where}.{n}") for n in whole}


SETTINGS = {name: hint for name, hint in hints_of(ArmConfig).items() if name != "denominator"}
