"""The arm: one method with all its numbers, checked.

Unsound combinations are refused here, with the reason (`methods.sound`), based on what the methods
state about themselves. A compiled round sees the arm's `dials`, an accountant its `event` or its
`messages`: derived views that are never entered twice. Letters are those of the design. No JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from locksfl._validate import at_most, count, one_of, positive, rate
from locksfl.methods import SAMPLINGS, TRUSTS, Method, Parts, find_estimator, find_rule, sampling_of
from locksfl.methods.dials import Dials, dials_of
from locksfl.methods.estimators import CONTRIBUTION_LENGTHS
from locksfl.methods.events import Message, Sum
from locksfl.methods.samplings import Sampling
from locksfl.methods.sound import (
    default_estimator,
    unsound_arm,
    unsound_clip,
    unsound_ladder,
    unsound_sizes,
    unsound_weights,
)

if TYPE_CHECKING:
    from locksfl.privacy.budget import Budget

DEFAULT_FLOOR = 0.1
DEFAULT_LOSS_BOUND = 2.5  # where the data are not known; a little above ln 10 (`loss_bound_of`)
RUNG = 1.1  # two rungs of a ladder differ by this factor, or less
MOST_ROUNDS = 10**6  # training would take too long, and accounting takes minutes
DERIVED: Any = None  # a default that follows from other settings
MULTIPLIERS = ("noise_multiplier", "norm_multiplier", "clip_multiplier")


@dataclass(frozen=True)
class Noise:
    """The noise of an arm: what `privacy.calibrate` finds, or what a user has typed.

    Each multiplier is a std over the most that one client can move what is released. None: not
    known (yet), or nothing to add it to. An arm without the first one cannot be charged.
    """

    noise_multiplier: float | None = None  # of the updates; of an arm with rungs, the last of them
    norm_multiplier: float | None = None
    clip_multiplier: float | None = None  # of the count of updates within C
    ladder: tuple[float, ...] = ()  # of the updates, for every rung, if there are `Arm.rungs`

    def __post_init__(self) -> None:
        for name in MULTIPLIERS:  # a file may have 0 for one that is not known
            object.__setattr__(self, name, float(getattr(self, name) or 0.0) or None)
        object.__setattr__(self, "ladder", tuple(map(float, self.ladder)))

    def known(self, name: str = "noise_multiplier") -> float:
        """A multiplier that has to be known by now."""
        if (value := getattr(self, name)) is None:
            raise ValueError(f"{name} is missing: expected a number > 0 (no noise is a trust)")
        return float(value)

    @property
    def numbers(self) -> list[float]:
        """As a checkpoint has it: the multipliers, then the ladder."""
        return [*(getattr(self, name) or 0.0 for name in MULTIPLIERS), *self.ladder]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Noise:
        """The inverse; version 0.1 wrote the first two numbers only."""
        given = dict(zip(MULTIPLIERS, numbers, strict=False))
        return cls(**given, ladder=tuple(numbers[len(MULTIPLIERS) :]))


@dataclass(frozen=True)
class Arm:
    """One method with all its numbers.

    `dropouts`: devices may drop out, so that no client's noise can be relied upon. `budget`: of
    each client, enforced by a filter.
    """

    name: str
    clients: int  # n
    rounds: int  # T
    rule: str = "uniform"
    estimator: str = DERIVED  # the best one that is sound with the rule and the trust
    trust: str = "central"
    cohort: float = DERIVED  # m, expected
    uploads: float = DERIVED  # b, wanted: the cohort
    clip_norm: float = 1.0  # C
    step: float = 1.0  # eta_b, the server's base step
    floor: float = DERIVED  # lambda
    norm_low: float = DERIVED  # K_low as a share of m C
    weights: tuple[float, ...] | None = None  # public, summing to 1
    noise: Noise = Noise()
    budget: Budget | None = None
    dropouts: bool = False
    lengths: str = "clipped"  # of the contributions: at most C, or "equal": all of them C
    clip_quantile: float | None = None  # C adapts to this quantile of the norms, from clip_norm on
    clip_rate: float = 0.2  # eta_C, how fast it adapts
    loss_bound: float = DERIVED  # of rules by loss: larger ones count as it
    gate: float = DERIVED  # of a rule that can be closed: K' / (m C) above which rounds are uniform
    separation: int = 0  # clients take turns, one round in so many (methods/samplings/turns.py)
    bands: int = DERIVED  # rounds over which noise is correlated; 1 is independent noise
    sampling: str = DERIVED  # how a cohort is chosen: turns if there is a separation, else coins

    def __post_init__(self) -> None:
        count(clients=self.clients, rounds=self.rounds)
        at_most(MOST_ROUNDS, rounds=self.rounds)
        self._derive()
        named = self.named
        multipliers = {name: getattr(self.noise, name) for name in MULTIPLIERS}
        numbers = {"clip_norm": self.clip_norm, "step": self.step, **multipliers}
        positive(**{named(name): z for name, z in numbers.items() if z is not None})
        self._refuse(unsound_clip, unsound_sizes)
        rate(**{named(name): getattr(self, name) for name in ("norm_low", "gate")})
        positive(**{named("loss_bound"): self.loss_bound})
        if self.norm_low < (least := self.uploads / self.cohort):
            raise ValueError(
                f"{named('norm_low')} = {self.norm_low!r}: expected at least uploads / cohort = "
                f"{least:.4g}, so that no probability exceeds 1"
            )
        one_of(CONTRIBUTION_LENGTHS, **{named("lengths"): self.lengths})
        self._refuse(unsound_weights, unsound_ladder, unsound_arm)

    def _refuse(self, *checks: Callable[[Arm], Any]) -> None:
        for setting, value, problem in (each for check in checks for each in check(self)):
            raise ValueError(f"{self.named(setting)}{value and f' = {value}'}: {problem}")

    def named(self, setting: str) -> str:
        """A setting as the user typed it, for a refusal."""
        return f"arm.{self.name}.{setting}" if self.name else setting

    def _derive(self) -> None:
        """Fill in the settings that follow from others."""
        one_of(TRUSTS, **{self.named("trust"): self.trust})
        rule, trust = find_rule(self.rule, self.named("rule")), TRUSTS[self.trust]
        if self.sampling is not None:
            one_of(SAMPLINGS, **{self.named("sampling"): self.sampling})
        self._default(sampling=self.scheme.name)
        given = {name: getattr(self, name) for name in self.scheme.takes}
        count(**{self.named(name): value for name, value in given.items() if value is not None})
        self._default(**self.scheme.defaults(self))
        if self.cohort is None and not rule.all_clients:
            raise ValueError(
                f"{self.named('cohort')} is missing: expected the number of clients asked per round"
            )
        self._default(cohort=self.clients)
        self._default(uploads=self.cohort)
        for name in ("cohort", "uploads"):
            positive(**{self.named(name): getattr(self, name)})
            object.__setattr__(self, name, float(getattr(self, name)))
        share = self.uploads / self.cohort
        self._default(
            floor=DEFAULT_FLOOR if "floor" in rule.takes else 0.0,
            norm_low=min(1.0, share) if "norm_low" in rule.takes else 1.0,
            loss_bound=DEFAULT_LOSS_BOUND if "loss_bound" in rule.takes else 1.0,
            gate=1.0,
        )
        if self.estimator is None:
            self._default(estimator=default_estimator(rule, trust))
        find_estimator(self.estimator, self.named("estimator"))
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))

    def _default(self, **settings: Any) -> None:
        for name, value in settings.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls, *named: Any, **settings: Any) -> Arm:
        """An arm of settings as a file or a command spells them: multipliers one by one."""
        settings["noise"] = Noise(**_of_noise(settings))
        return cls(*named, **settings)

    def changed(self, **settings: Any) -> Arm:
        """The arm with other settings, spelled in the same way."""
        return replace(self, noise=replace(self.noise, **_of_noise(settings)), **settings)

    @property
    def noise_multiplier(self) -> float:
        """z, update noise over the bound S of a contribution; 0 without noise."""
        return self.noise.noise_multiplier or 0.0

    @property
    def norm_multiplier(self) -> float:
        """Norm noise over its sensitivity; 0 without noise."""
        return self.noise.norm_multiplier or 0.0

    @property
    def clip_multiplier(self) -> float:
        """Noise on the count of updates within C, over its sensitivity 1/2; 0 without noise."""
        return self.noise.clip_multiplier or 0.0

    @property
    def ladder(self) -> tuple[float, ...]:
        """The noise multiplier of every rung, if each has its own."""
        return self.noise.ladder

    @property
    def method(self) -> Method:
        """Rule, estimator and trust, by name."""
        return Method(self.rule, self.estimator, self.trust)

    @property
    def parts(self) -> Parts:
        """The objects behind the three names."""
        return self.method.parts

    @property
    def scheme(self) -> Sampling:
        """The object behind `sampling`."""
        return sampling_of(vars(self))

    @property
    def sampling_rate(self) -> float:
        """q, the share of all clients that a cohort is expected to be."""
        return self.cohort / self.clients

    @property
    def private(self) -> bool:
        """Whether anybody adds noise."""
        return TRUSTS[self.trust].private

    @property
    def counts(self) -> bool:
        """Whether the number of uploads is released with every sum."""
        return self.parts.rule.count_share > 0

    @property
    def controlled(self) -> bool:
        """Whether the cohort of a round follows the counts released before, so that there are so
        many uploads as are asked for; `cohort` is then the largest."""
        return self.counts and self.uploads < self.cohort

    @property
    def noise_follows(self) -> bool:
        """Whether a round's noise may follow its public number; it does if there is a `ladder`."""
        return self.parts.rule.noise_follows and self.parts.trust.server_adds_noise

    @property
    def rungs(self) -> tuple[float, ...]:
        """A public list between which released numbers choose: of cohorts under rate control, from
        one that gives the wanted uploads if all norms are C to the largest; of K' / (m C) where the
        noise follows it."""
        if self.controlled:
            least, most = self.uploads, self.cohort
        elif self.noise_follows:
            least, most = self.norm_low, 1.0
        else:
            return ()
        steps = math.ceil(math.log(most / least) / math.log(RUNG))
        return tuple(np.geomspace(least, most, steps + 1).tolist())

    def at_rung(self, number: int) -> Arm:
        """The arm whose rounds are those of one rung."""
        rung = self.rungs[number]
        noise = self.ladder[number] if self.ladder else self.noise_multiplier
        cohort = min(rung, float(self.clients))
        sizes = {"norm_low": rung} if self.noise_follows else {"cohort": cohort, "uploads": cohort}
        return self.changed(**sizes, noise_multiplier=noise, ladder=())

    def at_rungs(self) -> tuple[Arm, ...]:
        """The arm of every rung."""
        return tuple(map(self.at_rung, range(len(self.rungs))))

    def at_public(self, public: float) -> Arm:
        """The arm of a round once K' is released (`Dials.at_public`)."""
        if not (self.noise_follows and self.ladder):
            return self
        return self.at_rung(int(self.dials(float).rung(public, np)))

    @property
    def _count_share(self) -> float:
        """s, the share of an upload that is its count, where the server adds noise; else 0."""
        return self.parts.rule.count_share if self.parts.trust.server_adds_noise else 0.0

    @property
    def update_multiplier(self) -> float:
        """Std of the noise on the summed updates over the bound S of one contribution. With a
        count, noise_multiplier is in units of the whole of an upload, which is sqrt(1 + s^2) S
        long."""
        if not (s := self._count_share):
            return self.noise_multiplier
        return math.nextafter(self.noise_multiplier * math.hypot(1.0, s), math.inf)

    @property
    def count_noise(self) -> float:
        """Std of the noise on the released number of uploads: that of the update, on a coordinate
        of which an upload is s S. Without noise the count is exact."""
        if not (s := self._count_share):
            return 0.0
        return math.nextafter(self.noise_multiplier * math.hypot(1.0, s) / s, math.inf)

    @property
    def sum_multiplier(self) -> float:
        """Std of the noise on each released number over its sensitivity. norm_multiplier is that of
        all numbers of a round together: 1 / z^2 adds up, and a server that refines its public
        number releases several, each with so much more noise."""
        refinements = self.parts.rule.refinements
        if not refinements or not self.parts.trust.server_adds_noise:
            return self.norm_multiplier
        return math.nextafter(self.norm_multiplier * math.sqrt(1 + refinements), math.inf)

    @property
    def releases_norms(self) -> bool:
        """Whether the cohort's norms are released before the second sample."""
        return self.parts.rule.released

    @property
    def largest_probability(self) -> float:
        """The largest upload probability that any client can have, whatever the data: the rule
        states it and the round clamps to it. Without a statement (and so without privacy) it is
        1."""
        largest = self.parts.rule.largest_probability
        if largest is None:
            return 1.0
        if not (stated := float(largest(self))) > 0:
            raise ValueError(
                f"{self.named('rule')} = {self.rule!r}: it states a largest probability of "
                f"{stated:g}; expected a number in (0, 1]"
            )
        return min(1.0, stated)

    @property
    def everyone_uploads(self) -> bool:
        """Whether all n clients upload in every round by rule rather than by chance: the rule asks
        for nothing, so that its probability is a constant, and that constant is 1."""
        rule = self.parts.rule
        if rule.asks is not None or self.dropouts or self.sampling_rate < 1:
            return False
        zero, dials = np.float64(0.0), self.dials()
        weights = np.unique(self.scaled_weights())
        certain = (rule.probability(zero, zero, w, dials, np) >= 1.0 for w in weights)
        return self.largest_probability >= 1.0 and all(certain)

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of its update is the mean of the clipped updates. A bound that is
        the same for all can bind if the rule says so, or if what it asks for is noised."""
        rule, estimator, trust = self.parts
        noised = rule.released and trust.clients_add_noise and not rule.jointly
        free = estimator.own_bound or not (rule.cap_can_bind or noised)
        return estimator.unbiased and free and not rule.biased

    @property
    def credited(self) -> bool:
        """Whether PUBLIC, who sees only sums, is charged less because of the noise of the other
        clients in them."""
        _, estimator, trust = self.parts
        return estimator.credited and not estimator.own_bound and trust.clients_add_noise

    def event(self) -> Sum:
        """One round as whoever sees only its sums sees it."""
        if self.controlled and not self.ladder:
            raise ValueError(
                f"{self.named('uploads')} = {self.uploads:g}: the noise of every rate is not "
                "known; expected an epsilon, or no uploads (a cohort of one rate)"
            )
        return self.scheme.event(self)

    def messages(self) -> tuple[Message, Message | None]:
        """One client's own noised update and norm; no norm if the rule releases none."""
        update = Message("update", self.noise.known())
        if not self.releases_norms:
            return update, None
        return update, Message("norm", self.noise.known("norm_multiplier"))

    def dials(self, kind: Callable[[float], Any] = np.float32) -> Dials:
        """The numbers that a round takes as arguments, in the type that it computes with."""
        return dials_of(self, kind)

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients that correlate the noise of rounds; none if it is independent."""
        return self.scheme.strategy(self)

    def scaled_weights(self) -> np.ndarray:
        """The public weights times n, as a round takes them; a single 1 if there are none."""
        if self.weights is None:
            return np.ones((), np.float32)
        return np.asarray(self.weights, np.float32) * self.clients

    def warnings(self) -> list[str]:
        """Messages about settings that are sound but may surprise the user."""
        lines = []
        if "gate" in self.parts.rule.takes and self.norm_low > self.gate:
            lines.append(
                f"{self.named('gate')} = {self.gate:g}: below norm_low = {self.norm_low:g}, so "
                "that every round is uniform and norms are paid for in vain"
            )
        if self.weights and self.uploads * max(self.weights) > self.sampling_rate:
            lines.append(
                f"{self.named('weights')}: the largest, {max(self.weights):.4g}, asks for more "
                "than every round: above cohort / (clients x uploads) = "
                f"{self.sampling_rate / self.uploads:.4g} a weight counts as that"
            )
        return lines


def _of_noise(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of `Noise` out of settings."""
    return {item.name: settings.pop(item.name) for item in fields(Noise) if item.name in settings}


def loss_bound_of(classes: int) -> float:
    """A little above what a model that knows nothing loses, a guess among the classes: ln(classes).
    (Of next-character models the classes are the characters.)"""
    return round(1.1 * math.log(max(2, classes)), 3)
