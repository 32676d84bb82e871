"""The arm: one method with all its numbers, checked, from the TOML table to a round.

Unsound combinations are refused here, with the reason, based on what the methods state about
themselves. A compiled round sees the arm's `dials`, an accountant its `event` or its
`messages`: derived views that are never entered twice. Letters are those of the design. No
JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from locksfl._tables import refuse_unknown, typed_value
from locksfl._validate import at_most, count, one_of, positive, probability, rate
from locksfl.methods import (
    RULES,
    SAMPLINGS,
    TRUSTS,
    Method,
    find_estimator,
    find_rule,
    sampling_of,
    typed_sampling,
)
from locksfl.methods.dials import Dials, Ladder, not_above
from locksfl.methods.estimators import CONTRIBUTION_LENGTHS, SMALLEST_NORM, Estimator
from locksfl.methods.events import Message, Sum
from locksfl.methods.rules import Rule
from locksfl.methods.samplings import Sampling
from locksfl.methods.sound import default_estimator, either, trusts_with, unsound
from locksfl.methods.trusts import Trust

if TYPE_CHECKING:
    from locksfl.privacy.budget import Budget

DEFAULT_FLOOR = 0.1
DEFAULT_LOSS_BOUND = 2.5  # where the data are not known; a little above ln 10 (`loss_bound_of`)
RUNG = 1.1  # two rungs of a ladder differ by this factor, or less
MOST_ROUNDS = 10**6  # nobody waits for more, and an accountant would take minutes
DERIVED: Any = None  # a default that follows from other settings
Problem = tuple[str, str, str]  # a setting, its value, and what is wrong with it
SETTINGS: dict[str, Any] = {  # of an [[arm]] table; the experiment has the others
    **dict.fromkeys(("name", "rule", "estimator"), str),
    **dict.fromkeys(("cohort", "uploads", "floor", "norm_low"), float),
    "weights": list[float],
    **dict.fromkeys(("noise_multiplier", "norm_multiplier", "clip_norm", "step"), float),
    **dict.fromkeys(("clip_quantile", "clip_rate", "clip_multiplier"), float),
    **dict.fromkeys(("loss_bound", "gate"), float),
    **dict.fromkeys(("lengths", "sampling"), str),
    **dict.fromkeys(("separation", "bands"), int),
}
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
    step: float = 1.0
    floor: float = DERIVED  # lambda
    norm_low: float = DERIVED  # K_low as a share of m C
    weights: tuple[float, ...] | None = None  # public, summing to 1
    noise: Noise = Noise()
    budget: Budget | None = None
    dropouts: bool = False
    lengths: str = "clipped"  # of the contributions: at most C, or "equal": all of them C
    clip_quantile: float | None = None  # C adapts to this quantile of the norms, from clip_norm on
    clip_rate: float = 0.2
    loss_bound: float = DERIVED  # of rules by loss: larger ones count as it
    gate: float = DERIVED  # of a rule that can be closed: K' / (m C) above which rounds are uniform
    separation: int = 0  # clients take turns, one round in so many (methods/samplings/turns.py)
    bands: int = DERIVED  # rounds over which noise is correlated; 1 is independent noise
    sampling: str = DERIVED  # how a cohort is chosen: turns if there is a separation, else coins

    def __post_init__(self) -> None:
        count(clients=self.clients, rounds=self.rounds)
        at_most(MOST_ROUNDS, rounds=self.rounds)
        self._derive()
        named = self._named
        for name in ("clip_norm", "step"):  # cohort and uploads: `_derive`
            positive(**{named(name): getattr(self, name)})
        multipliers = {name: getattr(self.noise, name) for name in MULTIPLIERS}
        positive(**{named(name): z for name, z in multipliers.items() if z is not None})
        self._refuse(self._unsound_clip())
        self._refuse(self._unsound_sizes())
        for name in ("norm_low", "gate"):
            rate(**{named(name): getattr(self, name)})
        positive(**{named("loss_bound"): self.loss_bound})
        if self.norm_low < (least := self.uploads / self.cohort):
            problem = f"expected at least uploads / cohort = {least:.4g}, so that no probability"
            self._refuse([("norm_low", repr(self.norm_low), f"{problem} exceeds 1")])
        one_of(CONTRIBUTION_LENGTHS, **{named("lengths"): self.lengths})
        self._check_weights()
        self._check_ladder()
        self._refuse(self._unsound())

    def _refuse(self, problems: Iterable[Problem]) -> None:
        for setting, value, problem in problems:
            raise ValueError(f"{self._named(setting)} = {value}: {problem}")

    def _named(self, setting: str) -> str:
        """A setting as the user typed it."""
        return f"arm.{self.name}.{setting}" if self.name else setting

    def _derive(self) -> None:
        """Fill in the settings that follow from others."""
        one_of(TRUSTS, **{self._named("trust"): self.trust})
        rule, trust = find_rule(self.rule, self._named("rule")), TRUSTS[self.trust]
        if self.sampling is not None:
            one_of(SAMPLINGS, **{self._named("sampling"): self.sampling})
        self._default("sampling", self.scheme.name)
        given = {name: getattr(self, name) for name in self.scheme.takes}
        count(**{self._named(name): value for name, value in given.items() if value is not None})
        for name, value in self.scheme.defaults(self).items():
            self._default(name, value)
        if self.cohort is None and not rule.all_clients:
            raise ValueError(
                f"{self._named('cohort')} is missing: expected the number of clients asked per "
                "round"
            )
        self._default("cohort", self.clients)
        self._default("uploads", self.cohort)
        for name in ("cohort", "uploads"):
            positive(**{self._named(name): getattr(self, name)})
            object.__setattr__(self, name, float(getattr(self, name)))
        share = self.uploads / self.cohort
        self._default("floor", DEFAULT_FLOOR if "floor" in rule.takes else 0.0)
        self._default("norm_low", min(1.0, share) if "norm_low" in rule.takes else 1.0)
        self._default("loss_bound", DEFAULT_LOSS_BOUND if "loss_bound" in rule.takes else 1.0)
        self._default("gate", 1.0)
        if self.estimator is None:
            self._default("estimator", default_estimator(rule, trust))
        find_estimator(self.estimator, self._named("estimator"))
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))

    def _default(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _unsound(self) -> Iterator[Problem]:
        """First the methods, then numbers that they forbid."""
        rule, estimator, trust = self.method.parts
        names = {"rule": self.rule, "estimator": self.estimator, "trust": self.trust}
        for setting, problem in unsound(rule, estimator, trust, names):
            yield setting, repr(names[setting]), problem
        yield from self.scheme.unsound(self)
        if estimator.needs_floor and "floor" in rule.takes and self.floor == 0:
            problem = f"estimator {self.estimator!r} divides by the probability; expected > 0"
            yield "floor", "0", problem
        if self.dropouts and rule.score is not None:
            problem = (
                f"a device of a federation is not asked for {', '.join(rule.facts)}; expected a "
                "rule by the norm, or by nothing"
            )
            yield "rule", repr(self.rule), problem
        if rule.everyone and not self.cohort == self.uploads == self.clients:
            problem = (
                f"rule {self.rule!r} asks all {self.clients} clients; leave cohort and uploads out"
            )
            yield "cohort", f"{self.cohort:g}", problem
        if rule.all_clients and not rule.everyone and self.cohort != self.clients:
            problem = f"rule {self.rule!r} scores all {self.clients} clients; leave cohort out"
            yield "cohort", f"{self.cohort:g}", problem

    def _unsound_sizes(self) -> Iterator[Problem]:
        if self.cohort > self.clients:
            yield "cohort", f"{self.cohort:g}", f"expected at most the {self.clients} clients"
        if self.uploads > self.cohort:
            yield "uploads", f"{self.uploads:g}", f"expected at most the cohort, {self.cohort:g}"
        if not 0 <= self.floor < 1:
            yield "floor", repr(self.floor), "expected a share in [0, 1)"

    def _unsound_clip(self) -> Iterator[Problem]:
        """Adaptive clipping where the count of updates within C has no one to sum it."""
        quantile, where = self.clip_quantile, "clip_quantile"
        if quantile is None:
            if self.clip_multiplier:
                problem = "only with clip_quantile, to which the clip norm adapts"
                yield "clip_multiplier", repr(self.clip_multiplier), problem
            return
        probability(**{self._named(where): quantile})
        positive(**{self._named("clip_rate"): self.clip_rate})
        if TRUSTS[self.trust].clients_add_noise:
            problem = (
                f"not with trust {self.trust!r}, whose clients would each have to release a bit; "
                f"expected trust {trusts_with('clients_add_noise', False)}"
            )
            yield where, repr(quantile), problem
        if self.dropouts:
            yield where, repr(quantile), "not in a federation; expected a fixed clip norm"
        if self.controlled:
            problem = (
                f"not with uploads = {self.uploads:g} of rule {self.rule!r}, whose rates are "
                "charged at one order; leave one of them out"
            )
            yield where, repr(quantile), problem

    def _check_weights(self) -> None:
        where, takes = self._named("weights"), "weights" in self.method.parts[0].takes
        if self.weights is None:
            if takes:
                raise ValueError(
                    f"{where}: missing: rule {self.rule!r} needs one number per client"
                )
            return
        if not takes:
            takers = either(name for name, rule in RULES.items() if "weights" in rule.takes)
            raise ValueError(f"{where}: only with rule {takers}, not {self.rule!r}")
        values = np.asarray(self.weights)
        sound = np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) <= 1e-6
        if values.shape != (self.clients,) or not sound:
            raise ValueError(
                f"{where}: expected {self.clients} numbers >= 0 that sum to 1, "
                f"got {values.size} that sum to {values.sum():.6g}"
            )

    def _check_ladder(self) -> None:
        if not self.ladder:
            return
        sound = all(math.isfinite(z) and z > 0 for z in self.ladder)
        if len(self.ladder) != len(self.rungs) or not sound:
            raise ValueError(
                f"{self._named('ladder')}: {len(self.ladder)} noise multipliers; expected "
                f"{len(self.rungs)} numbers > 0, as many as there are rungs"
            )

    @classmethod
    def from_table(cls, table: Mapping[str, Any], **experiment: Any) -> Arm:
        """The arm of an [[arm]] table.

        Args:
            table: the settings as given; unknown ones and those of other rules are refused.
            experiment: what the experiment fixes for all arms: trust, clients, rounds, dropouts,
                and what holds for arms that do not set it: clip_norm, lengths, clip_quantile,
                clip_rate, step, loss_bound. None is a default.

        Returns:
            The arm, not yet calibrated.
        """
        if not isinstance(table, dict):
            raise ValueError(f"arm = {table!r}: expected a table")
        where = f"arm.{table['name']}" if "name" in table else "arm"
        if table.get("denominator") == "expected":  # files of version 0.1 spell out the only value
            table = {name: value for name, value in table.items() if name != "denominator"}
        refuse_unknown(table, SETTINGS, where)
        if "name" not in table:
            raise ValueError("arm.name is missing")
        given = {
            name: typed_value(SETTINGS[name], value, f"{where}.{name}")
            for name, value in table.items()
            if value is not None
        }
        given = typed_sampling(given, where, experiment.get("clients", 0))
        word = given.get("rule", "uniform")
        rule = find_rule(word, f"{where}.rule")
        for name in ("floor", "norm_low", "norm_multiplier", "loss_bound", "gate"):
            if name in given and not rule.accepts(name):
                raise ValueError(f"{where}.{name} = {given[name]!r}: rule {word!r} takes no {name}")
        if not rule.accepts("loss_bound"):
            experiment.pop("loss_bound", None)
        positive(**{f"{where}.{name}": given[name] for name in MULTIPLIERS if name in given})
        settings = {n: value for n, value in (experiment | given).items() if value is not None}
        if "clip_rate" in given and "clip_quantile" not in settings:
            raise ValueError(
                f"{where}.clip_rate = {given['clip_rate']!r}: only with clip_quantile, to which "
                "the clip norm adapts"
            )
        return cls.of(**settings)

    @classmethod
    def of(cls, *named: Any, **settings: Any) -> Arm:
        """An arm of settings as a file or a command spells them: multipliers one by one."""
        settings["noise"] = Noise(**_of_noise(settings))
        return cls(*named, **settings)

    def changed(self, **settings: Any) -> Arm:
        """The arm with other settings, spelled in the same way."""
        settings["noise"] = replace(self.noise, **_of_noise(settings))
        return replace(self, **settings)

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
        """Rule, estimator and trust."""
        return Method(self.rule, self.estimator, self.trust)

    @property
    def parts(self) -> tuple[Rule, Estimator, Trust]:
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
        return self.parts[0].count_share > 0

    @property
    def controlled(self) -> bool:
        """Whether the cohort of a round follows the counts released before, so that there are so
        many uploads as are asked for; `cohort` is then the largest."""
        return self.counts and self.uploads < self.cohort

    @property
    def noise_follows(self) -> bool:
        """Whether a round's noise may follow its public number; it does if there is a `ladder`."""
        rule, _, trust = self.parts
        return rule.noise_follows and trust.server_adds_noise

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
        if self.noise_follows:
            return self.changed(norm_low=rung, noise_multiplier=noise, ladder=())
        cohort = min(rung, float(self.clients))
        return self.changed(cohort=cohort, uploads=cohort, noise_multiplier=noise, ladder=())

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
        rule, _, trust = self.parts
        return rule.count_share if trust.server_adds_noise else 0.0

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
        rule, _, trust = self.parts
        if not rule.refinements or not trust.server_adds_noise:
            return self.norm_multiplier
        return math.nextafter(self.norm_multiplier * math.sqrt(1 + rule.refinements), math.inf)

    @property
    def releases_norms(self) -> bool:
        """Whether the cohort's norms are released before the second sample."""
        return self.parts[0].released

    @property
    def largest_probability(self) -> float:
        """The largest upload probability that any client can have, whatever the data: the rule
        states it and the round clamps to it. Without a statement (and so without privacy) it is
        1."""
        largest = self.parts[0].largest_probability
        if largest is None:
            return 1.0
        if not (stated := float(largest(self))) > 0:
            raise ValueError(
                f"{self._named('rule')} = {self.rule!r}: it states a largest probability of "
                f"{stated:g}; expected a number in (0, 1]"
            )
        return min(1.0, stated)

    @property
    def everyone_uploads(self) -> bool:
        """Whether all n clients upload in every round by rule rather than by chance: the rule asks
        for nothing, so that its probability is a constant, and that constant is 1."""
        rule = self.parts[0]
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
                f"{self._named('uploads')} = {self.uploads:g}: the noise of every rate is not "
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
        """The numbers that a round takes as arguments.

        Args:
            kind: converts each number to the type that the round computes with.
        """
        values = (
            self.cohort,
            self.uploads,
            self.clip_norm,
            self.floor,
            self.norm_low * self.cohort * self.clip_norm,
            self.update_multiplier,
            self.sum_multiplier,
            self.step,
            self.largest_probability,
            1.0 if self.lengths == "clipped" else max(SMALLEST_NORM / self.clip_norm, 1e-30),
            self.count_noise,
            self.clip_quantile or 0.5,
            self.clip_rate,
            self.clip_multiplier,
            self.loss_bound,
            self.gate,
            self.sum_multiplier if self.parts[2].server_adds_noise else 0.0,
        )
        dials = Dials(*(kind(value) for value in values))
        most = not_above(self.largest_probability, kind)
        return dials._replace(largest_probability=most, ladder=self._rungs_of_dials(kind))

    def _rungs_of_dials(self, kind: Callable[[float], Any]) -> Ladder | None:
        if not (self.noise_follows and self.ladder):
            return None
        each = self.at_rungs()
        return Ladder(
            np.array([kind(one.norm_low) for one in each]),
            np.array([kind(one.update_multiplier) for one in each]),
            np.array([not_above(one.largest_probability, kind) for one in each]),
        )

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
        if "gate" in self.parts[0].takes and self.norm_low > self.gate:
            lines.append(
                f"{self._named('gate')} = {self.gate:g}: below norm_low = {self.norm_low:g}, so "
                "that every round is uniform and norms are paid for in vain"
            )
        if self.weights and self.uploads * max(self.weights) > self.sampling_rate:
            lines.append(
                f"{self._named('weights')}: the largest, {max(self.weights):.4g}, asks for more "
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
