"""Records of what was released, complete enough to be charged without any other information.

A noise multiplier is always noise std over the zero-out sensitivity (the clip norm for a norm, the
bound S for a contribution). Only the accounting depends on the relation between neighbours:

* "zero-out": one client's contribution is present or absent, the number of clients is public;
* "replace": one client's data is exchanged for any other.

All values are converted to Python floats here, once: dp_accounting 0.6.0 silently charges too
little when a multiplier is an int or a float32.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Literal

from locksfl import _validate

Relation = Literal["zero-out", "replace"]
Accountant = Literal["rdp", "pld"]

Observer = Literal["SERVER", "PUBLIC"]

RELATIONS: tuple[Relation, ...] = ("zero-out", "replace")
ACCOUNTANTS: tuple[Accountant, ...] = ("rdp", "pld")
OBSERVERS: tuple[Observer, ...] = ("SERVER", "PUBLIC")


@dataclass(frozen=True)
class Domain:
    """Where one client's value lies, in units of a bound r: the interval [0, r], or the ball of
    radius r. Sensitivities follow from it, so nobody enters one."""

    name: str
    bound: str  # "C", the clip norm, or "S", the largest contribution
    ball: bool

    def sensitivity(self, relation: Relation) -> float:
        """The largest distance between two neighbours' values, divided by the bound: the distance
        to zero under zero-out, the diameter under replace."""
        _validate.one_of(RELATIONS, relation=relation)
        return 2.0 if self.ball and relation == "replace" else 1.0


NORM = Domain("norm", "C", ball=False)
UPDATE = Domain("update", "S", ball=True)
BIT = Domain("bit", "1/2", ball=True)  # b_i - 1/2: whether an update is within the clip norm


def joint_multiplier(*multipliers: float) -> float:
    """The multiplier of one Gaussian that is worth releases of these from one and the same sample:
    1/z^2 adds up."""
    return sum(float(z) ** -2 for z in multipliers) ** -0.5


@dataclass(frozen=True)
class Release:
    """One value that leaves in a round: who sees it, where it lies, and the noise it carries.

    `noise_multiplier` is std over the zero-out sensitivity; None means that the value is exact.
    `summed`: the noise is on the sum over a secret cohort, not on each client's own message.
    """

    observer: Observer
    domain: Domain
    noise_multiplier: float | None
    summed: bool

    @property
    def what(self) -> str:
        """The name of the value: "norm" or "update"."""
        return self.domain.name

    def mu_squared(self, relation: Relation) -> float:
        """(sensitivity / std)^2 of one message; infinite without noise."""
        if not self.noise_multiplier:
            return math.inf
        return (self.domain.sensitivity(relation) / self.noise_multiplier) ** 2


@dataclass(frozen=True)
class SampledRound:
    """One round in central trust, as the PUBLIC observer sees it.

    Every client joins the secret cohort with probability `sampling_rate`; the sum over the cohort
    is released with Gaussian noise of `noise_multiplier`. With `norm_multiplier`, the sum of norms
    was released first, from the same cohort, and each member then uploaded with a probability of at
    most `upload_probability`, whatever the first release was:

        p = (1 - lambda) b C / K_low + lambda b / m.

    Without `norm_multiplier` the two draws equal one draw with probability sampling_rate *
    upload_probability (uniform sampling: sampling_rate = b/n and nothing else).
    """

    sampling_rate: float
    noise_multiplier: float
    norm_multiplier: float | None = None
    upload_probability: float = 1.0

    def __post_init__(self) -> None:
        rates = ("sampling_rate", "upload_probability")
        for name in rates:
            object.__setattr__(self, name, as_float(name, getattr(self, name)))
            _validate.rate(**{name: getattr(self, name)})
        for name in ("noise_multiplier", "norm_multiplier"):
            value = getattr(self, name)
            if name == "norm_multiplier" and value is None:
                continue
            object.__setattr__(self, name, as_float(name, value))
            _validate.positive(**{name: getattr(self, name)})

    @property
    def rate(self) -> float:
        """The probability of the first draw; without a norm release, of both draws together."""
        if self.norm_multiplier is None:
            return self.sampling_rate * self.upload_probability
        return self.sampling_rate


@dataclass(frozen=True)
class RatedRound:
    """One of several rounds; which one may depend on everything that was released before.

    Rungs may begin with one and the same norm sum over all clients (sampling_rate 1) and be chosen
    by it: it is then a Gaussian that costs the same whatever follows, and the update that follows,
    sampled anew, is a round of its own.

    At any order the RDP of such a round is at most the largest of them, and costs add up whatever
    was chosen (adaptive composition). No loss distribution of one of them dominates the others, so
    there is no PLD.
    """

    rungs: tuple[SampledRound, ...]


@dataclass(frozen=True)
class CyclicRound:
    """One round of a public schedule in central trust, as PUBLIC sees it (methods/cyclic.py).

    A client takes part every `separation` rounds, and the noise, of `noise_multiplier` to one
    upload, may be correlated over as many rounds: one Gaussian mechanism for all of them, which
    costs what independent noise in the rounds of the busiest client would. Nothing is amplified.
    """

    separation: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.count(separation=self.separation)
        noise = as_float("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", noise)
        _validate.positive(noise_multiplier=noise)

    def turns(self, rounds: int) -> int:
        """How often the busiest client takes part in the first so many rounds."""
        return -(-rounds // self.separation)

    def mu_squared(self, rounds: int, relation: Relation) -> float:
        """(sensitivity / std)^2 of all these rounds together."""
        return self.turns(rounds) * (UPDATE.sensitivity(relation) / self.noise_multiplier) ** 2


Round = SampledRound | RatedRound | CyclicRound


def as_coins(event: Round, rounds: int) -> tuple[SampledRound | RatedRound, int]:
    """So many rounds for accountants that compose coins: turns are rounds that ask everybody. To
    be applied before equal rounds of several runs are added up: each run begins a cycle anew."""
    if isinstance(event, CyclicRound):
        return SampledRound(1.0, event.noise_multiplier), event.turns(rounds)
    return event, rounds


def rounds_of(event: SampledRound | RatedRound) -> tuple[SampledRound, ...]:
    """The rounds that an event may be."""
    return event.rungs if isinstance(event, RatedRound) else (event,)


@dataclass(frozen=True)
class ClientReleases:
    """What one client sent to the SERVER in local trust, its own noise added.

    `uploads` contributions with `noise_multiplier` and `norms` norms with `norm_multiplier`. Every
    release is a Gaussian of which only the mean depends on the data, so that all of them together
    are mu-GDP (Dong, Roth and Su 2022, Corollary 3.3), even when each is chosen in view of the ones
    before it.
    """

    noise_multiplier: float
    uploads: int
    norm_multiplier: float | None = None
    norms: int = 0

    def __post_init__(self) -> None:
        for name in ("uploads", "norms"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        object.__setattr__(
            self, "noise_multiplier", as_float("noise_multiplier", self.noise_multiplier)
        )
        _validate.positive(noise_multiplier=self.noise_multiplier)
        if self.norm_multiplier is not None:
            object.__setattr__(
                self, "norm_multiplier", as_float("norm_multiplier", self.norm_multiplier)
            )
            _validate.positive(norm_multiplier=self.norm_multiplier)
        elif self.norms:
            raise ValueError(
                f"norm_multiplier = None: expected a number > 0, because norms = {self.norms}"
            )

    def mu_squared(self, relation: Relation = "zero-out") -> float:
        """Sum over the releases of (sensitivity / std)^2.

        Vectors: sensitivity S under zero-out and 2S under replace. Norms: C under both.
        """
        total = self.uploads * (UPDATE.sensitivity(relation) / self.noise_multiplier) ** 2
        if self.norm_multiplier is not None:
            total += self.norms * (NORM.sensitivity(relation) / self.norm_multiplier) ** 2
        return total


def as_float(name: str, value: Any) -> float:
    """Any real number, including numpy's, as a Python float; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} = {value!r}: expected a number")
    return float(value)


def as_count(name: str, value: Any) -> int:
    """A whole number >= 0 as a Python int; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name} = {value!r}: expected a whole number >= 0")
    return int(value)
