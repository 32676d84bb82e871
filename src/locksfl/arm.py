"""The arm: one method with all its numbers, checked, from the TOML table to the ledger's header.

Unsound combinations are refused here, with the reason, based on what the methods state about
themselves. A compiled round sees the arm's `dials`, an accountant its `sampled_round` or
`client_releases`: derived views that are never entered twice. Letters are those of the design. No
JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from locksfl._tables import typed_value
from locksfl._validate import at_most, count, nearest, one_of, positive, probability, rate
from locksfl.methods import ESTIMATORS, RULES, TRUSTS, Method, cyclic, find_estimator, find_rule
from locksfl.methods.estimators import CONTRIBUTION_LENGTHS, SMALLEST_NORM, Estimator
from locksfl.methods.releases import (
    BIT,
    ClientReleases,
    CyclicRound,
    RatedRound,
    Release,
    SampledRound,
    joint_multiplier,
)
from locksfl.methods.rules import Rule
from locksfl.methods.trusts import Trust

if TYPE_CHECKING:
    from locksfl.privacy.budget import Budget

DEFAULT_FLOOR = 0.1
DEFAULT_LOSS_BOUND = 2.5  # where the data are not known; a little above ln 10 (`loss_bound_of`)
RUNG = 1.1  # two rungs of a ladder differ by this factor, or less
MOST_ROUNDS = 10**6  # nobody waits for more, and an accountant would take minutes
DERIVED: Any = None  # a default that follows from other settings
SETTINGS: dict[str, Any] = {  # of an [[arm]] table; the experiment has the others
    **dict.fromkeys(("name", "rule", "estimator"), str),
    **dict.fromkeys(("cohort", "uploads", "floor", "norm_low"), float),
    "weights": list[float],
    **dict.fromkeys(("noise_multiplier", "norm_multiplier", "clip_norm", "step"), float),
    **dict.fromkeys(("clip_quantile", "clip_rate", "clip_multiplier"), float),
    **dict.fromkeys(("loss_bound", "gate"), float),
    **dict.fromkeys(("lengths", "sampling", "denominator"), str),
    **dict.fromkeys(("separation", "bands"), int),
}
FIXED = (  # settings with one sound value
    (
        "denominator",
        "expected",
        "the realised size depends on who took part, so dividing by it would be a release without "
        "noise",
    ),
)


MULTIPLIERS = ("noise_multiplier", "norm_multiplier", "clip_multiplier")


class Ladder(NamedTuple):
    """The rungs between which the public number of a round chooses, an entry each."""

    shares: Any  # K' / (m C) from which on it is chosen, rising
    noise_multipliers: Any
    largest_probabilities: Any


class Dials(NamedTuple):
    """The numbers of an arm that a compiled round takes as arguments (so it compiles once)."""

    cohort: Any  # m, the expected first sample: n times the sampling rate
    uploads: Any  # b, the uploads wanted per round
    clip_norm: Any  # C
    floor: Any  # lambda, the share of the probability that is equal for all members
    least_norm_sum: Any  # K_low, the least value of the norm sum, fixed beforehand
    noise_multiplier: Any  # z, update noise over the bound S of a contribution
    norm_multiplier: Any  # z_K or z_s, norm noise over its sensitivity
    step: Any  # the server's base step
    largest_probability: Any  # the most that the rule may give a client: what is charged
    shortest: Any = 1.0  # |u_i| / C from which on |g_i| = C: 1 clips, less lengthens too
    count_noise: Any = 0.0  # std of the noise on the released number of uploads
    clip_quantile: Any = 0.5  # gamma, the share of updates that should be within C
    clip_rate: Any = 0.0  # eta_C
    clip_multiplier: Any = 0.0  # noise on the count of those within C, over its sensitivity 1/2
    loss_bound: Any = 1.0  # losses above it count as it
    gate: Any = 1.0  # K' / (m C) above which a gated round is uniform
    sum_noise: Any = 0.0  # std of a server's noise on each sum before the uploads, over sensitivity
    ladder: Any = None  # a Ladder where the noise follows K'

    def at_clip(self, clip_norm: Any, xp: Any) -> Dials:
        """The numbers of a round whose clip norm has been adapted: K_low stays a share of m C."""
        ratio = clip_norm / self.clip_norm
        return self._replace(
            clip_norm=clip_norm,
            least_norm_sum=self.least_norm_sum * ratio,
            shortest=xp.where(self.shortest < 1, xp.maximum(self.shortest / ratio, 1e-30), 1.0),
        )

    def rung(self, public: Any, xp: Any) -> Any:
        """The number of the highest rung that is not above K'."""
        assert self.ladder is not None
        share = xp.asarray(public / (self.cohort * self.clip_norm))
        return xp.maximum(xp.sum(share[..., None] >= self.ladder.shares, axis=-1) - 1, 0)

    def at_public(self, public: Any, xp: Any) -> Dials:
        """The numbers of a round once K' is released: the noise that goes with it, and the most
        that a client may then be given, which is what is charged."""
        if self.ladder is None:
            return self
        rung = self.rung(public, xp)
        return self._replace(
            noise_multiplier=xp.asarray(self.ladder.noise_multipliers)[rung],
            largest_probability=xp.asarray(self.ladder.largest_probabilities)[rung],
            ladder=None,
        )


