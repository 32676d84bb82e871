"""What an accountant has to know of an arm, and nothing else: its rates, its noise, who adds it.

Rates and sensitivities are derived here from cohort, uploads and clamp, for the simulator's plans,
for a ledger on disk and for the flags of `locks privacy` alike. No JAX.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from locksfl import _validate
from locksfl.privacy.events import (
    ClientReleases,
    Release,
    SampledRound,
    round_releases,
)

TRUSTS = ("none", "central", "local")


def largest_by_norm(share: float, floor: float, norm_low: float) -> float:
    """Rule norm's largest probability, that of a norm C beside the least norm sum K_low:
    (1 - lambda) b C / K_low + lambda b / m, where `share` is b / m and `norm_low` K_low / (m C)."""
    return min(1.0, (1 - floor) * share / norm_low + floor * share)


@dataclass(frozen=True)
class Terms:
    """An arm to its accountant. Letters are those of the design."""

    trust: str
    rule: str
    clients: int  # n
    rounds: int  # T
    cohort: float  # m, expected
    uploads: float  # b, wanted
    floor: float = 0.0  # lambda
    norm_low: float = 1.0  # K_low as a share of m C
    noise_multiplier: float | None = None
    norm_multiplier: float | None = None
    estimator: str = "capped"
    heaviest: float | None = None  # the largest public weight, with rule "weights"
    dropouts: bool = False  # devices may be missing: nobody's noise can be counted upon

    def __post_init__(self) -> None:
        _validate.one_of(TRUSTS, trust=self.trust)
        _validate.count(clients=self.clients, rounds=self.rounds)
        _validate.positive(cohort=self.cohort, uploads=self.uploads)
        for name, limit, what in (
            ("cohort", self.clients, "the clients"),
            ("uploads", self.cohort, "the cohort"),
        ):
            if getattr(self, name) > limit:
                raise ValueError(
                    f"{name} = {getattr(self, name):g}: expected at most {what}, {limit:g}"
                )
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor = {self.floor!r}: expected a share in [0, 1)")
        _validate.rate(norm_low=self.norm_low)
        if self.asks_norms and self.norm_low < self.uploads / self.cohort:
            raise ValueError(
                f"norm_low = {self.norm_low!r}: expected at least uploads / cohort = "
                f"{self.uploads / self.cohort:.4g}, so that no probability passes 1"
            )
        if self.trust == "none":
            return
        for name in ("noise_multiplier", "norm_multiplier"):
            value = getattr(self, name)
            if value is not None:
                _validate.positive(**{name: value})

    @property
    def asks_norms(self) -> bool:
        """Whether the cohort is asked for norms."""
        return self.rule == "norm"

    @property
    def sampling_rate(self) -> float:
        """q, the coin of the first sample."""
        return self.cohort / self.clients

    @property
    def largest_probability(self) -> float:
        """The most that any client's second coin can be, whatever the data."""
        share = self.uploads / self.cohort
        if self.asks_norms:
            return largest_by_norm(share, self.floor, self.norm_low)
        if self.heaviest is not None:
            return min(1.0, self.uploads * self.heaviest / self.sampling_rate)
        if self.rule in ("uniform", "full"):
            return share
        raise ValueError(f"rule = {self.rule!r}: its largest probability is not known here")

    @property
    def everyone_uploads(self) -> bool:
        """Whether all n clients upload in every round, by rule and not by luck."""
        everyone = self.uploads == self.cohort == self.clients
        return self.rule in ("uniform", "full") and everyone and not self.dropouts

    @property
    def equal_noises(self) -> bool:
        """Whether all uploaders of a round add noise of one std: what the credit rests on."""
        return self.estimator == "capped"

    def releases(self) -> tuple[Release, ...]:
        """What one round releases to whom."""
        return round_releases(
            self.trust, self.noise_multiplier, self.norm_multiplier, self.asks_norms
        )

    def sampled_round(self) -> SampledRound:
        """What PUBLIC sees of one round in central trust. Two coins with nothing released between
        them are one coin of their product."""
        noise = _given(noise_multiplier=self.noise_multiplier)
        if self.asks_norms:
            return SampledRound(
                self.sampling_rate,
                noise,
                norm_multiplier=_given(norm_multiplier=self.norm_multiplier),
                upload_probability=self.largest_probability,
            )
        return SampledRound(self.sampling_rate * self.largest_probability, noise)

    def client_releases(self, uploads: int, norms: int | None = None) -> ClientReleases:
        """One client's messages in local trust: so many uploads, and a norm with each, or more."""
        noise = _given(noise_multiplier=self.noise_multiplier)
        if not self.asks_norms:
            return ClientReleases(noise, uploads)
        norm = _given(norm_multiplier=self.norm_multiplier)
        return ClientReleases(noise, uploads, norm, uploads if norms is None else norms)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def delta_warning(delta: float, clients: int) -> str | None:
    """Why this delta protects nobody in particular, or None."""
    if delta < 1 / clients:
        return None
    return (
        f"warning: delta = {delta:g} is not below 1 / clients = {1 / clients:g}: publishing one "
        "client in full, drawn at random, would satisfy it; expected much less"
    )


def _given(**setting: float | None) -> float:
    ((name, value),) = setting.items()
    if value is None or value == 0:
        raise ValueError(f"{name} = {value!r}: expected a number > 0 (no noise is trust 'none')")
    return value