@dataclass(frozen=True)
class Arm:
    """One method with all its numbers.

    A multiplier of 0 means that it is not known yet (`privacy.calibrate` finds it) or, without
    privacy, that there is no noise. `dropouts`: devices may drop out, so that no client's noise can
    be relied upon. `budget`: of each client, enforced by a filter.
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
    noise_multiplier: float = 0.0
    norm_multiplier: float = 0.0
    budget: Budget | None = None
    dropouts: bool = False
    lengths: str = "clipped"  # of the contributions: at most C, or "equal": all of them C
    clip_quantile: float | None = None  # C adapts to this quantile of the norms, from clip_norm on
    clip_rate: float = 0.2
    clip_multiplier: float = 0.0
    ladder: tuple[float, ...] = ()  # the noise multiplier of every rung, if there are `rungs`
    loss_bound: float = DERIVED  # of rules by loss: larger ones count as it
    gate: float = DERIVED  # of a rule that can be closed: K' / (m C) above which rounds are uniform
    separation: int = 0  # clients take turns, one round in so many (methods/cyclic.py); 0: coins
    bands: int = DERIVED  # of their noise: the separation; 1 is independent noise

    def __post_init__(self) -> None:
        count(clients=self.clients, rounds=self.rounds)
        at_most(MOST_ROUNDS, rounds=self.rounds)
        self._derive()
        named = self._named
        for name in ("clip_norm", "step"):  # cohort and uploads: `_derive`
            positive(**{named(name): getattr(self, name)})
        for name in MULTIPLIERS:
            if getattr(self, name):
                positive(**{named(name): getattr(self, name)})
        self._check_adaptive()
        if self.cohort > self.clients:
            raise ValueError(
                f"{named('cohort')} = {self.cohort:g}: expected at most the {self.clients} clients"
            )
        if self.uploads > self.cohort:
            raise ValueError(
                f"{named('uploads')} = {self.uploads:g}: expected at most the cohort, "
                f"{self.cohort:g}"
            )
        if not 0 <= self.floor < 1:
            raise ValueError(f"{named('floor')} = {self.floor!r}: expected a share in [0, 1)")
        for name in ("norm_low", "gate"):
            rate(**{named(name): getattr(self, name)})
        positive(**{named("loss_bound"): self.loss_bound})
        if self.norm_low < self.uploads / self.cohort:
            raise ValueError(
                f"{named('norm_low')} = {self.norm_low!r}: expected at least uploads / cohort = "
                f"{self.uploads / self.cohort:.4g}, so that no probability exceeds 1"
            )
        one_of(CONTRIBUTION_LENGTHS, **{named("lengths"): self.lengths})
        self._check_weights()
        self._check_ladder()
        for setting, value, problem in self._unsound():
            raise ValueError(f"{named(setting)} = {value}: {problem}")

    def _named(self, setting: str) -> str:
        """A setting as the user typed it."""
        return f"arm.{self.name}.{setting}" if self.name else setting

    def _derive(self) -> None:
        """Fill in the settings that follow from others."""
        one_of(TRUSTS, **{self._named("trust"): self.trust})
        rule, trust = find_rule(self.rule, self._named("rule")), TRUSTS[self.trust]
        if self.separation:
            count(**{self._named("separation"): self.separation})
            self._default("cohort", self.clients / self.separation)
        self._default("bands", self.separation if trust.private else min(1, self.separation))
        if self.bands:
            count(**{self._named("bands"): self.bands})
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
            by_merit = sorted(ESTIMATORS, key=lambda e: _merit(ESTIMATORS[e], rule, trust))
            sound = [e for e in by_merit if not unsound(rule, ESTIMATORS[e], trust)]
            self._default("estimator", (sound or by_merit)[0])
        find_estimator(self.estimator, self._named("estimator"))
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))

    def _default(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _unsound(self) -> list[tuple[str, str, str]]:
        """(setting, its value, the problem): first the methods, then numbers that they forbid."""
        rule, estimator, trust = self.method.parts
        names = {"rule": self.rule, "estimator": self.estimator, "trust": self.trust}
        found = [
            (setting, repr(names[setting]), problem)
            for setting, problem in unsound(rule, estimator, trust, names)
        ]
        found += cyclic.unsound(self)
        if estimator.needs_floor and "floor" in rule.takes and self.floor == 0:
            problem = f"estimator {self.estimator!r} divides by the probability; expected > 0"
            found.append(("floor", "0", problem))
        if self.dropouts and rule.score is not None:
            asked = ", ".join(rule.facts)
            problem = (
                f"a device of a federation is not asked for {asked}; expected a rule by the norm, "
                "or by nothing"
            )
            found.append(("rule", repr(self.rule), problem))
        if rule.everyone and not self.cohort == self.uploads == self.clients:
            problem = (
                f"rule {self.rule!r} asks all {self.clients} clients; leave cohort and uploads out"
            )
            found.append(("cohort", f"{self.cohort:g}", problem))
        if rule.all_clients and not rule.everyone and self.cohort != self.clients:
            problem = f"rule {self.rule!r} scores all {self.clients} clients; leave cohort out"
            found.append(("cohort", f"{self.cohort:g}", problem))
        return found

    def _check_adaptive(self) -> None:
        """Refuse adaptive clipping where the count of updates within C has no one to sum it."""
        named, quantile = self._named, self.clip_quantile
        if quantile is None:
            if self.clip_multiplier:
                raise ValueError(
                    f"{named('clip_multiplier')} = {self.clip_multiplier!r}: only with "
                    "clip_quantile, to which the clip norm adapts"
                )
            return
        probability(**{named("clip_quantile"): quantile})
        positive(**{named("clip_rate"): self.clip_rate})
        if TRUSTS[self.trust].clients_add_noise:
            others = _either(name for name, t in TRUSTS.items() if not t.clients_add_noise)
            raise ValueError(
                f"{named('clip_quantile')} = {quantile!r}: not with trust {self.trust!r}, whose "
                f"clients would each have to release a bit; expected trust {others}"
            )
        if self.dropouts:
            raise ValueError(
                f"{named('clip_quantile')} = {quantile!r}: not in a federation; expected a fixed "
                "clip norm"
            )
        if self.controlled:
            raise ValueError(
                f"{named('clip_quantile')} = {quantile!r}: not with uploads = {self.uploads:g} of "
                f"rule {self.rule!r}, whose rates are charged at one order; leave one of them out"
            )

    def _check_weights(self) -> None:
        where, takes = self._named("weights"), "weights" in self.method.parts[0].takes
        if self.weights is None:
            if takes:
                raise ValueError(
                    f"{where}: missing: rule {self.rule!r} needs one number per client"
                )
            return
        if not takes:
            takers = _either(name for name, rule in RULES.items() if "weights" in rule.takes)
            raise ValueError(f"{where}: only with rule {takers}, not {self.rule!r}")
        values = np.asarray(self.weights)
        sound = np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) <= 1e-6
        if values.shape != (self.clients,) or not sound:
            raise ValueError(
                f"{where}: expected {self.clients} numbers >= 0 that sum to 1, "
                f"got {values.size} that sum to {values.sum():.6g}"
            )

    def _check_ladder(self) -> None:
        object.__setattr__(self, "ladder", tuple(float(z) for z in self.ladder))
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
                and the clip_norm, lengths, step and loss_bound of arms that do not set them.

        Returns:
            The arm, not yet calibrated.
        """
        if not isinstance(table, dict):
            raise ValueError(f"arm = {table!r}: expected a table")
        where = f"arm.{table['name']}" if "name" in table else "arm"
        for key in table:
            if key not in SETTINGS:
                raise ValueError(
                    f"{where}.{key} = {table[key]!r}: unknown setting{nearest(key, SETTINGS)}; "
                    f"known here: {', '.join(SETTINGS)}"
                )
        if "name" not in table:
            raise ValueError("arm.name is missing")
        given = {
            name: typed_value(SETTINGS[name], value, f"{where}.{name}")
            for name, value in table.items()
            if value is not None
        }
        given = cyclic.checked_sampling(given, where, experiment.get("clients", 0))
        for name, only, why in FIXED:
            value = given.pop(name, only)
            if value != only:
                raise ValueError(f"{where}.{name} = {value!r}: expected {only!r}; {why}")
        word = given.get("rule", "uniform")
        rule = find_rule(word, f"{where}.rule")
        for name in ("floor", "norm_low", "norm_multiplier", "loss_bound", "gate"):
            if name in given and not rule.accepts(name):
                raise ValueError(f"{where}.{name} = {given[name]!r}: rule {word!r} takes no {name}")
        if not rule.accepts("loss_bound"):
            experiment.pop("loss_bound", None)
        for name in MULTIPLIERS:
            if name in given:
                positive(**{f"{where}.{name}": given[name]})
        if "clip_rate" in given and (experiment | given).get("clip_quantile") is None:
            raise ValueError(
                f"{where}.clip_rate = {given['clip_rate']!r}: only with clip_quantile, to which "
                "the clip norm adapts"
            )
        return cls(**{**experiment, **given})

    @property
    def method(self) -> Method:
        """Rule, estimator and trust."""
        return Method(self.rule, self.estimator, self.trust)

    @property
    def parts(self) -> tuple[Rule, Estimator, Trust]:
        """The objects behind the three names."""
        return self.method.parts

    @property
    def sampling_rate(self) -> float:
        """q, the probability with which each client joins the cohort."""
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
            return replace(self, norm_low=rung, noise_multiplier=noise, ladder=())
        cohort = min(rung, float(self.clients))
        return replace(self, cohort=cohort, uploads=cohort, noise_multiplier=noise, ladder=())

    def at_public(self, public: float) -> Arm:
        """The arm of a round once K' is released (`Dials.at_public`)."""
        if not (self.noise_follows and self.ladder):
            return self
        return self.at_rung(int(self.dials(float).rung(public, np)))

    @property
    def update_multiplier(self) -> float:
        """Std of the noise on the summed updates over the bound S of one contribution. With a
        count, noise_multiplier is in units of the whole of an upload, which is sqrt(1 + s^2) S
        long."""
        s = self.parts[0].count_share
        if not s or not self.parts[2].server_adds_noise:
            return self.noise_multiplier
        return math.nextafter(self.noise_multiplier * math.hypot(1.0, s), math.inf)

    @property
    def count_noise(self) -> float:
        """Std of the noise on the released number of uploads: that of the update, on a coordinate
        of which an upload is s S. Without noise the count is exact."""
        s = self.parts[0].count_share
        if not s or not self.parts[2].server_adds_noise:
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

    def releases(self) -> tuple[Release, ...]:
        """What one round releases to whom."""
        rule, _, trust = self.parts
        bits = [] if self.clip_quantile is None else [(BIT, self.clip_multiplier or None)]
        return trust.releases(
            self.noise_multiplier or None,
            self.norm_multiplier or None,
            rule.asks if rule.released else None,
            *bits,
        )

    def sampled_round(self) -> SampledRound | RatedRound | CyclicRound:
        """One round as PUBLIC sees it if only sums over a cohort leave the server. Two draws
        with nothing released between them equal one draw with the product of their
        probabilities. What the whole cohort releases, norms and bits, is one Gaussian; if all of it
        uploads, the update is part of that Gaussian too."""
        if self.controlled and not self.ladder:
            raise ValueError(
                f"{self._named('uploads')} = {self.uploads:g}: the noise of every rate is not "
                "known; expected an epsilon, or no uploads (a cohort of one rate)"
            )
        if self.ladder:
            each = (self.at_rung(number).sampled_round() for number in range(len(self.ladder)))
            return RatedRound(tuple(one for one in each if isinstance(one, SampledRound)))
        if self.separation:
            return CyclicRound(self.separation, self._noise("noise_multiplier"))
        noise, p = self._noise("noise_multiplier"), self.largest_probability
        cohort = [self._noise("norm_multiplier")] if self.releases_norms else []
        if self.clip_quantile is not None:
            cohort.append(self._noise("clip_multiplier"))
        if not cohort:
            return SampledRound(self.sampling_rate * p, noise)
        if p == 1 and not self.releases_norms:
            return SampledRound(self.sampling_rate, joint_multiplier(noise, *cohort))
        before = joint_multiplier(*cohort) if len(cohort) > 1 else cohort[0]
        return SampledRound(self.sampling_rate, noise, before, upload_probability=p)

    def client_releases(self, uploads: int, norms: int | None = None) -> ClientReleases:
        """One client's own noisy messages.

        Args:
            uploads: how many updates it sends.
            norms: how many norms it sends, if the rule releases norms; without it, one per upload.
        """
        noise = self._noise("noise_multiplier")
        if not self.releases_norms:
            return ClientReleases(noise, uploads)
        norm = self._noise("norm_multiplier")
        return ClientReleases(noise, uploads, norm, uploads if norms is None else norms)

    def _noise(self, name: str) -> float:
        value: float = getattr(self, name)
        if not value:
            raise ValueError(f"{name} = {value!r}: expected a number > 0 (no noise is a trust)")
        return value

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
        most = _at_most(self.largest_probability, kind)
        return dials._replace(largest_probability=most, ladder=self._rungs_of_dials(kind))

    def _rungs_of_dials(self, kind: Callable[[float], Any]) -> Ladder | None:
        if not (self.noise_follows and self.ladder):
            return None
        each = [self.at_rung(number) for number in range(len(self.ladder))]
        return Ladder(
            np.array([kind(one.norm_low) for one in each]),
            np.array([kind(one.update_multiplier) for one in each]),
            np.array([_at_most(one.largest_probability, kind) for one in each]),
        )

    @property
    def first_clip(self) -> np.float32 | None:
        """The clip norm of the first round, if it is a state; None if it never changes."""
        return None if self.clip_quantile is None else np.float32(self.clip_norm)

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients that correlate the noise of rounds; none if it is independent."""
        bands = min(self.bands, self.rounds)
        return cyclic.strategy(self.rounds, bands) if bands > 1 else ()

    def scaled_weights(self) -> np.ndarray:
        """The public weights times n, as a round takes them; a single 1 if there are none."""
        if self.weights is None:
            return np.ones((), np.float32)
        return np.asarray(self.weights, np.float32) * self.clients

    def warnings(self) -> list[str]:
        """Messages about settings that are sound but may surprise the user."""
        found = []
        if "gate" in self.parts[0].takes and self.norm_low > self.gate:
            found.append(
                f"{self._named('gate')} = {self.gate:g}: below norm_low = {self.norm_low:g}, so "
                "that every round is uniform and norms are paid for in vain"
            )
        if self.weights is None or self.uploads * max(self.weights) <= self.sampling_rate:
            return found
        return [
            *found,
            f"{self._named('weights')}: the largest, {max(self.weights):.4g}, asks for more than "
            f"every round: above cohort / (clients x uploads) = "
            f"{self.sampling_rate / self.uploads:.4g} a weight counts as that",
        ]

    def as_dict(self) -> dict[str, Any]:
        """For the header of a ledger, which holds the budget separately; `from_dict` is the
        inverse."""
        settings = {name: value for name, value in vars(self).items() if name != "budget"}
        if not self.ladder:  # of arms with rungs alone
            del settings["ladder"]
        for name in ("loss_bound", "gate"):
            if name not in self.parts[0].takes:
                del settings[name]
        if not self.separation:  # of turns alone
            del settings["separation"], settings["bands"]
        return {**settings, "stated": self.stated()}

    def stated(self) -> dict[str, Any]:
        """What its methods state and a charge rests on. A ledger records it: a method of a user's
        own may be another one when the ledger is read."""
        share = self.parts[0].count_share
        return {
            "largest_probability": self.largest_probability,
            "releases_norms": self.releases_norms,
            "credited": self.credited,
            **({"count_share": share} if share else {}),
        }

    @classmethod
    def from_dict(cls, header: Mapping[str, Any]) -> Arm:
        """The arm of a ledger's header. A header of version 0.1 has no name, no clip norm and, of
        the weights, only the largest: any others that bring the sum to 1 cost the same."""
        given = dict(header)
        stated = given.pop("stated", None)
        heaviest = given.pop("heaviest", None)
        if heaviest is not None:
            n = given["clients"]
            given["weights"] = (heaviest, *([(1 - heaviest) / max(1, n - 1)] * (n - 1)))
        for multiplier in MULTIPLIERS:
            given[multiplier] = given.get(multiplier) or 0.0
        if not all(math.isfinite(given[m]) for m in MULTIPLIERS):
            raise ValueError("a multiplier is not finite")
        arm = cls(**given)
        if stated is not None and stated != arm.stated():
            raise ValueError(
                f"rule {arm.rule!r} and estimator {arm.estimator!r} no longer state what they did "
                f"when this was written: {stated}, now {arm.stated()}"
            )
        return arm


def _at_most(value: float, kind: Callable[[float], Any]) -> Any:
    """A probability in another type, never above it: nobody uploads more often than is charged."""
    found = kind(value)
    # as Python floats: NumPy would compare in the type of `found`, in which they are equal
    return np.nextafter(found, kind(0.0)) if float(found) > value else found


def loss_bound_of(classes: int) -> float:
    """A little above what a model that knows nothing loses, a guess among the classes: ln(classes).
    (Of next-character models the classes are the characters.)"""
    return round(1.1 * math.log(max(2, classes)), 3)


def _either(names: Iterable[str]) -> str:
    """Names to choose from, in a refusal."""
    return " or ".join(repr(name) for name in names)


def _merit(estimator: Estimator, rule: Rule, trust: Trust) -> tuple[bool, bool]:
    """The order of preference for the default: unbiased first, unless the rule is not; then one
    bound for all, unless the rule gives probabilities that do not follow the norms: one bound would
    be that of the least of them. Also where the rule is the optimum for clients' noise that is
    divided by p, which is noise in units of a bound of its own. Where a cap would bias and there is
    no noise that it keeps small, one that caps nothing."""
    in_vain = rule.cap_can_bind and not trust.private and not estimator.own_bound
    unbiased = estimator.unbiased and not in_vain
    own_bound = rule.jointly or (rule.for_divided_noise and trust.clients_add_noise)
    return unbiased == rule.biased, estimator.own_bound != own_bound


def unsound(
    rule: Rule, estimator: Estimator, trust: Trust, names: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Why these three cannot be combined, based on what they state.

    Args:
        rule, estimator, trust: the methods.
        names: how the user named each of the three, for the messages.

    Returns:
        (setting, problem) for each problem; empty if they are sound together.
    """
    named = names or {"rule": rule.name, "estimator": estimator.name, "trust": trust.name}
    found = []
    if trust.private:
        without = "expected a statement, or a trust without noise"
        if rule.compares and trust.server_adds_noise:
            each = [t.name for t in TRUSTS.values() if t.clients_add_noise]
            found.append(
                (
                    "rule",
                    f"it needs other clients' raw values, and under trust {named['trust']!r} "
                    "their influence is charged to nobody; expected a trust without noise"
                    + "".join(f", or {name!r}, whose clients release theirs" for name in each),
                )
            )
        elif rule.largest_probability is None:
            found.append(
                ("rule", f"it states no largest probability, so it cannot be accounted; {without}")
            )
        if estimator.bound is None:
            found.append(
                (
                    "estimator",
                    f"it states no bound on a contribution, so it cannot be accounted; {without}",
                )
            )
        if trust.guards_server and rule.asks is not None and not rule.released:
            found.append(
                (
                    "rule",
                    f"uploads would depend on a {rule.asks.name} that is not released; under "
                    f"trust {named['trust']!r} expected a rule that releases what it asks for",
                )
            )
    if trust.clients_add_noise and rule.count_share:
        others = _either(name for name, t in TRUSTS.items() if not t.clients_add_noise)
        found.append(
            (
                "rule",
                "it releases a noisy number of uploads, and under trust "
                f"{named['trust']!r} no server adds noise; expected trust {others}",
            )
        )
    if trust.server_adds_noise and estimator.own_bound:
        others = _either(name for name, t in TRUSTS.items() if not t.server_adds_noise)
        found.append(
            (
                "estimator",
                f"not with trust {named['trust']!r} (the noise would have to grow with 1/p on a "
                f"sum); expected trust {others}",
            )
        )
    noised = trust.clients_add_noise and rule.released and not rule.jointly
    if estimator.needs_floor and noised and rule.asks and "floor" not in rule.takes:
        found.append(
            (
                "rule",
                f"a noised {rule.asks.name} may be 0, and estimator {named['estimator']!r} divides "
                "by the probability; expected a rule with a floor",
            )
        )
    if estimator.weighted != ("weights" in rule.takes):
        if estimator.weighted:
            partners = f"rule {_either(n for n, r in RULES.items() if 'weights' in r.takes)}"
        else:
            partners = f"estimator {_either(n for n, e in ESTIMATORS.items() if e.weighted)}"
        problem = f"not with estimator {named['estimator']!r}; expected {partners}"
        found.append(("rule", problem))
    return found
